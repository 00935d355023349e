"""The fleet against brokers that speak HTTP: telling, hearing, merging, losing, finding again."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.cluster.pki import Authority
from tests.unit.kube.fake_broker import FakeBroker, contender, status

from onewriter_operator.brokers import client, fleet, lookups, pace
from onewriter_operator.brokers.client import BrokerRefused, BrokerUnreachable, Credentials
from onewriter_operator.brokers.fleet import Fleet
from onewriter_operator.brokers.views import Views, claims_in
from onewriter_operator.declarations import Declarations
from onewriter_operator.documents import Key
from onewriter_operator.plan.facts import Applied
from onewriter_operator.store import Store

TOPIC = "persistent://shop/default/orders"
KEY = Key("ExclusiveTopic", "shop", "orders")


def topic(name: str = "orders", generation: int = 1, **spec: Any) -> dict[str, Any]:
    about = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "generation": generation}
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": about,
        "spec": spec,
        "status": {"observedGeneration": 1},
    }


class Heard:
    """A listener that notes what it hears."""

    def __init__(self) -> None:
        self.topics: list[tuple[str, set[str] | None]] = []
        self.applied_keys: list[Key] = []
        self.fleet_changes = 0
        self.drifts: list[str] = []

    def topic_changed(self, topic: str, claims: Collection[str] | None) -> None:
        self.topics.append((topic, None if claims is None else set(claims)))

    def applied(self, keys: Collection[Key]) -> None:
        self.applied_keys += keys

    def fleet_changed(self) -> None:
        self.fleet_changes += 1

    def drifted(self, broker: str) -> None:
        self.drifts.append(broker)


class World:
    def __init__(self, *brokers: FakeBroker, credentials: Credentials | None = None) -> None:
        self.store = Store()
        self.declarations = Declarations(self.store)
        self.heard = Heard()
        urls = {broker.name: broker.url for broker in brokers}
        self.fleet = Fleet(urls, credentials or Credentials(None), self.declarations, self.heard)

    def declare(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            self.store.put(document)
        self.fleet.declare()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.fleet.run())
            yield self
            task.cancel()

    def is_everywhere(self) -> bool:
        return self.fleet.applied(KEY, self.declarations.piece(KEY)).is_everywhere


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "RETRY_SECONDS_MIN", 0.02)
    monkeypatch.setattr(pace, "RETRY_SECONDS_MAX", 0.1)
    monkeypatch.setattr(pace, "GATHER_SECONDS_MIN", 0.01)
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 0.3)


async def test_every_broker_is_told_what_is_declared() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        assert one.topics() == two.topics() == [TOPIC]
        assert one.revision == two.revision
        assert KEY in world.heard.applied_keys
        assert world.fleet.state().all_synced


async def test_a_burst_is_told_in_few_calls() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        for number in range(200):
            world.declare(topic(f"t{number}"))
            await asyncio.sleep(0)
        await until(lambda: len(broker.topics()) == 200)
        assert len(broker.bodies) <= 20


async def test_it_settles_when_all_brokers_were_heard_or_their_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running():
        async with World(one, two).running() as world:
            assert world.fleet.state().is_settling
            await until(lambda: world.fleet.state().all_synced)
            assert not world.fleet.state().is_settling
        two.is_down = True
        monkeypatch.setattr(fleet, "SETTLE_SECONDS", 0.5)
        async with World(one, two).running() as world:
            await until(lambda: world.fleet.state().synced == 1)
            assert world.fleet.state().is_settling
            changes = world.heard.fleet_changes
            await until(lambda: not world.fleet.state().is_settling)
            assert world.heard.fleet_changes == changes + 1


async def test_an_operator_that_starts_tells_brokers_nothing_that_they_have() -> None:
    broker = FakeBroker()
    async with broker.running():
        async with World(broker).running() as world:
            world.declare(topic())
            await until(world.is_everywhere)
        async with World(broker).running() as world:
            world.declare(topic())
            await until(world.is_everywhere)
            assert KEY in world.heard.applied_keys
            assert len(broker.bodies) == 1
            world.declare(topic(generation=2, partitions=2))
            await until(lambda: len(broker.bodies) == 2)


async def test_an_operator_that_starts_takes_nothing_from_brokers_before_it_has_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = topic("new") | {"status": {"observedGeneration": -1}}
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.store.put(new)
        world.declarations.start()
        world.declare(topic())
        await until(lambda: world.fleet.state().all_synced)
        await asyncio.sleep(0.2)
        assert broker.bodies == []
        world.declarations.admit(new)
        await until(lambda: len(broker.topics()) == 2)
        assert len(broker.bodies) == 1
    monkeypatch.setattr(fleet, "SETTLE_SECONDS", 0.3)
    async with broker.running(), World(broker).running() as world:
        world.store.put(new)
        world.declarations.start()
        world.declare(topic())
        await until(lambda: broker.topics() == [TOPIC])  # nobody could say, in all that time


async def test_a_broker_that_comes_back_is_catching_up_until_it_was_told() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)

        def applied() -> Applied:
            return world.fleet.applied(KEY, world.declarations.piece(KEY))

        assert not applied().is_catching_up
        broker.revision, broker.desired, broker.incarnation = None, None, "broker-0/2"
        broker.refuse_put = ["not yet"]
        seen = world.heard.applied_keys.copy()
        broker.cut()
        await until(lambda: world.heard.applied_keys != seen)
        assert applied().refusal
        assert not applied().is_catching_up  # it was told, and said no
        broker.refuse_put = None
        broker.cut()
        await until(world.is_everywhere)


async def test_what_is_not_understood_is_a_problem_of_that_broker_alone() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        one._tell({"type": "TOPIC", "topic": TOPIC})  # and no status
        await until(lambda: "not understood" in "".join(world.fleet.state().problems))
        two.serve(TOPIC)
        await until(lambda: world.fleet.view(TOPIC))
        await until(lambda: not world.fleet.state().problems)


async def test_an_answer_that_is_no_json_is_no_answer() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)

        async def proxy(request: Any) -> Any:
            return web.Response(text="<html>it works</html>")

        assert broker._runner is not None
        for route in broker._runner.app.router.routes():
            if route.method in {"PUT", "DELETE"} or "partitions" in str(route.resource):
                route._handler = proxy
        world.declare(topic())
        with pytest.raises(BrokerUnreachable):
            await world.fleet.delete(TOPIC, only_if_empty=False)
        broker.serve(TOPIC)
        await until(lambda: world.fleet.view(TOPIC))  # it goes on being followed


async def test_what_a_broker_says_of_a_topic_it_does_not_serve_confirms_nothing() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        assert await world.fleet.confirm(TOPIC) is None
        broker.serve(TOPIC, status(4))
        found = await world.fleet.confirm(TOPIC)
        assert found is not None
        assert found["epoch"] == 4
        broker.serve(TOPIC, status(4, served=False, waitingReason="the bucket has no owner"))
        with pytest.raises(BrokerUnreachable, match="no owner"):
            await world.fleet.confirm(TOPIC)


async def test_who_asks_while_a_connection_is_made_anew_is_told_so() -> None:
    broker = FakeBroker()
    async with broker.running():
        found = client.BrokerClient("broker-0", broker.url, Credentials(None))
        await found.open()
        session = found._session
        assert session is not None
        close = session.close
        asked: list[str] = []

        async def slowly() -> None:
            with pytest.raises(BrokerUnreachable):
                await found.revision()
            asked.append("revision")
            await close()

        session.close = slowly  # type: ignore[method-assign]
        await found.open()
        assert asked == ["revision"]
        assert await found.revision() == ""
        await found.close()


async def test_the_same_state_is_not_told_twice() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        world.fleet.declare()
        world.declare(topic() | {"status": {"observedGeneration": 1, "epoch": 4}})
        await asyncio.sleep(0.2)
        assert len(broker.bodies) == 1


async def test_a_broker_that_is_away_is_told_when_it_comes() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    two.is_down = True
    async with one.running(), two.running(), World(one, two).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)  # of those that can be reached
        state = world.fleet.state()
        assert (state.expected, state.synced) == (2, 1)
        assert "broker-1: 503" in state.problems[0]
        two.is_down = False
        await until(lambda: two.topics() == [TOPIC])
        await until(lambda: world.fleet.state().all_synced)


async def test_a_broker_that_lost_its_state_is_told_again() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        broker.revision, broker.desired, broker.incarnation = None, None, "broker-0/2"
        broker.cut()
        await until(lambda: broker.topics() == [TOPIC])
        assert world.heard.drifts == []  # a restart is no drift


async def test_a_state_that_somebody_else_handed_over_is_drift(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "CHECK_SECONDS", 0.05)
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        broker.revision = "by hand"
        await until(lambda: world.heard.drifts == ["broker-0"])
        await until(lambda: broker.revision != "by hand")


async def test_one_object_that_a_broker_refuses_keeps_no_other_back() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        put = broker._put

        async def picky(request: Any) -> Any:
            body = await request.json()
            bad = [each for each in body["topics"] if each["metadata"]["name"] == "bad"]
            broker.refuse_put = ["ExclusiveTopic shop/bad, spec: no"] if bad else None
            return await put(request)

        monkeypatched = broker._runner
        assert monkeypatched is not None
        for route in monkeypatched.app.router.routes():
            if route.method == "PUT":
                route._handler = picky
        world.declare(topic(), topic("bad"), topic("badger"))
        await until(world.is_everywhere)
        await until(lambda: len(broker.topics()) == 2)
        bad = Key("ExclusiveTopic", "shop", "bad")
        found = world.fleet.applied(bad, world.declarations.piece(bad))
        assert found.refusal == "broker-0: ExclusiveTopic shop/bad, spec: no"
        assert not found.is_everywhere
        badger = Key("ExclusiveTopic", "shop", "badger")
        assert world.fleet.applied(badger, world.declarations.piece(badger)).is_everywhere


async def test_a_refusal_that_names_nobody_is_everybodys() -> None:
    broker = FakeBroker()
    broker.refuse_put = ["this broker reads manifest files"]
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(lambda: world.fleet.applied(KEY, world.declarations.piece(KEY)).refusal)
        broker.refuse_put = None
        world.declare(topic(generation=2, partitions=2))
        await until(world.is_everywhere)


async def test_what_brokers_serve_is_heard() -> None:
    broker = FakeBroker()
    holder = contender("w1", "primary", "writer-0")
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        broker.serve(TOPIC, status(1, "Vacant"))
        await until(lambda: world.fleet.view(TOPIC))
        broker.serve(TOPIC, status(2, holders=[holder]))
        await until(lambda: (TOPIC, {"primary"}) in world.heard.topics)
        view = world.fleet.view(TOPIC)
        assert view is not None
        assert view.status["epoch"] == 2
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
        assert (view.broker, view.status["epoch"]) == ("broker-1", 8)
        frozen.serve(TOPIC, status(7, waiters=[contender("w2")]))
        await asyncio.sleep(0.1)
        view = world.fleet.view(TOPIC)
        assert view is not None
        assert view.broker == "broker-1"


async def test_a_short_break_is_forgiven() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        broker.serve(TOPIC)
        await until(lambda: world.fleet.view(TOPIC))
        changes = world.heard.fleet_changes
        broker.cut()
        await asyncio.sleep(0.6)
        assert world.fleet.view(TOPIC) is not None
        assert world.heard.fleet_changes == changes


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


async def test_what_a_broker_no_longer_serves_after_a_break_is_dropped() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        broker.serve(TOPIC)
        await until(lambda: world.fleet.view(TOPIC))
        broker.served.clear()
        broker.cut()
        await until(lambda: world.fleet.view(TOPIC) is None)


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
        two.served[TOPIC] = status(5, waiters=[contender("w2")])
        await until(lambda: world.fleet.view(TOPIC))
        await world.fleet.hand_over(TOPIC, 5, "w2")
        await world.fleet.hand_over(TOPIC, 5, "")
        assert two.handovers == [(TOPIC, 5, "w2"), (TOPIC, 5, None)]
        with pytest.raises(BrokerRefused) as refused:
            await world.fleet.hand_over(TOPIC, 4, "")
        assert refused.value.status == 412
        two.served[TOPIC] = status(5)
        with pytest.raises(BrokerRefused, match="nobody is waiting"):
            await world.fleet.hand_over(TOPIC, 5, "")


async def test_a_question_is_passed_on_until_somebody_answers() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        two.served[TOPIC] = status(5)  # and nobody has heard of it yet
        await world.fleet.fence(TOPIC, 5)
        assert one.fences == [(TOPIC, 5)]
        assert two.fences == [(TOPIC, 5)]


async def test_what_a_broker_takes_over_is_told_once_all_have_it() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        two.is_down = True
        world.declare(topic())
        await until(lambda: one.topics() == [TOPIC])
        await asyncio.sleep(0.1)
        assert world.heard.applied_keys == []
        two.is_down = False
        await until(world.is_everywhere)
        assert world.heard.applied_keys == [KEY]


async def test_nobody_to_ask() -> None:
    broker = FakeBroker()
    broker.is_down = True
    async with broker.running(), World(broker).running() as world:
        with pytest.raises(BrokerUnreachable):
            await world.fleet.fence(TOPIC, 5)
        assert not (await world.fleet.stored(TOPIC)).is_known


async def test_what_is_stored_of_a_topic() -> None:
    broker = FakeBroker()
    broker.stored[TOPIC] = status(7, "Idle")
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        found = await world.fleet.stored(TOPIC)
        assert (found.exists, found.is_declared, found.epoch) == (True, False, 7)
        assert not (await world.fleet.stored("persistent://shop/default/new")).exists


def named(number: int) -> str:
    return f"persistent://shop/default/topic-{number}"


async def test_topics_that_are_looked_up_meanwhile_are_looked_up_together() -> None:
    broker = FakeBroker()
    broker.stored = {named(number): status(number, "Idle") for number in range(50)}
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        found = await asyncio.gather(*(world.fleet.stored(named(n)) for n in range(50)))
        assert [each.epoch for each in found] == list(range(50))
        assert broker.calls.count(("POST", "/onewriter/v1/topics")) == 1


async def test_no_more_are_looked_up_together_than_a_broker_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups, "TOGETHER_MAX", 20)
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        found = await asyncio.gather(*(world.fleet.stored(named(n)) for n in range(50)))
        assert not any(each.exists for each in found)
        assert broker.calls.count(("POST", "/onewriter/v1/topics")) == 3


async def test_what_one_broker_leaves_to_another_is_asked_there() -> None:
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
async def test_an_answer_that_is_not_understood_says_nothing(
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


async def test_the_token_is_shown_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TOKEN_SECONDS", 0.05)
    file = tmp_path / "token"
    file.write_text("one\n")
    credentials = Credentials(file)
    assert await credentials.headers() == {"Authorization": "Bearer one"}
    file.write_text("two\n")
    await asyncio.sleep(0.06)
    assert await credentials.headers() == {"Authorization": "Bearer two"}
    file.unlink()
    await asyncio.sleep(0.06)
    with pytest.raises(BrokerUnreachable):
        await credentials.headers()


def test_views_remember_who_served_last() -> None:
    views = Views()
    views.put("a", TOPIC, status(1), 0)
    assert views.server(TOPIC) == "a"
    views.drop("a", TOPIC, 1)
    assert views.server(TOPIC) == ""
    views.put("b", TOPIC, status(2), 0)
    assert views.lose("b") == [TOPIC]
    assert views.server(TOPIC) == "b"
    assert views.best(TOPIC) is None


def test_views_know_since_when_a_topic_is_as_it_is() -> None:
    views = Views()
    views.put("a", TOPIC, status(1, "Held"), 10)
    views.put("a", TOPIC, status(1, "Held", waiters=[contender("w")]), 20)
    found = views.best(TOPIC)
    assert found is not None
    assert found.since == 10
    views.put("a", TOPIC, status(1, "ChangingHands"), 30)
    found = views.best(TOPIC)
    assert found is not None
    assert found.since == 30


def test_views_know_since_when_nobody_serves_a_topic() -> None:
    views = Views()
    views.put("a", TOPIC, status(1), 0)
    views.put("b", TOPIC, status(2), 1)
    views.drop("a", TOPIC, 2)
    assert views.gone_at(TOPIC) is None  # another one does
    views.keep_only("b", [], 3)
    assert views.gone_at(TOPIC) == 3
    views.put("c", TOPIC, status(3), 4)
    assert views.gone_at(TOPIC) is None


def test_views_remember_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onewriter_operator.brokers.views.TOPICS_REMEMBERED_MAX", 3)
    found = Views()
    for number in range(9):
        found.put("a", f"t{number}", status(), 0)
    found.lose("a")
    assert [found.server(f"t{number}") for number in (5, 6, 8)] == ["", "a", "a"]


def test_claims_of_a_view() -> None:
    found = status(1, holders=[contender("a", "x")], waiters=[contender("b", "y"), contender("c")])
    assert claims_in(found) == {"x", "y"}
    assert claims_in(None) == set()


async def test_a_certificate_that_has_expired_is_named_and_one_that_was_renewed_is_taken(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "pki")
    files = [str(authority.directory / f"broker.{part}") for part in ("crt", "key")]
    authority.server("broker", ["127.0.0.1"], is_expired=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    broker = FakeBroker()
    trust = Credentials(None, authority.certificate)
    async with broker.running(tls=context), World(broker, credentials=trust).running() as world:
        await until(lambda: "certificate has expired" in "".join(world.fleet.state().problems))
        assert world.fleet.state().synced == 0
        authority.server("broker", ["127.0.0.1"])
        context.load_cert_chain(*files)
        await until(lambda: world.fleet.state().all_synced)


async def test_an_authority_that_was_renewed_is_read_again(tmp_path: Path) -> None:
    former, authority = Authority(tmp_path / "former"), Authority(tmp_path / "pki")
    authority.server("broker", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.directory / "broker.crt", authority.directory / "broker.key")
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(former.certificate.read_bytes())
    broker = FakeBroker()
    trust = Credentials(None, trusted)
    async with broker.running(tls=context), World(broker, credentials=trust).running() as world:
        await until(lambda: "verify failed" in "".join(world.fleet.state().problems))
        trusted.write_bytes(authority.certificate.read_bytes())
        await until(lambda: world.fleet.state().all_synced)
