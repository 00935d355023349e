"""Waking those who wait for something to change; costs nothing while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def tell(callback: Callable[..., object], *news: object) -> None:
    """Call what the application gave. What it raises is its loop's to report, and ends nothing here."""
    try:
        callback(*news)
    except Exception as error:  # noqa: BLE001 - it is the application's, and may be anything
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"onewriter: {callback!r} failed", "exception": error}
        )


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
