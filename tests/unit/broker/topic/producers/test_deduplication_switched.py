"""Deduplication that begins or ends while the topic is in use."""

from __future__ import annotations

from tests.unit.broker.topic.fence_path_world import Gates, serving, until
from tests.unit.broker.topic.producers.deduplication_world import answered, ready

from onewriter_broker.topic.producers.deduplication import saved_to
from onewriter_core.topic.model import WHOLE, TransitionCause


async def test_entries_sent_before_deduplication_begins_do_not_count() -> None:
    async with serving() as world:
        runner = await world.load()
        writer, channel = await ready(world, runner)
        world.send(writer, 5)
        await until(lambda: not writer.pending)
        runner.deduplicate(is_on=True)
        world.send(writer, 5)
        world.send(writer, 5)
        assert await answered(channel, 3) == [(5, False), (5, False), (5, True)]
        await until(lambda: saved_to(runner.logs[WHOLE]) is not None)

        runner = await world.load(is_deduplicated=True)
        back, _ = await ready(world, runner)
        assert back.last_sequence_id == 5


async def test_entries_under_way_when_deduplication_begins_do_not_count_for_the_next_broker() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        writer, _ = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(writer, 900)
        await gates.reached("append")
        runner.gone(writer, TransitionCause.CONNECTION_LOST)
        runner.deduplicate(is_on=True)
        gates.open("append")
        await until(lambda: not writer.pending and saved_to(runner.logs[WHOLE]) is not None)

        runner = await world.load(is_deduplicated=True)
        back, _ = await ready(world, runner)
        assert back.last_sequence_id == -1


async def test_when_it_ends_nothing_is_remembered_for_the_next_time() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        world.send(writer, 5)
        await until(lambda: not writer.pending)
        runner.deduplicate(is_on=False)
        world.send(writer, 5)
        assert await answered(channel, 2) == [(5, False), (5, False)]
        await until(lambda: saved_to(runner.logs[WHOLE]) is None)

        runner = await world.load(is_deduplicated=True)
        back, _ = await ready(world, runner)
        assert back.last_sequence_id == -1


async def test_a_broker_that_loads_the_topic_without_it_ends_it() -> None:
    async with serving() as world:
        await world.load(is_deduplicated=True)
        runner = await world.load()
        assert saved_to(runner.logs[WHOLE]) is None


async def test_a_producer_that_waits_for_duplicates_retries_when_the_append_ends() -> None:
    async with serving() as world:
        runner = await world.load(is_deduplicated=True)
        writer, channel = await ready(world, runner)
        gates = Gates(world.store, "append")
        world.send(writer, 0)
        world.send(writer, 0)
        await gates.reached("append")
        runner.deduplicate(is_on=False)
        assert channel.drops
        gates.open("append")
        await until(lambda: not writer.pending)
