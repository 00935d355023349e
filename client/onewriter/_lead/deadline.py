"""The serving deadline: until then a leader may act in the topic's name without a check.

It is opt-in (``ProducerOptions.serve_seconds``). The broker stores the seconds with the grant. The broker that
makes the next grant reports it no earlier than these seconds after the last CHECK that was answered
positively. The deadline of this module counts from before the CHECK was sent, so it ends first whatever the
network delays were. Clocks need not agree; their rates must not differ by more than DRIFT.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from onewriter._errors import OnewriterError, Unavailable

DRIFT = 0.01
"""Largest relative difference between the rates of this machine's clock and the broker's."""

RENEWALS = 3
"""Number of renewals within ``serve_seconds``."""


class ServingDeadline:
    """The deadline of one leadership or ownership. ``run`` renews it until that is over.

    ``prove`` sends a CHECK; ``holds`` returns False once the loss is known.
    """

    def __init__(
        self,
        seconds: float,
        prove: Callable[[], Awaitable[object]],
        holds: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._prove = prove
        self._holds = holds
        self._now = now
        self._until = -math.inf

    @property
    def until(self) -> float:
        """The deadline by this machine's monotonic clock, in seconds; minus infinity: do not serve."""
        return self._until if self._holds() else -math.inf

    def may(self) -> bool:
        """Whether the deadline is in the future."""
        return self._now() < self.until

    async def run(self) -> None:
        """Renew periodically, until cancelled; failed attempts are repeated."""
        while True:
            await self.renew()
            await asyncio.sleep(self._seconds / RENEWALS)

    async def renew(self) -> None:
        """Renew once."""
        asked_at = self._now()
        try:
            async with asyncio.timeout(self._seconds):
                await self._prove()
        except (Unavailable, TimeoutError):
            return  # the deadline of the last proof stays valid
        except OnewriterError:
            self._until = -math.inf
            return
        self._until = max(self._until, asked_at + self._seconds * (1 - DRIFT))
