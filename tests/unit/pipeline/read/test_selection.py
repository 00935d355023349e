"""The selected logs of a table are the topics that brokers would select."""

from __future__ import annotations

import pytest

from onewriter_pipeline.errors import Invalid, NotFound
from onewriter_pipeline.read.selection import Selection, selected

ORDERS = [f"persistent://public/default/orders-partition-{number}" for number in range(11)]
BILLS = "persistent://public/default/bills"
FAR = "persistent://far/away/orders"
LOGS = [FAR, *reversed(ORDERS), BILLS]


def test_topic_selects_all_its_partitions_in_order() -> None:
    assert selected(Selection(("orders",)), LOGS) == ORDERS
    assert selected(Selection(("orders", "bills", "orders")), LOGS) == [*ORDERS, BILLS]


def test_single_partition_can_be_selected() -> None:
    assert selected(Selection(("orders-partition-7",)), LOGS) == [ORDERS[7]]


def test_pattern_matches_topics_not_partitions() -> None:
    assert selected(Selection(pattern="public/default/orders"), LOGS) == ORDERS
    assert selected(Selection(pattern="persistent://public/.*"), LOGS) == [BILLS, *ORDERS]
    assert selected(Selection(pattern=".*-partition-7"), LOGS) == []


def test_named_topic_must_exist() -> None:
    with pytest.raises(NotFound, match=r"the table has nothing of persistent://public/default/x:"):
        selected(Selection(("orders", "x")), LOGS)
    with pytest.raises(NotFound, match="orders-partition-11"):
        selected(Selection(("orders-partition-11",)), LOGS)


def test_invalid_patterns_and_names_are_refused() -> None:
    with pytest.raises(Invalid, match="is not a regular expression"):
        selected(Selection(pattern="orders("), LOGS)
    with pytest.raises(Invalid, match="not a topic name"):
        selected(Selection(("a/b",)), LOGS)
