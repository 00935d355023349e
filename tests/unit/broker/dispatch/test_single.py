"""Exclusive and Failover subscriptions: one consumer gets everything, in order."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.dispatch.world import Receipts, Socket, ack, ack_until, world

from onewriter_broker.dispatch.api import SeekToTime, SubscribeOptions, SubscriptionType
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.readers import ReadBudget
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.log.topic_log.entries import entries_of
from onewriter_core.errors import Refused, ServerError, Undecided
from onewriter_core.ids import Position
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Ack, MessageId

FAILOVER = SubscriptionType.FAILOVER
pytestmark = pytest.mark.looptime


async def test_a_consumer_gets_stored_and_new_messages() -> None:
    async with world() as w:
        stored = await w.publish(3)
        socket = Socket()
        await w.subscribe(socket)
        await w.settle()
        assert socket.take() == stored
        more = await w.publish(2)
        assert socket.take() == more, "the tail is delivered within the commit, without a task"


async def test_a_new_subscription_begins_at_the_end_by_default() -> None:
    async with world() as w:
        await w.publish(3)
        socket = Socket()
        await w.subscribe(socket, from_earliest=False)
        await w.settle()
        assert socket.take() == []
        assert await w.publish() == socket.take()


async def test_permits_count_messages_and_may_go_negative() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket, permits=5)
        batches = await w.publish(4, messages=4)
        assert socket.take() == batches[:2]
        assert handle.consumer.permits == -3
        handle.flow(3)
        assert socket.take() == []
        handle.flow(1)
        assert socket.take() == batches[2:3]


async def test_deliveries_follow_the_answer_to_subscribe() -> None:
    async with world() as w:
        stored = await w.publish(2)
        socket = Socket()
        options = SubscribeOptions("s", FAILOVER, 1, "anna", from_earliest=True)
        handle = await w.subscriptions.subscribe(options, socket)
        handle.flow(10)
        await w.settle()
        assert (socket.delivered, socket.active) == ([], [])
        handle.start()
        await w.settle()
        assert socket.active == [(1, True)]
        assert socket.take() == stored


async def test_a_full_socket_stops_its_own_consumer_only() -> None:
    async with world(limits=Limits(delivery_bytes=1)) as w:
        slow, quick = Socket(space=2), Socket()
        handle = await w.subscribe(slow, "slow")
        await w.subscribe(quick, "quick", consumer_name="ben")
        stored = await w.publish(8)
        await w.settle()
        assert quick.take() == stored
        assert slow.take() == stored[:2]
        handle.space_freed()
        await w.settle()
        assert slow.take() == stored[2:4]


async def test_many_subscriptions_are_served_in_rounds() -> None:
    async with world(limits=Limits(delivery_bytes=1)) as w:
        first, second = Socket(), Socket()
        await w.publish(20)
        await w.settle()
        await w.subscribe(first, "first")
        await w.subscribe(second, "second")
        await w.until(20, first, second)
        assert abs(len(first.delivered) - len(second.delivered)) <= 4


async def test_catching_up_reads_the_store_in_bounded_pieces() -> None:
    limits = Limits(read_bytes=2000, delivery_bytes=700)
    async with world(limits=limits, tail_bytes_max=1) as w:
        stored = await w.publish(95, payload=b"x" * 100)
        socket = Socket()
        await w.subscribe(socket)
        await w.until(95, socket)
        assert socket.take() == stored
        assert await w.publish() == socket.take()


async def test_a_read_from_the_store_may_begin_within_a_block() -> None:
    async with world(block_entries=4) as w:
        stored = await w.publish(10)
        await w.open(ledger=6)
        stored += await w.publish(6)
        w.log.forget_tail()
        for index in range(len(stored)):
            found = [stored[index]]
            while runs := await w.log.read(found[-1], 100, 10**6):
                found += [entry.position for entry in entries_of(runs)]
            assert found == stored[index:]


async def test_slow_readers_hold_a_bounded_number_of_reads() -> None:
    async with world(tail_bytes_max=1) as w:
        budget = ReadBudget(holders_max=2)
        await w.subscriptions.close("for another budget")
        w.load(budget)
        stored = await w.publish(60)
        sockets = [Socket() for _ in range(5)]
        consumers = [
            await w.subscribe(socket, f"reader-{index}", permits=1)
            for index, socket in enumerate(sockets)
        ]
        assert len(budget) == 2
        for handle in consumers:
            handle.flow(100)
        await w.until(300, *sockets)
        assert [socket.take() for socket in sockets] == [stored] * 5
        assert len(budget) == 0


async def test_a_subscription_that_is_being_deleted_is_not_brought_back_by_a_seek() -> None:
    async with world() as w:
        await w.publish(5)
        handle = await w.subscribe(Socket())

        async def slow_reads(call: str, moment: str) -> None:
            if (call, moment) == ("read_blocks", "before"):
                await asyncio.sleep(1)

        w.store.faults.hook = slow_reads
        loop = asyncio.get_running_loop()
        seek = loop.create_task(handle.seek(SeekToTime(1), lambda: None))
        await asyncio.sleep(0.5)
        await handle.unsubscribe()
        with pytest.raises(Refused):
            await seek
        await asyncio.sleep(1)
        assert "cursor:audit" not in await w.store.read_state(w.log.name)


async def test_reading_continues_when_the_store_answers_again() -> None:
    async with world(tail_bytes_max=1) as w:
        stored = await w.publish(30)
        w.store.faults.is_cut_off = True
        socket = Socket()
        w.tasks.create_task(_come_back(w, after_seconds=3))
        options = SubscribeOptions("s", FAILOVER, 1, "anna", durable=False, from_earliest=True)
        handle = await w.subscriptions.subscribe(options, socket)
        handle.start()
        handle.flow(100)
        await asyncio.sleep(2)
        assert socket.take() == []
        await asyncio.sleep(2)
        assert socket.take() == stored


async def test_an_unreadable_block_stops_its_readers_and_nothing_else() -> None:
    async with world(tail_bytes_max=1) as w:
        stored = await w.publish(30)
        is_damaged = True

        async def damage(call: str, _moment: str) -> None:
            if call == "read_blocks" and is_damaged:
                raise MalformedBlock("5-11: lengths do not add up")

        w.store.faults.hook = damage
        behind, ahead = Socket(), Socket()
        await w.subscribe(behind, "behind")
        await w.subscribe(ahead, "ahead", from_earliest=False, consumer_name="ben")
        new = await w.publish(2)
        assert ahead.take() == new
        assert behind.take() == []
        is_damaged = False
        await asyncio.sleep(11)
        assert behind.take() == stored + new


async def _come_back(w, *, after_seconds: float) -> None:  # type: ignore[no-untyped-def]
    await asyncio.sleep(after_seconds)
    w.store.faults.is_cut_off = False


async def test_unacknowledged_entries_go_to_the_next_consumer() -> None:
    async with world() as w:
        socket = Socket()
        first = await w.subscribe(socket)
        stored = await w.publish(5)
        ack(first, stored[0], stored[3])
        first.close()
        again = Socket()
        await w.subscribe(again, consumer_name="ben")
        await w.settle()
        assert again.take() == [stored[1], stored[2], stored[4]]
        assert await w.publish() == again.take()
        assert len(socket.delivered) == 5, "a closed consumer gets nothing"


async def test_a_second_exclusive_consumer_is_refused_and_so_is_another_type() -> None:
    async with world() as w:
        first = await w.subscribe(Socket())
        with pytest.raises(Refused, match="Exclusive consumer is already connected") as refused:
            await w.subscribe(Socket(), consumer_name="ben")
        assert refused.value.code is ServerError.CONSUMER_BUSY
        with pytest.raises(Refused, match="different type") as refused:
            await w.subscribe(Socket(), kind=SubscriptionType.SHARED)
        assert refused.value.code is ServerError.CONSUMER_BUSY
        first.close()
        await w.subscribe(Socket(), kind=SubscriptionType.SHARED)


async def test_failover_the_best_consumer_is_active_and_all_are_notified() -> None:
    async with world() as w:
        ben, anna, chef = Socket(), Socket(), Socket()
        second = await w.subscribe(ben, kind=FAILOVER, consumer_id=2, consumer_name="ben")
        stored = await w.publish(4)
        ack(second, stored[0])
        assert ben.active == [(2, True)]
        first = await w.subscribe(anna, kind=FAILOVER, consumer_id=1, consumer_name="anna")
        assert ben.active == [(2, True), (2, False)]
        assert anna.active == [(1, True)]
        await w.settle()
        assert anna.take() == stored[1:], "what ben had not acknowledged"
        await w.subscribe(
            chef, kind=FAILOVER, consumer_id=3, consumer_name="chef", priority_level=1
        )
        assert chef.active == [(3, False)]
        first.close()
        assert ben.active[-1] == (2, True)
        second.close()
        assert chef.active[-1] == (3, True)
        await w.settle()
        assert chef.take() == stored[1:]


async def test_failover_partitions_spread_over_consumers_of_equal_priority() -> None:
    async with world(topic="persistent://public/default/orders-partition-1") as w:
        anna, ben = Socket(), Socket()
        await w.subscribe(anna, kind=FAILOVER, consumer_id=1, consumer_name="anna")
        await w.subscribe(ben, kind=FAILOVER, consumer_id=2, consumer_name="ben")
        assert ben.active == [(2, True)]
        assert anna.active == [(1, True), (1, False)]


async def test_redelivery_begins_after_the_mark_delete_position_and_skips_acknowledged_entries() -> (
    None
):
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket)
        stored = await w.publish(6)
        ack(handle, stored[0], stored[2])
        socket.take()
        handle.redeliver()
        await w.settle()
        assert socket.take() == [stored[1], *stored[3:]]


async def test_a_redelivery_with_an_epoch_is_never_followed_by_an_older_one() -> None:
    async with world(limits=Limits(delivery_bytes=1), tail_bytes_max=1) as w:
        socket = Socket()
        handle = await w.subscribe(socket, consumer_epoch=0)
        await w.publish(30)
        await w.until(7, socket)
        assert {delivery.epoch for delivery in socket.delivered} == {0}
        socket.take()
        handle.redeliver(consumer_epoch=3)
        handle.redeliver(consumer_epoch=2)
        await w.until(30, socket)
        assert {delivery.epoch for delivery in socket.delivered} == {3}
        assert socket.take()[0] == Position(5, 1)


async def test_a_standby_only_has_its_epoch_taken() -> None:
    async with world() as w:
        anna, ben = Socket(), Socket()
        await w.subscribe(
            anna, kind=FAILOVER, consumer_id=1, consumer_name="anna", consumer_epoch=0
        )
        standby = await w.subscribe(
            ben, kind=FAILOVER, consumer_id=2, consumer_name="ben", consumer_epoch=0
        )
        stored = await w.publish(3)
        assert anna.take() == stored
        standby.redeliver(consumer_epoch=5)
        await w.settle()
        assert anna.take() == []
        assert standby.consumer.epoch == 5


async def test_a_client_in_a_higher_epoch_is_followed_and_one_in_a_lower_is_not() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket, consumer_epoch=4)
        stored = await w.publish(3)
        socket.take()
        for epoch in (None, 3, 4):
            handle.follow_epoch(epoch)
            await w.settle()
            assert socket.take() == []
        handle.follow_epoch(6)
        await w.settle()
        assert {delivery.epoch for delivery in socket.delivered} == {6}
        assert socket.take() == stored


async def test_a_client_that_names_no_epoch_gets_none() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket)
        handle.redeliver(consumer_epoch=3)
        await w.publish()
        assert socket.delivered[0].epoch is None


async def test_a_part_of_a_batch_is_redelivered_with_its_ack_set() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket)
        stored = await w.publish(2, messages=4)
        acked = MessageId(*stored[0], ack_set=(0b1010,))
        handle.acknowledge(Ack(1, 0, (acked,)))
        socket.take()
        permits = handle.consumer.permits
        handle.redeliver()
        await w.settle()
        assert socket.delivered[0].ack_set == (0b1010,)
        assert socket.delivered[1].ack_set == ()
        assert handle.consumer.permits == permits - 2 - 4, (
            "only unacknowledged messages cost permits"
        )
        acked = MessageId(*stored[0], ack_set=(0b0101,))
        handle.acknowledge(Ack(1, 0, (acked,)))
        assert handle.subscription.cursor.mark_delete == stored[0]


async def test_cumulative_acknowledgement_inside_a_batch() -> None:
    async with world() as w:
        socket = Socket()
        handle = await w.subscribe(socket)
        stored = await w.publish(3, messages=4)
        inside = MessageId(*stored[1], ack_set=(0b1100,))
        handle.acknowledge(Ack(1, 1, (inside,)))
        socket.take()
        handle.redeliver()
        await w.settle()
        assert [(d.position, d.ack_set) for d in socket.delivered] == [
            (stored[1], (0b1100,)),
            (stored[2], ()),
        ]


async def test_a_receipt_is_sent_when_the_cursor_is_saved_and_not_before() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket())
        stored = await w.publish(3)
        w.store.faults.fail_before = 2
        receipts = Receipts()
        ack_until(handle, stored[1], receipts)
        await w.settle()
        assert receipts.answers == []
        await asyncio.sleep(3)
        assert receipts.answers == [None]
        assert '"m":"5-2"' in (await w.store.read_state(w.log.name))["cursor:audit"]


async def test_acknowledgements_without_receipt_are_saved_together_soon() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket())
        stored = await w.publish(9)
        calls: list[str] = []

        async def count(call: str, moment: str) -> None:
            if call == "set_state" and moment == "before":
                calls.append(call)

        w.store.faults.hook = count
        for position in stored:
            ack(handle, position)
            await asyncio.sleep(0.005)
        assert calls == []
        await asyncio.sleep(0.11)
        assert len(calls) == 1


async def test_bad_acknowledgements_are_answered_and_change_nothing() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket())
        stored = await w.publish(2)
        receipts = Receipts()
        ack_until(handle, Position(2**63, 2**63), receipts)
        ack(handle, Position(9, 1), receipt=receipts)
        handle.acknowledge(Ack(1, 0, txnid_most=1), receipts)
        codes = [error.code for error in receipts.answers if isinstance(error, Refused)]
        assert codes == [ServerError.NOT_ALLOWED_ERROR] * 3
        assert handle.subscription.cursor.mark_delete < stored[0]
        huge = MessageId(*stored[0], ack_set=(1,) * 5000)
        handle.acknowledge(Ack(1, 0, (huge,)))
        assert not handle.subscription.cursor.is_acknowledged(stored[0])


async def test_acknowledging_after_close_does_nothing() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket())
        stored = await w.publish(2)
        handle.close()
        handle.close()
        ack(handle, stored[0])
        handle.flow(5)
        handle.redeliver()
        handle.space_freed()
        assert not handle.subscription.cursor.is_acknowledged(stored[0])


async def test_a_durable_subscription_is_saved_before_it_is_granted() -> None:
    async with world(limits=Limits(save_wait_seconds=5)) as w:
        w.store.faults.is_cut_off = True
        with pytest.raises(Undecided):
            await w.subscribe(Socket())
        w.store.faults.is_cut_off = False
        await w.subscribe(Socket())
        assert "cursor:audit" in await w.store.read_state(w.log.name)


async def test_key_shared_is_refused_with_a_message() -> None:
    command = pb.CommandSubscribe(
        topic="t",
        subscription="s",
        sub_type=pb.CommandSubscribe.KEY_SHARED,
        consumer_id=1,
        request_id=1,
    )
    with pytest.raises(Refused, match="Key_Shared") as refused:
        SubscribeOptions.from_command(command)
    assert refused.value.code is ServerError.NOT_ALLOWED_ERROR
