"""Readers, seeks, last message ids, administration, restoring and closing."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.dispatch.world import NOON_MS, Receipts, Socket, ack, ack_until, world

from onewriter_broker.dispatch.api import SeekToId, SeekToTime, SubscriptionType, seek_target
from onewriter_broker.dispatch.limits import Limits
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import EARLIEST_ID, LATEST_ID, MessageId

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (EARLIEST_ID, 0),
        (LATEST_ID, 4),
        (MessageId(5, 3), 2),  # the entry itself: leaving it out is the client's business
        (MessageId(5, 3, batch_index=1), 2),
        (MessageId(4, 9), 0),
        (MessageId(77, 0), 4),
    ],
)
async def test_a_reader_begins_at_the_requested_position(start: MessageId, expected: int) -> None:
    async with world() as w:
        stored = await w.publish(4)
        socket = Socket()
        await w.subscribe(socket, durable=False, start=start, from_earliest=False)
        stored += await w.publish(1)
        await w.settle()
        assert socket.take() == stored[expected:]


async def test_a_readers_subscription_goes_with_it_and_is_never_saved() -> None:
    async with world() as w:
        reader = await w.subscribe(Socket(), "reader-1", durable=False)
        stored = await w.publish(2)
        receipts = Receipts()
        ack_until(reader, stored[1], receipts)
        assert receipts.answers == [None]
        assert w.subscriptions.lowest_retained_position() is None
        reader.close()
        assert w.subscriptions.names() == []
        await asyncio.sleep(1)
        assert "cursor:reader-1" not in await w.store.read_state(w.log.name)


async def test_a_reader_may_begin_some_time_ago() -> None:
    async with world() as w:
        await w.publish(3)
        w.wall_ms += 300_000
        late = await w.publish(3)
        w.wall_ms += 5_000
        socket = Socket()
        await w.subscribe(socket, durable=False, rollback_seconds=60)
        await w.settle()
        assert socket.take() == late


async def test_durable_and_not_do_not_share_a_name() -> None:
    async with world() as w:
        await w.subscribe(Socket(), "s")
        with pytest.raises(Refused, match="Durable subscription with the same name"):
            await w.subscribe(Socket(), "s", durable=False)


async def test_seek_closes_the_consumers_and_begins_there() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket)
        stored = await w.publish(6)
        ack_until(handle, stored[4])
        history: list[str] = []
        await handle.seek(
            SeekToId(MessageId(*stored[2])),
            lambda: history.append(f"answered, {len(socket.closed)} closed"),
        )
        assert history == ["answered, 1 closed"]
        assert socket.closed == [1]
        ack_until(handle, stored[5])  # sent before the client knew: it means the old position
        again = Socket()
        await w.subscribe(again)
        await w.settle()
        assert again.take() == stored[2:]
        state = await w.store.read_state(w.log.name)
        assert '"m":"5-2"' in state["cursor:audit"]


async def test_seek_to_the_ends_and_into_a_batch() -> None:
    async with world() as w:
        stored = await w.publish(3, messages=4)
        for target, expected in [
            (LATEST_ID, []),
            (EARLIEST_ID, [(entry, ()) for entry in stored]),
            (
                MessageId(*stored[1], ack_set=(0b1100,)),
                [(stored[1], (0b1100,)), (stored[2], ())],
            ),
        ]:
            socket = Socket()
            handle = await w.subscribe(socket, permits=0)
            await handle.seek(SeekToId(target), lambda: None)
            handle = await w.subscribe(socket)
            await w.settle()
            assert [(d.position, d.ack_set) for d in socket.delivered] == expected
            handle.close()


async def test_a_reader_keeps_its_sought_position_until_it_is_back() -> None:
    async with world() as w:
        stored = await w.publish(5)
        reader = await w.subscribe(Socket(), "r", durable=False, start=LATEST_ID)
        await reader.seek(SeekToId(MessageId(*stored[3])), lambda: None)
        socket = Socket()
        await w.subscribe(socket, "r", durable=False, start=LATEST_ID)
        await w.settle()
        assert socket.take() == stored[3:]


async def test_a_reader_that_does_not_return_after_a_seek_is_forgotten() -> None:
    async with world() as w:
        reader = await w.subscribe(Socket(), "r", durable=False)
        await reader.seek(SeekToId(EARLIEST_ID), lambda: None)
        assert w.subscriptions.names() == ["r"]
        await asyncio.sleep(31)
        assert w.subscriptions.names() == []


async def test_seek_by_time_finds_the_first_entry_published_then_or_later() -> None:
    async with world(block_entries=3, tail_bytes_max=1) as w:
        stored: list[tuple[int, Position]] = []
        for ledger in (6, 9, 10, 14):
            for _ in range(5):
                w.wall_ms += 70_000
                stored += [(w.wall_ms, position) for position in await w.publish(4)]
            await w.open(ledger)
        handle = await w.subscribe(Socket())
        times = sorted({time for time, _ in stored})
        for sought in [0, *times, *(time + 1 for time in times)]:
            await handle.seek(SeekToTime(sought), lambda: None)
            socket = Socket()
            handle = await w.subscribe(socket)
            await w.settle()
            assert socket.take() == [position for time, position in stored if time >= sought]


async def test_a_producers_clock_may_be_ahead_of_the_brokers() -> None:
    async with world(block_entries=1) as w:
        await w.publish(20)
        w.wall_ms += 30_000
        ahead = await w.publish(1)
        w.wall_ms -= 30_000
        rest = await w.publish(5)
        socket = Socket()
        handle = await w.subscribe(socket, permits=0)
        await handle.seek(SeekToTime(NOON_MS + 10_000), lambda: None)
        await w.subscribe(socket)
        await w.settle()
        assert socket.take() == ahead + rest


def test_a_seek_without_a_target_is_refused() -> None:
    with pytest.raises(Refused):
        seek_target(pb.CommandSeek(consumer_id=1, request_id=1))
    assert seek_target(
        pb.CommandSeek(consumer_id=1, request_id=1, message_publish_time=5)
    ) == SeekToTime(5)


@pytest.mark.parametrize("unsigned", [2**63, 2**64 - 1])
def test_a_negative_time_is_before_every_message(unsigned: int) -> None:
    """Java's client sends a signed number in the unsigned field."""
    seek = pb.CommandSeek(consumer_id=1, request_id=1, message_publish_time=unsigned)
    assert seek_target(seek) == SeekToTime(0)


