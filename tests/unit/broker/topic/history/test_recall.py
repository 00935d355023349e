"""The transitions of former brokers: read when they are to be shown, and not before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.broker.topic.fence_path_world import ORDERS, World, serving

from onewriter_broker.topic.history.audit import AuditTail
from onewriter_broker.topic.history.topic_history import RECALL_SECONDS
from onewriter_broker.topic.history.transitions import Transition
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import Undecided
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import AccessMode, TransitionCause

pytestmark = pytest.mark.looptime


class Readings(AuditTail):
    """Counts what is read; the first ``failures`` readings fail."""

    failures = 0
    count = 0

    async def before(
        self, bucket: int, name: TopicName, incarnation: str, since_ms: int
    ) -> list[Transition]:
        self.count += 1
        await asyncio.sleep(0.01)
        if self.count <= self.failures:
            raise Undecided("the store does not answer")
        return await super().before(bucket, name, incarnation, since_ms)


async def moved(world: World) -> tuple[TopicRunner, Readings, list[TopicName]]:
    """A topic that had one holder at its former broker, its next broker's readings, and the changes that it reports."""
    runner = await world.load()
    holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "first")
    runner.gone(holder, TransitionCause.CLOSED)
    runner.unload("it moves")
    await runner.settled()
    readings = Readings(world.store, asyncio.get_running_loop().time)
    changes: list[TopicName] = []
    world.dependencies = replace(
        world.dependencies,
        audit_tail=readings,
        incarnation="the next broker",
        changed=changes.append,
    )
    return await world.load(), readings, changes


def holders(runner: TopicRunner) -> list[str]:
    return [each.holder.producer_name for each in runner.history.transitions if each.holder]


async def test_a_topic_that_nobody_looks_at_reads_no_history() -> None:
    async with serving() as world:
        runner, readings, _ = await moved(world)
        await world.granted(runner, AccessMode.EXCLUSIVE, "second")
        await asyncio.sleep(10 * RECALL_SECONDS)
        assert readings.count == 0
        assert holders(runner) == ["second"]


async def test_a_history_that_is_asked_for_later_has_the_former_brokers_transitions() -> None:
    async with serving() as world:
        runner, readings, _ = await moved(world)
        await world.granted(runner, AccessMode.EXCLUSIVE, "second")
        await runner.history.recall()
        assert holders(runner) == ["first", "second"]
        await runner.history.recall()
        assert readings.count == 1


async def test_watchers_get_the_status_again_with_the_former_brokers_transitions() -> None:
    async with serving() as world:
        runner, readings, changes = await moved(world)
        changes.clear()
        for _ in range(3):
            runner.history.recall_soon(runner.guarded)
        await asyncio.sleep(1.0)
        assert (readings.count, changes) == (1, [ORDERS])
        assert holders(runner) == ["first"]
        runner.history.recall_soon(runner.guarded)
        await asyncio.sleep(1.0)
        assert (readings.count, changes) == (1, [ORDERS])


async def test_two_readings_at_the_same_time_add_the_transitions_once() -> None:
    async with serving() as world:
        runner, _, _ = await moved(world)
        await asyncio.gather(runner.history.recall(), runner.history.recall())
        assert holders(runner) == ["first"]


async def test_a_history_that_cannot_be_read_now_is_read_later() -> None:
    async with serving() as world:
        runner, readings, _ = await moved(world)
        readings.failures = 3
        await runner.history.recall()
        assert holders(runner) == []
        runner.history.recall_soon(runner.guarded)
        await asyncio.sleep(5 * RECALL_SECONDS)
        assert holders(runner) == ["first"]


async def test_a_topic_without_a_former_holder_reads_no_history() -> None:
    async with serving() as world:
        readings = Readings(world.store, asyncio.get_running_loop().time)
        world.dependencies = replace(world.dependencies, audit_tail=readings)
        runner = await world.load()
        await world.granted(runner, AccessMode.EXCLUSIVE, "first")
        await runner.history.recall()
        runner.history.recall_soon(runner.guarded)
        await asyncio.sleep(1.0)
        assert readings.count == 0
        assert holders(runner) == ["first"]
