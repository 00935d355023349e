"""Following the changes of a state: bounded, and told when it could not keep up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from onewriter._errors import Closed, OnewriterError
from onewriter._signal import Signal
from onewriter.state.errors import WatchOverflow
from onewriter.state.fold import AppliedWrite

Raw = TypeVar("Raw")
C = TypeVar("C")


class Watched(Protocol):
    """A state, as watchers need it."""

    async def ready(self) -> None:
        """Wait until it may be read. Raises what is in the way."""
        ...

    def listen(
        self,
        key: object,
        listener: Callable[[tuple[AppliedWrite[Any, Any], ...]], None],
        on_end: Callable[[OnewriterError], None],
    ) -> None:
        """Tell of every write, and why there will be no more: at once, if that is known."""
        ...

    def unlisten(self, key: object) -> None:
        """No more."""
        ...

    def present(self) -> tuple[Any, int]:
        """The state and its version, as they are now."""
        ...


class Watch(Generic[Raw, C]):
    """``async with`` it, then ``async for`` each change. One reader at a time.

    ``changes_of(before, after, operations, version)`` says what a write changed; ``decode`` makes of
    each change what the reader gets, when he takes it.

    Entering waits until the state may be read, and raises what is in the way. The iteration ends
    when the state is closed; it raises the state's trouble, or WatchOverflow, behind the changes
    that came before. Then it is over: watch anew.
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
        self._state.listen(self, self._heard, self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._state.unlisten(self)
        self._end = Closed("the watch was closed")
        self._changed.tell()

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

    def _heard(self, writes: tuple[AppliedWrite[Any, Any], ...]) -> None:
        for write in writes:
            for change in self._changes_of(
                write.before, write.after, write.operations, write.version
            ):
                if len(self._waiting) >= self._changes_max:
                    most = self._changes_max
                    self._ended(WatchOverflow(f"more than {most} changes were not taken in time"))
                    return
                self._waiting.append(change)
        self._changed.tell()

    def _ended(self, error: OnewriterError) -> None:
        self._state.unlisten(self)
        self._end = error
        self._changed.tell()