async def test_the_last_message_id() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket(), from_earliest=False)
        found = await handle.last_message_id()
        assert found.message_id == EARLIEST_ID
        assert found.mark_delete.position == EARLIEST
        await w.publish(3)
        assert (await handle.last_message_id()).message_id == MessageId(5, 3)
        await w.publish(1, messages=8)
        assert (await handle.last_message_id()).message_id == MessageId(5, 4, batch_index=7)
        await w.open(8)
        await w.open(11)
        assert await w.subscriptions.last_message_id() == MessageId(5, 4, batch_index=7)
        for subscriptions in [await w.reload()]:
            assert await subscriptions.last_message_id() == MessageId(5, 4, batch_index=7)


async def test_a_reader_at_the_end_is_at_the_last_message_also_after_markers() -> None:
    async with world() as w:
        await w.publish(2)
        await w.open(8)
        reader = await w.subscribe(Socket(), durable=False, start=LATEST_ID)
        found = await reader.last_message_id()
        assert found.mark_delete.position == found.message_id.position == (5, 2)


async def test_unreadable_payloads_are_messages_too() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket)
        await w.publish(1, payload=b"\x00")
        assert socket.payloads == [b"\x00"]
        assert (await handle.last_message_id()).message_id == MessageId(5, 1)


async def test_unsubscribe_deletes_unless_others_are_connected() -> None:
    async with world() as w:
        anna, ben = Socket(), Socket()
        kind = SubscriptionType.SHARED
        first = await w.subscribe(anna, kind=kind, consumer_id=1)
        await w.subscribe(ben, kind=kind, consumer_id=2, consumer_name="ben")
        with pytest.raises(Refused) as refused:
            await first.unsubscribe()
        assert refused.value.code is ServerError.METADATA_ERROR
        await first.unsubscribe(force=True)
        assert (anna.closed, ben.closed) == ([], [2])
        assert first.is_closed
        assert w.subscriptions.names() == []
        assert "cursor:audit" not in await w.store.read_state(w.log.name)


