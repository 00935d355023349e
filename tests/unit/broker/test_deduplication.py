"""Deduplication as a policy: one number per producer name, whoever carries it and wherever."""

from __future__ import annotations

import asyncio
import struct

import pytest
from tests.unit.broker.fence_path_world import ORDERS, Gates, Told, World, serving, until

from onewriter_broker.log.api import Outcome
from onewriter_broker.topic import deduplication
from onewriter_broker.topic.deduplication import FIELD, highest_of, saved_to, trim_limit
from onewriter_broker.topic.producer import Producer
from onewriter_broker.topic.resends import POSITION_UNKNOWN
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.ids import Position
from onewriter_core.topic.model import WHOLE, AccessMode, Departure
from onewriter_core.wire.hot import Send, SendReceipt, decode_send_receipt
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

DUPLICATE = tuple(POSITION_UNKNOWN)


def receipts(told: Told) -> list[SendReceipt]:
    """What a connection was told, in its order."""
    found, data = [], bytes(told.frames)
    while data:
        total, size = struct.unpack(">II", data[:8])
        receipt = decode_send_receipt(bytearray(data[8 : 8 + size]))
        assert receipt is not None
        found.append(receipt)
        data = data[4 + total :]
    return found


def answers(told: Told) -> list[tuple[int, bool]]:
    """Each receipt's sequence id, and whether it says that the entry is a duplicate."""
    return [
        (
            receipt.sequence_id,
            receipt.message_id is not None and receipt.message_id.position == DUPLICATE,
        )
        for receipt in receipts(told)
    ]


async def ready(
    world: World,
    runner: TopicRunner,
    mode: AccessMode = AccessMode.SHARED,
    name: str = "writer",
    *,
    topic_epoch: int | None = None,
    reconnects: int = 0,
) -> tuple[Producer, Told]:
    producer, told = world.ask(runner, mode, name, topic_epoch=topic_epoch, reconnects=reconnects)
    await until(lambda: told.ready)
    return producer, told


def send_batch(producer: Producer, first: int, last: int) -> None:
    metadata = pb.MessageMetadata(
        producer_name=producer.name,
        sequence_id=first,
        highest_sequence_id=last,
        publish_time=1,
        num_messages_in_batch=last - first + 1,
    )
    send = Send(1, first, num_messages=last - first + 1, highest_sequence_id=last)
    producer.publish(send, memoryview(build_entry(metadata, b"batch")))


def send_chunk(producer: Producer, sequence_id: int, chunk: int, chunks: int) -> None:
    metadata = pb.MessageMetadata(
        producer_name=producer.name,
        sequence_id=sequence_id,
        publish_time=1,
        uuid=f"message-{sequence_id}",
        chunk_id=chunk,
        num_chunks_from_msg=chunks,
    )
    producer.publish(
        Send(1, sequence_id, is_chunk=True), memoryview(build_entry(metadata, b"part"))
    )


async def stored_entries(world: World) -> int:
    return sum((await world.entries_by_ledger()).values())


async def answered(told: Told, count: int) -> list[tuple[int, bool]]:
    await until(lambda: len(receipts(told)) >= count)
    return answers(told)


# ---------------------------------------------------------------- what is new


