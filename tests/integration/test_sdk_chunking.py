"""Messages that are larger than the broker accepts, written and read by the SDK and by stock clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.conftest import RawClients, StockClients
from tests.integration.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import RawProducer, entries_of
from tests.integration.test_sdk_consumer import FROM_THE_START, contents, take

from onewriter import (
    EARLIEST,
    AccessMode,
    Batching,
    Client,
    Compression,
    Consumer,
    Fenced,
    MessageId,
    NoMessage,
    NotSent,
    OutcomeUnknown,
    Producer,
    ProducerOptions,
    Unreadable,
)
from onewriter_core.wire.encoding import encode_send_header
from onewriter_core.wire.messages import build_entry, parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

RECEIVE_MS = 60_000
SMALL_ENTRY_BYTES_MAX = 64 * 1024
CHUNKING = ProducerOptions(chunking=True)
FENCING = replace(CHUNKING, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
LARGE_BYTES = 12 * 1024 * 1024
"""Three entries of the default size."""

TAKEOVERS = 12
LAST = b"nothing comes behind it"


def large(number: int, size: int) -> bytes:
    """Return content that no codec makes much smaller."""
    return b"%d;" % number + random.Random(number).randbytes(size)


@pytest.fixture(scope="module")
def narrow() -> Iterator[LocalBrokers]:
    """A broker that accepts only small entries."""
    with forked_brokers(settings={"message_bytes_max": SMALL_ENTRY_BYTES_MAX}) as brokers:
        yield brokers


@pytest.fixture
def proxied() -> Iterator[LocalBrokers]:
    """The same, but its look-ups lead through the proxy."""
    settings = {"advertised_host": PROXY_HOST, "message_bytes_max": SMALL_ENTRY_BYTES_MAX}
    with forked_brokers(settings=settings) as brokers:
        yield brokers


@pytest.mark.parametrize(
    ("is_batched", "codec"),
    [
        (False, Compression.NONE),
        (True, Compression.ZSTD),
        # both ways to send, and both codecs, are in the two above
        pytest.param(True, Compression.NONE, marks=pytest.mark.full),
        pytest.param(False, Compression.ZSTD, marks=pytest.mark.full),
    ],
)
async def test_the_sdk_reads_its_own_messages(
    broker: LocalBrokers, topic: str, codec: Compression, *, is_batched: bool
) -> None:
    batching = Batching(delay_seconds=0.01) if is_batched else None
    options = replace(CHUNKING, compression=codec, batching=batching)
    written = [b"in front", large(1, LARGE_BYTES), b"behind"]
    async with Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s", FROM_THE_START)
        producer = await client.create_producer(topic, options)
        receipts = [await producer.submit(content, key="k") for content in written]
        ids = await asyncio.gather(*receipts)
        reader = await client.create_reader(topic, EARLIEST)
        for found in (await take(reader, 3), await take(consumer, 3)):
            assert contents(found) == written
            assert [message.id.position for message in found] == [each.position for each in ids]
            assert [message.key for message in found] == ["k"] * 3
            assert len(found[1].chunk_ids) == 3
        assert not await reader.has_message_available()
        await consumer.acknowledge(found[1])
        await consumer.redeliver_unacknowledged()
        assert contents(await take(consumer, 2)) == [b"in front", b"behind"]
        reader = await client.create_reader(topic, ids[1])
        assert contents(await take(reader, 1)) == [b"behind"]


async def test_stock_clients_read_chunks_of_the_sdk(
    broker: LocalBrokers, stock: StockClients, topic: str
) -> None:
    """Complete, acknowledged as a whole, and in order."""
    client = stock(broker.service_url)
    consumer = await asyncio.to_thread(client.subscribe, topic, "s")
    written = [large(1, LARGE_BYTES), b"between", large(2, LARGE_BYTES)]
    async with Client(broker.service_url) as own:
        options = replace(CHUNKING, compression=Compression.LZ4)
        producer = await own.create_producer(topic, options)
        for content in written:
            await producer.send(content, properties={"size": str(len(content))})

    def read() -> None:
        found: list[Any] = [consumer.receive(RECEIVE_MS) for _ in written]
        assert [message.data() for message in found] == written
        for message in found:
            assert message.properties() == {"size": str(len(message.data()))}
        consumer.acknowledge(found[0])
        consumer.acknowledge(found[2])
        consumer.close()
        again = client.subscribe(topic, "s")
        assert again.receive(RECEIVE_MS).data() == b"between"
        with pytest.raises(Exception, match="TimeOut"):
            again.receive(500)

    await asyncio.to_thread(read)


async def test_a_stream_through_a_network_that_cuts(proxied: LocalBrokers, topic: str) -> None:
    """Both the writer and the reader: no hole, no duplicate, and every message complete."""
    written = [large(number, 150_000) for number in range(20)]
    volume = sum(map(len, written))
    with CuttingProxy(proxied.address(), cuts=6, bytes_between=volume // 12) as proxy:
        async with Client(proxy.url) as client:
            options = replace(CHUNKING, access_mode=AccessMode.EXCLUSIVE)
            producer = await client.create_producer(topic, options)
            receipts = [await producer.submit(content) for content in written]
            await asyncio.gather(*receipts)
            reader = await client.create_reader(topic, EARLIEST)
            assert contents(await take(reader, len(written))) == written
        assert proxy.cuts_left <= 0, "nothing was cut"
    entries = await asyncio.to_thread(entries_of, proxied.address(), topic)
    places = [
        (metadata.sequence_id, metadata.chunk_id) for metadata in map(parse_metadata, entries)
    ]
    assert places == sorted(set(places))


async def sent_but_for(producer: Producer, size: int) -> None:
    """Wait until at most this number of bytes has no receipt."""
    while producer.pending_bytes > size:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0)


async def test_a_message_larger_than_what_a_broker_remembers_outlives_it(topic: str) -> None:
    """Its successor reads 16 MiB of the log for what was stored before."""
    content = large(1, 27 * 1024 * 1024)
    with forked_brokers(settings={"message_bytes_max": SMALL_ENTRY_BYTES_MAX}) as brokers:
        async with Client(brokers.service_url) as client:
            options = replace(CHUNKING, access_mode=AccessMode.EXCLUSIVE)
            producer = await client.create_producer(topic, options)
            await producer.send(b"first")
            receipt = await producer.submit(content)
            await sent_but_for(producer, len(content) // 3)
            assert not receipt.done()
            brokers.replace()
            await receipt
            await producer.send(b"last")
            reader = await client.create_reader(topic, EARLIEST)
            assert contents(await take(reader, 3)) == [b"first", content, b"last"]


async def test_a_takeover_in_the_middle_leaves_nothing_that_is_read(
    narrow: LocalBrokers, topic: str
) -> None:
    """Answered messages are complete, fenced ones are not readable, and the log contains incomplete ones."""
    size = 100 * SMALL_ENTRY_BYTES_MAX
    answered, unknown, refused = set(), set(), set()
    async with Client(narrow.service_url) as client, Client(narrow.service_url) as other:
        await other.create_producer(topic, FENCING)
        for number in range(TAKEOVERS):
            producer = await client.create_producer(topic, FENCING)
            receipt = await producer.submit(large(number, size))
            await sent_but_for(producer, size - size * number // (2 * TAKEOVERS))
            successor = await other.create_producer(topic, FENCING)
            await successor.send(b"%d;small" % number)
            try:
                await receipt
            except (Fenced, NotSent):
                refused.add(number)
            except OutcomeUnknown:
                unknown.add(number)
            else:
                answered.add(number)
        await successor.send(LAST)
    read = await read_all(narrow, topic)
    assert [content for content in read if content.endswith(b"small")] == [
        b"%d;small" % number for number in range(TAKEOVERS)
    ]
    whole = {int(content.split(b";")[0]) for content in read if not content.endswith(b"small")}
    assert all(content in {large(n, size) for n in whole} for content in read if len(content) > 99)
    assert answered <= whole
    assert not refused & whole
    assert refused, "nothing was fenced in the middle"
    entries = await asyncio.to_thread(entries_of, narrow.address(), topic)
    begun = {metadata.uuid for metadata in map(parse_metadata, entries) if metadata.uuid}
    assert len(begun) > len(whole), "the log has no half"


async def read_all(brokers: LocalBrokers, topic: str) -> list[bytes]:
    """Return all messages that a reader receives before the last one."""
    found: list[bytes] = []
    async with Client(brokers.service_url) as client:
        reader = await client.create_reader(topic, EARLIEST)
        while (content := (await reader.next(timeout_seconds=60)).content) != LAST:
            found.append(content)
    return found


def send_chunk(writer: RawProducer, number: int, count: int) -> None:
    """Send one of a message's chunks, as a slow writer."""
    answer = pb.MessageMetadata(
        producer_name=writer.name,
        sequence_id=0,
        publish_time=1,
        uuid="slow",
        chunk_id=number,
        num_chunks_from_msg=count,
    )
    entry = build_entry(answer, b"%d" % number)
    header = encode_send_header(writer.producer_id, 0, len(entry), is_chunk=True)
    writer.client.write(header + entry)
    writer.receipt(0)