async def test_a_cursor_is_restored_and_crosses_ledgers() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket())
        stored = await w.publish(4)
        ack(handle, stored[0], stored[2])
        await w.subscriptions.close("moving")
        subscriptions = await w.reload()
        assert subscriptions.names() == ["audit"]
        assert subscriptions.lowest_retained_position() == stored[0]
        socket = Socket()
        again = await w.subscribe(socket)
        await w.settle()
        assert socket.take() == [stored[1], stored[3]]
        more = await w.publish(2)
        assert socket.take() == more
        ack(again, more[0], stored[3], stored[1])
        assert again.subscription.cursor.mark_delete == more[0]


async def test_a_cursor_after_the_end_of_the_log_is_set_back_and_a_broken_one_restarts() -> None:
    async with world() as w:
        await w.publish(3)
        w.log._state = {
            "cursor:ahead": '{"v":1,"m":"5-900","r":[[5,902,5,903]]}',
            "cursor:broken": "{",
            "cursor:of the future": '{"v":7,"m":"5-2","z":1}',
            "epoch": "4",
        }
        subscriptions = w.load()
        assert {
            name: found.cursor.mark_delete
            for name in subscriptions.names()
            if (found := subscriptions.get(name))
        } == {"ahead": Position(5, 3), "broken": EARLIEST, "of the future": Position(5, 2)}


async def test_the_slowest_durable_subscription_holds_the_log() -> None:
    async with world() as w:
        first = await w.subscribe(Socket(), "first")
        second = await w.subscribe(Socket(), "second")
        await w.subscribe(Socket(), "reader", durable=False)
        stored = await w.publish(5)
        ack_until(first, stored[3])
        ack_until(second, stored[1])
        assert w.subscriptions.lowest_retained_position() == stored[1]


@pytest.mark.parametrize("how", ["subscribe", "create", "reset", "seek"])
async def test_durable_subscriptions_begin_after_what_is_being_trimmed(how: str) -> None:
    async with world() as w:
        stored = await w.publish(10)
        await w.subscriptions.create("known", at=LATEST_ID)
        w.log._maybe_trimmed_before = Position(5, 4)
        socket = Socket()
        match how:
            case "subscribe":
                await w.subscribe(socket, "new")
            case "create":
                await w.subscriptions.create("new", at=EARLIEST_ID)
                await w.subscribe(socket, "new")
            case "reset":
                await w.subscriptions.reset("known", SeekToId(EARLIEST_ID))
                await w.subscribe(socket, "known")
            case _:
                target = SeekToId(MessageId(*stored[1], ack_set=(1,)))
                await (await w.subscribe(Socket(), "known")).seek(target, lambda: None)
                await w.subscribe(socket, "known")
        await w.settle()
        assert socket.take() == stored[3:]
        assert w.subscriptions.lowest_retained_position() == stored[2]


async def test_a_reader_that_holds_nothing_sees_what_is_still_there() -> None:
    async with world() as w:
        stored = await w.publish(10)
        w.log._maybe_trimmed_before = Position(5, 4)
        socket = Socket()
        await w.subscribe(socket, durable=False)
        await w.settle()
        assert socket.take() == stored


async def test_backlogs_are_counted_in_entries_and_exact_on_demand() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket(), permits=0)
        stored = await w.publish(6)
        await w.open(9)
        stored += await w.publish(3)
        await w.open(12)
        stored += await w.publish(2)
        backlog = w.subscriptions.stats(0.0)["audit"]["msgBacklog"]
        assert isinstance(backlog, int)
        assert backlog <= 11
        await w.subscriptions.measure_backlogs()
        assert w.subscriptions.stats(0.0)["audit"]["msgBacklog"] == 11
        ack(handle, stored[0], stored[7])
        assert w.subscriptions.stats(0.0)["audit"]["msgBacklog"] == 9
        assert handle.stats(0.0).backlog == 9


async def test_stats_show_who_is_connected() -> None:
    async with world() as w:
        await w.subscribe(Socket(), kind=SubscriptionType.FAILOVER)
        await w.publish(3)
        stats = w.subscriptions.stats(asyncio.get_running_loop().time() + 10)["audit"]
        assert stats["type"] == "Failover"
        assert stats["activeConsumerName"] == "anna"
        assert stats["msgOutCounter"] == 3
        rate = stats["msgRateOut"]
        assert isinstance(rate, float)
        assert rate == pytest.approx(0.3, rel=0.1)


