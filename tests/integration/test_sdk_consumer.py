"""``import onewriter`` as a consumer of a real broker: messages of stock clients and its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar
import pytest
from tests.integration.conftest import RawClients, StockClients
from tests.integration.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.integration.forked_brokers import forked_brokers
from tests.integration.patience import SECONDS

from onewriter import (
    EARLIEST,
    LATEST,
    Batching,
    Client,
    Compression,
    Consumer,
    ConsumerOptions,
    Message,
    ProducerOptions,
    Reader,
    Refused,
    SubscriptionType,
)
from onewriter_testing.processes import LocalBrokers

MESSAGES = 2_000
CUTS = 8

FROM_THE_START = ConsumerOptions(start=EARLIEST)
CODECS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


async def take(source: Reader | Consumer, count: int) -> list[Message]:
    receive = source.next if isinstance(source, Reader) else source.receive
    return [await receive(timeout_seconds=SECONDS) for _ in range(count)]


def contents(messages: list[Message]) -> list[bytes]:
    return [message.content for message in messages]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_batched", [False, True])
async def test_the_sdk_reads_messages_of_stock_clients(
    broker: LocalBrokers, stock: StockClients, topic: str, codec: Any, *, is_batched: bool
) -> None:
    def write() -> list[str]:
        producer = stock(broker.service_url).create_producer(
            topic,
            compression_type=codec,
            batching_enabled=is_batched,
            batching_max_publish_delay_ms=60_000,
        )
        ids: list[str] = []
        for number in range(20):
            producer.send_async(
                b"content %d" % number,
                lambda _result, message_id: ids.append(str(message_id)),
                properties={"number": str(number)},
                partition_key=f"key-{number}",
                event_timestamp=1_000 + number,
            )
        producer.flush()
        return ids

    await asyncio.to_thread(write)
    async with Client(broker.service_url) as client:
        found = await take(await client.create_reader(topic), 20)
    for number, message in enumerate(found):
        assert message.content == b"content %d" % number
        assert message.properties == {"number": str(number)}
        assert (message.key, message.event_time_ms) == (f"key-{number}", 1_000 + number)
        assert message.publish_time_ms > 0
    ids = [message.id for message in found]
    assert ids == sorted(set(ids))
    assert (len({each.position for each in ids}) < 20) == is_batched
    assert sum(message.ends_entry for message in found) == len({each.position for each in ids})


async def test_a_message_larger_than_the_broker_takes(
    broker: LocalBrokers, stock: StockClients, topic: str
) -> None:
    large = bytes(range(256)) * 40_000

    def write() -> None:
        producer = stock(broker.service_url).create_producer(
            topic, chunking_enabled=True, batching_enabled=False
        )
        producer.send(large)
        producer.send(b"small")

    await asyncio.to_thread(write)
    async with Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s", FROM_THE_START)
        found = await take(consumer, 2)
        assert contents(found) == [large, b"small"]
        assert len(found[0].chunk_ids) > 1
        await consumer.acknowledge(found[0])
        await consumer.redeliver_unacknowledged()
        assert contents(await take(consumer, 1)) == [b"small"]


@pytest.mark.parametrize("codec", Compression)
async def test_the_sdk_reads_its_own_messages(
    broker: LocalBrokers, topic: str, codec: Compression
) -> None:
    options = ProducerOptions(batching=Batching(), compression=codec)
    async with Client(broker.service_url) as client:
        producer = await client.create_producer(topic, options)
        receipts = [await producer.submit(b"%d" % number, key="k") for number in range(100)]
        ids = await asyncio.gather(*receipts)
        reader = await client.create_reader(topic, ids[41])
        found = await take(reader, 58)
        assert [message.id for message in found] == list(ids[42:])
        assert contents(found) == [b"%d" % number for number in range(42, 100)]
        assert not await reader.has_message_available()
        assert await reader.last_message_id() == ids[-1]


async def test_a_reader_through_a_network_that_cuts(topic: str) -> None:
    """Neither a hole nor a duplicate, in batches or not."""
    written = [b"%d" % number for number in range(MESSAGES)]
    with (
        forked_brokers(settings={"advertised_host": PROXY_HOST}) as brokers,
        CuttingProxy(brokers.address(), cuts=0, bytes_between=2) as proxy,
    ):
        async with Client(proxy.url) as client:
            await _write(client, topic, written[:1_000], Batching(messages_max=7))
            await _write(client, topic, written[1_000:], None)
            reader = await client.create_reader(topic)
            found: list[bytes] = []
            for number in range(CUTS):
                found += contents(await take(reader, MESSAGES // CUTS - number))
                await asyncio.to_thread(proxy.cut)
            while await reader.has_message_available():
                found += contents(await take(reader, 1))
    assert found == written


async def _write(
    client: Client, topic: str, written: list[bytes], batching: Batching | None
) -> None:
    producer = await client.create_producer(topic, ProducerOptions(batching=batching))
    await asyncio.gather(*[await producer.submit(content) for content in written])
    await producer.close()


async def test_a_consumer_outlives_its_broker(topic: str) -> None:
    """The broker delivers all messages again, in order, except those whose acknowledgement it confirmed."""
    with forked_brokers() as brokers:
        async with Client(brokers.service_url) as client:
            producer = await client.create_producer(topic)
            for number in range(300):
                await producer.submit(b"%d" % number)
            consumer = await client.subscribe(topic, "s", FROM_THE_START)
            first = await take(consumer, 120)
            await consumer.acknowledge_cumulative(first[99])
            await asyncio.to_thread(brokers.replace)
            while consumer.is_attached:
                await consumer.changed()
            rest = contents(await take(consumer, 200))
    assert rest == [b"%d" % number for number in range(100, 300)]


async def test_the_latest_is_pinned_while_the_connection_is_away(
    raw: RawClients, topic: str
) -> None:
    with forked_brokers(settings={"advertised_host": PROXY_HOST}) as brokers:
        producer = raw(brokers.address()).producer(topic)
        producer.publish(b"old")
        with CuttingProxy(brokers.address(), cuts=0, bytes_between=2) as proxy:
            async with Client(proxy.url) as client:
                reader = await client.create_reader(topic, LATEST)
                await asyncio.to_thread(proxy.cut)
                for number in range(3):
                    producer.publish(b"%d" % number)
                assert contents(await take(reader, 3)) == [b"0", b"1", b"2"]


async def test_seeking_by_id_and_by_time(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    producer = raw(broker.address()).producer(topic)
    async with Client(broker.service_url) as client:
        for number in range(6):
            producer.publish(b"%d" % number)
            await asyncio.sleep(0.005)
        consumer = await client.subscribe(topic, "s", FROM_THE_START)
        reader = await client.create_reader(topic)
        found = await take(consumer, 6)
        await take(reader, 6)
        await consumer.acknowledge_cumulative(found[-1])
        await consumer.seek(found[2].id)
        assert contents(await take(consumer, 4)) == [b"2", b"3", b"4", b"5"]
        await reader.seek(found[2].id)
        assert contents(await take(reader, 3)) == [b"3", b"4", b"5"]
        for source in (consumer, reader):
            await source.seek(found[4].publish_time_ms)
            again = (await take(source, 1))[0]
            assert again.publish_time_ms >= found[4].publish_time_ms
            assert again.id <= found[4].id


async def test_failover_hands_over_to_the_standby(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    kind = SubscriptionType.FAILOVER
    async with Client(broker.service_url) as client:
        anna = await client.subscribe(topic, "s", ConsumerOptions(kind=kind, name="anna"))
        ben = await client.subscribe(topic, "s", ConsumerOptions(kind=kind, name="ben"))
        while not anna.is_active or ben.is_active:  # noqa: ASYNC110 - either of them may change
            await asyncio.sleep(0.01)
        for number in range(4):
            producer.publish(b"%d" % number)
        found = await take(anna, 2)
        await anna.acknowledge_cumulative(found[0])
        await anna.close()
        assert contents(await take(ben, 3)) == [b"1", b"2", b"3"]
        assert ben.is_active


async def test_refusals_are_reported_immediately(broker: LocalBrokers, topic: str) -> None:
    async with Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s")
        with pytest.raises(Refused, match="already connected"):
            await client.subscribe(topic, "s")
        shared = ConsumerOptions(kind=SubscriptionType.SHARED)
        with pytest.raises(Refused, match="different type"):
            await client.subscribe(topic, "s", shared)
        await consumer.unsubscribe()
        assert (await client.subscribe(topic, "s", shared)).is_attached


async def test_consumers_and_readers_leave_nothing_running(
    broker: LocalBrokers, topic: str
) -> None:
    before = len(asyncio.all_tasks())
    async with Client(broker.service_url) as client:
        for _ in range(3):
            await (await client.subscribe(topic, "s")).close()
            await (await client.create_reader(topic)).close()
        await client.subscribe(topic, "t")
        await client.create_reader(topic)
    assert len(asyncio.all_tasks()) == before
