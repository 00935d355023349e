"""Distributions of values over fixed bounds. Cheap enough for the hot path; metrics export them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Bounds for durations."""

OUTAGE_SECONDS: Final = (*SECONDS, 60.0, 120.0, 300.0, 1800.0)
"""Bounds for the time without a writer."""

COUNTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Bounds for numbers of things."""


class Distribution:
    """Counts the values up to each bound (inclusive), and those above the last bound."""

    __slots__ = ("borders", "counts", "total")

    def __init__(self, borders: tuple[float, ...]) -> None:
        self.borders = borders
        self.counts = [0] * (len(borders) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.borders, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """For each bound, the number of values that do not exceed it; the last bound is ``+Inf``."""
        found: list[tuple[str, float]] = []
        running = 0
        for border, count in zip((*self.borders, float("inf")), self.counts, strict=True):
            running += count
            found.append(("+Inf" if border == float("inf") else repr(border), running))
        return found
