"""``client.own`` against real brokers: owning, losing, resuming, and reading and writing as the only owner."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.forked_brokers import forked_brokers
from tests.integration.patience import PATIENT
from tests.integration.raw import contents_of, full
from tests.servers import running_server

from onewriter import (
    EARLIEST,
    Client,
    Closed,
    ConfigurationError,
    ConsumerOptions,
    Fenced,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter_testing.processes import LocalBrokers

_numbers = itertools.count()

FROM_BEGINNING = ConsumerOptions(start=EARLIEST)


@pytest.fixture
def resource() -> str:
    """A resource without an owner."""
    return f"sdk, number {next(_numbers)}"


async def test_owning_losing_and_giving_back(broker: LocalBrokers, resource: str) -> None:
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        async with client.own("group", [resource, (resource + "2", 1)]) as (first, second):
            assert (first.generation, second.generation) == (1, 1)
            assert first.is_owned
            await first.check()
            (taken,) = await other.own("group", [(resource, 2)])
            reason = await first.lost
            assert isinstance(reason, Fenced)
            assert (reason.epoch, reason.current_epoch) == (1, 2)
            assert not first.is_owned
            with pytest.raises(Fenced):
                await first.check()
            await second.check()
        assert isinstance(second.end, Closed)
        (free,) = await other.own("group", [resource + "2"], identity="another")
        assert free.generation == 2
        await taken.release()
        await taken.release()
        with pytest.raises(Closed):
            await taken.check()
    assert isinstance(free.end, Closed)


async def test_a_denied_ownership_is_over_immediately(broker: LocalBrokers, resource: str) -> None:
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        await other.own(None, [resource], identity="other")
        owned = await client.own(None, [resource, resource + " free", (resource + "-", -1)])
        denied, free, wrong = owned
        assert free.generation == 1
        assert isinstance(denied.end, Refused)
        assert denied.end.code is ServerError.PRODUCER_BUSY
        with pytest.raises(Refused):
            assert denied.generation
        with pytest.raises(Refused, match="generation"):
            wrong.check_held()
        assert not owned.is_over
        await owned.release(list(owned))
        assert owned.is_over


async def test_a_text_is_no_topic_to_read(broker: LocalBrokers, topic: str) -> None:
    async with Client(broker.service_url) as client, client.own("group", [topic]) as (text,):
        with pytest.raises(ConfigurationError, match="full name"):
            await text.subscribe()


@pytest.mark.parametrize("resources", [[], [""], ["a", "a"], [("a", 2**63)]])
async def test_invalid_requests_are_refused_immediately(
    broker: LocalBrokers, resources: list[str]
) -> None:
    async with Client(broker.service_url) as client:
        with pytest.raises(ConfigurationError):
            client.own("group", resources)
    with pytest.raises(Closed):
        client.own("group", ["a"])


@pytest.mark.full  # test_own_wire.py owns a thousand in one request
async def test_ten_thousand_resources(broker: LocalBrokers, resource: str) -> None:
    async with Client(broker.service_url, limits=PATIENT) as client:
        owned = await client.own("many", [f"{resource}/{n}" for n in range(10_000)])
        assert {each.generation for each in owned} == {1}
        await owned[9_999].check()
        await owned.release(list(owned))


async def test_the_groups_single_reader_and_writer(broker: LocalBrokers, topic: str) -> None:
    audit = f"{{{topic}}}-audit"
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        producer = await other.create_producer(topic)
        await producer.send(b"0")
        (former,) = await client.own("group", [full(topic)])
        consumer = await former.subscribe(FROM_BEGINNING)
        message = await consumer.receive()
        await former.guarded(audit).send(b"by the former one")
        (taken,) = await other.own("group", [(full(topic), 2)])
        with pytest.raises((Refused, Closed, Unavailable)):
            await consumer.acknowledge(message)
        with pytest.raises(Fenced):
            await former.guarded(audit).send(b"too late")
        assert isinstance(await consumer.ended(), Refused)
        with pytest.raises(Fenced):
            await former.subscribe()
        successor = await taken.subscribe(FROM_BEGINNING)
        again = await successor.receive()
        assert again.id == message.id
        await successor.acknowledge(again)
        await taken.guarded(audit).send(b"by its successor")
        assert taken.guarded(audit).is_atomic
    found = await asyncio.to_thread(contents_of, broker.address(), audit)
    assert found == [b"by the former one", b"by its successor"]


async def test_an_owner_continues_when_its_broker_is_killed(tmp_path: Path, resource: str) -> None:
    limits = replace(PATIENT, request_timeout_seconds=5.0)
    with (
        running_server() as store,
        forked_brokers(brokers=2, redis_url=store.url) as brokers,
    ):
        topic = "killed-under-a-reader"
        async with Client(brokers.service_url, limits=limits) as client:
            (own,) = await client.own("group", [full(topic)])
            consumer = await own.subscribe(FROM_BEGINNING)
            producer = await client.create_producer(topic)
            await producer.send(b"before")
            assert (await consumer.receive()).content == b"before"
            address = own.address
            assert address is not None
            number = [str(brokers.address(n)[1]) in str(address) for n in (0, 1)].index(True)
            await asyncio.to_thread(brokers.kill, number)
            await own.check()
            assert own.generation == 1
            assert own.address not in {None, address}
            await producer.send(b"behind")
            contents = {(await consumer.receive()).content}
            while b"behind" not in contents:
                contents.add((await consumer.receive()).content)
            assert own.is_owned


async def test_a_broker_of_another_installation_receives_nothing(
    broker: LocalBrokers, resource: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a Pulsar broker's answer to CONNECT: without the field that announces our own commands."""
    async with Client(broker.service_url) as client:
        connection = await client._directory.any_broker()
        monkeypatch.setattr(connection, "extensions_version", 0)
        (denied,) = await client.own("group", [resource])
        assert isinstance(denied.end, Refused)
        assert denied.end.code is ServerError.UNSUPPORTED_VERSION_ERROR


async def test_an_owner_serves_until_its_successor_is_notified(
    broker: LocalBrokers, resource: str
) -> None:
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        (former,) = await client.own("group", [resource], serve_seconds=1.0)
        while not former.may_serve():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        until = former.serve_until
        (taken,) = await other.own("group", [(resource, 2)])
        assert taken.generation == 2
        assert time.monotonic() > until
        assert not former.may_serve()
        assert not taken.may_serve(), "it did not ask for it"
        (wrong,) = await other.own("group", [resource + " wrong"], serve_seconds=4.0)
        assert isinstance(wrong.end, Refused)
