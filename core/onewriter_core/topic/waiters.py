"""The order of the queue: which waiter is promoted next.

PIP-440 orders waiters by priority, then by creation time, and breaks ties at random. Here the order is priority,
then arrival. Arrivals increase, so there are no ties. Balanced compares the number of topics that the waiters'
hosts lead before it compares arrivals. The priority still comes first: a standby tier gets no topic while a waiter
of a better tier exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import assert_never

from onewriter_core.topic.lookups import overlap
from onewriter_core.topic.model import ProducerGroup, PromotionPolicy, Topic


def in_order(waiters: Iterable[ProducerGroup], topic: Topic) -> list[ProducerGroup]:
    """These waiters in the order of their promotion."""
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
    """The number of topics that the waiter's host leads, as last reported, without the partitions that this waiter wants.

    A partition of this topic that the host holds alone counts as one topic.
    """
    return dict(topic.loads).get(waiter.host, 0) + _leads_beside(topic, waiter)


def _leads_beside(topic: Topic, waiter: ProducerGroup) -> int:
    """How many holders of other partitions of this topic run on the waiter's host."""
    return sum(
        holder.host == waiter.host and not overlap(holder.partitions, waiter.partitions)
        for holder in topic.holders
    )


def waiters_by_partition(topic: Topic) -> dict[int, int]:
    """The number of waiters for each partition. The broker reports it to the holder."""
    for_all = sum(waiter.is_partitioned for waiter in topic.queue)
    alone = Counter(w.partitions[0] for w in topic.queue if not w.is_partitioned)
    return {partition.number: for_all + alone[partition.number] for partition in topic.partitions}


def next_promoted(topic: Topic, free: frozenset[int]) -> ProducerGroup | None:
    """The first waiter whose partitions are all free and not wanted by an earlier waiter.

    A waiter for all partitions keeps its place while one partition is held. Later waiters do not get the others.
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
