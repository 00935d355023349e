"""Waking those who wait for something to change; costs nothing while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """``tell`` wakes everybody who waits now; each looks for itself whether it is what it wants."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def tell(self) -> None:
        """Something has changed."""
        if self._event is not None:
            event, self._event = self._event, None
            event.set()

    async def wait(self) -> None:
        """Wait for the next ``tell``."""
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until it is true; at once if it is."""
        while not is_true():
            await self.wait()
