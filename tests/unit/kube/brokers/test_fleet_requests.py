"""The fleet's requests: orders, look-ups, deletions, and the broker that receives them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.kube.brokers.fleet_world import KEY, QUICK, TOPIC, World, topic, until
from tests.unit.kube.fake_broker import FakeBroker, producer_group, status

from onewriter_operator.brokers import client
from onewriter_operator.brokers.client import (
    TOKEN_SECONDS,
    BrokerRefused,
    BrokerUnreachable,
    Credentials,
)


async def test_questions_go_to_the_broker_that_serves_the_topic() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        two.served[TOPIC] = status(5)
        await until(lambda: world.fleet.state().all_synced)
        await until(lambda: world.fleet.view(TOPIC))
        await world.fleet.fence(TOPIC, 5)
        assert (one.fences, two.fences) == ([], [(TOPIC, 5)])
        with pytest.raises(BrokerRefused) as refused:
            await world.fleet.fence(TOPIC, 4)
        assert refused.value.status == 412


async def test_a_handover_names_epoch_and_successor() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        two.served[TOPIC] = status(5, waiters=[producer_group("w2")])
        await until(lambda: world.fleet.view(TOPIC))
        await world.fleet.hand_over(TOPIC, 5, "w2")
        await world.fleet.hand_over(TOPIC, 5, "")
        assert two.handovers == [(TOPIC, 5, "w2"), (TOPIC, 5, None)]
        with pytest.raises(BrokerRefused) as refused:
            await world.fleet.hand_over(TOPIC, 4, "")
        assert refused.value.status == 412
        two.served[TOPIC] = status(5)
        with pytest.raises(BrokerRefused, match="no producer is waiting"):
            await world.fleet.hand_over(TOPIC, 5, "")


async def test_a_request_is_passed_on_until_a_broker_answers() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        two.served[TOPIC] = status(5)  # and nobody has heard of it yet
        await world.fleet.fence(TOPIC, 5)
        assert one.fences == [(TOPIC, 5)]
        assert two.fences == [(TOPIC, 5)]


async def test_an_accepted_object_is_reported_once_all_brokers_have_it() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        two.is_down = True
        world.declare(topic())
        await until(lambda: one.topics() == [TOPIC])
        await asyncio.sleep(0.1)
        assert world.received.applied_keys == []
        two.is_down = False
        await until(world.is_everywhere)
        assert world.received.applied_keys == [KEY]


async def test_a_request_without_a_reachable_broker_fails() -> None:
    broker = FakeBroker()
    broker.is_down = True
    async with broker.running(), World(broker).running() as world:
        with pytest.raises(BrokerUnreachable):
            await world.fleet.fence(TOPIC, 5)
        assert not (await world.fleet.stored(TOPIC)).is_known


async def test_a_look_up_returns_what_the_broker_stores() -> None:
    broker = FakeBroker()
    broker.stored[TOPIC] = status(7, "Idle", undivided=True)
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        found = await world.fleet.stored(TOPIC)
        assert (found.exists, found.is_declared, found.epoch) == (True, False, 7)
        assert found.is_undivided
        assert not (await world.fleet.stored("persistent://shop/default/new")).exists


def named(number: int) -> str:
    return f"persistent://shop/default/topic-{number}"


async def test_topics_that_wait_for_a_look_up_are_looked_up_together() -> None:
    broker = FakeBroker()
    broker.stored = {named(number): status(number, "Idle") for number in range(50)}
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        found = await asyncio.gather(*(world.fleet.stored(named(n)) for n in range(50)))
        assert [each.epoch for each in found] == list(range(50))
        assert broker.calls.count(("POST", "/onewriter/v1/topics")) == 1


async def test_look_ups_are_split_at_the_limit_of_a_broker() -> None:
    limits = replace(QUICK, together_max=20)
    broker = FakeBroker()
    async with broker.running(), World(broker, limits=limits).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        found = await asyncio.gather(*(world.fleet.stored(named(n)) for n in range(50)))
        assert not any(each.exists for each in found)
        assert broker.calls.count(("POST", "/onewriter/v1/topics")) == 3


async def test_a_topic_of_another_broker_is_looked_up_there() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    one.elsewhere = {named(1), named(2)}
    two.stored = {named(1): status(7, "Idle")}
    two.elsewhere = {named(2)}
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        found = await asyncio.gather(*(world.fleet.stored(named(n)) for n in range(3)))
        assert [each.is_known for each in found] == [True, True, False]
        assert [each.epoch for each in found[:2]] == [0, 7]


@pytest.mark.parametrize("answer", [{}, {"topics": []}, {"topics": {"x": 1}, "elsewhere": []}])
async def test_an_invalid_answer_proves_nothing(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nonsense(*_: Any, **__: Any) -> Any:
        return answer

    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        monkeypatch.setattr(client.BrokerClient, "_call", nonsense)
        assert not (await world.fleet.stored(TOPIC)).is_known


async def test_a_log_is_deleted_only_if_it_is_to_be() -> None:
    broker = FakeBroker()
    broker.entries[TOPIC] = 3
    broker.stored[TOPIC] = status(7, "Idle")
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        assert not await world.fleet.delete(TOPIC, only_if_empty=True)
        assert broker.deletions == []
        broker.entries[TOPIC] = 0
        broker.connected.add(TOPIC)
        with pytest.raises(BrokerRefused):
            await world.fleet.delete(TOPIC, only_if_empty=True)
        broker.connected.clear()
        broker.kept.add(TOPIC)  # entries in an earlier ledger, which nobody counts
        assert not await world.fleet.delete(TOPIC, only_if_empty=True)
        assert broker.deletions == []
        broker.kept.clear()
        assert await world.fleet.delete(TOPIC, only_if_empty=True)
        assert await world.fleet.delete(TOPIC, only_if_empty=False)
        assert broker.deletions == [(TOPIC, False), (TOPIC, True)]


async def test_the_token_is_shown_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    credentials = Credentials(file)
    assert await credentials.headers() == {"Authorization": "Bearer one"}
    file.write_text("two\n")
    skip(TOKEN_SECONDS)
    assert await credentials.headers() == {"Authorization": "Bearer two"}
    file.unlink()
    skip(TOKEN_SECONDS)
    with pytest.raises(BrokerUnreachable):
        await credentials.headers()


async def test_any_broker_reports_which_brokers_are_alive() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        one.members = None  # not understood: the next one is asked
        two.members = {"broker-0": [True], "broker-1": [False, True], "broker-2": [False]}
        found = await world.fleet.members(60)
        assert found == {"broker-0": True, "broker-1": True, "broker-2": False}
        two.members = None
        assert await world.fleet.members(60) == {}


async def test_a_broker_answers_or_does_not() -> None:
    one = FakeBroker("broker-0")
    async with one.running(), World(one).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        assert await world.fleet.answers("broker-0", 60)
        assert await world.fleet.answers("unknown", 60), "nothing is known against it"
        one.is_down = True
        assert not await world.fleet.answers("broker-0", 60)
