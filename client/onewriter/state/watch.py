"""Watches: bounded streams of a state's changes, which end with an error if the reader is too slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from onewriter._errors import Closed, OnewriterError
from onewriter._signal import Signal
from onewriter.state.errors import WatchOverflow
from onewriter.state.fold import AppliedWrite

Raw = TypeVar("Raw")
C = TypeVar("C")


class Watched(Protocol):
    """The methods of a state that watches use."""

    async def ready(self) -> None:
        """Wait until the state can be read. Raises the trouble that prevents it."""
        ...

    def listen(
        self,
        key: object,
        listener: Callable[[tuple[AppliedWrite[Any, Any], ...]], None],
        on_end: Callable[[OnewriterError], None],
    ) -> None:
        """Report every write, and the reason when there will be no more: at once, if it is known."""
        ...

    def unlisten(self, key: object) -> None:
        """Stop the reports."""
        ...

    def present(self) -> tuple[Any, int]:
        """Return the current state and its version."""
        ...


class Watch(Generic[Raw, C]):
    """Enter it with ``async with``, then iterate over the changes with ``async for``. One reader at a time.

    ``changes_of(before, after, operations, version)`` returns the changes of a write; ``decode`` converts each
    change when the reader takes it.

    Entering waits until the state can be read, and raises the trouble that prevents it. The iteration ends when
    the state is closed. It raises the state's trouble, or WatchOverflow, after the changes before it; the watch
    is then over, and the application has to start another one.
    """

    def __init__(
        self,
        state: Watched,
        changes_of: Callable[[Any, Any, tuple[Any, ...], int], Iterable[Raw]],
        initial: Callable[[Any, int], Iterable[Raw]] | None,
        decode: Callable[[Raw], C],
        changes_max: int,
    ) -> None:
        self._state = state
        self._changes_of = changes_of
        self._initial = initial
        self._decode = decode
        self._changes_max = changes_max
        self._present: Iterator[Raw] = iter(())
        self._waiting: deque[Raw] = deque()
        self._changed = Signal()
        self._end: OnewriterError | None = Closed("use it in an async with statement")

    async def __aenter__(self) -> Self:
        await self._state.ready()
        self._end = None
        if self._initial is not None:
            self._present = iter(self._initial(*self._state.present()))
        self._state.listen(self, self._received, self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._state.unlisten(self)
        self._end = Closed("the watch was closed")
        self._changed.notify()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> C:
        for change in self._present:
            return self._decode(change)
        while not self._waiting:
            if self._end is not None:
                if isinstance(self._end, Closed):
                    raise StopAsyncIteration
                raise self._end
            await self._changed.wait()
        return self._decode(self._waiting.popleft())

    def _received(self, writes: tuple[AppliedWrite[Any, Any], ...]) -> None:
        for write in writes:
            for change in self._changes_of(
                write.before, write.after, write.operations, write.version
            ):
                if len(self._waiting) >= self._changes_max:
                    most = self._changes_max
                    self._ended(WatchOverflow(f"more than {most} changes were not taken in time"))
                    return
                self._waiting.append(change)
        self._changed.notify()

    def _ended(self, error: OnewriterError) -> None:
        self._state.unlisten(self)
        self._end = error
        self._changed.notify()