@pytest.mark.parametrize("acknowledges", [False, True], ids=["kept", "acknowledged"])
async def test_a_message_whose_next_chunk_is_late_is_given_up(
    broker: LocalBrokers,
    raw: RawClients,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    acknowledges: bool,
) -> None:
    """The completed message raises an error. It is delivered again, unless the consumer acknowledged it."""
    is_given_up, given_up = asyncio.Event(), Consumer.chunks_given_up

    def noted(self: Consumer, chunk_ids: Sequence[MessageId]) -> None:
        given_up(self, chunk_ids)
        is_given_up.set()

    monkeypatch.setattr(Consumer, "chunks_given_up", noted)
    options = replace(FROM_THE_START, chunks_expire_seconds=0.1, acknowledge_given_up=acknowledges)
    writer = await asyncio.to_thread(lambda: raw(broker.address()).producer(topic, name="w"))
    async with Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s", options)
        await asyncio.to_thread(send_chunk, writer, 0, 2)
        await asyncio.wait_for(is_given_up.wait(), 60)
        await asyncio.to_thread(send_chunk, writer, 1, 2)
        with pytest.raises(Unreadable, match="given up"):
            await consumer.receive(timeout_seconds=60)
        await consumer.redeliver_unacknowledged()
        if acknowledges:
            with pytest.raises(NoMessage):
                await consumer.receive(timeout_seconds=0.5)
        else:
            assert (await consumer.receive(timeout_seconds=60)).content == b"01"
