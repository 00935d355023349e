"""How soon a holder's connection counts as silent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Detection:
    """How soon a connection counts as silent. ``silent_after_seconds`` has room for missed pings."""

    ping_interval_seconds: float
    silent_after_seconds: float

    def sooner_of(self, other: Detection | None) -> Detection:
        """The stricter one of each setting."""
        if other is None:
            return self
        return Detection(
            min(self.ping_interval_seconds, other.ping_interval_seconds),
            min(self.silent_after_seconds, other.silent_after_seconds),
        )
