"""Which logs of a table are meant: the same topics that brokers would be asked for."""

from __future__ import annotations

import pytest

from onewriter_pipeline.errors import Invalid, NotFound
from onewriter_pipeline.read.selection import Selection, selected

ORDERS = [f"persistent://public/default/orders-partition-{number}" for number in range(11)]
BILLS = "persistent://public/default/bills"
FAR = "persistent://far/away/orders"
LOGS = [FAR, *reversed(ORDERS), BILLS]


def test_a_topic_is_all_its_partitions_in_their_order() -> None:
    assert selected(Selection(("orders",)), LOGS) == ORDERS
    assert selected(Selection(("orders", "bills", "orders")), LOGS) == [*ORDERS, BILLS]


def test_a_partition_may_be_named_alone() -> None:
    assert selected(Selection(("orders-partition-7",)), LOGS) == [ORDERS[7]]


def test_a_pattern_is_of_topics_and_not_of_partitions() -> None:
    assert selected(Selection(pattern="public/default/orders"), LOGS) == ORDERS
    assert selected(Selection(pattern="persistent://public/.*"), LOGS) == [BILLS, *ORDERS]
    assert selected(Selection(pattern=".*-partition-7"), LOGS) == []


def test_each_topic_that_is_named_has_to_be_there() -> None:
    with pytest.raises(NotFound, match=r"the table has nothing of persistent://public/default/x:"):
        selected(Selection(("orders", "x")), LOGS)
    with pytest.raises(NotFound, match="orders-partition-11"):
        selected(Selection(("orders-partition-11",)), LOGS)


def test_a_pattern_that_is_none_and_a_name_that_is_none() -> None:
    with pytest.raises(Invalid, match="is not a regular expression"):
        selected(Selection(pattern="orders("), LOGS)
    with pytest.raises(Invalid, match="not a topic name"):
        selected(Selection(("a/b",)), LOGS)
