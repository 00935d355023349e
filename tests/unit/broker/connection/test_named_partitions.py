"""Producers of a partition that compete for it alone."""

from __future__ import annotations

import pytest

from onewriter_broker.connection.named_partitions import NamedPartitions
from onewriter_core.ids import TopicName

FIRST = TopicName.parse("orders-partition-1")
OTHER = TopicName.parse("orders-partition-2")


def test_an_unrequested_partition_belongs_to_its_topic() -> None:
    named = NamedPartitions()
    named.metadata_requested("orders")
    named.metadata_requested("orders-partition-2")
    assert not named.competes_alone(1, FIRST)


def test_a_question_counts_for_one_producer() -> None:
    named = NamedPartitions()
    named.metadata_requested("orders-partition-1")
    assert named.competes_alone(1, FIRST)
    assert not named.competes_alone(2, FIRST), "it belongs to a producer of the whole topic"


def test_two_questions_count_for_two_producers() -> None:
    named = NamedPartitions()
    named.metadata_requested(str(FIRST))
    named.metadata_requested("orders-partition-1")
    assert named.competes_alone(1, FIRST)
    assert named.competes_alone(2, FIRST)


def test_a_producer_that_is_opened_again_still_competes_alone() -> None:
    named = NamedPartitions()
    named.metadata_requested("orders-partition-1")
    assert named.competes_alone(1, FIRST)
    assert named.competes_alone(1, FIRST)
    assert not named.competes_alone(1, OTHER), "another partition under the same id"
    named.metadata_requested("orders-partition-1")
    assert named.competes_alone(1, FIRST)
    assert not named.competes_alone(2, FIRST), "the first one's question was its own"


@pytest.mark.parametrize("topic", ["orders-partition-1", str(FIRST)])
def test_a_question_before_a_consumer_does_not_count_for_producers(topic: str) -> None:
    named = NamedPartitions()
    named.metadata_requested("orders-partition-1")
    named.consumer_opened(topic)
    assert not named.competes_alone(1, FIRST)


@pytest.mark.parametrize("topic", ["", "a//b", "persistent://x", "orders"])
def test_other_names_are_ignored(topic: str) -> None:
    named = NamedPartitions()
    named.metadata_requested(topic)
    named.consumer_opened(topic)
    assert not named.competes_alone(1, FIRST)


def test_remembered_names_and_producers_are_bounded() -> None:
    named = NamedPartitions(names_max=1, producers_max=1)
    named.metadata_requested(str(FIRST))
    named.metadata_requested(str(OTHER))
    assert named.competes_alone(1, FIRST)
    assert not named.competes_alone(2, OTHER)
    named.metadata_requested(str(OTHER))
    assert named.competes_alone(2, OTHER)
    assert not named.competes_alone(1, FIRST), "the oldest one made room"
