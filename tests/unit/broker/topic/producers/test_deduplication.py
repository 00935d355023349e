"""Deduplication as a policy: one number per producer name, for all connections and brokers."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.topic.fence_path_world import FakeChannel, Gates, serving, until
from tests.unit.broker.topic.producers.deduplication_world import (
    answered,
    ready,
    receipts,
    send_batch,
    send_chunk,
    stored_entries,
)

from onewriter_broker.topic.producers.deduplication import FIELD, highest_of
from onewriter_core.ids import Position
from onewriter_core.topic.model import WHOLE, AccessMode, TransitionCause
from onewriter_core.wire.values import Send, SendReceipt

# ---------------------------------------------------------------- what is new


async def test_a_stored_sequence_id_is_answered_as_a_duplicate_without_a_position() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        assert writer.last_sequence_id == -1
        for number in (0, 5, 5, 3, 6):
            world.send(writer, number)
        assert await answered(channel, 5) == [
            (0, False),
            (5, False),
            (5, True),
            (3, True),
            (6, False),
        ]
        assert await stored_entries(world) == 3
        assert writer.last_sequence_id == 6


async def test_without_the_policy_nothing_of_this_happens() -> None:
    async with serving() as world:
        runner = await world.load()
        writer, channel = await ready(world, runner)
        world.send(writer, 1)
        world.send(writer, 1)
        assert await answered(channel, 2) == [(1, False), (1, False)]
        assert writer.last_sequence_id == -1
        assert FIELD not in runner.logs[WHOLE].state


async def test_a_batch_counts_by_its_highest_id_and_is_stored_if_any_of_it_is_new() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        send_batch(writer, 0, 4)
        send_batch(writer, 2, 4)
        send_batch(writer, 4, 7)
        assert await answered(channel, 3) == [(0, False), (2, True), (4, False)]
        assert writer.last_sequence_id == 7


async def test_a_chunked_message_counts_by_its_last_chunk_and_is_dropped_whole() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        for chunk in range(3):
            send_chunk(writer, 0, chunk, 3)
        await answered(channel, 3)
        assert writer.last_sequence_id == 0
        for chunk in range(3):
            send_chunk(writer, 0, chunk, 3)
        assert await answered(channel, 6) == [(0, False)] * 3 + [(0, True)] * 3
        send_chunk(writer, 1, 0, 2)  # its client dies here, and the successor starts again
        await answered(channel, 7)
        assert writer.last_sequence_id == 0
        send_chunk(writer, 1, 0, 2)
        send_chunk(writer, 1, 1, 2)
        assert (await answered(channel, 9))[7:] == [(1, False), (1, False)]
        assert await stored_entries(world) == 6


async def test_names_do_not_share_a_number() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        one, _ = await ready(world, runner, name="one")
        world.send(one, 9)
        await until(lambda: not one.pending)
        other, channel = await ready(world, runner, name="other")
        assert other.last_sequence_id == -1
        world.send(other, 0)
        assert await answered(channel, 1) == [(0, False)]


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (Send(1, 7), 7),
        (Send(1, 7, highest_sequence_id=9), 9),
        (Send(1, 7, highest_sequence_id=2**64 - 1), 7),
        (Send(1, 2**64 - 1), -1),
    ],
)
def test_negative_numbers_mean_no_position(send: Send, number: int) -> None:
    assert highest_of(send) == number


# ---------------------------------------------------------------- order


async def test_a_duplicate_of_a_pending_entry_is_answered_after_it() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        gates = Gates(world.store, "append")
        for number in (0, 1, 2, 1, 3, 3, 0, 4):
            world.send(writer, number)
        await gates.reached("append")
        assert receipts(channel) == []
        gates.open("append")
        assert await answered(channel, 8) == [
            (0, False),
            (1, False),
            (2, False),
            (1, True),
            (3, False),
            (3, True),
            (0, True),
            (4, False),
        ]
        assert channel.answered_bytes > 0
        assert await stored_entries(world) == 5


async def test_a_duplicate_is_answered_in_order_over_several_blocks() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        gates = Gates(world.store, "append")
        for number in range(600):  # more than one block can hold
            world.send(writer, number)
        world.send(writer, 599)
        world.send(writer, 600)
        await gates.reached("append")
        gates.open("append")
        told_last = (await answered(channel, 602))[-3:]
        assert told_last == [(599, False), (599, True), (600, False)]


async def test_a_duplicate_of_what_the_store_refuses_gets_no_receipt() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(writer, 0)
        await gates.reached("append")
        world.send(writer, 0)
        runner.logs[WHOLE].give_up(runner.logs[WHOLE].undecided[0], is_definite=True)
        assert channel.drops
        runner.gone(writer, TransitionCause.CONNECTION_LOST)
        assert receipts(channel) == []
        assert channel.answered_bytes > 0, "what it sent counts as pending for ever"
        gates.open("append")
        await asyncio.sleep(0)


# ---------------------------------------------------------------- the next producer


async def test_a_producer_of_the_same_name_learns_the_sequence_after_pending_sends() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        former, _ = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(former, 7)
        await gates.reached("append")
        runner.gone(former, TransitionCause.CONNECTION_LOST)
        successor, channel = world.ask(runner, AccessMode.SHARED, "writer")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not channel.ready
        gates.open("append")
        await until(lambda: channel.ready)
        assert successor.last_sequence_id == 7
        world.send(successor, 7)
        world.send(successor, 8)
        assert await answered(channel, 2) == [(7, True), (8, False)]


async def test_a_producer_that_leaves_while_it_waits_for_its_number_is_not_admitted() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        former, _ = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(former, 7)
        await gates.reached("append")
        runner.gone(former, TransitionCause.CONNECTION_LOST)
        successor, channel = world.ask(runner, AccessMode.SHARED, "writer")
        runner.gone(successor, TransitionCause.CLOSED)
        gates.open("append")
        await until(lambda: not former.pending)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not channel.ready
        assert not successor.is_active


async def test_a_resend_within_a_lineage_still_gets_its_original_position() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        holder, channel = await ready(world, runner, AccessMode.EXCLUSIVE)
        world.send(holder, 0)
        original = receipts_of(await answered_all(channel, 1))
        runner.gone(holder, TransitionCause.CONNECTION_LOST)
        back, channel = await ready(
            world, runner, AccessMode.EXCLUSIVE, topic_epoch=holder.epoch, reconnects=1
        )
        assert back.last_sequence_id == 0
        world.send(back, 0)
        assert receipts_of(await answered_all(channel, 1)) == original
        world.send(back, 1)
        assert await answered(channel, 2) == [(0, False), (1, False)]


async def answered_all(channel: FakeChannel, count: int) -> list[SendReceipt]:
    await until(lambda: len(receipts(channel)) >= count)
    return receipts(channel)


def receipts_of(found: list[SendReceipt]) -> list[Position]:
    return [receipt.message_id.position for receipt in found if receipt.message_id is not None]
