"""Turns: whoever has something to deliver gets one of bounded size.

The first is at once, within the callback that made it possible; further ones are in a task that
goes round all who have more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onewriter_broker.dispatch.api import Spawn, TaskHandle

Turn = Callable[[], bool]
"""Delivers one turn's worth; True when more could follow at once."""


class Turns:
    """The turns of one topic's subscriptions. Its task lives only while some have more."""

    __slots__ = ("_is_closed", "_ready", "_spawn", "_task")

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._ready: dict[Turn, None] = {}
        self._task: TaskHandle | None = None
        self._is_closed = False

    def wake(self, turn: Turn) -> None:
        """There may be something to deliver: the first turn is now."""
        if self._is_closed or turn in self._ready:
            return
        if turn():
            self._ready[turn] = None
            if self._task is None:
                self._task = self._spawn(self._go_round())

    def drop(self, turn: Turn) -> None:
        """Give it none any more."""
        self._ready.pop(turn, None)

    def close(self) -> None:
        """Give nobody any more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def _go_round(self) -> None:
        """Go round those that have more than one turn's worth, until none has."""
        while self._ready:
            await asyncio.sleep(0)
            for turn in list(self._ready):
                if turn in self._ready and not turn():
                    self._ready.pop(turn, None)
        self._task = None
