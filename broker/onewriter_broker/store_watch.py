"""A look at the store now and then: which dataset it has, what it can promise, how full it is.

Nothing of it decides who may write. A store that restarted or failed over has another dataset; a
bucket that nobody writes to would not notice, and could neither load a topic nor move a cursor. A
store near its memory limit is pushed back on before it refuses: new producers are asked to come again,
and those that write are held back as their shares say (quotas/shares.py), until there is room.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import structlog

from onewriter_broker.log.store.api import Durability, LogStore, Observation
from onewriter_core.errors import OnewriterError

INTERVAL_SECONDS = 0.5
"""Interval between two observations of the store."""

FULL_ABOVE = 0.9
"""The store is nearly full when it uses more than this share of its memory limit,"""

ROOM_BELOW = 0.85
"""and has room again when it uses less than this."""

COMPACT_BELOW = 0.97
"""A compaction that retention waits for may fill it to this share, although producers are held back:
it is what lets memory be freed. The rest is for fences, cursors and cuts. The brokers have equal shares
of what is left up to there, so that together they do not pass it."""

_log = structlog.get_logger(__name__)


class StoreWatch:
    """Watches one store. ``run`` is the caller's task.

    ``promises`` is what the store was found to promise at the start. ``filled`` is told when it
    becomes nearly full and when it has room again; ``promised`` when it can promise more;
    ``dataset`` which one the primary has, at every look; ``returned`` for how many seconds it was
    away at most, once it answers again; ``looked`` of every look, behind all of that. ``now`` gives monotonic seconds, ``brokers`` how many there are.
    """

    def __init__(
        self,
        store: LogStore,
        promises: frozenset[Durability],
        *,
        replicas: int,
        filled: Callable[[bool], None],
        promised: Callable[[frozenset[Durability]], None],
        dataset: Callable[[str], None],
        returned: Callable[[float], None],
        now: Callable[[], float],
        brokers: Callable[[], int] = lambda: 1,
        looked: Callable[[Observation], None] = lambda _seen: None,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._interval_seconds = interval_seconds
        self.is_full = False
        self.seen: Observation | None = None
        """The last look; None before the first."""
        self._store = store
        self._promises = promises
        self._replicas = replicas
        self._filled = filled
        self._promised = promised
        self._dataset = dataset
        self._returned = returned
        self._now = now
        self._brokers = brokers
        self._looked = looked
        self._answered_at = now()
        self._is_away = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                self.look(await self._store.observe([]))
            except OnewriterError as error:
                self._is_away = True
                _log.debug("store.away", reason=str(error))
            await asyncio.sleep(self._interval_seconds)

    def room_bytes(self, *, is_needed: bool) -> float:
        """As much a compaction may write, by the last look; without a limit: any amount.

        ``is_needed``: what it makes superfluous can be dropped then, and not before.
        """
        seen = self.seen
        if seen is None or seen.memory_bytes_max == 0:
            return math.inf
        if self.is_full and not is_needed:
            return 0.0
        share = COMPACT_BELOW if is_needed else FULL_ABOVE
        room = max(0.0, share * seen.memory_bytes_max - seen.memory_bytes_used)
        return room / self._brokers() if is_needed else room

    async def observed_room_bytes(self, *, is_needed: bool) -> float:
        """The same, by a look made now. Raises Undecided."""
        self.look(await self._store.observe([]))
        return self.room_bytes(is_needed=is_needed)

    def look(self, seen: Observation) -> None:
        """Judge one observation."""
        self.seen = seen
        away_seconds = self._now() - self._answered_at
        self._answered_at += away_seconds
        if self._is_away:
            self._is_away = False
            _log.info("store.returned", away_seconds=round(away_seconds, 1))
            self._returned(away_seconds)
        if seen.is_primary:
            self._dataset(seen.replid)
        is_full = nearly_full(seen, was_full=self.is_full)
        if is_full != self.is_full:
            self.is_full = is_full
            used, limit = seen.memory_bytes_used, seen.memory_bytes_max
            if is_full:
                _log.warning("store.nearly_full", bytes_used=used, bytes_max=limit)
            else:
                _log.info("store.has_room", bytes_used=used, bytes_max=limit)
            self._filled(is_full)
        promises = with_replicas(self._promises, seen.replicas, self._replicas)
        if promises != self._promises:
            self._promises = promises
            _log.info("store.promises", durabilities=sorted(each.value for each in promises))
            self._promised(promises)
        self._looked(seen)


def nearly_full(seen: Observation, *, was_full: bool) -> bool:
    """Whether producers should be held back; a store without a limit is never full."""
    share = ROOM_BELOW if was_full else FULL_ABOVE
    return seen.memory_bytes_max > 0 and seen.memory_bytes_used > share * seen.memory_bytes_max


def with_replicas(promises: frozenset[Durability], seen: int, wanted: int) -> frozenset[Durability]:
    """What is promised when ``seen`` replicas are connected; ``wanted``: all there should be.

    A promise stays when a replica goes: what it covers is then not acknowledged until it is back.
    """
    if Durability.LOCAL not in promises and Durability.REPLICATED not in promises:
        return promises  # without a file nothing more can be promised
    more = set(promises)
    if seen >= 1:
        more.add(Durability.REPLICATED)
    if seen >= wanted >= 1:
        more.add(Durability.ALL_REPLICAS)
    return frozenset(more)
