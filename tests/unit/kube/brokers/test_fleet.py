"""The fleet with fake HTTP brokers: it sends the desired state, loses brokers and finds them again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.cluster.pki import Authority
from tests.unit.kube.brokers.fleet_world import KEY, QUICK, TOPIC, World, topic, until
from tests.unit.kube.fake_broker import FakeBroker, status

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import Key
from onewriter_core.kubernetes.objects import parse_topic
from onewriter_operator.brokers import client
from onewriter_operator.brokers.client import BrokerUnreachable, Credentials
from onewriter_operator.plan.facts import Applied


async def test_every_broker_receives_the_declarations() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        assert one.topics() == two.topics() == [TOPIC]
        assert one.revision == two.revision
        assert KEY in world.received.applied_keys
        assert world.fleet.state().all_synced


async def test_a_burst_is_sent_in_few_calls() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        for number in range(200):
            world.declare(topic(f"t{number}"))
            await asyncio.sleep(0)
        await until(lambda: len(broker.topics()) == 200)
        assert len(broker.bodies) <= 20


async def test_the_fleet_settles_when_all_brokers_answered_or_the_time_is_over() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running():
        async with World(one, two).running() as world:
            assert world.fleet.state().is_settling
            await until(lambda: world.fleet.state().all_synced)
            assert not world.fleet.state().is_settling
        two.is_down = True
        limits = replace(QUICK, settle_seconds=0.5)
        async with World(one, two, limits=limits).running() as world:
            await until(lambda: world.fleet.state().synced == 1)
            assert world.fleet.state().is_settling
            changes = world.received.fleet_changes
            await until(lambda: not world.fleet.state().is_settling)
            assert world.received.fleet_changes == changes + 1


async def test_an_operator_that_starts_sends_brokers_nothing_that_they_have() -> None:
    broker = FakeBroker()
    async with broker.running():
        async with World(broker).running() as world:
            world.declare(topic())
            await until(world.is_everywhere)
        async with World(broker).running() as world:
            world.declare(topic())
            await until(world.is_everywhere)
            assert KEY in world.received.applied_keys
            assert len(broker.bodies) == 1
            world.declare(topic(generation=2, partitions=2))
            await until(lambda: len(broker.bodies) == 2)


async def test_an_operator_that_starts_takes_nothing_from_brokers_before_it_has_asked() -> None:
    new = topic("new") | {"status": {"observedGeneration": -1}}
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.store.put(new)
        world.declarations.start()
        world.declare(topic())
        await until(lambda: world.fleet.state().all_synced)
        await asyncio.sleep(0.2)
        assert broker.bodies == []
        world.declarations.admit(parse_topic(new))
        world.declare()
        await until(lambda: len(broker.topics()) == 2)
        assert len(broker.bodies) == 1
    limits = replace(QUICK, settle_seconds=0.3)
    async with broker.running(), World(broker, limits=limits).running() as world:
        world.store.put(new)
        world.declarations.start()
        world.declare(topic())
        await until(lambda: broker.topics() == [TOPIC])  # nobody could say, in all that time


async def test_a_returned_broker_is_catching_up_until_it_has_the_state() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)

        def applied() -> Applied:
            return world.fleet.applied(KEY, world.declarations.piece(KEY))

        assert not applied().is_catching_up
        broker.revision, broker.desired, broker.incarnation = None, None, "broker-0/2"
        broker.refuse_put = ["not yet"]
        seen = world.received.applied_keys.copy()
        broker.cut()
        await until(lambda: world.received.applied_keys != seen)
        assert applied().refusal
        assert not applied().is_catching_up  # it was told, and said no
        broker.refuse_put = None
        broker.cut()
        await until(world.is_everywhere)


async def test_a_suspected_broker_counts_as_lost_until_its_stream_continues() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        world.fleet.suspect(broker.name)
        await until(lambda: not world.fleet.state().all_synced)
        assert "get no answer" in "".join(world.fleet.state().problems)
        broker.serve(TOPIC)
        await until(lambda: world.fleet.state().all_synced and world.fleet.view(TOPIC))


async def test_an_unreadable_line_affects_only_its_broker() -> None:
    one, two = FakeBroker("broker-0"), FakeBroker("broker-1")
    async with one.running(), two.running(), World(one, two).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        one._report({"type": "TOPIC", "topic": TOPIC})  # and no status
        await until(lambda: "not understood" in "".join(world.fleet.state().problems))
        two.serve(TOPIC)
        await until(lambda: world.fleet.view(TOPIC))
        await until(lambda: not world.fleet.state().problems)


async def test_a_response_that_is_not_json_counts_as_no_answer() -> None:
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


async def test_a_broker_that_does_not_serve_a_topic_confirms_nothing() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        await until(lambda: world.fleet.state().all_synced)
        assert await world.fleet.confirm(TOPIC) is None
        broker.serve(TOPIC, status(4))
        found = await world.fleet.confirm(TOPIC)
        assert found is not None
        assert found.epoch == 4
        broker.serve(TOPIC, status(4, served=False, waitingReason="the bucket has no owner"))
        with pytest.raises(BrokerUnreachable, match="no owner"):
            await world.fleet.confirm(TOPIC)


async def test_a_call_during_a_reconnect_fails_as_unreachable() -> None:
    broker = FakeBroker()
    async with broker.running():
        found = client.BrokerClient("broker-0", broker.url, Credentials(None))
        await found.open()
        session = found._session
        assert session is not None
        close = session.close
        requests: list[str] = []

        async def slowly() -> None:
            with pytest.raises(BrokerUnreachable):
                await found.revision()
            requests.append("revision")
            await close()

        session.close = slowly  # type: ignore[method-assign]
        await found.open()
        assert requests == ["revision"]
        assert await found.revision() == ""
        await found.close()


async def test_the_same_state_is_not_sent_twice() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        world.fleet.declare()
        world.declare(topic() | {"status": {"observedGeneration": 1, "epoch": 4}})
        await asyncio.sleep(0.2)
        assert len(broker.bodies) == 1


async def test_a_missing_broker_receives_the_state_when_it_returns() -> None:
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


async def test_a_broker_that_lost_its_state_receives_it_again() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        broker.revision, broker.desired, broker.incarnation = None, None, "broker-0/2"
        broker.cut()
        await until(lambda: broker.topics() == [TOPIC])
        assert world.received.drifts == []  # a restart is no drift


async def test_a_foreign_state_is_drift() -> None:
    limits = replace(QUICK, check_seconds=0.05)
    broker = FakeBroker()
    async with broker.running(), World(broker, limits=limits).running() as world:
        world.declare(topic())
        await until(world.is_everywhere)
        broker.revision = "by hand"
        await until(lambda: world.received.drifts == ["broker-0"])
        await until(lambda: broker.revision != "by hand")


def refuse(broker: FakeBroker, is_bad: Callable[[Json], bool]) -> None:
    """Let the broker refuse the desired states with a bad topic, and name that topic."""
    put = broker._put

    async def picky(request: Any) -> Any:
        body = await request.json()
        bad = [each["metadata"]["name"] for each in body["topics"] if is_bad(each)]
        broker.refuse_put = [f"ExclusiveTopic shop/{name}, spec: no" for name in bad] or None
        return await put(request)

    runner = broker._runner
    assert runner is not None
    for route in runner.app.router.routes():
        if route.method == "PUT":
            route._handler = picky


def partitions(broker: FakeBroker) -> set[int]:
    """The numbers of partitions in the desired state that the broker accepted last."""
    assert broker.desired is not None
    return {each.spec.partitions for each in broker.desired.state.topics}


def is_named_bad(document: Json) -> bool:
    return bool(document["metadata"]["name"] == "bad")


async def test_an_object_that_a_broker_refuses_does_not_hold_back_others() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        refuse(broker, is_named_bad)
        world.declare(topic(), topic("bad"), topic("badger"))
        await until(world.is_everywhere)
        await until(lambda: len(broker.topics()) == 2)
        bad = Key("ExclusiveTopic", "shop", "bad")
        found = world.fleet.applied(bad, world.declarations.piece(bad))
        assert found.refusal == "broker-0: ExclusiveTopic shop/bad, spec: no"
        assert not found.is_everywhere
        badger = Key("ExclusiveTopic", "shop", "badger")
        assert world.fleet.applied(badger, world.declarations.piece(badger)).is_everywhere


async def test_a_broker_keeps_the_former_spec_of_an_object_whose_edit_it_refuses() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic(partitions=1), topic("other"))
        await until(world.is_everywhere)
        refuse(broker, lambda each: each["spec"].get("partitions") == 2)
        world.declare(topic(generation=2, partitions=2), topic("other", generation=2, partitions=5))
        other = Key("ExclusiveTopic", "shop", "other")
        await until(
            lambda: world.fleet.applied(other, world.declarations.piece(other)).is_everywhere
        )
        assert partitions(broker) == {1, 5}
        assert world.fleet.applied(KEY, world.declarations.piece(KEY)).refusal
        world.declare(topic(generation=3, partitions=3))
        await until(world.is_everywhere)
        assert partitions(broker) == {3, 5}


async def test_an_object_is_left_out_if_the_broker_refuses_its_former_spec_too() -> None:
    broker = FakeBroker()
    async with broker.running(), World(broker).running() as world:
        world.declare(topic("bad"), topic())
        await until(world.is_everywhere)
        refuse(broker, is_named_bad)
        world.declare(topic("bad", generation=2, partitions=2), topic(generation=2, partitions=2))
        await until(world.is_everywhere)
        bad = Key("ExclusiveTopic", "shop", "bad")
        await until(lambda: world.fleet.applied(bad, world.declarations.piece(bad)).refusal)
        assert len(broker.topics()) == 1


async def test_a_refusal_without_a_name_counts_for_every_object() -> None:
    broker = FakeBroker()
    broker.refuse_put = ["this broker reads manifest files"]
    async with broker.running(), World(broker).running() as world:
        world.declare(topic())
        await until(lambda: world.fleet.applied(KEY, world.declarations.piece(KEY)).refusal)
        broker.refuse_put = None
        world.declare(topic(generation=2, partitions=2))
        await until(world.is_everywhere)


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