async def test_what_a_name_has_stored_is_answered_without_a_position_and_not_stored_again() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        assert writer.last_sequence_id == -1
        for number in (0, 5, 5, 3, 6):
            world.send(writer, number)
        assert await answered(told, 5) == [
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
        writer, told = await ready(world, runner)
        world.send(writer, 1)
        world.send(writer, 1)
        assert await answered(told, 2) == [(1, False), (1, False)]
        assert writer.last_sequence_id == -1
        assert FIELD not in runner.logs[WHOLE].state


async def test_a_batch_counts_by_its_highest_id_and_is_stored_if_any_of_it_is_new() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        send_batch(writer, 0, 4)
        send_batch(writer, 2, 4)
        send_batch(writer, 4, 7)
        assert await answered(told, 3) == [(0, False), (2, True), (4, False)]
        assert writer.last_sequence_id == 7


async def test_a_chunked_message_counts_by_its_last_chunk_and_is_dropped_whole() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        for chunk in range(3):
            send_chunk(writer, 0, chunk, 3)
        await answered(told, 3)
        assert writer.last_sequence_id == 0
        for chunk in range(3):
            send_chunk(writer, 0, chunk, 3)
        assert await answered(told, 6) == [(0, False)] * 3 + [(0, True)] * 3
        send_chunk(writer, 1, 0, 2)  # its client dies here, and its successor begins again
        await answered(told, 7)
        assert writer.last_sequence_id == 0
        send_chunk(writer, 1, 0, 2)
        send_chunk(writer, 1, 1, 2)
        assert (await answered(told, 9))[7:] == [(1, False), (1, False)]
        assert await stored_entries(world) == 6


async def test_names_do_not_share_a_number() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        one, _ = await ready(world, runner, name="one")
        world.send(one, 9)
        await until(lambda: not one.pending)
        other, told = await ready(world, runner, name="other")
        assert other.last_sequence_id == -1
        world.send(other, 0)
        assert await answered(told, 1) == [(0, False)]


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (Send(1, 7), 7),
        (Send(1, 7, highest_sequence_id=9), 9),
        (Send(1, 7, highest_sequence_id=2**64 - 1), 7),
        (Send(1, 2**64 - 1), -1),
    ],
)
def test_negative_numbers_stand_for_none(send: Send, number: int) -> None:
    assert highest_of(send) == number


# ---------------------------------------------------------------- order


async def test_a_duplicate_of_what_is_still_on_its_way_is_answered_behind_it() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        gates = Gates(world.store, "append")
        for number in (0, 1, 2, 1, 3, 3, 0, 4):
            world.send(writer, number)
        await gates.reached("append")
        assert receipts(told) == []
        gates.open("append")
        assert await answered(told, 8) == [
            (0, False),
            (1, False),
            (2, False),
            (1, True),
            (3, False),
            (3, True),
            (0, True),
            (4, False),
        ]
        assert told.answered_bytes > 0
        assert await stored_entries(world) == 5


async def test_a_duplicate_is_answered_in_order_over_several_blocks() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        gates = Gates(world.store, "append")
        for number in range(600):  # more than one block holds
            world.send(writer, number)
        world.send(writer, 599)
        world.send(writer, 600)
        await gates.reached("append")
        gates.open("append")
        told_last = (await answered(told, 602))[-3:]
        assert told_last == [(599, False), (599, True), (600, False)]


async def test_a_duplicate_of_what_the_store_refuses_gets_no_receipt() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(writer, 0)
        await gates.reached("append")
        world.send(writer, 0)
        runner.logs[WHOLE].give_up(runner.logs[WHOLE].undecided[0], is_definite=True)
        assert told.drops
        runner.gone(writer, Departure.CONNECTION_LOST)
        assert receipts(told) == []
        assert told.answered_bytes > 0, "what it sent counts as pending for ever"
        gates.open("append")
        await asyncio.sleep(0)


# ---------------------------------------------------------------- who comes next


async def test_a_namesake_is_told_the_number_once_nothing_of_that_name_is_on_its_way() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        former, _ = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(former, 7)
        await gates.reached("append")
        runner.gone(former, Departure.CONNECTION_LOST)
        successor, told = world.ask(runner, AccessMode.SHARED, "writer")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not told.ready
        gates.open("append")
        await until(lambda: told.ready)
        assert successor.last_sequence_id == 7
        world.send(successor, 7)
        world.send(successor, 8)
        assert await answered(told, 2) == [(7, True), (8, False)]


