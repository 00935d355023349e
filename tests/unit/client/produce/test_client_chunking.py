"""Messages above the broker's size limit, against a scripted broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin, client_of
from tests.unit.client.slow_socket import SlowSocket

from onewriter import (
    AccessMode,
    Batching,
    Client,
    Closed,
    Compression,
    Fenced,
    MessageId,
    NotSent,
    OutcomeUnknown,
    Producer,
    ProducerOptions,
    Refused,
)
from onewriter._produce.packer import Packer
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.compression import compress
from onewriter_core.wire.messages import entry_checksum_ok, entry_payload, parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

ENTRY_BYTES_MAX = 500
CHUNKING = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, name="writer", chunking=True)
LARGE = random.Random(7).randbytes(1_800)
"""Five chunks, and nothing that a codec makes smaller."""


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    broker.message_bytes_max = ENTRY_BYTES_MAX
    async with client_of(broker) as opened:
        yield opened


def entries(broker: FakeBroker) -> list[tuple[Send, bytes]]:
    return [
        (command, payload) for _, command, payload in broker.received if isinstance(command, Send)
    ]


def joined(sent: list[tuple[Send, bytes]]) -> bytes:
    """The content of one message's chunks, which are all that they should be."""
    found = [parse_metadata(memoryview(payload)) for _, payload in sent]
    parts = [bytes(entry_payload(memoryview(payload))) for _, payload in sent]
    first = found[0]
    assert [each.chunk_id for each in found] == list(range(len(sent)))
    assert {each.uuid for each in found} == {first.uuid}
    assert {each.num_chunks_from_msg for each in found} == {len(sent)}
    assert {each.total_chunk_msg_size for each in found} == {sum(map(len, parts))}
    assert {each.sequence_id for each in found} == {first.sequence_id}
    assert {send.sequence_id for send, _ in sent} == {first.sequence_id}
    assert all(send.is_chunk and send.num_messages == 1 for send, _ in sent)
    assert all(entry_checksum_ok(memoryview(payload)) for _, payload in sent)
    assert all(len(payload) <= ENTRY_BYTES_MAX for _, payload in sent)
    return b"".join(parts)


class Receipts:
    """Answers so many SENDs, and then no more."""

    def __init__(self, broker: FakeBroker, count: int) -> None:
        self.left = count
        self._broker = broker
        broker.answers[Send] = self.answer

    def answer(self, link: FakeLink, send: Send) -> None:
        if self.left > 0:
            self.left -= 1
            self._broker.receipt(link, send)


async def all_written(
    broker: FakeBroker, client: Client, *, receipts: int
) -> tuple[Producer, asyncio.Future[MessageId]]:
    """A message all of whose five chunks are written, and the first ones have a receipt."""
    producer = await client.create_producer("orders", CHUNKING)
    Receipts(broker, receipts)
    receipt = await producer.submit(LARGE)
    await broker.eventually(lambda: len(entries(broker)) == 5)
    return producer, receipt


