"""How long the fleet waits: between attempts at a broker, and for more changes to tell together."""

from __future__ import annotations

import asyncio
import random
from typing import Final

RETRY_SECONDS_MIN: Final = 0.2
RETRY_SECONDS_MAX: Final = 5.0
"""Between two attempts to reach a broker."""

GATHER_SECONDS_MIN: Final = 0.05
"""Changes of the desired state are gathered for so long."""

GATHER_SECONDS_MAX: Final = 0.5
"""And for no longer than this, however much each telling costs."""

GATHER_SHARE: Final = 4.0
"""In a burst the pause before the next telling is so many times as long as the last one took."""


class Backoff:
    """A growing, jittered pause."""

    def __init__(self) -> None:
        self._seconds = RETRY_SECONDS_MIN

    def longer(self) -> float:
        """How long to wait now; the next time it is twice as long, within the bound."""
        found = self._seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        self._seconds = min(self._seconds * 2, RETRY_SECONDS_MAX)
        return found

    def reset(self) -> None:
        """It went well."""
        self._seconds = RETRY_SECONDS_MIN


class Debounce:
    """When the desired state is put together anew: soon after a rest, seldom in a burst.

    Every telling is of the whole state, and costs the operator and each broker accordingly.
    """

    def __init__(self) -> None:
        self._not_before = 0.0

    async def wait(self) -> None:
        """Wait for more changes."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(GATHER_SECONDS_MIN, self._not_before - now))

    def took(self, seconds: float) -> None:
        """Putting the state together, or handing it over to one broker, has just taken so long."""
        pause = min(GATHER_SECONDS_MAX, GATHER_SHARE * seconds)
        now = asyncio.get_running_loop().time()
        self._not_before = max(self._not_before, now + pause)
