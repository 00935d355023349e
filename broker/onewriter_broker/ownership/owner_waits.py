"""Waits for the owner of a bucket while it moves: one question per bucket and interval, however many callers wait.

After the death of a broker, the look-ups of all its clients wait for the same few buckets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from onewriter_broker.anchor.api import Addresses

OWNER_WAIT_SECONDS = 5.0
"""Time that a look-up waits for a bucket without an owner. Brokers detect a dead broker after 2 s,
and acquire its buckets within another second."""

HINDERED_WAIT_SECONDS = 1.0
"""The same if this broker knows what prevents it from acquiring the bucket."""

OWNER_POLL_SECONDS = 0.05


class Owners(Protocol):
    """The questions to bucket ownership (buckets.BucketOwnership)."""

    def owner_of(self, bucket: int) -> Addresses | None: ...

    def waiting_reason(self, bucket: int) -> str: ...


@dataclass(slots=True, eq=False)
class _Waiter:
    since: float
    wait_seconds: float
    answer: asyncio.Future[Addresses | None]


class OwnerWaits:
    """See the module. All callers run in one event loop."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._waiters: dict[int, list[_Waiter]] = {}

    async def wait(self, bucket: int, wait_seconds: float = OWNER_WAIT_SECONDS) -> Addresses | None:
        """The broker that serves a bucket; None if there is no known owner in time."""
        owner = self._owners.owner_of(bucket)
        if owner is not None or wait_seconds <= 0.0:
            return owner
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.time(), wait_seconds, loop.create_future())
        if bucket in self._waiters:
            self._waiters[bucket].append(waiter)
        else:
            self._wait_on(bucket, [waiter])
        return await waiter.answer

    def _wait_on(self, bucket: int, waiters: list[_Waiter]) -> None:
        self._waiters[bucket] = waiters
        asyncio.get_running_loop().call_later(OWNER_POLL_SECONDS, self._poll, bucket)

    def _poll(self, bucket: int) -> None:
        owner, now = self._owners.owner_of(bucket), asyncio.get_running_loop().time()
        limit = HINDERED_WAIT_SECONDS if self._owners.waiting_reason(bucket) else OWNER_WAIT_SECONDS
        remaining = []
        for waiter in self._waiters.pop(bucket):
            if waiter.answer.done():
                continue  # its caller is gone
            if owner is not None or now - waiter.since >= min(waiter.wait_seconds, limit):
                waiter.answer.set_result(owner)
            else:
                remaining.append(waiter)
        if remaining:
            self._wait_on(bucket, remaining)
