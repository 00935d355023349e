"""Buckets count as waiting by the reports of several brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.kube.brokers.fleet_world import QUICK, TOPIC, World, until
from tests.unit.kube.fake_broker import FakeBroker

from onewriter_core.ids import TopicName, bucket_of
from onewriter_operator.brokers.buckets import PATIENCE_SECONDS, Buckets

Json = dict[str, Any]

MINE = bucket_of(TopicName.parse(TOPIC), 64)


def report(served: list[int], waiting: dict[str, str] | None = None) -> Json:
    return {"count": 64, "served": served, "waiting": waiting or {}}


REFUSED = report([], {str(MINE): "the store refuses it"})


def test_a_bucket_waits_once_it_has_for_long_enough() -> None:
    found = Buckets()
    assert found.why_waiting(TOPIC, 0.0) == "", "nobody has reported anything"
    found.put("broker-0", REFUSED, 100.0)
    assert found.why_waiting(TOPIC, 101.0) == ""
    assert found.due(101.0) == set()
    late = 100.0 + PATIENCE_SECONDS
    assert found.why_waiting(TOPIC, late) == f"bucket {MINE} waits: the store refuses it"
    assert found.due(late) == {MINE}
    assert found.due(late + 1) == set(), "nothing new"
    found.put("broker-0", report([], {str(MINE): "another reason"}), late + 2)
    assert found.due(late + 3) == {MINE}


def test_a_bucket_that_another_broker_serves_does_not_wait() -> None:
    found = Buckets()
    found.put("broker-0", REFUSED, 0.0)
    found.put("broker-1", report([MINE]), 0.0)
    assert not found.are_waiting
    assert found.why_waiting(TOPIC, 100.0) == ""
    found.lose("broker-1", 100.0)
    assert found.are_waiting
    assert found.why_waiting(TOPIC, 101.0) == "", "it was served until just now"


def test_the_end_of_a_counted_wait_is_reported_immediately() -> None:
    found = Buckets()
    found.put("broker-0", REFUSED, 0.0)
    assert found.put("broker-0", report([MINE]), 1.0) == set(), "nobody was told of it"
    found.put("broker-0", REFUSED, 2.0)
    assert found.due(20.0) == {MINE}
    assert found.put("broker-0", report([MINE]), 21.0) == {MINE}
    assert found.why_waiting(TOPIC, 100.0) == ""


def test_topics_are_picked_by_their_bucket() -> None:
    found = Buckets()
    found.put("broker-0", REFUSED, 0.0)
    others = [f"{TOPIC}-{number}" for number in range(200)]
    picked = found.topics_in({MINE}, [TOPIC, *others])
    assert picked[0] == TOPIC
    assert 1 < len(picked) < 50


@pytest.mark.parametrize("count", [0, -1, 1_000_000])
def test_a_report_of_impossible_buckets_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="buckets"):
        Buckets().put("broker-0", {"count": count, "served": [], "waiting": {}}, 0.0)


async def test_the_fleet_reports_topics_whose_bucket_waits() -> None:
    limits = replace(QUICK, patience_seconds=0.1)
    broker = FakeBroker()
    broker.buckets = {"type": "BUCKETS", **REFUSED}
    async with broker.running(), World(broker, limits=limits).running() as world:
        await until(lambda: world.fleet.why_waiting(TOPIC))
        await until(lambda: world.received.waiting == [TOPIC])
        broker.report_buckets([MINE], {})
        await until(lambda: world.received.waiting == [TOPIC, TOPIC])
        assert world.fleet.why_waiting(TOPIC) == ""


def test_the_broker_of_the_bucket_reports_what_the_store_provides() -> None:
    found = Buckets()
    assert found.why_not_durable(TOPIC, "Replicated") is None
    able = {"Local": "", "Replicated": ""}
    unable = able | {"Replicated": "it has no replica"}
    others = report([]) | {"durabilities": able}
    assert found.put("broker-0", others, 0.0) == set(range(others["count"]))
    assert found.why_not_durable(TOPIC, "Replicated") == ""
    served = report([MINE]) | {"durabilities": unable}
    assert found.put("broker-1", served, 0.0) == set(range(served["count"]))
    assert found.put("broker-1", served, 1.0) == set(), "nothing has changed"
    assert found.why_not_durable(TOPIC, "Replicated") == "it has no replica"
    assert found.why_not_durable(TOPIC, "Local") == ""


def test_a_broker_of_an_earlier_release_reports_no_durability() -> None:
    found = Buckets()
    assert found.put("broker-0", report([MINE]), 0.0) == set()
    assert found.why_not_durable(TOPIC, "Local") is None
