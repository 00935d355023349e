"""Observes the store periodically: its datasets, what it can promise, and how full it is.

A cluster is as full as its fullest primary, and promises what all its primaries promise.

None of this decides who may write. A store that restarted or failed over has another dataset. Without this
watch, a bucket without writes would not notice, and could neither load a topic nor move a cursor. If a store
is near its memory limit, the broker refuses new producers with a retryable error, and holds active ones back
according to their shares (quotas/shares.py), before the store itself refuses writes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence

import structlog

from onewriter_broker.log.store.api import LogStore, Observation, ShardState
from onewriter_core.api.topic import Durability
from onewriter_core.errors import OnewriterError, Undecided

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

    ``promises`` is the durability that the store was found to promise at the start. Callbacks: ``filled`` when it
    becomes almost full or has room again; ``promised`` when it can promise more; ``dataset`` with the dataset of each
    primary and the buckets that it serves (None: all), at every observation; ``returned`` with the maximum of the
    seconds it was unavailable, when it answers again; ``on_observation`` after all of these, at every observation.
    ``now`` gives monotonic seconds, ``brokers`` the number of brokers.
    """

    def __init__(
        self,
        store: LogStore,
        promises: frozenset[Durability],
        *,
        replicas: int,
        filled: Callable[[bool], None],
        promised: Callable[[frozenset[Durability]], None],
        dataset: Callable[[str, Collection[int] | None], None],
        returned: Callable[[float], None],
        now: Callable[[], float],
        brokers: Callable[[], int] = lambda: 1,
        on_observation: Callable[[Observation], None] = lambda _seen: None,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._interval_seconds = interval_seconds
        self.is_full = False
        self.seen: Observation | None = None
        """The latest observation; of a cluster, of all its primaries together. None before the first."""
        self.shards: Sequence[ShardState] = ()
        """The primaries of a cluster, in the order of their slots; for another store only one."""
        self.failovers: dict[int, int] = {}
        """How often another primary took the place of a shard's primary, by the shard's place in ``shards``."""
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
        self.problem = ""
        """Why the store did not answer at the latest observation; empty if it answered."""

    async def run(self) -> None:
        """Observe until cancelled."""
        while True:
            try:
                self.observe_shards(await self._store.observe_shards())
            except OnewriterError as error:
                if not self.problem:  # once for each time that it is away
                    _log.warning("store.away", reason=str(error))
                self.problem = str(error) or type(error).__name__
            await asyncio.sleep(self._interval_seconds)

    def free_bytes(self, *, is_needed: bool) -> float:
        """Bytes that a compaction may write, by the latest observation; infinite without a limit.

        ``is_needed``: the compaction is a precondition for freeing memory.
        """
        limited = [seen for seen in self._seen_each() if seen.memory_bytes_max > 0]
        if not limited:
            return math.inf
        if self.is_full and not is_needed:
            return 0.0
        share = COMPACT_BELOW if is_needed else FULL_ABOVE
        free = (share * seen.memory_bytes_max - seen.memory_bytes_used for seen in limited)
        free_bytes = max(0.0, min(free))
        return free_bytes / self._brokers() if is_needed else free_bytes

    async def observed_free_bytes(self, *, is_needed: bool) -> float:
        """The same, by an observation made now. Raises Undecided."""
        self.observe_shards(await self._store.observe_shards())
        return self.free_bytes(is_needed=is_needed)

    def seen_of(self, bucket: int) -> Observation | None:
        """The latest observation of the primary that serves the bucket; None if it did not answer."""
        for shard in self.shards:
            if shard.buckets is None or bucket in shard.buckets:
                return shard.seen
        return None

    def counted(self) -> list[tuple[ShardState, int]]:
        """The primaries, each with its number of failovers."""
        return [(shard, self.failovers.get(place, 0)) for place, shard in enumerate(self.shards)]

    def observe_shards(self, shards: Sequence[ShardState]) -> None:
        """Handle one observation of each primary. Raises Undecided if none answered."""
        self._compare(shards)
        self.shards = shards
        each = self._seen_each()
        if not each:
            raise Undecided("; ".join(f"{shard.address}: {shard.problem}" for shard in shards))
        self.seen = seen = together(each)
        away_seconds = self._now() - self._answered_at
        self._answered_at += away_seconds
        if self.problem:
            self.problem = ""
            _log.info("store.returned", away_seconds=round(away_seconds, 1))
            self._returned(away_seconds)
        for shard in shards:
            if shard.seen is not None and shard.seen.is_primary:
                self._dataset(shard.seen.replid, shard.buckets)
        is_full = any(nearly_full(one, was_full=self.is_full) for one in each)
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

    def _seen_each(self) -> list[Observation]:
        return [shard.seen for shard in self.shards if shard.seen is not None]

    def _compare(self, shards: Sequence[ShardState]) -> None:
        """Count and log what changed since the last observation."""
        former = {shard.address: shard.seen is not None for shard in self.shards}
        for shard in shards:
            if shard.seen is None and former.get(shard.address, True):
                _log.warning("store.shard_away", primary=shard.address, reason=shard.problem)
            elif shard.seen is not None and not former.get(shard.address, True):
                _log.info("store.shard_returned", primary=shard.address)
        self._log_faults(shards)
        if len(shards) != len(self.shards):
            return
        for place, (before, after) in enumerate(zip(self.shards, shards, strict=True)):
            if before.address != after.address and before.buckets == after.buckets:
                self.failovers[place] = self.failovers.get(place, 0) + 1
                _log.warning("store.failover", primary=after.address, former=before.address)

    def _log_faults(self, shards: Sequence[ShardState]) -> None:
        """Log the faults that appeared or ended since the last observation of the same primary."""
        former = {shard.address: shard.seen.faults for shard in self.shards if shard.seen}
        for shard in shards:
            if shard.seen is None:
                continue
            before = former.get(shard.address, ())
            for fault in shard.seen.faults:
                if fault not in before:
                    _log.error("store.fault", primary=shard.address, fault=fault)
            for fault in before:
                if fault not in shard.seen.faults:
                    _log.info("store.fault_ended", primary=shard.address, fault=fault)


def together(each: Sequence[Observation]) -> Observation:
    """What several primaries have together; a replica count is the lowest one."""
    if len(each) == 1:
        return each[0]
    is_limited = all(seen.memory_bytes_max for seen in each)
    return Observation(
        replid="",
        previous_replid="",
        is_primary=all(seen.is_primary for seen in each),
        replicas=min(seen.replicas for seen in each),
        units={},
        memory_bytes_used=sum(seen.memory_bytes_used for seen in each),
        memory_bytes_max=sum(seen.memory_bytes_max for seen in each) if is_limited else 0,
        replication_lag_bytes=max(seen.replication_lag_bytes for seen in each),
        sync_seconds=max(seen.sync_seconds for seen in each),
        faults=tuple(dict.fromkeys(fault for seen in each for fault in seen.faults)),
    )


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
