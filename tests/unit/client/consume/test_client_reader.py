"""A reader against a scripted broker: its start, and its position after a reconnect."""

from __future__ import annotations

import pytest
from tests.unit.client.fake_topic import LEDGER, NOON_MS, FakeTopic

from onewriter import (
    EARLIEST,
    LATEST,
    Client,
    Closed,
    MessageId,
    NoMessage,
    Reader,
    ReaderOptions,
    Unreadable,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


async def contents(reader: Reader, count: int) -> list[bytes]:
    return [(await reader.next(timeout_seconds=60)).content for _ in range(count)]


async def cut(topic: FakeTopic) -> None:
    """Break the connection, and wait until the reader is back."""
    requests = len(topic.broker.all(pb.CommandSubscribe))
    topic.broker.links[-1].cut()
    await topic.broker.received_of(pb.CommandSubscribe, requests + 1)


async def test_a_reader_begins_at_its_start(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"0", b"1", b"2")
    topic.publish_batch(b"3", b"4", b"5")
    topic.publish(b"6")
    third, fifth = MessageId(LEDGER, 2), MessageId(LEDGER, 3, batch_index=1)
    batch = MessageId(LEDGER, 3)
    for start, is_inclusive, first in (
        (EARLIEST, False, b"0"),
        (third, False, b"3"),
        (third, True, b"2"),
        (fifth, False, b"5"),
        (fifth, True, b"4"),
        (batch, False, b"6"),
        (batch, True, b"3"),
    ):
        reader = await client.create_reader("orders", start, is_inclusive=is_inclusive)
        assert await contents(reader, 1) == [first]
        await reader.close()
    requests = topic.broker.all(pb.CommandSubscribe)
    assert not any(command.durable for command in requests)
    assert len({command.subscription for command in requests}) == len(requests)


async def test_options_are_passed_on(topic: FakeTopic, client: Client) -> None:
    options = ReaderOptions(name="replay", read_compacted=True, properties={"pod": "p-1"})
    await client.create_reader("orders", EARLIEST, options)
    request = await topic.broker.received_of(pb.CommandSubscribe)
    assert request.subscription.startswith("replay")
    assert request.read_compacted
    assert request.metadata[0].key == "pod"
    assert not request.HasField("consumer_epoch")


async def test_the_latest_is_where_it_was_when_it_began(topic: FakeTopic, client: Client) -> None:
    """What is published while the connection is away is not left out."""
    topic.publish(b"old")
    reader = await client.create_reader("orders", LATEST)
    topic.is_silent = True
    topic.publish(b"new")
    topic.is_silent = False
    await cut(topic)
    assert await contents(reader, 1) == [b"new"]


async def test_a_reader_continues_after_the_last_message_that_it_returned(
    topic: FakeTopic, client: Client
) -> None:
    reader = await client.create_reader("orders")
    topic.publish(b"0", b"1")
    topic.publish_batch(b"2", b"3", b"4")
    topic.publish(b"5")
    seen: list[bytes] = []
    for _ in range(6):
        seen += await contents(reader, 1)
        await cut(topic)
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert reader.position == MessageId(LEDGER, 3)
    with pytest.raises(NoMessage):
        await reader.next(timeout_seconds=0.05)


async def test_messages_in_chunks_are_neither_lost_nor_twice_in_a_cut(
    topic: FakeTopic, client: Client
) -> None:
    """A lost connection in the middle of a message: it is read anew from its first chunk on."""
    reader = await client.create_reader("orders")
    topic.publish(b"0")
    topic.publish_chunk("u", 0, 2, b"in ")
    topic.publish(b"1")
    assert await contents(reader, 2) == [b"0", b"1"]
    await cut(topic)
    topic.publish_chunk("v", 0, 2, b"other ")
    topic.publish_chunk("u", 1, 2, b"chunks")
    topic.publish(b"2")
    assert await contents(reader, 1) == [b"in chunks"]
    await cut(topic)
    assert await contents(reader, 1) == [b"2"]
    topic.publish_chunk("v", 1, 2, b"chunks")
    assert await contents(reader, 1) == [b"other chunks"]
    await cut(topic)
    assert topic.broker.all(pb.CommandSubscribe)[-1].start_message_id.entry_id == 6


async def test_an_unreadable_entry_is_reported_once(topic: FakeTopic, client: Client) -> None:
    reader = await client.create_reader("orders")
    topic.publish(b"0")
    topic.store(topic.entries[0].payload[:-1] + b"!")
    topic.publish(b"2")
    await contents(reader, 1)
    with pytest.raises(Unreadable):
        await reader.next(timeout_seconds=60)
    await cut(topic)
    assert await contents(reader, 1) == [b"2"]


async def test_whether_there_is_more(topic: FakeTopic, client: Client) -> None:
    reader = await client.create_reader("orders")
    assert await reader.last_message_id() is None
    assert not await reader.has_message_available()
    topic.publish(b"0", b"1")
    assert await reader.has_message_available()
    await contents(reader, 2)
    assert not await reader.has_message_available()
    inclusive = await client.create_reader("orders", MessageId(LEDGER, 1), is_inclusive=True)
    assert await inclusive.has_message_available()
    await contents(inclusive, 1)
    assert not await inclusive.has_message_available()
    latest = await client.create_reader("orders", LATEST)
    assert not await latest.has_message_available()


async def test_seeking(topic: FakeTopic, client: Client) -> None:
    reader = await client.create_reader("orders")
    topic.publish(*(b"%d" % number for number in range(9)))
    await contents(reader, 5)
    await reader.seek(MessageId(LEDGER, 1))
    assert await contents(reader, 1) == [b"2"]
    await reader.seek(MessageId(LEDGER, 6), is_inclusive=True)
    assert await contents(reader, 1) == [b"6"]
    await reader.seek(EARLIEST)
    assert await contents(reader, 1) == [b"0"]


async def test_seeking_by_time_survives_a_broker_that_forgot(
    topic: FakeTopic, client: Client
) -> None:
    """The scripted broker keeps no place for readers: they begin where they say."""
    reader = await client.create_reader("orders")
    topic.publish(*(b"%d" % number for number in range(9)))
    await contents(reader, 2)
    await reader.seek(NOON_MS + 4)
    kept = topic.broker.all(pb.CommandSubscribe)
    assert kept[0].subscription == kept[1].subscription
    assert await contents(reader, 2) == [b"4", b"5"]
    await cut(topic)
    assert await contents(reader, 1) == [b"6"]


async def test_iteration_and_the_end(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"0", b"1")
    seen = []
    async with await client.create_reader("orders") as reader:
        async for message in reader:
            seen.append(message.content)
            if len(seen) == 2:
                await reader.close()
    assert seen == [b"0", b"1"]
    assert isinstance(reader.end, Closed)
    with pytest.raises(Closed):
        reader.next_nowait()
