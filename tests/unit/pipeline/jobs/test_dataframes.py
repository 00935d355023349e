"""Whether a job that publishes reports new messages, in any log of its topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.unit.pipeline.scripted_broker import Answer, Request, scripted_broker

from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.jobs.dataframes import publish

ORDERS = "/onewriter/v1/topics/public/default/orders"


class Topic:
    """What brokers know about a topic: whether it exists, its partitions, and the versions in its logs."""

    def __init__(self, partitions: int = 0, *, exists: bool = True) -> None:
        self.partitions = partitions
        self.exists = exists
        self.published: dict[str, dict[str, int]] = {}

    def script(self, request: Request) -> Answer:
        if not self.exists:
            return Answer(404, {"reason": f"topic {request.path} does not exist"})
        if request.path == ORDERS:
            return Answer(body={"partitions": self.partitions})
        log = request.path.removesuffix("/segments").rpartition("/")[2]
        published = self.published.get(log, {})
        state = {"epoch": 1, "ledger": 1, "bucketLedger": 1, "published": published}
        return Answer(body={"state": state})


def is_new(topic: Topic, change: Callable[[], None], name: str = "orders") -> bool:
    """The reported result if brokers know this change afterwards."""
    rows: Any = MagicMock()
    writer = rows.write.format.return_value.options.return_value.mode.return_value
    writer.save.side_effect = change
    with scripted_broker(topic.script) as broker:
        return publish(rows, Access(broker.url), topic=name, app="replay", version=1)


def test_missing_target_is_created_by_its_first_rows() -> None:
    topic = Topic(exists=False)

    def made() -> None:
        topic.exists, topic.published = True, {"orders": {"replay": 1}}

    assert is_new(topic, made)
    assert not is_new(Topic(exists=False), lambda: None)  # no rows: the topic is not created


def test_concurrent_publishes_of_others_do_not_count_as_appended() -> None:
    topic = Topic()
    topic.published = {"orders": {"replay": 1, "other": 6}}
    assert not is_new(topic, lambda: topic.published["orders"].update(other=7))


@pytest.mark.parametrize("log", ["orders-partition-0", "orders-partition-1"])
def test_rows_in_one_partition_count_as_appended(log: str) -> None:
    topic = Topic(partitions=2)
    assert is_new(topic, lambda: topic.published.update({log: {"replay": 1}}))
    assert not is_new(topic, lambda: None)
    assert not is_new(topic, lambda: None, log)
