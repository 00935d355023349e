"""Shares the time of the event loop between connections.

A connection handles what it received at once, for a bounded time. The rest waits for the next
round: in each tick of the event loop, the waiting connections are served in order of arrival, for a
bounded time together and for a bounded time each. So neither one connection nor many together can
block the event loop, whatever they send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Shares of one tick of the event loop."""

    connection_seconds: float = 0.008
    """Time that one connection may use."""
    tick_seconds: float = 0.024
    """Time that all waiting connections together may use. Connections that were just read may use the same again."""
    frames_between_readings: int = 32
    """SENDs that a connection handles between two clock readings. It also reads the clock after any other command."""
    readings_max: int = 64
    """Clock readings after which a connection waits for the next round, whatever the time is."""
    unscheduled_seconds: float = 0.002
    """Time that connections that were just read may use in a tick before a round is scheduled, which resets that time."""


DEFAULT_LIMITS = RoundLimits()


class Worker(Protocol):
    """A connection that has received more than it could handle at once."""

    def work(self) -> None:
        """Handle more of what was received, for at most ``RoundLimits.connection_seconds``.

        Calls ``Rounds.wait`` again if something is left.
        """
        ...


class Rounds:
    """Serves the waiting connections of one broker. ``call_soon`` is that of the event loop."""

    def __init__(
        self,
        now: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        limits: RoundLimits = DEFAULT_LIMITS,
    ) -> None:
        self.limits = limits
        self._now = now
        self._call_soon = call_soon
        self._waiting: dict[Worker, None] = {}
        self._spent_seconds = 0.0
        self._is_called = False

    @property
    def has_time(self) -> bool:
        """Whether a connection that was just read may begin in this tick."""
        return self._spent_seconds < self.limits.tick_seconds

    def spent(self, seconds: float) -> None:
        """Record the time that a connection that was just read used."""
        self._spent_seconds += seconds
        if self._spent_seconds > self.limits.unscheduled_seconds:
            self._call()

    def wait(self, worker: Worker) -> None:
        """Call ``worker`` in the next round."""
        self._waiting[worker] = None
        self._call()

    def leave(self, worker: Worker) -> None:
        """Remove a closed connection."""
        self._waiting.pop(worker, None)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._round)

    def _round(self) -> None:
        self._is_called = False
        self._spent_seconds = 0.0
        ends = self._now() + self.limits.tick_seconds
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
