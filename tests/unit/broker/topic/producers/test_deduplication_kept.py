"""What deduplication remembers, and how: across brokers, tenures, retention and many names."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.topic.fence_path_world import ORDERS, Gates, entry, serving, until
from tests.unit.broker.topic.producers.deduplication_world import (
    answered,
    ready,
    send_batch,
    send_chunk,
    stored_entries,
)
from tests.unit.broker.topic.publish.publish_world import ended, request

from onewriter_broker.log.store.api import Outcome
from onewriter_broker.log.topic_log.atomic_publish import Entries, Publish
from onewriter_broker.topic.limits import DeduplicationLimits, TopicLimits
from onewriter_broker.topic.producers.deduplication import saved_to, trim_limit
from onewriter_core.ids import Position
from onewriter_core.topic.model import WHOLE, AccessMode, TransitionCause
from onewriter_core.wire.values import Send


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
        heir, channel = await ready(world, runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        assert heir.last_sequence_id == 9
        world.send(heir, 9)
        send_chunk(heir, 10, 0, 2)
        send_chunk(heir, 10, 1, 2)
        assert await answered(channel, 3) == [(9, True), (10, False), (10, False)]


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
        back, channel = await ready(world, runner)
        assert back.last_sequence_id == 4
        world.send(back, 4)
        assert await answered(channel, 1) == [(4, True)]
        assert await stored_entries(world) == 0


@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_a_publish_of_the_same_name_does_not_count(is_reloaded: bool) -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        publish = Publish("job", 9, Entries([(Send(0, 9), entry("job", 9))]), lambda: True)
        await ended(request(world, runner.logs[WHOLE], publish))
        if is_reloaded:
            runner = await world.load(is_deduplicated=True)  # another broker
        writer, channel = await world.granted(runner, AccessMode.SHARED, "job")
        assert writer.last_sequence_id == -1
        for number in range(3):
            world.send(writer, number)
        assert await answered(channel, 3) == [(0, False), (1, False), (2, False)]
        assert await stored_entries(world) == 4


async def test_entries_under_way_at_a_fence_are_not_trimmed_before_a_snapshot_covers_them() -> None:
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
        log._ledger_bytes = 1  # it has entries, according to the appender
        runner.roll_if_full(0, 0.0)
        gates.open("append")
        await until(lambda: log.ledger > before and log.is_writable and not writer.pending)
        marker = Position(log.ledger, 0)
        assert saved_to(log) == begun
        assert trim_limit(log, marker) < marker
        runner.deduplications.save_due()
        await until(lambda: trim_limit(log, marker) == marker)


def limits(**deduplication: int) -> TopicLimits:
    return TopicLimits(deduplication=DeduplicationLimits(**deduplication))


async def test_a_snapshot_is_written_when_enough_entries_follow_the_last_one() -> None:
    async with serving(limits=limits(snapshot_entries=3)) as world:
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


async def test_remembered_names_are_limited_and_the_latest_stay() -> None:
    async with serving(limits=limits(producers_max=2)) as world:
        runner = await world.load(is_deduplicated=True)
        for name in ("one", "two", "one", "three"):
            writer, _ = await ready(world, runner, name=name)
            world.send(writer, writer.last_sequence_id + 1)
            await until(lambda sender=writer: not sender.pending)  # type: ignore[misc]  # the loop's
            runner.gone(writer, TransitionCause.CLOSED)
        numbers = [
            (await ready(world, runner, name=name))[0].last_sequence_id
            for name in ("one", "two", "three")
        ]
        assert numbers == [1, -1, 0]


async def test_names_that_the_broker_invented_are_forgotten_before_chosen_ones() -> None:
    async with serving(limits=limits(producers_max=2)) as world:
        runner = await world.load(is_deduplicated=True)
        for name in ("chosen", "onewriter-broker-0~1", "onewriter-broker-0~2"):
            writer, _ = await ready(world, runner, name=name)
            world.send(writer, 7)
            await until(lambda sender=writer: not sender.pending)  # type: ignore[misc]  # the loop's
        numbers = runner.deduplications.of(WHOLE)
        assert numbers is not None
        assert numbers.last_sequence_id("chosen") == 7
        assert numbers.last_sequence_id("onewriter-broker-0~1") == -1