async def test_administration_creates_skips_resets_and_deletes() -> None:
    async with world() as w:
        stored = await w.publish(6)
        admin = w.subscriptions
        await admin.create("s", at=EARLIEST_ID, properties={"team": "shop"})
        with pytest.raises(Refused):
            await admin.create("s")
        await admin.skip("s", 2)
        found = admin.get("s")
        assert found is not None
        assert found.cursor.mark_delete == stored[1]
        await admin.skip_all("s")
        assert found.backlog() == (0, True)
        socket = Socket()
        await w.subscribe(socket, "s")
        await admin.reset("s", SeekToId(MessageId(*stored[4])))
        assert socket.closed == [1]
        await w.subscribe(socket, "s")
        await w.settle()
        assert socket.take() == stored[4:]
        with pytest.raises(Refused) as refused:
            await admin.delete("s")
        assert refused.value.code is ServerError.CONSUMER_BUSY
        await admin.delete("s", force=True)
        with pytest.raises(Refused) as refused:
            await admin.skip_all("s")
        assert refused.value.code is ServerError.SUBSCRIPTION_NOT_FOUND


async def test_skipping_moves_a_connected_consumer_on() -> None:
    async with world() as w:
        await w.publish(5)
        socket = Socket()
        handle = await w.subscribe(socket, permits=1)
        await w.settle()
        socket.take()
        await w.subscriptions.skip_all("audit")
        handle.flow(10)
        await w.settle()
        assert socket.take() == []
        assert await w.publish() == socket.take()


async def test_properties_are_kept_and_too_many_refused() -> None:
    async with world(limits=Limits(subscriptions_max=1)) as w:
        await w.subscriptions.create("s", properties={"team": "shop"})
        await w.subscriptions.close("moving")
        subscriptions = await w.reload()
        assert subscriptions.stats(0.0)["s"]["subscriptionProperties"] == {"team": "shop"}
        with pytest.raises(Refused):
            await subscriptions.create("t")
        with pytest.raises(Refused):
            await w.subscribe(Socket(), "x" * 600)
        with pytest.raises(Refused):
            await w.subscribe(Socket(), "")


async def test_closing_saves_and_notifies_watchers_and_refuses_writes() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket)
        stored = await w.publish(3)
        receipts = Receipts()
        ack_until(handle, stored[1], receipts)
        await w.subscriptions.close("moving")
        assert socket.closed == [1]
        assert receipts.answers == [None]
        assert '"m":"5-2"' in (await w.store.read_state(w.log.name))["cursor:audit"]
        socket.take()
        await w.publish(1)
        assert socket.take() == []
        with pytest.raises(Unavailable):
            await w.subscribe(Socket())


async def test_closing_does_not_wait_for_a_store_that_is_away() -> None:
    async with world(limits=Limits(close_seconds=1)) as w:
        handle = await w.subscribe(Socket())
        stored = await w.publish(3)
        w.store.faults.is_cut_off = True
        receipts = Receipts()
        ack_until(handle, stored[1], receipts)
        began = asyncio.get_running_loop().time()
        await w.subscriptions.close("moving")
        assert asyncio.get_running_loop().time() - began <= 1
        assert len(receipts.answers) == 1
        assert receipts.answers[0] is not None


async def test_a_receipt_waits_while_the_bucket_is_bound_to_another_dataset() -> None:
    async with world() as w:
        old, replica = w.server.primary, w.server.add_replica("node-1")
        handle = await w.subscribe(Socket())
        stored = await w.publish(3)
        w.server.promote(replica)
        old.drop_connections()
        receipts = Receipts()
        ack_until(handle, stored[1], receipts)
        await asyncio.sleep(1)
        assert receipts.answers == []
        await w.open(ledger=6)
        await asyncio.sleep(1)
        assert receipts.answers == [None]
        assert '"m":"5-2"' in (await w.store.read_state(w.log.name))["cursor:audit"]


async def test_an_idle_topic_has_no_tasks() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket())
        ack(handle, *await w.publish(3))
        await asyncio.sleep(1)
        assert all(task.done() for task in w.started)


async def test_entries_after_empty_ledgers_are_found_with_few_reads() -> None:
    async with world(tail_bytes_max=1) as w:
        for ledger in (7, 8, 11):
            await w.open(ledger)
        socket = Socket()
        await w.subscribe(socket)
        await asyncio.sleep(1)
        assert len(w.started) < 10
        assert await w.publish() == socket.take()
