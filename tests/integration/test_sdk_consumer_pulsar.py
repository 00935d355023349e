"""The SDK's consumers and readers on Apache Pulsar: everything except the answer to a redelivery."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from bench.pulsar_lab import PulsarStandalone
from tests.integration.http_calls import Http

from onewriter import (
    EARLIEST,
    LATEST,
    Batching,
    Client,
    Consumer,
    ConsumerOptions,
    Producer,
    ProducerOptions,
    Reader,
    Refused,
    SubscriptionType,
)

pytestmark = [
    pytest.mark.full,  # needs Java and Apache Pulsar; test_sdk_consumer.py reads from our broker
    pytest.mark.timeout(900),  # the first run downloads Pulsar for minutes
]

FROM_THE_START = ConsumerOptions(start=EARLIEST)

_topics = itertools.count(1)


@pytest.fixture
async def client(standalone: PulsarStandalone) -> AsyncIterator[Client]:
    async with Client(standalone.service_url) as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/consumed-{next(_topics)}"


async def write(producer: Producer, *numbers: int) -> None:
    await asyncio.gather(*[await producer.submit(b"%d" % number) for number in numbers])


async def take(source: Reader | Consumer, count: int) -> list[int]:
    receive = source.next if isinstance(source, Reader) else source.receive
    return [int((await receive(timeout_seconds=60)).content) for _ in range(count)]


@pytest.mark.parametrize("batching", [None, Batching(messages_max=7)])
async def test_reading_from_everywhere(
    client: Client, topic: str, batching: Batching | None
) -> None:
    producer = await client.create_producer(topic, ProducerOptions(batching=batching))
    receipts = [await producer.submit(b"%d" % number) for number in range(30)]
    ids = await asyncio.gather(*receipts)
    reader = await client.create_reader(topic)
    assert await take(reader, 30) == list(range(30))
    assert await reader.last_message_id() == ids[-1]
    assert not await reader.has_message_available()
    behind = await client.create_reader(topic, ids[11])
    assert await take(behind, 2) == [12, 13]
    at = await client.create_reader(topic, ids[11], is_inclusive=True)
    assert await take(at, 2) == [11, 12]
    latest = await client.create_reader(topic, LATEST)
    await write(producer, 30, 31)
    assert await take(latest, 2) == [30, 31]
    await at.seek(ids[3])
    assert await take(at, 2) == [4, 5]


async def test_acknowledging_and_coming_back(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "s", FROM_THE_START)
    await write(producer, *range(10))
    messages = [await consumer.receive(timeout_seconds=60) for _ in range(10)]
    await consumer.acknowledge_cumulative(messages[3])
    await consumer.acknowledge(messages[5])
    await consumer.close()
    consumer = await client.subscribe(topic, "s", FROM_THE_START)
    assert await take(consumer, 5) == [4, 6, 7, 8, 9]
    await consumer.seek(messages[2].id)
    assert await take(consumer, 8) == list(range(2, 10))
    with pytest.raises(Refused):
        await client.subscribe(topic, "s")
    await consumer.unsubscribe()


async def test_redelivery_filters_by_epoch_without_an_answer(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "s", ConsumerOptions(kind=SubscriptionType.FAILOVER))
    written = 0
    for _ in range(50):
        await write(producer, written, written + 1)
        await take(consumer, 1)
        underway = [await producer.submit(b"%d" % (written + 2 + more)) for more in range(5)]
        await consumer.redeliver_unacknowledged()
        await asyncio.gather(*underway)
        expected = list(range(written, written + 7))
        found = [await consumer.receive(timeout_seconds=60) for _ in expected]
        while [int(message.content) for message in found[-7:]] != expected:
            # Pulsar may send the messages in transit once more under the new epoch, but no others before
            # the expected ones, and at most all of them.
            assert len(found) < 2 * len(expected)
            assert int(found[len(found) - 7].content) in expected
            found.append(await consumer.receive(timeout_seconds=60))
        await consumer.acknowledge_cumulative(found[-1])
        written += 7


async def test_shared_negative_acknowledgement(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    options = ConsumerOptions(kind=SubscriptionType.SHARED, negative_acknowledgement_seconds=0.05)
    consumer = await client.subscribe(topic, "s", options)
    await write(producer, 0, 1, 2)
    messages = [await consumer.receive(timeout_seconds=60) for _ in range(3)]
    consumer.negative_acknowledge(messages[1])
    again = await consumer.receive(timeout_seconds=60)
    assert (again.content, again.redelivery_count) == (b"1", 1)
    for message in (messages[0], messages[2], again):
        await consumer.acknowledge(message)


@pytest.mark.parametrize("batching", [None, Batching(messages_max=2)])
async def test_the_end_of_a_terminated_topic(
    client: Client, standalone: PulsarStandalone, topic: str, batching: Batching | None
) -> None:
    producer = await client.create_producer(topic, ProducerOptions(batching=batching))
    await write(producer, 0, 1, 2)
    await producer.close()
    path = topic.replace("persistent://", "/admin/v2/persistent/") + "/terminate"
    assert (await asyncio.to_thread(Http(standalone.admin_url), "POST", path))[0] == 200
    reader = await client.create_reader(topic)
    assert [int(message.content) async for message in reader] == [0, 1, 2]
    assert reader.has_reached_end_of_topic
    consumer = await client.subscribe(topic, "s", FROM_THE_START)
    async for message in consumer:
        await consumer.acknowledge(message)
    assert consumer.has_reached_end_of_topic
