"""The waiting line as a pure value: who comes next.

PIP-440 orders waiters by priority, then by creation time, ties at random. Ours are ordered by
priority, then by arrival, which counts up and so cannot tie: there is nothing left to draw.
Balanced asks in between how many topics a waiter's host leads already, and takes the least loaded;
priorities still come first, so that a standby tier is left alone while a better one lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import assert_never

from onewriter_core.topic.lookups import overlap
from onewriter_core.topic.model import ProducerGroup, PromotionPolicy, Topic


def in_order(waiters: Iterable[ProducerGroup], topic: Topic) -> list[ProducerGroup]:
    """These of the topic's waiters, first to be promoted first."""
    match topic.policy:
        case PromotionPolicy.FIFO:
            return sorted(waiters, key=lambda waiter: waiter.arrival)
        case PromotionPolicy.PRIORITY:
            return sorted(waiters, key=lambda waiter: (-waiter.priority, waiter.arrival))
        case PromotionPolicy.BALANCED:
            elsewhere = dict(topic.loads)
            return sorted(
                waiters,
                key=lambda waiter: (
                    -waiter.priority,
                    elsewhere.get(waiter.host, 0) + _leads_beside(topic, waiter),
                    waiter.arrival,
                ),
            )
        case _:
            assert_never(topic.policy)


def load_of(topic: Topic, waiter: ProducerGroup) -> int:
    """How many topics the waiter's host leads, as far as is known, besides what it waits for.

    Partitions of this topic that it holds alone count as much as a topic.
    """
    return dict(topic.loads).get(waiter.host, 0) + _leads_beside(topic, waiter)


def _leads_beside(topic: Topic, waiter: ProducerGroup) -> int:
    return sum(
        holder.host == waiter.host and not overlap(holder.partitions, waiter.partitions)
        for holder in topic.holders
    )


def waiters_by_partition(topic: Topic) -> dict[int, int]:
    """How many wait for each partition: what its holder is told."""
    for_all = sum(waiter.is_partitioned for waiter in topic.queue)
    alone = Counter(w.partitions[0] for w in topic.queue if not w.is_partitioned)
    return {partition.number: for_all + alone[partition.number] for partition in topic.partitions}


def next_promoted(topic: Topic, free: frozenset[int]) -> ProducerGroup | None:
    """The first waiter whose partitions are all free and wanted by nobody before it.

    A waiter for all partitions that is blocked by one of them keeps its place: those behind it do
    not take the other partitions away.
    """
    if not free:
        return None  # the usual case, and the queue may be long
    wanted_before: set[int] = set()
    for waiter in in_order(topic.queue, topic):
        if all(
            partition in free and partition not in wanted_before for partition in waiter.partitions
        ):
            return waiter
        wanted_before.update(waiter.partitions)
    return None
