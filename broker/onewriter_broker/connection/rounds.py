"""The event loop's time, shared between connections.

A connection handles what it received at once, for a bounded time. What is left then waits for the next
round: in each iteration of the loop the waiting connections are served in the order in which they came,
for a bounded time together, and each of them no longer than its share. So one connection, or many
together, never hold the loop for long, whatever they send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

CONNECTION_SECONDS: Final = 0.008
"""What one connection may take of one iteration of the event loop."""

ITERATION_SECONDS: Final = 0.024
"""What waiting connections may take together of one iteration; those that are just read may take as
much again."""

FRAMES_BETWEEN_LOOKS: Final = 32
"""SENDs that a connection handles before it looks at the clock; after any other command it looks."""

LOOKS_MAX: Final = 64
"""Looks at the clock after which a connection waits for the next round, whatever the time."""

_UNTOLD_SECONDS: Final = 0.002
"""Work of connections that are just read which needs no note of the iteration that it belongs to."""


class Worker(Protocol):
    """A connection that has received more than it could handle at once."""

    def work(self) -> None:
        """Handle more of it, for CONNECTION_SECONDS at most; wait again for what is left."""
        ...


class Rounds:
    """Serves the connections of one broker that wait. ``call_soon`` is the event loop's."""

    def __init__(
        self, now: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._now = now
        self._call_soon = call_soon
        self._waiting: dict[Worker, None] = {}
        self._spent_seconds = 0.0
        self._is_called = False

    @property
    def has_time(self) -> bool:
        """Whether a connection that was just read may begin in this iteration."""
        return self._spent_seconds < ITERATION_SECONDS

    def spent(self, seconds: float) -> None:
        """A connection that was just read took so long."""
        self._spent_seconds += seconds
        if self._spent_seconds > _UNTOLD_SECONDS:
            self._call()

    def wait(self, worker: Worker) -> None:
        """Have ``worker`` called in the next round."""
        self._waiting[worker] = None
        self._call()

    def leave(self, worker: Worker) -> None:
        """It is closed."""
        self._waiting.pop(worker, None)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._round)

    def _round(self) -> None:
        self._is_called = False
        self._spent_seconds = 0.0
        ends = self._now() + ITERATION_SECONDS
        for _ in range(len(self._waiting)):
            if not self._waiting:
                break  # one of them closed the others
            worker = next(iter(self._waiting))
            del self._waiting[worker]
            worker.work()
            if self._now() >= ends:
                break
        if self._waiting:
            self._call()
