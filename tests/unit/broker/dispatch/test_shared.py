"""Shared subscriptions: entries are distributed, and redelivered until acknowledged."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.dispatch.world import Receipts, Socket, ack, ack_until, ids, world

from onewriter_broker.dispatch.api import SubscriptionType
from onewriter_broker.dispatch.limits import Limits
from onewriter_core.errors import Refused, ServerError
from onewriter_core.wire.values import Ack, MessageId

SHARED = SubscriptionType.SHARED
pytestmark = pytest.mark.looptime


async def test_entries_are_distributed_in_turn_to_consumers_with_permits() -> None:
    async with world(limits=Limits(turn_messages=2)) as w:
        anna, ben, idle = Socket(), Socket(), Socket()
        await w.subscribe(anna, kind=SHARED, consumer_id=1)
        await w.subscribe(ben, kind=SHARED, consumer_id=2, consumer_name="ben")
        await w.subscribe(idle, kind=SHARED, consumer_id=3, consumer_name="chef", permits=0)
        stored = await w.publish(8)
        first, second = anna.take(), ben.take()
        assert sorted(first + second) == stored
        assert len(first) == len(second) == 4
        assert idle.take() == []


async def test_a_lower_priority_level_is_served_first() -> None:
    async with world() as w:
        anna, ben = Socket(), Socket()
        await w.subscribe(anna, kind=SHARED, priority_level=1)
        await w.subscribe(
            ben, kind=SHARED, consumer_id=2, consumer_name="ben", permits=3, priority_level=0
        )
        stored = await w.publish(5)
        assert ben.take() == stored[:3]
        assert anna.take() == stored[3:]


async def test_entries_of_a_closed_consumer_go_to_another_with_a_count() -> None:
    async with world() as w:
        anna, ben = Socket(), Socket()
        first = await w.subscribe(anna, kind=SHARED)
        stored = await w.publish(4)
        ack(first, stored[1])
        await w.subscribe(ben, kind=SHARED, consumer_id=2, consumer_name="ben")
        first.close()
        assert [(d.position, d.redelivery_count) for d in ben.delivered] == [
            (stored[0], 1),
            (stored[2], 1),
            (stored[3], 1),
        ]


async def test_the_last_consumers_messages_wait_for_the_next_one() -> None:
    async with world() as w:
        first = await w.subscribe(Socket(), kind=SHARED)
        stored = await w.publish(3)
        ack(first, stored[0])
        first.close()
        ben = Socket()
        await w.subscribe(ben, kind=SHARED, consumer_name="ben")
        assert ben.take() == stored[1:]
        assert await w.publish() == ben.take()


async def test_only_the_named_and_held_messages_are_redelivered() -> None:
    async with world() as w:
        anna, ben = Socket(), Socket()
        first = await w.subscribe(anna, kind=SHARED)
        stored = await w.publish(4)
        await w.subscribe(ben, kind=SHARED, consumer_id=2, consumer_name="ben", permits=0)
        anna.take()
        ack(first, stored[3])
        first.redeliver(ids([stored[2], stored[3]]))
        assert [(d.position, d.redelivery_count) for d in anna.delivered] == [(stored[2], 1)]
        anna.take()
        first.redeliver(ids([stored[2]]))
        assert anna.delivered[0].redelivery_count == 2
        anna.take()
        first.redeliver()
        assert sorted((d.position, d.redelivery_count) for d in anna.delivered) == [
            (stored[0], 1),
            (stored[1], 1),
            (stored[2], 3),
        ]


async def test_a_late_acknowledgement_stops_a_redelivery() -> None:
    async with world() as w:
        anna, ben = Socket(), Socket()
        first = await w.subscribe(anna, kind=SHARED, permits=2)
        second = await w.subscribe(ben, kind=SHARED, consumer_id=2, consumer_name="ben", permits=0)
        stored = await w.publish(2)
        first.close()
        ack(second, stored[0])  # it had them before it reconnected under this name, say
        second.flow(10)
        assert ben.take() == stored[1:]


async def test_redelivery_reads_the_store_when_memory_has_moved_on() -> None:
    async with world(tail_bytes_max=1) as w:
        anna = Socket()
        handle = await w.subscribe(anna, kind=SHARED)
        stored = await w.publish(40)
        await w.settle()
        assert anna.take() == stored
        handle.redeliver(ids([stored[3], stored[4], stored[20]]))
        await w.settle()
        assert anna.take() == [stored[3], stored[4], stored[20]]


async def test_a_consumer_that_never_acknowledges_is_stopped_until_it_does() -> None:
    limits = Limits(consumer_unacknowledged_max=6, turn_messages=2)
    async with world(limits=limits) as w:
        anna, ben = Socket(), Socket()
        lazy = await w.subscribe(anna, kind=SHARED, consumer_id=1)
        good = await w.subscribe(ben, kind=SHARED, consumer_id=2, consumer_name="ben")
        for _ in range(20):
            await w.publish(1)
            ack(good, *ben.take())
        held = anna.take()
        assert len(held) == 6
        assert lazy.consumer.is_blocked
        assert lazy.stats(0.0).unacknowledged == 6
        ack(lazy, *held[:2])
        assert lazy.consumer.is_blocked
        ack(lazy, held[2])
        assert not lazy.consumer.is_blocked
        await w.publish(2)
        await w.publish(2)
        assert anna.take()


async def test_the_whole_subscription_has_a_bound_too() -> None:
    limits = Limits(subscription_unacknowledged_max=5, turn_messages=1)
    async with world(limits=limits) as w:
        anna, ben = Socket(), Socket()
        first = await w.subscribe(anna, kind=SHARED)
        await w.subscribe(ben, kind=SHARED, consumer_id=2, consumer_name="ben")
        await w.publish(9)
        held = anna.take()
        assert len(held) + len(ben.take()) == 5
        assert w.subscriptions.stats(0.0)["audit"]["blockedSubscriptionOnUnackedMsgs"] is True
        ack(first, held[0])
        assert len(anna.take()) + len(ben.take()) == 1


async def test_parts_of_a_batch_free_permits_worth_of_messages() -> None:
    async with world() as w:
        anna = Socket()
        handle = await w.subscribe(anna, kind=SHARED)
        stored = await w.publish(1, messages=4)
        assert handle.consumer.unacknowledged == 4
        handle.acknowledge(Ack(1, 0, (MessageId(*stored[0], ack_set=(0b0110,)),)))
        assert handle.consumer.unacknowledged == 2
        anna.take()
        handle.redeliver(ids(stored))
        assert (anna.delivered[0].ack_set, anna.delivered[0].redelivery_count) == ((0b0110,), 1)
        handle.acknowledge(Ack(1, 0, ids(stored)))
        assert handle.consumer.unacknowledged == 0
        assert handle.subscription.cursor.mark_delete == stored[0]


async def test_cumulative_acknowledgement_is_refused() -> None:
    async with world() as w:
        handle = await w.subscribe(Socket(), kind=SHARED)
        stored = await w.publish(2)
        receipts = Receipts()
        ack_until(handle, stored[1], receipts)
        assert isinstance(receipts.answers[0], Refused)
        assert receipts.answers[0].code is ServerError.NOT_ALLOWED_ERROR
        assert handle.consumer.unacknowledged == 2


async def test_a_consumer_with_a_full_socket_is_skipped() -> None:
    async with world(limits=Limits(turn_messages=1)) as w:
        anna, ben = Socket(space=2), Socket()
        slow = await w.subscribe(anna, kind=SHARED)
        await w.subscribe(ben, kind=SHARED, consumer_id=2, consumer_name="ben")
        await w.publish(10)
        assert (len(anna.take()), len(ben.take())) == (2, 8)
        slow.space_freed()
        await w.publish(2)
        assert len(anna.take()) == 1


async def test_trimmed_entries_are_not_waited_for() -> None:
    async with world(tail_bytes_max=1) as w:
        anna = Socket()
        handle = await w.subscribe(anna, kind=SHARED)
        stored = await w.publish(20)
        await w.settle()
        ack(handle, *stored[12:])
        await w.open(7)  # the marker of a ledger that is open is never trimmed
        assert w.log.binding is not None
        token = w.log.binding.token(7)
        await w.store.trim(w.log.binding, w.log.name, token, stored[10], {})
        anna.take()
        handle.redeliver()
        await w.settle()
        assert anna.take() == stored[10:12]
        ack(handle, *stored[10:12])
        assert handle.subscription.cursor.mark_delete == stored[-1]


async def test_deliveries_to_shared_consumers_survive_the_brokers_change() -> None:
    async with world() as w:
        anna = Socket()
        handle = await w.subscribe(anna, kind=SHARED)
        stored = await w.publish(5)
        receipts = Receipts()
        ack(handle, stored[1], stored[4], receipt=receipts)
        await asyncio.sleep(0.01)
        assert receipts.answers == [None]
        await w.subscriptions.close("moving")
        assert anna.closed == [1]
        await w.reload()
        again = Socket()
        second = await w.subscribe(again, kind=SHARED)
        await w.settle()
        assert again.take() == [stored[0], stored[2], stored[3]]
        new = await w.publish(1)
        assert again.take() == new
        ack(second, stored[0], stored[2], stored[3], *new)
        assert second.subscription.cursor.mark_delete == new[0], "over the ledgers' border"
