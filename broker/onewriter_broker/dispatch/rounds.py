"""Rounds of dispatch: each subscription delivers a bounded amount per round.

The first round of a subscription runs at once, inside the callback that made it possible. Further rounds
run in a task that serves in turn all subscriptions that have more to deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onewriter_broker.dispatch.api import Spawn, TaskHandle

Round = Callable[[], bool]
"""Delivers the amount of one round; True if more could follow at once."""


class DispatchRounds:
    """The rounds of one topic's subscriptions. Its task exists only while a subscription has more to deliver."""

    __slots__ = ("_is_closed", "_ready", "_spawn", "_task")

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._ready: dict[Round, None] = {}
        self._task: TaskHandle | None = None
        self._is_closed = False

    def wake(self, deliver: Round) -> None:
        """Run a first round now, because there may be something to deliver."""
        if self._is_closed or deliver in self._ready:
            return
        if deliver():
            self._ready[deliver] = None
            if self._task is None:
                self._task = self._spawn(self._run())

    def drop(self, deliver: Round) -> None:
        """Run no further round of this subscription."""
        self._ready.pop(deliver, None)

    def close(self) -> None:
        """Run no further round at all."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        """Run rounds of all ready subscriptions until none has more to deliver."""
        while self._ready:
            await asyncio.sleep(0)
            for deliver in list(self._ready):
                if deliver in self._ready and not deliver():
                    self._ready.pop(deliver, None)
        self._task = None
