"""A problem of the store counts by the reports of all brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.kube.brokers.fleet_world import QUICK, TOPIC, World, until
from tests.unit.kube.fake_broker import FakeBroker

from onewriter_operator.brokers.store_problems import LastingProblem, full, read_only, unreachable
from onewriter_operator.plan.broker_report import BrokerReport, StoreReport

PATIENCE = 10.0
TEXT = "no broker reaches the store redis://store:6379"


def reports(*reachable: bool | None) -> list[BrokerReport]:
    return [
        BrokerReport(store=StoreReport("redis://store:6379", is_reachable=each))
        for each in reachable
    ]


def test_an_outage_counts_once_it_has_lasted_long_enough() -> None:
    found = LastingProblem(unreachable, PATIENCE)
    assert found.why(0.0) == ""
    assert not found.put(reports(False, False), 100.0)
    assert found.is_pending
    assert found.why(109.9) == ""
    assert not found.is_due(109.9)
    assert not found.put(reports(False), 105.0), "it began before"
    assert found.why(110.0) == TEXT
    assert found.is_due(110.0)
    assert not found.is_pending
    assert not found.is_due(111.0), "it was reported"


def test_the_reason_of_an_outage_is_the_latest_one_before_it_counts() -> None:
    def away(problem: str) -> list[BrokerReport]:
        return [BrokerReport(store=StoreReport("rediss://s", is_reachable=False, problem=problem))]

    found = LastingProblem(unreachable, PATIENCE)
    for second, problem in enumerate(("the connection broke", "no authority signed it")):
        found.put(away(problem), float(second))
    assert found.is_due(PATIENCE)
    told = "no broker reaches the store rediss://s: no authority signed it"
    assert found.why(PATIENCE) == told
    found.put(away("timed out"), PATIENCE + 1)
    assert found.why(PATIENCE + 1) == told, "a status is not written for each reason"


def test_the_end_of_a_counted_outage_is_reported_once() -> None:
    found = LastingProblem(unreachable, PATIENCE)
    found.put(reports(False), 0.0)
    assert not found.put(reports(True), 1.0), "it did not count yet"
    found.put(reports(False), 2.0)
    assert found.is_due(12.0)
    assert found.put(reports(True, False), 13.0)
    assert not found.put(reports(True, True), 14.0)
    assert found.why(100.0) == ""


@pytest.mark.parametrize(
    "answers", [(), (None,), (None, None), (True, False), (True, None)], ids=str
)
def test_without_a_report_or_with_a_broker_that_reaches_the_store_it_is_no_outage(
    answers: tuple[bool | None, ...],
) -> None:
    found = LastingProblem(unreachable, PATIENCE)
    found.put(reports(*answers), 0.0)
    assert found.why(100.0) == ""


def test_a_broker_of_an_earlier_version_does_not_hide_an_outage() -> None:
    found = LastingProblem(unreachable, PATIENCE)
    found.put(reports(False, None), 0.0)
    assert found.why(100.0) == TEXT


async def test_the_fleet_reports_all_topics_when_an_outage_counts_and_when_it_ends() -> None:
    limits = replace(QUICK, patience_seconds=0.1)
    broker = FakeBroker()
    broker.report_broker(reachable=False)
    async with broker.running(), World(broker, limits=limits).running() as world:
        await until(lambda: world.received.waiting == [TOPIC])
        assert world.fleet.store_away() == TEXT
        broker.report_broker()
        await until(lambda: world.received.waiting == [TOPIC, TOPIC])
        assert world.fleet.store_away() == ""


def test_a_store_that_refuses_writes_is_named_with_its_faults() -> None:
    store = StoreReport("redis://store:6379", faults=("no space",), refuses_writes=True)
    told = [BrokerReport(), BrokerReport(store=store)]
    assert read_only(told) == "the store redis://store:6379 refuses writes: no space"
    assert read_only([BrokerReport(store=replace(store, refuses_writes=False))]) == ""
    assert read_only([BrokerReport(store=replace(store, topology="Cluster"))]) == ""


def test_the_store_is_full_if_one_broker_refuses_producers_for_it() -> None:
    store = StoreReport("redis://store:6379", is_full=True)
    told = "the store redis://store:6379 is almost full, so brokers refuse new producers"
    assert full([BrokerReport(), BrokerReport(store=store)]) == told
    assert full([BrokerReport(), BrokerReport(store=replace(store, is_full=False))]) == ""


@pytest.mark.parametrize(
    ("problem", "asked"),
    [({"full": True}, "store_full"), ({"refusesWrites": True, "faults": ["x"]}, "store_fault")],
    ids=str,
)
async def test_the_fleet_reports_all_topics_when_the_store_is_full_or_refuses_writes(
    problem: dict[str, Any], asked: str
) -> None:
    limits = replace(QUICK, patience_seconds=0.1)
    broker = FakeBroker()
    broker.report_broker(**problem)
    async with broker.running(), World(broker, limits=limits).running() as world:
        await until(lambda: world.received.waiting == [TOPIC])
        assert getattr(world.fleet, asked)()
        assert world.fleet.store_away() == ""
        broker.report_broker()
        await until(lambda: world.received.waiting == [TOPIC, TOPIC])
        assert getattr(world.fleet, asked)() == ""
