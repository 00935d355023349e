"""Long work on the event loop, in steps that let other tasks run in between."""

from __future__ import annotations

import asyncio


class Ticks:
    """Spreads work over ticks (iterations of the event loop), ``steps`` steps in each.

    The caller chooses ``steps`` so that they take a few milliseconds at most.
    """

    __slots__ = ("_left", "_steps")

    def __init__(self, steps: int) -> None:
        self._left = self._steps = steps

    async def step(self) -> None:
        """Count one step. Every ``steps`` steps, other tasks run, and may change what the caller has read."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._steps
            await asyncio.sleep(0)
