"""Topics that left the memory of this broker because no client used them, and what the broker still knows of them.

The store has everything that another broker needs. This broker knows more: how the last holder left, which entries it
acknowledged, and how large the logs are. It remembers this in a few small objects for each topic, as long as it
holds the bucket in the same dataset. The next load continues from there. So an unload changes neither the cause of
the next transition, nor finds a loss later than before, nor frees space in a share of the store.

If state and memory of a log differ, the state in the store counts, as after a takeover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.quotas.shares import ShareOf
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.ids import Position, TopicName
from onewriter_core.topic.model import WHOLE, Partition

UNLOADED_MAX: Final = 1_000_000
"""Topics that are remembered, at less than 1 KiB each. Further topics stay loaded."""


@dataclass(frozen=True, slots=True)
class _Log:
    """One log. ``ends``: the last acknowledged entry of each ledger. ``size``: bytes in the store."""

    partition: Partition
    ends: tuple[Position, ...]
    size: int


@dataclass(frozen=True, slots=True)
class _Topic:
    """One topic. ``holding``: the right to serve its bucket when it was unloaded."""

    holding: Holding
    share: ShareOf
    logs: tuple[_Log, ...]

    def log_of(self, number: int) -> _Log | None:
        return next((each for each in self.logs if each.partition.number == number), None)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.logs)


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
        self._buckets: dict[int, dict[str, _Topic]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    @property
    def is_full(self) -> bool:
        """Whether no further topic can be remembered."""
        return len(self) >= UNLOADED_MAX

    def add(self, topic: LoadedTopic, holding: Holding) -> None:
        """Remember a topic that is about to be unloaded. Nothing of it is under way."""
        logs = topic.runner.logs
        known = tuple(
            _Log(each, tuple(logs[each.number].kept_ends), logs[each.number].size)
            for each in topic.runner.topic.partitions
        )
        share = ShareOf(topic.name.namespace_name, topic.declared is not None)
        found = _Topic(holding, share, known)
        self._buckets.setdefault(topic.bucket, {})[str(topic.name)] = found
        self.sizes[share] += found.size

    def restore(self, base: TopicName, number: int, topic_log: TopicLog, holding: Holding) -> None:
        """Pass what is known of a log to it, after its state was read. The next fence compares its end with the store."""
        known = self._known(base, number, holding)
        if known is not None:
            topic_log.restore(topic_log.state, known.ends)
            topic_log.set_size(known.size)

    def partition(
        self, base: TopicName, stored: Partition, topic_log: TopicLog, holding: Holding
    ) -> Partition:
        """A partition as it was when the topic was unloaded, or ``stored``, which was read from the store."""
        known = self._known(base, stored.number, holding)
        if known is None or known.partition.epoch != stored.epoch:
            return stored
        if topic_log.state.get("ledger") != str(known.partition.ledger):
            return stored
        return replace(known.partition, is_open=False)

    def _known(self, base: TopicName, number: int, holding: Holding) -> _Log | None:
        topic = self._buckets.get(holding.binding.bucket, {}).get(str(base))
        return None if topic is None or topic.holding != holding else topic.log_of(number)

    def trimmed(self, base: TopicName, bucket: int, number: int, size: int) -> None:
        """Note that ``size`` bytes of a log were trimmed."""
        topic = self._buckets.get(bucket, {}).get(str(base))
        if topic is None:
            return
        logs = tuple(
            replace(each, size=max(0, each.size - size))
            if each.partition.number == number
            else each
            for each in topic.logs
        )
        self.loaded(base, bucket)
        self._buckets.setdefault(bucket, {})[str(base)] = replace(topic, logs=logs)
        self.sizes[topic.share] += sum(each.size for each in logs)

    def loaded(self, base: TopicName, bucket: int) -> None:
        """Forget a topic that is loaded again."""
        topic = self._buckets.get(bucket, {}).pop(str(base), None)
        if topic is not None:
            self._give_back(topic)

    def _give_back(self, topic: _Topic) -> None:
        self.sizes[topic.share] -= topic.size
        if not self.sizes[topic.share]:
            del self.sizes[topic.share]

    def forget(self, bucket: int) -> Iterator[Acknowledged]:
        """Forget the topics of a bucket that is lost or in another dataset; yields what was acknowledged there."""
        for text, topic in self._buckets.pop(bucket, {}).items():
            self._give_back(topic)
            for each in topic.logs:
                if each.ends:
                    base, number = TopicName.parse(text, is_stored=True), each.partition.number
                    name = base if number == WHOLE else base.with_partition(number)
                    yield Acknowledged(name, topic.holding, each.ends)