async def test_one_that_leaves_while_it_waits_for_its_number_is_not_let_in() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        former, _ = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(former, 7)
        await gates.reached("append")
        runner.gone(former, Departure.CONNECTION_LOST)
        successor, told = world.ask(runner, AccessMode.SHARED, "writer")
        runner.gone(successor, Departure.CLOSED)
        gates.open("append")
        await until(lambda: not former.pending)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not told.ready
        assert not successor.is_active


async def test_a_resend_within_a_lineage_still_gets_its_original_position() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        holder, told = await ready(world, runner, AccessMode.EXCLUSIVE)
        world.send(holder, 0)
        original = receipts_of(await answered_all(told, 1))
        runner.gone(holder, Departure.CONNECTION_LOST)
        back, told = await ready(
            world, runner, AccessMode.EXCLUSIVE, topic_epoch=holder.epoch, reconnects=1
        )
        assert back.last_sequence_id == 0
        world.send(back, 0)
        assert receipts_of(await answered_all(told, 1)) == original
        world.send(back, 1)
        assert await answered(told, 2) == [(0, False), (1, False)]


async def answered_all(told: Told, count: int) -> list[SendReceipt]:
    await until(lambda: len(receipts(told)) >= count)
    return receipts(told)


def receipts_of(found: list[SendReceipt]) -> list[Position]:
    return [receipt.message_id.position for receipt in found if receipt.message_id is not None]


# ---------------------------------------------------------------- brokers


async def test_the_number_outlives_the_broker_and_the_tenure() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        holder, _ = await ready(world, runner, AccessMode.EXCLUSIVE)
        for number in range(3):
            world.send(holder, number)
        send_batch(holder, 3, 9)
        send_chunk(holder, 10, 0, 2)
        await until(lambda: not holder.pending)

        runner = await world.load(is_deduplicated=True)  # another broker
        heir, told = await ready(world, runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        assert heir.last_sequence_id == 9
        world.send(heir, 9)
        send_chunk(heir, 10, 0, 2)
        send_chunk(heir, 10, 1, 2)
        assert await answered(told, 3) == [(9, True), (10, False), (10, False)]


async def test_the_number_outlives_the_entry_that_retention_has_dropped() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, _ = await ready(world, runner)
        world.send(writer, 4)
        await until(lambda: not writer.pending)
        log = runner.logs[WHOLE]
        before = log.ledger
        runner.roll_if_full(0, 0.0)
        await until(lambda: log.ledger > before and log.is_writable)
        marker = Position(log.ledger, 0)
        assert trim_limit(log, marker) == saved_to(log)._replace(entry=2)  # type: ignore[union-attr]  # the roll left one
        assert log.binding is not None
        token = log.binding.token(log.ledger)
        assert await world.store.trim(log.binding, ORDERS, token, marker, {}) is Outcome.DONE
        assert await stored_entries(world) == 0

        runner = await world.load(is_deduplicated=True)
        back, told = await ready(world, runner)
        assert back.last_sequence_id == 4
        world.send(back, 4)
        assert await answered(told, 1) == [(4, True)]
        assert await stored_entries(world) == 0


async def test_what_was_on_its_way_at_a_fence_is_not_trimmed_before_a_snapshot_has_it() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, _ = await ready(world, runner)
        log = runner.logs[WHOLE]
        begun = saved_to(log)
        assert begun is not None
        gates = Gates(world.store, "append")
        world.send(writer, 4)
        await gates.reached("append")
        before = log.ledger
        log.ledger_bytes = 1  # it holds entries, as far as the appender knows
        runner.roll_if_full(0, 0.0)
        gates.open("append")
        await until(lambda: log.ledger > before and log.is_writable and not writer.pending)
        marker = Position(log.ledger, 0)
        assert saved_to(log) == begun
        assert trim_limit(log, marker) < marker
        runner.deduplications.save_due()
        await until(lambda: trim_limit(log, marker) == marker)


async def test_a_snapshot_is_written_when_much_lies_behind_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deduplication, "SNAPSHOT_ENTRIES", 3)
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, _ = await ready(world, runner)
        log = runner.logs[WHOLE]
        first = saved_to(log)
        world.send(writer, 0)
        world.send(writer, 1)
        await until(lambda: not writer.pending)
        runner.deduplications.save_due()
        for _ in range(10):
            await asyncio.sleep(0)
        assert saved_to(log) == first
        world.send(writer, 2)
        await until(lambda: not writer.pending)
        runner.deduplications.save_due()
        await until(lambda: saved_to(log) == log.committed)


