"""Whether others get their turn of the event loop while something that takes long is done."""

from __future__ import annotations

import asyncio
from typing import Self


class Others:
    """Somebody else in the event loop, and the turns that are left to them meanwhile."""

    def __init__(self) -> None:
        self.turns = 0

    def __enter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._go_on())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def _go_on(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)
