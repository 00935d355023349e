"""Delays between attempts to reach a server, and before the fleet sends the desired state."""

from __future__ import annotations

import asyncio
import random
from typing import Final

RETRY_SECONDS_MIN: Final = 0.2
RETRY_SECONDS_MAX: Final = 5.0
"""Bounds of the delay between two attempts, unless another bound is given."""

GATHER_SECONDS_MIN: Final = 0.05
"""Changes of the desired state are collected for this time."""

GATHER_SECONDS_MAX: Final = 0.5
"""Longest time for which changes are collected, however long a send takes."""

GATHER_SHARE: Final = 4.0
"""In a burst, the pause before the next send is this multiple of the last one's duration."""


class Backoff:
    """A growing, jittered delay."""

    def __init__(
        self,
        seconds_min: float = RETRY_SECONDS_MIN,
        seconds_max: float = RETRY_SECONDS_MAX,
    ) -> None:
        self._first = seconds_min
        self._longest = seconds_max
        self._seconds = seconds_min

    def longer(self) -> float:
        """The present delay; the next one is twice as long, up to the bound."""
        found = self._seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        self._seconds = min(self._seconds * 2, self._longest)
        return found

    def reset(self) -> None:
        """Start again with the shortest delay, after a success."""
        self._seconds = self._first


class Debounce:
    """Limits how often the operator builds and sends the desired state.

    After a quiet time, a change is sent almost immediately. In a burst, many changes are sent together. Each send
    contains the whole state and costs the operator and every broker CPU time.
    """

    def __init__(self, gather_seconds: float = GATHER_SECONDS_MIN) -> None:
        self._gather_seconds = gather_seconds
        self._not_before = 0.0

    async def wait(self) -> None:
        """Wait for more changes."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(self._gather_seconds, self._not_before - now))

    def took(self, seconds: float) -> None:
        """Note how long it took to build the state or to send it to one broker."""
        pause = min(GATHER_SECONDS_MAX, GATHER_SHARE * seconds)
        now = asyncio.get_running_loop().time()
        self._not_before = max(self._not_before, now + pause)