async def test_so_many_names_are_remembered_and_the_latest_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deduplication, "PRODUCERS_MAX", 2)
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        for name in ("one", "two", "one", "three"):
            writer, _ = await ready(world, runner, name=name)
            world.send(writer, writer.last_sequence_id + 1)
            await until(lambda sender=writer: not sender.pending)  # type: ignore[misc]  # the loop's
            runner.gone(writer, Departure.CLOSED)
        numbers = [
            (await ready(world, runner, name=name))[0].last_sequence_id
            for name in ("one", "two", "three")
        ]
        assert numbers == [1, -1, 0]


async def test_names_that_the_broker_invented_are_forgotten_before_chosen_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deduplication, "PRODUCERS_MAX", 2)
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        for name in ("chosen", "onewriter-broker-0~1", "onewriter-broker-0~2"):
            writer, _ = await ready(world, runner, name=name)
            world.send(writer, 7)
            await until(lambda sender=writer: not sender.pending)  # type: ignore[misc]  # the loop's
        numbers = runner.deduplications.of(WHOLE)
        assert numbers is not None
        assert numbers.last_sequence_id("chosen") == 7
        assert numbers.last_sequence_id("onewriter-broker-0~1") == -1


# ---------------------------------------------------------------- on and off


async def test_what_was_handed_in_before_it_begins_does_not_count() -> None:
    async with serving() as world:
        runner = await world.load()
        writer, told = await ready(world, runner)
        world.send(writer, 5)
        await until(lambda: not writer.pending)
        runner.deduplicate(is_on=True)
        world.send(writer, 5)
        world.send(writer, 5)
        assert await answered(told, 3) == [(5, False), (5, False), (5, True)]
        await until(lambda: saved_to(runner.logs[WHOLE]) is not None)

        runner = await world.load(is_deduplicated=True)
        back, _ = await ready(world, runner)
        assert back.last_sequence_id == 5


async def test_what_was_on_its_way_when_it_began_does_not_count_for_the_next_broker_either() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        writer, _ = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(writer, 900)
        await gates.reached("append")
        runner.gone(writer, Departure.CONNECTION_LOST)
        runner.deduplicate(is_on=True)
        gates.open("append")
        await until(lambda: not writer.pending and saved_to(runner.logs[WHOLE]) is not None)

        runner = await world.load(is_deduplicated=True)
        back, _ = await ready(world, runner)
        assert back.last_sequence_id == -1


async def test_when_it_ends_nothing_is_remembered_for_the_next_time() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        world.send(writer, 5)
        await until(lambda: not writer.pending)
        runner.deduplicate(is_on=False)
        world.send(writer, 5)
        assert await answered(told, 2) == [(5, False), (5, False)]
        await until(lambda: saved_to(runner.logs[WHOLE]) is None)

        runner = await world.load(is_deduplicated=True)
        back, _ = await ready(world, runner)
        assert back.last_sequence_id == -1


async def test_a_broker_that_loads_the_topic_without_it_ends_it() -> None:
    async with serving() as world:
        await world.load(is_deduplicated=True)
        runner = await world.load()
        assert saved_to(runner.logs[WHOLE]) is None


async def test_whoever_waits_for_receipts_of_duplicates_comes_again_when_it_ends() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, told = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(writer, 0)
        world.send(writer, 0)
        await gates.reached("append")
        runner.deduplicate(is_on=False)
        assert told.drops
        gates.open("append")
        await until(lambda: not writer.pending)
