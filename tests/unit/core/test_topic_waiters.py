"""The waiting line: who comes next among those whose partitions are free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onewriter_core.ids import Identity
from onewriter_core.topic.model import (
    WHOLE,
    AccessMode,
    Loads,
    Member,
    ProducerGroup,
    PromotionPolicy,
    Topic,
    partitioned,
)
from onewriter_core.topic.waiters import in_order, load_of, next_promoted, waiters_by_partition

FIFO, PRIORITY = PromotionPolicy.FIFO, PromotionPolicy.PRIORITY
BALANCED = PromotionPolicy.BALANCED


def waiter(
    name: str,
    arrival: int,
    priority: int = 0,
    partitions: tuple[int, ...] = (WHOLE,),
    host: str = "",
) -> ProducerGroup:
    return ProducerGroup(
        group_id=name,
        partitions=partitions,
        members=(Member(partitions[0], name),),
        is_partitioned=len(partitions) > 1,
        producer_name=name,
        name_given=True,
        identity=Identity(name),
        mode=AccessMode.WAIT_FOR_EXCLUSIVE,
        connection=name,
        priority=priority,
        arrival=arrival,
        admitted_by="",
        address="",
        host=host,
    )


LINE = (waiter("low", 1, -1), waiter("first", 2), waiter("high", 4, 5), waiter("second", 3))


def topic_of(
    queue: tuple[ProducerGroup, ...],
    policy: PromotionPolicy,
    partitions: int = 0,
    loads: Loads = (),
) -> Topic:
    return Topic(partitioned(partitions), policy, queue=queue, loads=loads)


def order(queue: tuple[ProducerGroup, ...], topic: Topic) -> list[str]:
    return [each.group_id for each in in_order(queue, topic)]


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (FIFO, ["low", "first", "second", "high"]),
        (PRIORITY, ["high", "first", "second", "low"]),
        (BALANCED, ["high", "first", "second", "low"]),
    ],
)
def test_the_order(policy: PromotionPolicy, names: list[str]) -> None:
    topic = topic_of(LINE, policy)
    assert order(LINE, topic) == names
    assert order(LINE[::-1], topic) == names


def test_balanced_takes_the_host_that_leads_least_within_the_highest_priority() -> None:
    line = (
        waiter("a", 1, 1, host="one"),
        waiter("b", 2, 1, host="two"),
        waiter("c", 3, 1, host="three"),
        waiter("d", 4, 1, host="three"),
        waiter("standby", 5, 0, host="idle"),
    )
    loads = (("one", 2), ("two", 2), ("three", 1))
    topic = topic_of(line, BALANCED, loads=loads)
    assert order(line, topic) == ["c", "d", "a", "b", "standby"]
    assert [load_of(topic, each) for each in line] == [2, 2, 1, 1, 0]


def test_partitions_held_beside_count_what_is_waited_for_does_not() -> None:
    held = waiter("held", 1, partitions=(0,), host="one")
    line = (
        waiter("a", 2, partitions=(1,), host="one"),
        waiter("b", 3, partitions=(1,), host="two"),
    )
    topic = replace(topic_of(line, BALANCED, 2), holders=(held,))
    assert order(line, topic) == ["b", "a"]
    again = waiter("again", 4, partitions=(0,), host="one")
    assert load_of(topic, again) == 0


def test_waiters_are_counted_for_each_partition() -> None:
    line = (waiter("group", 1, partitions=(0, 1)), waiter("single", 2, partitions=(1,)))
    assert waiters_by_partition(topic_of(line, FIFO, 3)) == {0: 1, 1: 2, 2: 1}
    assert waiters_by_partition(topic_of(LINE, FIFO)) == {WHOLE: 4}


def test_a_waiter_is_promoted_only_to_free_partitions() -> None:
    assert next_promoted(topic_of(LINE, PRIORITY), frozenset()) is None
    assert next_promoted(topic_of((), PRIORITY), frozenset({WHOLE})) is None


def test_a_group_that_waits_for_one_partition_is_not_overtaken() -> None:
    group = waiter("group", 1, partitions=(0, 1))
    single = waiter("single", 2, partitions=(0,))
    other = waiter("other", 3, partitions=(2,))
    topic = topic_of((single, other, group), FIFO, 3)
    assert next_promoted(topic, frozenset({0})) is None
    assert next_promoted(topic, frozenset({0, 2})) == other
    assert next_promoted(topic, frozenset({0, 1, 2})) == group
