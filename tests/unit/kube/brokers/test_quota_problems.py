"""The quotas that refuse producers, merged from the reports of all brokers."""

from __future__ import annotations

from typing import Any

from tests.unit.kube.brokers.fleet_world import TOPIC, World, until
from tests.unit.kube.fake_broker import FakeBroker, status

from onewriter_operator.brokers.quota_problems import QuotaReports, topics_of
from onewriter_operator.plan.facts import QuotaProblem

OTHER = "persistent://shop/default/bills"
AT = "2026-01-01T00:00:00.000Z"


def problem(reason: str = "100 producers", *, holds: bool = False) -> dict[str, Any]:
    return {"reason": reason, "since": AT, "holds": holds}


def test_a_topic_counts_whichever_broker_refuses_its_producers() -> None:
    quotas = QuotaReports()
    assert quotas.put("broker-0", {"topics": {}, "namespaces": {}}) == (set(), set())
    assert quotas.put("broker-1", {"topics": {TOPIC: problem()}}) == ({TOPIC}, set())
    assert quotas.put("broker-1", {"topics": {TOPIC: problem()}}) == (set(), set())
    assert quotas.problem(TOPIC, "broker-0") == QuotaProblem("100 producers", AT)
    assert quotas.problem(OTHER, "broker-0") is None
    quotas.lose("broker-1")
    assert quotas.problem(TOPIC, "broker-0") is None


def test_a_full_namespace_counts_for_the_topics_that_this_broker_serves() -> None:
    quotas = QuotaReports()
    line = {"topics": {}, "namespaces": {"shop/default": problem("1100 bytes", holds=True)}}
    assert quotas.put("broker-1", line) == (set(), {"shop/default"})
    assert quotas.problem(TOPIC, "broker-1") == QuotaProblem("1100 bytes", AT, holds=True)
    assert quotas.problem(TOPIC, "broker-0") is None
    assert quotas.problem(TOPIC, "") is None
    assert topics_of({"shop/default"}, [TOPIC, "persistent://a/b/c", "invalid::"]) == [TOPIC]


def test_a_report_that_is_not_understood_is_empty() -> None:
    quotas = QuotaReports()
    assert quotas.put("broker-0", {"topics": [1], "namespaces": {"a/b": 7}}) == (set(), set())


async def test_the_fleet_reports_a_topic_when_its_quota_is_used_up_and_when_it_is_not() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        broker.report_quotas({TOPIC: problem()})
        await until(lambda: world.fleet.quota(TOPIC) is not None)
        assert (TOPIC, set()) in world.received.topics
        world.received.topics.clear()
        broker.report_quotas({})
        await until(lambda: (TOPIC, set()) in world.received.topics)
        assert world.fleet.quota(TOPIC) is None


async def test_the_fleet_reports_the_topics_of_a_namespace_that_is_full() -> None:
    broker = FakeBroker()
    broker.serve(TOPIC, status(1))
    async with broker.running(), World(broker).running() as world:
        broker.report_quotas({}, {"shop/default": problem(holds=True)})
        await until(lambda: world.received.waiting == [TOPIC])
        found = world.fleet.quota(TOPIC)
        assert found is not None
        assert found.holds


async def test_a_lost_broker_reports_no_quota() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        broker.report_quotas({TOPIC: problem()})
        await until(lambda: world.fleet.quota(TOPIC) is not None)
        broker.is_down = True
        broker.cut()
        await until(lambda: world.fleet.quota(TOPIC) is None)
