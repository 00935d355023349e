"""Long work on the event loop: done in steps, between which others have their turn."""

from __future__ import annotations

import asyncio


class Turns:
    """Of work that is done ``steps`` at a time; as many as take a few milliseconds at most."""

    __slots__ = ("_left", "_steps")

    def __init__(self, steps: int) -> None:
        self._left = self._steps = steps

    async def step(self) -> None:
        """One is done: others have their turn now and then. What they may change is looked at anew."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._steps
            await asyncio.sleep(0)
