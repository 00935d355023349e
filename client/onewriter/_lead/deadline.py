"""Serving until a deadline: acting in a topic's name without asking each time, for a bounded while.

Opt-in (``ProducerOptions.serve_seconds``). The broker stores the seconds with the grant, and whichever
broker grants the topic next tells the winner no earlier than so long after the last CHECK that it
answered with yes. What is counted here begins before the CHECK was sent, so it ends first, whatever
the network did; clocks need not agree, they only must not run apart by more than DRIFT.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from onewriter._errors import OnewriterError, Unavailable

DRIFT = 0.01
"""How much faster or slower than the broker's this machine's clock may run; taken off the seconds."""

RENEWALS = 3
"""How often in its seconds a leader has its right renewed."""


class ServingDeadline:
    """The deadline of one leadership. ``run`` renews it until the leadership is over.

    ``prove`` is a CHECK; ``holds`` says whether the topic is held as far as is known here.
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
        """The deadline by this machine's monotonic clock; minus infinity: do not serve."""
        return self._until if self._holds() else -math.inf

    def may(self) -> bool:
        """Whether it may serve at this moment."""
        return self._now() < self.until

    async def run(self) -> None:
        """Renew for ever; a broker that cannot be asked for a while is asked again."""
        while True:
            await self.renew()
            await asyncio.sleep(self._seconds / RENEWALS)

    async def renew(self) -> None:
        """Ask once."""
        asked_at = self._now()
        try:
            async with asyncio.timeout(self._seconds):
                await self._prove()
        except (Unavailable, TimeoutError):
            return  # what was proved before still counts
        except OnewriterError:
            self._until = -math.inf
            return
        self._until = max(self._until, asked_at + self._seconds * (1 - DRIFT))
