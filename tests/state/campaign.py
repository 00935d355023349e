"""A campaign in which many instances write one map during faults: it must be linearizable and equal the log's fold."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tests.state.registers import History, Operation

from onewriter import OutcomeUnknown, Unavailable
from onewriter.state import SharedMap
from onewriter.state.envelope import CompactFraming
from onewriter.state.log import BEGINNING, LogEntry
from onewriter.state.map_operations import COMPACT, Kind
from onewriter_core.ids import Position

KEYS = ("a", "b", "c")


class Campaign:
    """``play`` runs the campaign. ``history`` holds all observed operations."""

    def __init__(self, maps: list[SharedMap[str, int]], seed: int) -> None:
        self.maps = maps
        self.random = random.Random(seed)
        self.history = History()
        self._values = itertools.count(1)
        self.done = 0

    async def play(self, operations: int, fault: Callable[[], Awaitable[None]]) -> None:
        """Run two clients for each map, with a fault from time to time."""
        left = itertools.repeat(None, operations)
        is_over = False

        async def client(shared: SharedMap[str, int]) -> None:
            for _ in left:
                await self._one(shared)

        async def faults() -> None:
            while not is_over:
                await asyncio.sleep(self.random.uniform(0.0, 0.01))
                await fault()

        async with asyncio.TaskGroup() as group:
            trouble = group.create_task(faults())
            async with asyncio.TaskGroup() as clients:
                for shared in self.maps * 2:
                    clients.create_task(client(shared))
            is_over = True
            await trouble

    async def _one(self, shared: SharedMap[str, int]) -> None:
        key, value = self.random.choice(KEYS), next(self._values)
        work: Awaitable[Any]
        match self.random.randrange(6):
            case 0 | 1:
                operation = self.history.begin(key, f"put {value}", lambda old: (value, old))
                work = shared.put(key, value)
            case 2:
                operation = self.history.begin(key, "get", lambda old: (old, old))
                work = shared.get(key, latest=True)
            case 3:
                operation = self.history.begin(
                    key, f"put_if_absent {value}", lambda old: (value if old is None else old, old)
                )
                work = shared.put_if_absent(key, value)
            case 4:
                operation = self.history.begin(key, "delete", lambda old: (None, old))
                work = shared.delete(key)
            case _:
                expected = await shared.get(key) or 0
                operation = self.history.begin(
                    key,
                    f"replace {expected} with {value}",
                    lambda old: (value, True) if old == expected else (old, False),
                )
                work = shared.replace(key, expected, value)
        await self._finish(operation, work)

    async def _finish(self, operation: Operation, work: Awaitable[Any]) -> None:
        try:
            self.history.end(operation, await work)
            self.done += 1
        except OutcomeUnknown:
            return
        except Unavailable:
            self.history.withdraw(operation)


def fold(entries: Iterable[LogEntry], up_to: Position | None = None) -> dict[bytes, bytes]:
    """Apply a log's operations to an empty map in the simplest way; every entry counts."""
    content: dict[bytes, bytes] = {}
    for entry in entries:
        if up_to is not None and entry.position > up_to:
            break
        for write in CompactFraming().unpack(entry.messages).writes:
            for kind, key, value in map(COMPACT.load, write):
                if kind is Kind.CLEAR:
                    content.clear()
                elif kind is Kind.PUT:
                    content[key] = value
                else:
                    content.pop(key, None)
    return content


def last_position(entries: list[LogEntry]) -> Position:
    """Return the last position of a log."""
    return entries[-1].position if entries else BEGINNING
