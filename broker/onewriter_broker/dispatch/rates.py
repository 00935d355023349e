"""Counters and rates of deliveries and acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Rate:
    """A running total, and its growth per second in the last full window."""

    total: int = 0
    _window_start: float = 0.0
    _window_total: int = 0
    _per_second: float = 0.0

    def per_second(self, now: float, window_seconds: float) -> float:
        """The rate in the last completed window; in the running one if there is none."""
        elapsed = now - self._window_start
        if elapsed >= window_seconds:
            self._per_second = (self.total - self._window_total) / elapsed
            self._window_start, self._window_total = now, self.total
        return self._per_second


@dataclass(slots=True)
class Counters:
    """The counters of one consumer, or of one subscription over all of its consumers."""

    messages: Rate
    bytes: Rate
    redelivered: Rate
    acknowledged: Rate

    @classmethod
    def starting(cls, now: float) -> Counters:
        """All zero, with windows that begin now."""
        return cls(
            Rate(_window_start=now),
            Rate(_window_start=now),
            Rate(_window_start=now),
            Rate(_window_start=now),
        )

    def take_over(self, leaving: Counters) -> None:
        """Add the totals of a consumer that leaves."""
        self.messages.total += leaving.messages.total
        self.bytes.total += leaving.bytes.total
        self.redelivered.total += leaving.redelivered.total
        self.acknowledged.total += leaving.acknowledged.total
