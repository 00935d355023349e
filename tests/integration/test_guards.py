"""Guarded producers against a real broker, which every Pulsar client can request by properties."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pulsar
import pytest
from tests.integration.conftest import StockClients
from tests.integration.raw import contents_of

from onewriter import (
    AccessMode,
    Client,
    Fenced,
    MessageId,
    Producer,
    ProducerOptions,
    Refused,
    ServerError,
)
from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.processes import LocalBrokers

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)
FENCING = ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)


def beside(topic: str) -> str:
    """Return a topic of the same bucket."""
    return f"{{{topic}}}-audit"


def elsewhere(brokers: LocalBrokers, topic: str) -> str:
    """Return a topic of another bucket."""
    own = bucket_of(TopicName.parse(topic), brokers.buckets)
    names = (f"{topic}-far-{number}" for number in range(1_000))
    return next(n for n in names if bucket_of(TopicName.parse(n), brokers.buckets) != own)


def guarded_by(topic: str, epoch: int | None) -> ProducerOptions:
    properties = {
        "onewriter.guard": f"persistent://public/default/{topic}",
        "onewriter.guard-number": str(epoch),
    }
    return ProducerOptions(properties=properties)


async def guarded_producer(client: Client, target: str, leader: Producer) -> Producer:
    return await client.create_producer(target, guarded_by(leader.topic.local, leader.epoch))


@pytest.fixture(params=["beside", "elsewhere"])
def target(request: pytest.FixtureRequest, broker: LocalBrokers, topic: str) -> str:
    return beside(topic) if request.param == "beside" else elsewhere(broker, topic)


async def test_a_guarded_producer_writes_while_its_leader_leads(
    broker: LocalBrokers, topic: str, target: str
) -> None:
    async with Client(broker.service_url) as client:
        leader = await client.create_producer(topic, EXCLUSIVE)
        guarded = await guarded_producer(client, target, leader)
        ids = [await guarded.send(b"%d" % number) for number in range(3)]
    assert ids == sorted(ids)
    contents = await asyncio.to_thread(contents_of, broker.address(), target)
    assert contents == [b"0", b"1", b"2"]


async def test_beside_its_guard_nothing_enters_after_a_takeover(
    broker: LocalBrokers, topic: str
) -> None:
    """The store decides for each message: the guarded producer needs no notification."""
    target = beside(topic)
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        leader = await client.create_producer(topic, EXCLUSIVE)
        guarded = await guarded_producer(client, target, leader)
        unguarded = await client.create_producer(target)
        await guarded.send(b"before")
        successor = await other.create_producer(topic, FENCING)
        with pytest.raises(Fenced) as fenced:
            await guarded.send(b"after")
        assert fenced.value.current_epoch == successor.epoch
        await unguarded.send(b"unguarded")
        with pytest.raises(Fenced):
            await guarded_producer(client, target, leader)
        await (await guarded_producer(other, target, successor)).send(b"successor")
    contents = await asyncio.to_thread(contents_of, broker.address(), target)
    assert contents == [b"before", b"unguarded", b"successor"]


async def test_closing_after_a_refused_message_reports_the_refusal(
    broker: LocalBrokers, topic: str
) -> None:
    """The close is under way when the store refuses: the answer to it must not hide the refusal."""
    target = beside(topic)
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        leader = await client.create_producer(topic, EXCLUSIVE)
        guarded = await guarded_producer(client, target, leader)
        await other.create_producer(topic, FENCING)
        receipt = await guarded.submit(b"late")
        await guarded.close()
        with pytest.raises(Fenced):
            await receipt
    assert await asyncio.to_thread(contents_of, broker.address(), target) == []


async def test_elsewhere_the_successors_first_write_is_the_floor(
    broker: LocalBrokers, topic: str
) -> None:
    target = elsewhere(broker, topic)
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        leader = await client.create_producer(topic, EXCLUSIVE)
        guarded = await guarded_producer(client, target, leader)
        await guarded.send(b"before")
        successor = await other.create_producer(topic, FENCING)
        await guarded.send(b"behind no floor yet")
        await (await guarded_producer(other, target, successor)).send(b"successor")
        with pytest.raises(Fenced):
            await guarded.send(b"after")
    contents = await asyncio.to_thread(contents_of, broker.address(), target)
    assert contents == [b"before", b"behind no floor yet", b"successor"]


async def test_of_many_messages_under_way_a_prefix_enters(broker: LocalBrokers, topic: str) -> None:
    """The messages of other producers between them are all stored, in order."""
    target = beside(topic)
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        leader = await client.create_producer(topic, EXCLUSIVE)
        guarded = await guarded_producer(client, target, leader)
        unguarded = await client.create_producer(target)

        over = asyncio.Event()

        async def stream() -> tuple[list[bytes], int]:
            sent: list[bytes] = []
            receipts: list[asyncio.Future[MessageId]] = []
            for number in itertools.count():
                if over.is_set() and number >= 2_000:
                    break
                with contextlib.suppress(Fenced):
                    receipts.append(await guarded.submit(b"g%d" % number))
                sent.append(b"u%d" % number)
                receipts.append(await unguarded.submit(sent[-1]))
                await asyncio.sleep(0)
            results = await asyncio.gather(*receipts, return_exceptions=True)
            refused = [each for each in results if isinstance(each, BaseException)]
            assert refused
            assert all(isinstance(each, Fenced) for each in refused)
            return sent, len(results) - len(refused)

        async def take_over() -> None:
            await asyncio.sleep(0.05)
            await other.create_producer(topic, FENCING)
            over.set()

        (sent, stored), _ = await asyncio.gather(stream(), take_over())
    contents = await asyncio.to_thread(contents_of, broker.address(), target)
    assert len(contents) == stored
    assert [c for c in contents if c.startswith(b"u")] == sent
    guarded_ones = [c for c in contents if c.startswith(b"g")]
    assert guarded_ones == [b"g%d" % number for number in range(len(guarded_ones))]


async def test_a_guard_that_never_was_is_refused(
    broker: LocalBrokers, topic: str, target: str
) -> None:
    async with Client(broker.service_url) as client:
        with pytest.raises(Refused, match="never led") as refused:
            await client.create_producer(target, guarded_by(topic, 1))
        assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
        with pytest.raises(Refused, match="must be the epoch"):
            await client.create_producer(target, guarded_by(topic, None))


def test_a_stock_client_writes_under_a_guard(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client, rival = stock(broker.service_url), stock(broker.service_url)
    mode = pulsar.ProducerAccessMode.Exclusive
    leader = client.create_producer(topic, access_mode=mode)
    epoch = asyncio.run(_epoch(broker, topic))
    properties = guarded_by(topic, epoch).properties
    guarded = client.create_producer(beside(topic), properties=dict(properties))
    plain = client.create_producer(beside(topic))
    guarded.send(b"before")
    fencing = pulsar.ProducerAccessMode.ExclusiveWithFencing
    rival.create_producer(topic, access_mode=fencing)
    with pytest.raises(pulsar.ProducerFenced):
        guarded.send(b"after")
    plain.send(b"the connection was kept")
    assert contents_of(broker.address(), beside(topic)) == [b"before", b"the connection was kept"]
    assert leader is not None


async def _epoch(broker: LocalBrokers, topic: str) -> int:
    async with Client(broker.service_url) as client:
        return (await client.check(topic)).epoch
