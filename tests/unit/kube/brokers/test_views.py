"""The topics that brokers serve: the latest report, short and long breaks, the bounded memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.clock import skip
from tests.unit.kube.brokers.fleet_world import QUICK, TOPIC, World, until
from tests.unit.kube.fake_broker import FakeBroker, producer_group, status

from onewriter_core.topic_view import parse_view
from onewriter_operator.brokers.views import Views, claims_in


async def test_the_fleet_receives_the_topics_that_brokers_serve() -> None:
    broker = FakeBroker()
    holder = producer_group("w1", "primary", "writer-0")
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        broker.serve(TOPIC, status(1, "Vacant"))
        await until(lambda: world.fleet.view(TOPIC))
        broker.serve(TOPIC, status(2, holders=[holder]))
        await until(lambda: (TOPIC, {"primary"}) in world.received.topics)
        view = world.fleet.view(TOPIC)
        assert view is not None
        assert view.status.epoch == 2
        broker.drop(TOPIC)
        await until(lambda: world.fleet.view(TOPIC) is None)
        assert not world.fleet.is_lost(TOPIC)


async def test_the_broker_with_the_later_ledger_counts() -> None:
    frozen, owner = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with frozen.running(), owner.running(), World(frozen, owner).running() as world:
        frozen.served[TOPIC] = status(7)
        owner.served[TOPIC] = status(8)
        await until(lambda: world.fleet.state().all_synced)
        await until(lambda: world.fleet.view(TOPIC) is not None)
        view = world.fleet.view(TOPIC)
        assert view is not None
        assert (view.broker, view.status.epoch) == ("broker-1", 8)
        frozen.serve(TOPIC, status(7, waiters=[producer_group("w2")]))
        await asyncio.sleep(0.1)
        view = world.fleet.view(TOPIC)
        assert view is not None
        assert view.broker == "broker-1"


async def test_a_short_break_is_forgiven() -> None:
    limits = replace(QUICK, grace_seconds=10.0)
    broker, second = FakeBroker(), f"{TOPIC}-2"
    async with broker.running(), World(broker, limits=limits).running() as world:
        broker.serve(TOPIC)
        await until(lambda: world.fleet.view(TOPIC))
        changes = world.received.fleet_changes
        broker.cut()
        broker.serve(second)
        await until(lambda: world.fleet.view(second))
        skip(10.0)
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert world.fleet.view(TOPIC) is not None
        assert world.received.fleet_changes == changes


async def test_a_longer_one_makes_unknown_what_the_broker_served_and_nothing_else() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    other = "persistent://shop/default/other"
    async with one.running(), two.running(), World(one, two).running() as world:
        one.served[TOPIC] = status()
        two.served[other] = status()
        await until(lambda: world.fleet.view(TOPIC) and world.fleet.view(other))
        one.is_down = True
        one.cut()
        await until(lambda: world.fleet.view(TOPIC) is None)
        assert world.fleet.is_lost(TOPIC)
        assert world.fleet.view(other) is not None
        assert not world.fleet.is_lost("persistent://shop/default/idle")
        two.serve(TOPIC, status(2))
        await until(lambda: world.fleet.view(TOPIC))
        assert not world.fleet.is_lost(TOPIC)


async def test_a_topic_that_a_broker_stopped_serving_during_a_break_is_dropped() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        broker.serve(TOPIC)
        await until(lambda: world.fleet.view(TOPIC))
        broker.served.clear()
        broker.cut()
        await until(lambda: world.fleet.view(TOPIC) is None)


def test_views_remember_who_served_last() -> None:
    views = Views()
    views.put("a", TOPIC, parse_view(status(1)), 0)
    assert views.server(TOPIC) == "a"
    views.drop("a", TOPIC, 1)
    assert views.server(TOPIC) == ""
    views.put("b", TOPIC, parse_view(status(2)), 0)
    assert views.lose("b") == [TOPIC]
    assert views.server(TOPIC) == "b"
    assert views.best(TOPIC) is None


def test_views_record_since_when_a_topic_has_its_state() -> None:
    views = Views()
    views.put("a", TOPIC, parse_view(status(1, "Held")), 10)
    views.put("a", TOPIC, parse_view(status(1, "Held", waiters=[producer_group("w")])), 20)
    found = views.best(TOPIC)
    assert found is not None
    assert found.since == 10
    views.put("a", TOPIC, parse_view(status(1, "ChangingHands")), 30)
    found = views.best(TOPIC)
    assert found is not None
    assert found.since == 30


def test_views_keep_the_time_when_a_topic_was_last_served() -> None:
    views = Views()
    views.put("a", TOPIC, parse_view(status(1)), 0)
    views.put("b", TOPIC, parse_view(status(2)), 1)
    views.drop("a", TOPIC, 2)
    assert views.gone_at(TOPIC) is None  # another one does
    views.keep_only("b", [], 3)
    assert views.gone_at(TOPIC) == 3
    views.put("c", TOPIC, parse_view(status(3)), 4)
    assert views.gone_at(TOPIC) is None


def test_views_remember_a_bounded_number_of_topics() -> None:
    found = Views(topics_max=3)
    for number in range(9):
        found.put("a", f"t{number}", parse_view(status()), 0)
    found.lose("a")
    assert [found.server(f"t{number}") for number in (5, 6, 8)] == ["", "a", "a"]


def test_claims_of_a_view() -> None:
    found = status(
        1,
        holders=[producer_group("a", "x")],
        waiters=[producer_group("b", "y"), producer_group("c")],
    )
    assert claims_in(parse_view(found)) == {"x", "y"}
    assert claims_in(None) == set()
