"""Partitions that are added concurrently, while the store is unavailable, or while the topic leaves."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.unit.broker.topic.fence_path_world import ORDERS, Gates, World, serving

from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.settings import Settings
from onewriter_broker.topic.registry.catalog import Catalogs
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import OnewriterError, Unavailable

FIRST, SECOND = ORDERS.with_partition(0), ORDERS.with_partition(1)


def topics_of(world: World) -> Topics:
    """All topics of a broker, here with one bucket."""

    def subscriptions(topic_log: TopicLog, runner: TopicRunner) -> Subscriptions:
        return Subscriptions(
            topic_log, spawn=runner.spawn, clock=lambda: 0.0, wall_clock_ms=lambda: 0
        )

    topics = Topics(Settings(), Catalogs(world.store, 64), subscriptions)
    topics.serve_with(cast("BucketOwnership", world.owner), world.dependencies)
    return topics


async def test_two_concurrent_requests_for_a_new_partition_both_succeed() -> None:
    async with serving() as world:
        world.store.faults.hook = lambda *_: asyncio.sleep(0)
        topics = topics_of(world)
        await topics.serve(ORDERS)

        async def is_served() -> bool:
            return (await topics.serve(FIRST)).has(FIRST)

        assert all(await asyncio.gather(is_served(), is_served()))


async def test_partitions_that_are_added_at_once_are_all_in_the_catalog() -> None:
    async with serving() as world:
        world.store.faults.hook = lambda *_: asyncio.sleep(0)
        topics = topics_of(world)
        await topics.serve(ORDERS)
        await asyncio.gather(topics.serve(FIRST), topics.serve(SECOND))
        entry = await topics.entry_of(ORDERS)
        assert entry is not None
        assert set(entry.log_numbers) == {-1, 0, 1}


async def test_a_partition_that_could_not_be_opened_is_opened_by_the_next_who_asks() -> None:
    async with serving() as world:
        topics = topics_of(world)
        await topics.serve(ORDERS)
        world.owner.unavailable = 1
        with pytest.raises(Unavailable):
            await topics.serve(FIRST)
        assert (await topics.serve(FIRST)).has(FIRST)


async def test_a_partition_is_not_added_to_a_topic_that_moved_away() -> None:
    async with serving() as world:
        topics = topics_of(world)
        left = await topics.serve(ORDERS)
        gates = Gates(world.store, "set_catalog")
        adding = asyncio.gather(topics.serve(FIRST), return_exceptions=True)
        await gates.reached("set_catalog")
        await topics.unload(ORDERS)
        gates.open("set_catalog")
        assert isinstance((await adding)[0], OnewriterError)
        assert not left.has(FIRST)
        assert (await topics.serve(FIRST)).has(FIRST)


async def test_a_late_unloading_does_not_drop_the_topic_that_was_loaded_since() -> None:
    async with serving() as world:
        topics = topics_of(world)
        old = await topics.serve(ORDERS)
        await topics.unload(ORDERS)
        new = await topics.serve(ORDERS)
        topics._drop(old, "as a second call of unload does, whose cursors took longer to save")
        assert topics.loaded[str(ORDERS)] is new
