"""Notification of tasks that wait for a change; without cost while no task waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def notify(callback: Callable[..., object], *news: object) -> None:
    """Call the application's callback. Its errors go to the loop's exception handler and no further."""
    try:
        callback(*news)
    except Exception as error:  # noqa: BLE001 - it is the application's, and may be anything
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"onewriter: {callback!r} failed", "exception": error}
        )


class Signal:
    """``notify`` wakes all tasks that wait now; each of them checks its own condition."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def notify(self) -> None:
        """Wake all waiting tasks, because something has changed."""
        if self._event is not None:
            event, self._event = self._event, None
            event.set()

    async def wait(self) -> None:
        """Wait for the next ``notify``."""
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until ``is_true()``; return at once if it is true already."""
        while not is_true():
            await self.wait()
