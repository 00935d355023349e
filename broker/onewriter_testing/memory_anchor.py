"""The anchor in memory: for tests, the simulation and brokers that share one process.

It passes the same contract suite as the file anchor. Nothing survives the process.
"""

from __future__ import annotations

import asyncio

from onewriter_broker.anchor.api import Record, Versioned
from onewriter_core.errors import Unavailable


class MemoryAnchor:
    """Compare-and-set over a dictionary; linearizable, because no step suspends.

    ``reachable`` is for tests: False makes every call raise Unavailable.
    """

    def __init__(self, *, records_every_grant: bool = True) -> None:
        self.records_every_grant = records_every_grant
        self.reachable = True
        self._records: dict[int, Versioned] = {}

    async def read(self, bucket: int) -> Versioned:
        """The newest record of a bucket; version 0 with an empty record if it was never written."""
        await self._reach()
        return self._records.get(bucket, Versioned(0, Record()))

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        """Replace the record if its version still is ``version``; None if another process was first."""
        await self._reach()
        current = self._records.get(bucket)
        if (0 if current is None else current.version) != version:
            return None
        self._records[bucket] = Versioned(version + 1, record)
        return version + 1

    async def close(self) -> None:
        """Do nothing."""

    async def _reach(self) -> None:
        await asyncio.sleep(0)  # as with a real anchor, other tasks run before the answer
        if not self.reachable:
            raise Unavailable("the anchor cannot be reached")
