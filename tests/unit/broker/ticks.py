"""Counts the ticks of the event loop that other tasks get while long work runs."""

from __future__ import annotations

import asyncio
from typing import Self


class Others:
    """Another task on the event loop, which counts its ticks."""

    def __init__(self) -> None:
        self.ticks = 0

    def __enter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._count())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def _count(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0)
