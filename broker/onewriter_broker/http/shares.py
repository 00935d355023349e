"""Limits concurrent requests, and shares the places fairly between identities.

Each identity has a share. Privileged ones (administrators) have no limit, and some places are reserved for
them. A request beyond the share waits for a short time. Waiting identities get free places in rotation, so a
client that sends many requests slows down only itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from onewriter_broker.http.site import Refusal

WAIT_SECONDS: Final = 2.0
"""Time that a request waits for a place."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """``places`` in total, at most ``each`` for one identity, ``kept`` of them for administrators.

    At most ``waiting`` requests wait, and for one identity at most as many as it has places.
    """

    places: int
    each: int
    kept: int
    waiting: int


class Shares:
    """The places for one kind of request. ``what`` names them in refusals."""

    def __init__(self, capacity: Capacity, what: str, wait_seconds: float = WAIT_SECONDS) -> None:
        self._capacity = capacity
        self._what = what
        self._wait_seconds = wait_seconds
        self._taken: Counter[str] = Counter()
        self._taken_by_others = 0
        """Places taken by identities that are not administrators."""
        self._total = 0
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], bool]]] = {}
        """By identity, in the order of the rotation."""
        self._waiters = 0

    @asynccontextmanager
    async def place(self, identity: str, *, is_privileged: bool) -> AsyncIterator[None]:
        """Hold a place. Raises Refusal if none becomes free in time."""
        await self._enter(identity, is_privileged)
        try:
            yield
        finally:
            self._leave(identity, is_privileged)

    async def _enter(self, identity: str, is_privileged: bool) -> None:
        line = self._waiting.get(identity)
        if not line and self._is_free(identity, is_privileged):
            self._take(identity, is_privileged)
            return
        capacity = self._capacity
        if self._waiters >= capacity.waiting or (line and len(line) >= capacity.each):
            raise Refusal(429, f"too many {self._what} at the same time; retry later")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (place, is_privileged)
        self._waiting.setdefault(identity, deque()).append(entry)
        self._waiters += 1
        try:
            async with asyncio.timeout(self._wait_seconds):
                await place
        except TimeoutError:
            self._forget(identity, entry)
            raise Refusal(429, f"too many {self._what} at the same time; retry later") from None
        except BaseException:
            self._forget(identity, entry)
            raise

    def _forget(self, identity: str, entry: tuple[asyncio.Future[None], bool]) -> None:
        """Remove a request that no longer waits, and pass on a place that it was just given."""
        place, is_privileged = entry
        if place.done() and not place.cancelled():
            self._leave(identity, is_privileged)
            return
        line = self._waiting[identity]
        line.remove(entry)
        self._waiters -= 1
        if not line:
            del self._waiting[identity]

    def _is_free(self, identity: str, is_privileged: bool) -> bool:
        capacity = self._capacity
        if self._total >= capacity.places:
            return False
        return is_privileged or (
            self._taken_by_others < capacity.places - capacity.kept
            and self._taken[identity] < capacity.each
        )

    def _take(self, identity: str, is_privileged: bool) -> None:
        self._total += 1
        self._taken[identity] += 1
        self._taken_by_others += not is_privileged

    def _leave(self, identity: str, is_privileged: bool) -> None:
        self._total -= 1
        self._taken[identity] -= 1
        if not self._taken[identity]:
            del self._taken[identity]
        self._taken_by_others -= not is_privileged
        for waiting in list(self._waiting):
            line = self._waiting[waiting]
            place, privileged = line[0]
            if not self._is_free(waiting, privileged):
                continue
            line.popleft()
            self._waiters -= 1
            del self._waiting[waiting]
            if line:
                self._waiting[waiting] = line  # at the end of the rotation
            if not place.done():
                self._take(waiting, privileged)
                place.set_result(None)