async def test_chunks_share_a_sequence_id_and_the_id_is_that_of_the_last_one(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", CHUNKING)
    receipts = [
        await producer.submit(b"in front"),
        await producer.submit(LARGE, key="k", properties={"a": "b"}, event_time_ms=9),
        await producer.submit(b"behind"),
    ]
    first, large, last = await asyncio.gather(*receipts)
    sent = entries(broker)
    assert [send.sequence_id for send, _ in sent] == [0, 1, 1, 1, 1, 1, 2]
    assert joined(sent[1:-1]) == LARGE
    for _, payload in sent[1:-1]:
        metadata = parse_metadata(memoryview(payload))
        assert (metadata.partition_key, metadata.event_time, metadata.properties[0].value) == (
            "k",
            9,
            "b",
        )
    assert [first.entry, large.entry, last.entry] == [1, 6, 7]
    assert producer.pending_messages == producer.pending_bytes == 0


async def test_a_message_that_fits_is_not_split(broker: FakeBroker, client: Client) -> None:
    """Nor what fits when it is compressed; what does not is compressed as a whole."""
    options = replace(CHUNKING, compression=Compression.ZLIB)
    producer = await client.create_producer("orders", options)
    await producer.send(b"x" * 400)
    await producer.send(b"x" * 100_000)
    assert [send.is_chunk for send, _ in entries(broker)] == [False, False]
    await producer.send(LARGE)
    sent = entries(broker)[2:]
    metadata = parse_metadata(memoryview(sent[0][1]))
    assert (metadata.compression, metadata.uncompressed_size) == (
        pb.MessageMetadata.ZLIB,
        len(LARGE),
    )
    assert compress(metadata.compression, LARGE) == joined(sent)


async def test_a_large_message_is_not_part_of_a_batch(broker: FakeBroker, client: Client) -> None:
    batching = Batching(delay_seconds=60.0)
    producer = await client.create_producer("orders", replace(CHUNKING, batching=batching))
    waiting = [await producer.submit(content) for content in (b"a", b"b")]
    large = await producer.submit(LARGE)
    waiting.append(await producer.submit(b"c"))
    await asyncio.gather(*waiting[:2], large)
    sent = entries(broker)
    assert parse_metadata(memoryview(sent[0][1])).num_messages_in_batch == 2
    assert joined(sent[1:]) == LARGE
    await producer.flush()
    assert [send.sequence_id for send, _ in entries(broker)] == [0, 2, 2, 2, 2, 2, 3]


def test_a_message_above_the_limit_of_contents_is_refused() -> None:
    packer = Packer(1, "producer", Compression.NONE, content_bytes_max=len(LARGE) - 1)
    with pytest.raises(Refused, match="can be sent"):
        packer.chunked(
            0,
            LARGE,
            key=None,
            ordering_key=None,
            properties=None,
            event_time_ms=0,
            now_ms=1,
            entry_bytes_max=ENTRY_BYTES_MAX,
        )


async def test_a_message_that_is_too_large_for_chunks_is_refused(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", CHUNKING)
    with pytest.raises(Refused, match="no room"):
        await producer.send(LARGE, properties={"a": "b" * ENTRY_BYTES_MAX})
    assert (await producer.send(b"next")).entry == 1
    assert [send.sequence_id for send, _ in entries(broker)] == [0]


async def test_without_the_option_it_is_refused(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", replace(CHUNKING, chunking=False))
    with pytest.raises(Refused, match="chunks"):
        await producer.send(LARGE)
    assert entries(broker) == []


async def test_only_one_large_message_is_pending_at_a_time(
    broker: FakeBroker, client: Client
) -> None:
    options = replace(CHUNKING, pending_bytes_max=ENTRY_BYTES_MAX)
    producer = await client.create_producer("orders", options)
    receipts = Receipts(broker, 0)
    first = await producer.submit(LARGE)
    assert (producer.pending_messages, producer.pending_bytes > len(LARGE)) == (1, True)
    others = [begin(producer.send(content)) for content in (LARGE, b"small")]
    await broker.eventually(lambda: len(entries(broker)) == 5)
    await asyncio.sleep(0.01)
    assert producer.pending_messages == 1
    receipts.left = 100
    for link, command, _ in list(broker.received):
        if isinstance(command, Send):
            broker.receipt(link, command)
    await first
    await asyncio.gather(*others)
    assert joined(entries(broker)[5:10]) == LARGE


async def test_a_connection_lost_in_the_middle_has_it_sent_again(
    broker: FakeBroker, client: Client
) -> None:
    """The chunks without a receipt, byte for byte."""
    producer, receipt = await all_written(broker, client, receipts=2)
    del broker.answers[Send]
    broker.links[-1].cut()
    await receipt
    sent = entries(broker)
    assert sent[5:] == sent[2:5]
    assert joined(sent[:5]) == LARGE
    await producer.send(b"next")
    assert entries(broker)[-1][0].sequence_id == 1


async def half_way(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, producer: Producer
) -> tuple[SlowSocket, asyncio.Future[MessageId]]:
    """A message of which two chunks are stored; the others were not written anywhere."""
    socket = SlowSocket(monkeypatch)
    Receipts(broker, 2)
    receipt = await producer.submit(LARGE)
    socket.make_space((await producer.linked()).connection, 2)
    await broker.eventually(lambda: producer.pending_bytes < len(LARGE) * 3 / 4)
    assert len(entries(broker)) == 2
    return socket, receipt


async def test_a_takeover_in_the_middle_is_definite_without_the_last_chunk(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where two chunks are in the log: nobody reads them."""
    producer = await client.create_producer("orders", CHUNKING)
    _, receipt = await half_way(broker, monkeypatch, producer)
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].cut()
    with pytest.raises(Fenced):
        await receipt


async def test_a_takeover_after_the_last_chunk_leaves_the_result_unknown(
    broker: FakeBroker, client: Client
) -> None:
    _, receipt = await all_written(broker, client, receipts=2)
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].cut()
    with pytest.raises(OutcomeUnknown):
        await receipt


async def test_a_chunked_send_whose_producer_is_closed_in_the_middle_is_fenced(
    broker: FakeBroker, client: Client
) -> None:
    """Ours answers for all that a connection brought before it closes a producer of it."""
    _, receipt = await all_written(broker, client, receipts=2)
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].write(replies.close_producer(broker.all(pb.CommandProducer)[0].producer_id))
    with pytest.raises(Fenced):
        await receipt


async def test_a_large_message_that_times_out_between_chunks_is_not_sent(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of it was not written never is, and what was is no message."""
    producer = await client.create_producer("orders", CHUNKING)
    socket = SlowSocket(monkeypatch)
    sending = begin(producer.send(LARGE, timeout_seconds=60))
    connection = (await producer.linked()).connection
    await asyncio.sleep(0.05)
    socket.make_space(connection, 2)
    await broker.eventually(lambda: len(entries(broker)) == 2)
    skip(60)
    with pytest.raises(NotSent):
        await sending
    socket.make_space(connection, 100)
    await producer.send(b"next")
    assert [send.sequence_id for send, _ in entries(broker)] == [0, 0, 1]
    assert producer.pending_messages == producer.pending_bytes == 0


async def test_a_chunk_that_is_refused_ends_its_message(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await client.create_producer("orders", CHUNKING)
    socket = SlowSocket(monkeypatch)
    broker.answers[Send] = lambda link, send: link.write(
        replies.send_error(send.producer_id, send.sequence_id, ServerError.PERSISTENCE_ERROR, "no")
    )
    receipt = await producer.submit(LARGE)
    connection = (await producer.linked()).connection
    socket.make_space(connection, 1)
    with pytest.raises(Refused):
        await receipt
    del broker.answers[Send]
    socket.make_space(connection, 100)
    await producer.send(b"next")
    assert [send.sequence_id for send, _ in entries(broker)] == [0, 1]


async def test_a_chunk_refused_after_the_last_one_leaves_the_result_unknown(
    broker: FakeBroker, client: Client
) -> None:
    _, receipt = await all_written(broker, client, receipts=0)
    producer_id = broker.all(pb.CommandProducer)[0].producer_id
    broker.links[-1].write(replies.send_error(producer_id, 0, ServerError.PERSISTENCE_ERROR, "no"))
    with pytest.raises(OutcomeUnknown):
        await receipt


async def test_closing_while_a_large_message_is_packed_sends_nothing(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", CHUNKING)
    sending = begin(producer.send(LARGE))
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(Closed):
        await sending
    assert entries(broker) == []
