"""Consumers that read a log's compacted view first: their deliveries, and what counts as acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest
from tests.unit.broker.dispatch.world import Socket, World, ack, ack_until, world

from onewriter_broker.dispatch.api import SubscriptionType
from onewriter_broker.dispatch.cursor import Cursor
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.log.store.compacted import View
from onewriter_broker.topic.compaction.passes import compact, drop_slot
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import TERMINATED
from onewriter_core.wire.messages import build_batch, build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import EARLIEST_ID, MessageId


@pytest.fixture
async def topic() -> AsyncIterator[World]:
    async with world(block_entries=2) as made:
        yield made


def keyed(key: str, content: bytes = b"x") -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, partition_key=key
    )
    return build_entry(metadata, content)


def batch(*keys: str) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.num_messages_in_batch = len(keys)
    return build_entry(
        metadata, build_batch((pb.SingleMessageMetadata(partition_key=key), b"x") for key in keys)
    )


async def publish(topic: World, *entries: bytes) -> list[Position]:
    return [(await topic.publish(payload=entry))[0] for entry in entries]


async def compacted(topic: World) -> View:
    done = await compact(topic.log, keys_max=100, wall_ms=lambda: 0, check=lambda: None)
    return done.view


def entries(positions: Iterable[Position]) -> list[int]:
    return [position.entry for position in positions]


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
async def test_readers_get_the_view_first_and_then_the_log(
    topic: World, kind: SubscriptionType
) -> None:
    await publish(topic, *(keyed(key) for key in "abcabca"))
    await compacted(topic)
    await publish(topic, keyed("b"), keyed("b"))
    socket, other = Socket(), Socket()
    await topic.subscribe(socket, kind=kind, read_compacted=True, consumer_epoch=3)
    assert entries(position for position in (each.position for each in socket.delivered)) == [
        5, 6, 7, 8, 9,
    ]  # fmt: skip
    assert {delivery.epoch for delivery in socket.delivered} == {None}  # as in Pulsar
    await topic.subscribe(other, "plain", consumer_id=2)
    assert entries(other.take()) == list(range(1, 10))
    await publish(topic, keyed("d"))
    await topic.settle()
    assert entries(socket.take()) == [5, 6, 7, 8, 9, 10]


async def test_entries_trimmed_from_the_log_are_read_from_the_view(topic: World) -> None:
    await publish(topic, *(keyed(key) for key in "abcd"))
    await compacted(topic)
    topic.log._maybe_trimmed_before = Position(5, 4)  # retention is about to cut there
    socket = Socket()
    await topic.subscribe(socket, read_compacted=True)
    assert entries(socket.take()) == [1, 2, 3, 4]


async def test_entries_left_out_count_as_acknowledged(topic: World) -> None:
    await publish(topic, *(keyed(key) for key in "abcabc"), keyed("c", b""))
    await compacted(topic)
    await publish(topic, keyed("d"))
    socket = Socket()
    handle = await topic.subscribe(socket, read_compacted=True)
    first, second, last = socket.take()
    assert entries([first, second, last]) == [4, 5, 8]
    cursor = handle.subscription.cursor
    ack(handle, last)
    ack(handle, first)
    assert cursor.mark_delete == first
    ack(handle, second)
    assert cursor.mark_delete == last


async def test_entries_left_out_at_the_end_count_as_acknowledged(topic: World) -> None:
    published = await publish(topic, *(keyed(key) for key in "abc"), keyed("c", b""))
    await compacted(topic)
    await topic.log.save_state({TERMINATED: str(published[-1])})
    await topic.reload()
    socket = Socket()
    handle = await topic.subscribe(socket, read_compacted=True)
    first, second = socket.take()
    assert entries([first, second]) == [1, 2]
    ack(handle, second)
    assert (socket.ended, handle.subscription.cursor.mark_delete.entry) == ([], 0)
    ack(handle, first)
    await topic.settle()
    assert handle.subscription.cursor.mark_delete == published[-1]
    assert socket.ended == [1]
    again = Socket()
    start = MessageId(second.ledger, second.entry)
    reader = await topic.subscribe(
        again, "behind", read_compacted=True, consumer_id=2, start=start, durable=False
    )
    assert (again.take(), again.ended) == ([second], [])
    ack_until(reader, second)
    assert again.ended == [2]


async def test_entries_after_the_view_are_not_left_out(topic: World) -> None:
    await publish(topic, *(keyed(key) for key in "ab"), keyed("b", b""))
    await compacted(topic)
    socket = Socket()
    handle = await topic.subscribe(socket, read_compacted=True)
    (first,) = socket.take()
    ack(handle, first)
    await topic.settle()
    assert handle.subscription.cursor.mark_delete.entry == 3
    (last,) = await publish(topic, keyed("b"))
    await topic.settle()
    assert socket.take() == [last]
    assert handle.subscription.cursor.mark_delete.entry == 3


async def test_a_redelivery_begins_with_the_view_again(topic: World) -> None:
    await publish(topic, *(keyed(key) for key in "abab"))
    await compacted(topic)
    await publish(topic, keyed("a"))
    socket = Socket()
    handle = await topic.subscribe(socket, read_compacted=True)
    assert entries(socket.take()) == [3, 4, 5]
    ack_until(handle, Position(5, 3))
    handle.redeliver()
    await topic.settle()
    assert entries(socket.take()) == [4, 5]


async def test_a_reader_of_a_view_sees_keys_that_are_removed_later(
    topic: World,
) -> None:
    await publish(topic, *(keyed(key) for key in "abc"))
    await compacted(topic)
    socket = Socket()
    handle = await topic.subscribe(socket, read_compacted=True, permits=1)
    assert entries(socket.take()) == [1]
    await publish(topic, keyed("a", b""), keyed("b", b"new"))
    await compacted(topic)
    handle.flow(100)
    await topic.settle()
    # Not 3 and 5 alone, as the newer view has it: then "a" would live on with this reader.
    assert entries(socket.take()) == [2, 3, 4, 5]


async def test_a_view_that_is_dropped_is_followed_by_the_one_that_counts(topic: World) -> None:
    await publish(topic, *(keyed(key) for key in "abc"))
    former = await compacted(topic)
    socket = Socket(space=1)
    reading = await topic.log.compacted.begin(EARLIEST)
    assert reading is not None
    handle = await topic.subscribe(socket, read_compacted=True, permits=1)
    assert entries(socket.take()) == [1]
    await publish(topic, keyed("b", b"new"))
    await compacted(topic)
    assert topic.log.compacted.is_read(former)
    topic.log.compacted.retire(former)
    assert not topic.log.compacted.is_read(former)
    await drop_slot(topic.log, former.slot)
    assert await topic.log.compacted.read(reading, EARLIEST, 10, 1000) is None
    socket.space = 100
    handle.subscription.move(Position(5, 1))  # what it held of the former one is gone
    handle.flow(100)
    await topic.settle()
    assert entries(socket.take()) == [3, 4]


async def test_the_last_message_is_the_last_that_is_left(topic: World) -> None:
    socket = Socket()
    await publish(topic, keyed("a"), batch("b", "c", "d"), keyed("e"))
    await publish(topic, keyed("d", b""), keyed("e", b""))
    handle = await topic.subscribe(socket, read_compacted=True)
    plain = await topic.subscribe(Socket(), "plain", consumer_id=2)
    assert (await handle.last_message_id()).message_id.entry == 5
    await compacted(topic)
    assert (await handle.last_message_id()).message_id == MessageId(5, 2, batch_index=1)
    assert (await plain.last_message_id()).message_id.entry == 5
    await publish(topic, *(keyed(key, b"") for key in "abc"))
    await compacted(topic)
    assert (await handle.last_message_id()).message_id == EARLIEST_ID
    await publish(topic, keyed("a"))
    assert (await handle.last_message_id()).message_id.entry == 9


async def test_of_a_batch_only_what_is_left_is_sent(topic: World) -> None:
    await topic.publish(payload=batch("a", "b", "a", "c"), messages=4)
    await publish(topic, keyed("c"))
    await compacted(topic)
    socket = Socket()
    handle = await topic.subscribe(socket, read_compacted=True, permits=10)
    assert [(each.position.entry, each.ack_set) for each in socket.delivered] == [
        (1, (0b0110,)),
        (2, ()),
    ]
    assert handle.consumer.permits == 10 - 2 - 1


def test_holes_join_what_is_acknowledged_around_them() -> None:
    cursor = Cursor(Position(5, 0), LedgerGaps())
    cursor.acknowledge(Position(5, 10))
    cursor.pass_over(Position(5, 3), Position(5, 10))
    assert cursor.ranges == [(Position(5, 4), Position(5, 10))]
    cursor.pass_over(Position(5, 10), Position(5, 11))  # there is nothing between
    cursor.pass_over(Position(5, 10), Position(7, 1))
    assert cursor.ranges == [(Position(5, 4), Position(7, 0))]
    cursor.pass_over(Position(5, 0), Position(5, 3))
    assert cursor.mark_delete == Position(5, 2)
    cursor.acknowledge(Position(5, 3))
    assert cursor.mark_delete == Position(7, 0)
    cursor.pass_over(Position(5, 3), Position(6, 1))
    assert (cursor.mark_delete, cursor.ranges) == (Position(7, 0), [])


def test_holes_are_bounded_like_all_ranges() -> None:
    cursor = Cursor(Position(5, 0), LedgerGaps(), ranges_max=1)
    cursor.acknowledge(Position(5, 3))
    cursor.pass_over(Position(5, 5), Position(5, 9))
    assert cursor.refused == 1
    assert cursor.ranges == [(Position(5, 3), Position(5, 3))]
