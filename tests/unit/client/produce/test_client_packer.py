"""Batches of messages in one entry, compressed or not, and the id of each message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin

from onewriter import (
    AccessMode,
    Batching,
    Client,
    Closed,
    Compression,
    ConfigurationError,
    Fenced,
    MessageId,
    NotSent,
    Producer,
    ProducerOptions,
    Refused,
)
from onewriter._produce import packer
from onewriter_core.wire import replies
from onewriter_core.wire.compression import decompress
from onewriter_core.wire.messages import (
    entry_checksum_ok,
    entry_payload,
    iterate_batch,
    parse_metadata,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

HOUR = 3600.0
BY_FLUSH = Batching(delay_seconds=HOUR)


async def producer_of(client: Client, batching: Batching | None, **more: object) -> Producer:
    return await client.create_producer("orders", ProducerOptions(batching=batching, **more))  # type: ignore[arg-type]


def batches(broker: FakeBroker) -> list[list[bytes]]:
    """The contents of all entries, in the order in which they came."""
    found = []
    for _, command, payload in broker.received:
        if isinstance(command, Send):
            metadata = parse_metadata(payload)
            content = decompress(
                metadata.compression, entry_payload(payload), metadata.uncompressed_size
            )
            if metadata.HasField("num_messages_in_batch"):
                count = metadata.num_messages_in_batch
                assert command.num_messages == count
                found.append([bytes(each) for _, each in iterate_batch(content, count)])
            else:
                found.append([content])
    return found


# ---------------------------------------------------------------- batches


async def test_a_batch_is_one_entry_and_each_message_gets_its_position(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, BY_FLUSH)
    receipts = [await producer.submit(b"%d" % number) for number in range(3)]
    assert producer.pending_messages == 3
    assert broker.sends() == []
    await producer.flush()
    assert [receipt.result() for receipt in receipts] == [
        MessageId(7, 1, -1, index) for index in range(3)
    ]
    assert str(receipts[1].result()) == "7:1:-1:1"
    assert batches(broker) == [[b"0", b"1", b"2"]]
    (send,) = broker.sends()
    assert (send.sequence_id, send.highest_sequence_id, send.num_messages) == (0, 2, 3)
    assert (producer.pending_messages, producer.pending_bytes) == (0, 0)


async def test_a_single_message_of_a_batch_gets_the_id_that_consumers_see(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, BY_FLUSH)
    receipt = await producer.submit(b"alone")
    await producer.flush()
    assert receipt.result() == MessageId(7, 1, -1, 0)
    plain = await producer_of(client, None)
    assert (await plain.send(b"plain")).batch_index == -1


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (Batching(messages_max=2, delay_seconds=HOUR), [[b"aaaa", b"bbbb"], [b"cccc", b"dddd"]]),
        (Batching(bytes_max=45, delay_seconds=HOUR), [[b"aaaa", b"bbbb"], [b"cccc", b"dddd"]]),
        (Batching(delay_seconds=0.01), [[b"aaaa", b"bbbb", b"cccc", b"dddd"]]),
        (Batching(delay_seconds=0), [[b"aaaa", b"bbbb", b"cccc", b"dddd"]]),
    ],
    ids=["count", "bytes", "delay", "one turn of the loop"],
)
async def test_a_batch_is_sent_at_whichever_limit_comes_first(
    broker: FakeBroker, client: Client, batching: Batching, expected: list[list[bytes]]
) -> None:
    producer = await producer_of(client, batching)
    receipts = [await producer.submit(content) for content in (b"aaaa", b"bbbb", b"cccc", b"dddd")]
    if batching.bytes_max == 45:
        await producer.flush()
    await asyncio.gather(*receipts)
    assert batches(broker) == expected


async def test_a_message_that_is_larger_than_a_batch_goes_alone(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, Batching(bytes_max=64, delay_seconds=HOUR))
    for content in (b"small", b"x" * 100, b"last"):
        await producer.submit(content)
    await producer.flush()
    assert batches(broker) == [[b"small"], [b"x" * 100], [b"last"]]


async def test_keys_properties_and_times_are_each_messages_own(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, BY_FLUSH)
    await producer.submit(b"a", key="k", ordering_key=b"o", properties={"p": "1"})
    await producer.submit(b"b", key="k", event_time_ms=7)
    await producer.flush()
    await producer.submit(b"c", key="k")
    await producer.submit(b"d")
    await producer.flush()
    entries = [payload for _, command, payload in broker.received if isinstance(command, Send)]
    first, second = (parse_metadata(entry) for entry in entries)
    assert first.partition_key == "k"
    assert not first.HasField("ordering_key")
    assert not second.HasField("partition_key"), "its messages do not share one"
    (one, _), (two, _) = iterate_batch(entry_payload(entries[0]), 2)
    assert (one.partition_key, one.ordering_key, one.properties[0].value) == ("k", b"o", "1")
    assert (two.partition_key, two.event_time, two.sequence_id) == ("k", 7, 1)
    assert all(entry_checksum_ok(entry) for entry in entries)


async def test_closing_sends_what_was_gathered(broker: FakeBroker, client: Client) -> None:
    producer = await producer_of(client, BY_FLUSH)
    receipt = await producer.submit(b"a")
    await producer.close()
    assert receipt.result().entry == 1


async def test_messages_of_an_open_batch_are_definitely_not_stored_after_a_fence(
    broker: FakeBroker, client: Client
) -> None:
    options = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, batching=BY_FLUSH)
    producer = await client.create_producer("orders", options)
    receipt = await producer.submit(b"a")
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].write(replies.close_producer(1))
    with pytest.raises(Fenced):
        await receipt
    assert broker.sends() == []


async def test_a_cancelled_send_withdraws_its_message_from_the_batch(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, BY_FLUSH)
    with pytest.raises(NotSent):
        await producer.send(b"too slow", timeout_seconds=0.01)
    kept = await producer.submit(b"kept")
    await producer.flush()
    assert batches(broker) == [[b"kept"]]
    assert kept.result().entry == 1


async def test_a_batch_that_no_connection_has_seen_can_lose_a_message(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, Batching(messages_max=3, delay_seconds=HOUR))
    broker.answers[pb.CommandProducer] = None
    broker.links[-1].cut()
    await broker.received_of(pb.CommandProducer, 2)
    impatient = begin(producer.send(b"a", timeout_seconds=0.05))
    await asyncio.sleep(0)
    others = [await producer.submit(content) for content in (b"b", b"c")]
    with pytest.raises(NotSent):
        await impatient
    assert producer.pending_messages == 2
    del broker.answers[pb.CommandProducer]
    broker.grant(broker.links[-1], broker.all(pb.CommandProducer)[-1])
    await asyncio.gather(*others)
    assert batches(broker) == [[b"b", b"c"]]
    (send,) = broker.sends()
    assert (send.sequence_id, send.highest_sequence_id) == (1, 2)


async def test_a_batch_without_a_receipt_is_sent_again_byte_for_byte(
    broker: FakeBroker, client: Client
) -> None:
    broker.answers[Send] = None
    producer = await producer_of(client, BY_FLUSH)
    receipts = [await producer.submit(b"%d" % number) for number in range(3)]
    flushing = begin(producer.flush())
    await broker.eventually(lambda: len(broker.sends()) == 1)
    del broker.answers[Send]
    broker.links[-1].cut()
    await flushing
    first, second = (
        payload for _, command, payload in broker.received if isinstance(command, Send)
    )
    assert first == second
    assert {receipt.result().entry for receipt in receipts} == {1}


async def test_the_memory_of_a_producer_includes_the_batch_being_formed(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, BY_FLUSH, pending_messages_max=2)
    for number in range(2):
        await producer.submit(b"%d" % number)
    third = begin(producer.submit(b"2"))
    await asyncio.sleep(0.01)
    assert not third.done()
    await producer.flush()
    await third
    await producer.flush()
    assert batches(broker) == [[b"0", b"1"], [b"2"]]


async def test_a_batch_that_the_broker_does_not_take_is_refused_message_by_message(
    broker: FakeBroker, client: Client
) -> None:
    broker.message_bytes_max = 200
    producer = await producer_of(client, BY_FLUSH)
    with pytest.raises(Refused, match="chunks"):
        await producer.submit(b"x" * 300)
    receipts = [await producer.submit(b"x" * 80) for _ in range(3)]
    await producer.flush()
    for receipt in receipts:
        with pytest.raises(Refused, match="chunks"):
            await receipt
    assert broker.sends() == []
    await producer.close()
    with pytest.raises(Closed):
        await producer.submit(b"a")


@pytest.mark.parametrize("limits", [{"messages_max": 0}, {"bytes_max": 0}, {"delay_seconds": -1}])
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        Batching(**limits)


# ---------------------------------------------------------------- compression, single messages


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("batching", [None, BY_FLUSH], ids=["single", "batched"])
async def test_every_codec_of_pulsar_is_written(
    broker: FakeBroker, client: Client, compression: Compression, batching: Batching | None
) -> None:
    producer = await producer_of(client, batching, compression=compression)
    contents = [b"again and " * 50, b""]
    for content in contents:
        await producer.submit(content)
    await producer.flush()
    assert [each for batch in batches(broker) for each in batch] == contents
    first = next(payload for _, command, payload in broker.received if isinstance(command, Send))
    assert parse_metadata(first).compression == compression.value


async def test_a_single_message_carries_all_that_it_was_given(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, None)
    await producer.send(b"a", key="k", ordering_key=b"\x00", properties={"p": "ü"}, event_time_ms=9)
    await producer.send(b"b")
    entries = [payload for _, command, payload in broker.received if isinstance(command, Send)]
    full, plain = (parse_metadata(entry) for entry in entries)
    assert (full.partition_key, full.ordering_key, full.event_time) == ("k", b"\x00", 9)
    assert {each.key: each.value for each in full.properties} == {"p": "ü"}
    assert plain.producer_name == full.producer_name == producer.name
    assert (full.sequence_id, plain.sequence_id) == (0, 1)
    assert plain.publish_time >= full.publish_time > 0
    assert not plain.HasField("num_messages_in_batch")
    assert all(entry_checksum_ok(entry) for entry in entries)


async def test_a_message_that_waits_is_not_overtaken(broker: FakeBroker, client: Client) -> None:
    held: list[tuple[FakeLink, Send]] = []
    broker.answers[Send] = lambda link, send: held.append((link, send))
    producer = await producer_of(client, None, pending_messages_max=1)
    await producer.submit(b"0")
    waiting = [begin(producer.submit(b"%d" % number)) for number in range(1, 4)]
    await broker.eventually(lambda: len(held) == 1)
    broker.answers[Send] = broker.receipt
    broker.receipt(*held[0])
    for taking in waiting:
        await (await taking)
    assert broker.contents() == [b"0", b"1", b"2", b"3"]


# ---------------------------------------------------------------- what cannot be a message

BAD = [
    (b"bad", {"event_time_ms": -1}),
    (b"bad", {"event_time_ms": "noon"}),
    (b"bad", {"key": "\ud800"}),
    (b"bad", {"key": 5}),
    (b"bad", {"ordering_key": 5}),
    (b"bad", {"properties": {"name": None}}),
    (b"bad", {"properties": ["name"]}),
    ("bad", {}),
    (None, {}),
]


@pytest.mark.parametrize("batching", [BY_FLUSH, None], ids=["batched", "alone"])
@pytest.mark.parametrize(("content", "stated"), BAD)
async def test_an_invalid_message_does_not_affect_others(
    broker: FakeBroker, client: Client, batching: Batching | None, content: bytes, stated: Any
) -> None:
    producer = await producer_of(client, batching)
    good = [await producer.submit(b"%d" % number) for number in range(2)]
    with pytest.raises(ConfigurationError):
        await producer.submit(content, **stated)
    with pytest.raises(ConfigurationError):
        producer.pack(
            content,
            **{"key": None, "ordering_key": None, "properties": None, "event_time_ms": 0} | stated,
        )
    good.append(await producer.submit(b"2"))
    await producer.flush()
    await asyncio.gather(*good)
    assert [each for batch in batches(broker) for each in batch] == [b"0", b"1", b"2"]


async def test_a_content_that_changes_after_submit_is_sent_unchanged(
    broker: FakeBroker, client: Client
) -> None:
    producer = await producer_of(client, BY_FLUSH)
    content: Any = bytearray(b"before")
    properties = {"name": "before"}
    receipt = await producer.submit(content, properties=properties)
    content[:] = b"behind"
    properties["name"] = "\ud800"
    await producer.flush()
    assert receipt.result().entry == 1
    assert batches(broker) == [[b"before"]]


async def test_a_batch_that_cannot_be_packed_is_refused_and_the_next_one_is_sent(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise MemoryError("no room to compress")

    producer = await producer_of(client, Batching(delay_seconds=0), compression=Compression.ZSTD)
    with monkeypatch.context() as patched:
        patched.setattr(packer, "compress", fails)
        lost = [await producer.submit(b"lost"), await producer.submit(b"lost as well")]
        for receipt in lost:
            with pytest.raises(ConfigurationError, match="no room to compress"):
                await asyncio.wait_for(receipt, 60)
    assert (await producer.send(b"next")).entry == 1
    assert batches(broker) == [[b"next"]]
