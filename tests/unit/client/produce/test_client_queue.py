"""The length of the topic's queue, as its holder knows it."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fake_broker import FakeBroker, begin, client_of

from onewriter import AccessMode, Fenced, Producer, ProducerOptions
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)


async def test_every_change_of_the_queue_is_reported(broker: FakeBroker) -> None:
    seen: list[int] = []
    async with client_of(broker) as client:
        producer = await client.create_producer(
            "orders", EXCLUSIVE, on_change=lambda each: seen.append(each.waiting)
        )
        assert producer.waiting == 0
        waits = begin(producer.waited_for())
        broker.links[-1].write(replies.queue_changed(1, 2))
        assert await asyncio.wait_for(waits, 60) == 2
        assert producer.waiting == 2
        broker.links[-1].write(replies.queue_changed(1, 0))
        await broker.eventually(lambda: producer.waiting == 0)
    assert [number for number in seen if number] == [2]


async def test_the_number_in_the_grant_counts(broker: FakeBroker) -> None:
    def grant(link: object, command: pb.CommandProducer) -> None:
        broker.grant(broker.links[-1], command)
        broker.links[-1].write(replies.queue_changed(command.producer_id, 3))

    broker.answers[pb.CommandProducer] = grant
    async with client_of(broker) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        assert await asyncio.wait_for(producer.waited_for(), 60) == 3


async def test_the_queue_counts_as_empty_without_a_connection(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        broker.links[-1].write(replies.queue_changed(1, 2))
        await producer.waited_for()
        broker.answers[pb.CommandProducer] = None
        broker.links[-1].cut()
        await broker.eventually(lambda: producer.waiting == 0)


async def test_waited_for_raises_the_end_of_the_producer(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        producer: Producer = await client.create_producer("orders", EXCLUSIVE)
        waits = begin(producer.waited_for())
        broker.answers[pb.CommandProducer] = broker.fence
        broker.links[-1].write(replies.close_producer(1))
        with pytest.raises(Fenced):
            await asyncio.wait_for(waits, 60)
