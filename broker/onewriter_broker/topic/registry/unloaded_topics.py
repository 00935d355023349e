"""Topics that left the memory of this broker because no client used them, and what the broker still knows of them.

The store has everything that another broker needs. This broker knows more: how the last holder left, which entries it
acknowledged, and how large the logs are. It remembers this in few bytes for each topic, as long as it holds the
bucket in the same dataset. The next load continues from there. So an unload does not change the cause of the next
transition, does not hide a loss, and does not free space in a share of the store.

If another fence was stored since, the state in the store counts, as after a takeover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.quotas.shares import ShareOf
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.ids import Position, TopicName
from onewriter_core.topic.model import WHOLE, Partition, TransitionCause, Vacant

UNLOADED_MAX: Final = 1_000_000
"""Topics that are remembered, at about 0.5 KiB each. Further topics stay loaded."""


@dataclass(frozen=True, slots=True)
class _Log:
    """One log. ``ledger``: its newest one. ``cause``: how its last writer left; None: as its state says. ``ends``: the last
    acknowledged entry of each ledger. ``size``: bytes in the store, which count for ``share``.
    """

    number: int
    ledger: int
    cause: TransitionCause | None
    ends: tuple[Position, ...]
    size: int
    share: ShareOf


@dataclass(slots=True, eq=False)
class _Bucket:
    """The topics of a bucket. ``holding``: the right to serve it when they were unloaded."""

    holding: Holding
    topics: dict[str, tuple[_Log, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The last acknowledged entries of a log that is not loaded."""

    name: TopicName
    holding: Holding
    ends: Sequence[Position]


class UnloadedTopics:
    """The unloaded topics of one broker. ``sizes``: the bytes of their logs in the store, by share."""

    def __init__(self) -> None:
        self.sizes: Counter[ShareOf] = Counter()
        self._buckets: dict[int, _Bucket] = {}
        self._shares: dict[ShareOf, ShareOf] = {}

    def __len__(self) -> int:
        return sum(len(bucket.topics) for bucket in self._buckets.values())

    @property
    def is_full(self) -> bool:
        """Whether no further topic can be remembered."""
        return len(self) >= UNLOADED_MAX

    def add(self, topic: LoadedTopic, holding: Holding) -> bool:
        """Remember a topic that is about to be unloaded. Nothing of it is under way.

        False: others of its bucket were unloaded under another binding, so that this broker is about to forget them.
        """
        bucket = self._buckets.setdefault(topic.bucket, _Bucket(holding))
        if bucket.holding != holding:
            return False
        share = ShareOf(topic.name.namespace_name, topic.declared is not None)
        share = self._shares.setdefault(share, share)
        logs = tuple(
            _remembered(each, topic.runner.logs[each.number], share)
            for each in topic.runner.topic.partitions
        )
        bucket.topics[str(topic.name)] = logs
        self._count(logs, 1)
        return True

    def restore(self, base: TopicName, number: int, topic_log: TopicLog, holding: Holding) -> None:
        """Pass what is known of a log to it, after its state was read. The next fence compares its end with the store."""
        known = self._known(base, number, holding)
        if known is not None:
            topic_log.restore(topic_log.state, known.ends)
            topic_log.set_size(known.size)

    def partition(
        self, base: TopicName, stored: Partition, topic_log: TopicLog, holding: Holding
    ) -> Partition:
        """A partition that was read from the store, with the cause for which its last writer left."""
        known, ownership = self._known(base, stored.number, holding), stored.ownership
        is_same = known is not None and topic_log.state.get("ledger") == str(known.ledger)
        if known is None or not is_same or not isinstance(ownership, Vacant):
            return stored
        if known.cause is None:
            return stored
        absence = replace(ownership.absence, cause=known.cause, is_recalled=False)
        return replace(stored, ownership=replace(ownership, absence=absence))

    def _known(self, base: TopicName, number: int, holding: Holding) -> _Log | None:
        bucket = self._buckets.get(holding.binding.bucket)
        if bucket is None or bucket.holding != holding:
            return None
        logs = bucket.topics.get(str(base), ())
        return next((each for each in logs if each.number == number), None)

    def trimmed(self, base: TopicName, bucket: int, number: int, size: int) -> None:
        """Note that ``size`` bytes of a log were trimmed."""
        logs = self.loaded(base, bucket)
        if logs:
            smaller = {each: max(0, each.size - size * (each.number == number)) for each in logs}
            logs = tuple(replace(each, size=left) for each, left in smaller.items())
            self._buckets[bucket].topics[str(base)] = logs
            self._count(logs, 1)

    def loaded(self, base: TopicName, bucket: int) -> tuple[_Log, ...]:
        """Forget a topic that is loaded again; returns what was known of its logs."""
        found = self._buckets.get(bucket)
        logs = () if found is None else found.topics.pop(str(base), ())
        self._count(logs, -1)
        return logs

    def _count(self, logs: Sequence[_Log], times: int) -> None:
        for each in logs:
            self.sizes[each.share] += times * each.size

    def forget(self, bucket: int) -> Iterator[Acknowledged]:
        """Forget the topics of a bucket that is lost or in another dataset; yields what was acknowledged there."""
        found = self._buckets.pop(bucket, None)
        if found is None:
            return
        for text, logs in found.topics.items():
            self._count(logs, -1)
            for each in logs:
                if each.ends:
                    base = TopicName.parse(text, is_stored=True)
                    name = base if each.number == WHOLE else base.with_partition(each.number)
                    yield Acknowledged(name, found.holding, each.ends)


def _remembered(partition: Partition, topic_log: TopicLog, share: ShareOf) -> _Log:
    absence = partition.absence
    cause = None if absence is None or absence.is_recalled else absence.cause
    ends, size = tuple(topic_log.kept_ends), topic_log.size
    return _Log(partition.number, partition.ledger, cause, ends, size, share)
