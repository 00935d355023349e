"""CHECK against a real broker: the proof of an epoch, and a read barrier."""

from __future__ import annotations

import asyncio

import pytest

from onewriter import AccessMode, Client, ProducerOptions, Refused, ServerError
from onewriter_testing.processes import LocalBrokers

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)
FENCING = ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)


async def test_a_check_knows_who_leads(broker: LocalBrokers, topic: str) -> None:
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        first = await client.create_producer(topic, EXCLUSIVE)
        assert await client.check(topic, first.epoch) == (first.epoch, True, None)
        last = await first.send(b"one")
        assert await client.check(topic) == (first.epoch, True, last)
        second = await other.create_producer(topic, FENCING)
        assert (await client.check(topic, first.epoch))[:2] == (second.epoch, False)
        assert (await client.check(topic, second.epoch)).is_current


async def test_a_check_covers_entries_acknowledged_before_it(
    broker: LocalBrokers, topic: str
) -> None:
    async with Client(broker.service_url) as client, Client(broker.service_url) as other:
        producer = await client.create_producer(topic, EXCLUSIVE)
        for number in range(20):
            stored = await producer.send(b"%d" % number)
            checks = await asyncio.gather(*(other.check(topic) for _ in range(5)))
            assert {each.last_message_id for each in checks} == {stored}


async def test_a_released_epoch_stays_current_until_the_next_one(
    broker: LocalBrokers, topic: str
) -> None:
    async with Client(broker.service_url) as client:
        producer = await client.create_producer(topic, EXCLUSIVE)
        epoch = producer.epoch
        await producer.close()
        assert (await client.check(topic, epoch)).is_current
        successor = await client.create_producer(topic, EXCLUSIVE)
        assert not (await client.check(topic, epoch)).is_current
        assert (await client.check(topic, successor.epoch)).is_current


async def test_shared_producers_have_no_leader(broker: LocalBrokers, topic: str) -> None:
    async with Client(broker.service_url) as client:
        producer = await client.create_producer(topic)
        last = await producer.send(b"shared")
        assert await client.check(topic) == (0, False, last)


async def test_a_topic_that_does_not_exist_is_refused(broker: LocalBrokers, topic: str) -> None:
    async with Client(broker.service_url) as client:
        with pytest.raises(Refused) as refused:
            await client.check(topic)
    assert refused.value.code is ServerError.TOPIC_NOT_FOUND
