"""``with`` statements and iteration of the blocking classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from onewriter.sync._facade import Facade
from onewriter.sync._thread import Thread

A_co = TypeVar("A_co", covariant=True)
R = TypeVar("R")
Context_co = TypeVar("Context_co", bound=AbstractAsyncContextManager[Any], covariant=True)
Made_co = TypeVar("Made_co", covariant=True)


class Context(Facade[A_co], ABC):
    """A facade whose ``with`` statement returns the facade itself."""

    def _enter(self) -> None:
        """Run at the beginning of the block."""
        return

    @abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """Run at the end of the block. ``error`` is the exception that ended it, which is raised afterwards."""

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(error)


class Opening(Facade[Context_co], ABC, Generic[Context_co, Made_co]):
    """A facade whose ``with`` statement returns another object."""

    @abstractmethod
    def _sibling_of(self, opened: Any) -> Made_co:
        """Return the blocking class of the opened object."""

    def __enter__(self) -> Made_co:
        return self._sibling_of(self._thread.call(_entered(self._inner)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.leave(_left(self._inner, kind, error, traceback))


async def _entered(context: AbstractAsyncContextManager[R]) -> R:
    return await context.__aenter__()


async def _left(
    context: AbstractAsyncContextManager[object],
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    await context.__aexit__(kind, error, traceback)


def next_of(thread: Thread, coming: Coroutine[Any, Any, R]) -> R:
    """Return the next item of an asynchronous iterator, for ``__next__``."""
    try:
        return thread.call(coming)
    except StopAsyncIteration:
        raise StopIteration from None
