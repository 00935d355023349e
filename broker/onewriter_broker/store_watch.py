"""Observes the store periodically: its dataset, what it can promise, and how full it is.

None of this decides who may write. A store that restarted or failed over has another dataset. Without this
watch, a bucket without writes would not notice, and could neither load a topic nor move a cursor. If a store
is near its memory limit, the broker refuses new producers with a retryable error, and holds active ones back
according to their shares (quotas/shares.py), before the store itself refuses writes.
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
"""The store counts as almost full above this share of its memory limit,"""

SPACE_BELOW = 0.85
"""and has room again below this share."""

COMPACT_BELOW = 0.97
"""A compaction that retention waits for may fill the store up to this share, although producers are held
back, because it allows memory to be freed. The rest is for fences, cursors and trims. The brokers have equal
shares of the remaining room up to there, so that together they do not exceed it."""

_log = structlog.get_logger(__name__)


class StoreWatch:
    """Watches one store. ``run`` is the caller's task.

    ``promises`` is the durability that the store was found to promise at the start. Callbacks: ``filled``
    when it becomes almost full or has room again; ``promised`` when it can promise more; ``dataset`` with the
    primary's dataset, at every observation; ``returned`` with the maximum of the seconds it was unavailable,
    when it answers again; ``on_observation`` after all of these, at every observation. ``now`` gives monotonic
    seconds, ``brokers`` the number of brokers.
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
        on_observation: Callable[[Observation], None] = lambda _seen: None,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._interval_seconds = interval_seconds
        self.is_full = False
        self.seen: Observation | None = None
        """The latest observation; None before the first."""
        self._store = store
        self._promises = promises
        self._replicas = replicas
        self._filled = filled
        self._promised = promised
        self._dataset = dataset
        self._returned = returned
        self._now = now
        self._brokers = brokers
        self._on_observation = on_observation
        self._answered_at = now()
        self._is_away = False

    async def run(self) -> None:
        """Observe until cancelled."""
        while True:
            try:
                self.observe(await self._store.observe([]))
            except OnewriterError as error:
                if not self._is_away:  # once for each time that it is away
                    _log.warning("store.away", reason=str(error))
                self._is_away = True
            await asyncio.sleep(self._interval_seconds)

    def free_bytes(self, *, is_needed: bool) -> float:
        """Bytes that a compaction may write, by the latest observation; infinite without a limit.

        ``is_needed``: the compaction is a precondition for freeing memory.
        """
        seen = self.seen
        if seen is None or seen.memory_bytes_max == 0:
            return math.inf
        if self.is_full and not is_needed:
            return 0.0
        share = COMPACT_BELOW if is_needed else FULL_ABOVE
        free_bytes = max(0.0, share * seen.memory_bytes_max - seen.memory_bytes_used)
        return free_bytes / self._brokers() if is_needed else free_bytes

    async def observed_free_bytes(self, *, is_needed: bool) -> float:
        """The same, by an observation made now. Raises Undecided."""
        self.observe(await self._store.observe([]))
        return self.free_bytes(is_needed=is_needed)

    def observe(self, seen: Observation) -> None:
        """Handle one observation."""
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
        self._on_observation(seen)


def nearly_full(seen: Observation, *, was_full: bool) -> bool:
    """Whether producers should be held back; False for a store without a limit."""
    share = SPACE_BELOW if was_full else FULL_ABOVE
    return seen.memory_bytes_max > 0 and seen.memory_bytes_used > share * seen.memory_bytes_max


def with_replicas(promises: frozenset[Durability], seen: int, wanted: int) -> frozenset[Durability]:
    """The durability with ``seen`` connected replicas; ``wanted``: the configured number.

    A promise remains when a replica disconnects: writes under it are not acknowledged until the replica
    returns.
    """
    if Durability.LOCAL not in promises and Durability.REPLICATED not in promises:
        return promises  # without a file nothing more can be promised
    more = set(promises)
    if seen >= 1:
        more.add(Durability.REPLICATED)
    if seen >= wanted >= 1:
        more.add(Durability.ALL_REPLICAS)
    return frozenset(more)
