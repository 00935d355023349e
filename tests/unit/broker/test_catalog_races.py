"""Catalogs while calls to the store cross, or are not answered: what is remembered is what is stored."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.fence_path_world import ORDERS, Gates, World, serving, until
from tests.unit.broker.test_fence_path_partitions import topics_of

from onewriter_broker.log.memory import MemoryLogStore, Moment
from onewriter_broker.topic.catalog import CatalogEntry, Catalogs
from onewriter_broker.topic.deletion import delete
from onewriter_broker.topic.own_policies import set_own
from onewriter_broker.topic.topics import Topics
from onewriter_core.errors import Unavailable, Undecided

LAST = ORDERS.with_partition(3)


async def in_store(world: World) -> CatalogEntry | None:
    return await Catalogs(MemoryLogStore(world.server.resolve), 64).entry(ORDERS, is_owned=False)


async def some_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def partitioned(world: World, partitions: int = 2) -> Topics:
    topics = topics_of(world)
    await topics.set_partitions(ORDERS, partitions)
    return topics


# ------------------------------------------------------------ partitions


async def test_partitions_that_are_added_while_the_topic_is_loaded_are_served() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        gates = Gates(world.store, "fence")
        loading = world.tasks.create_task(topics.serve(ORDERS.with_partition(0)))
        await gates.reached("fence")
        adding = world.tasks.create_task(topics.set_partitions(ORDERS, 4))
        await some_turns()
        gates.open("fence")
        topic = await loading
        await adding
        assert (await topics.serve(LAST)).has(LAST)
        assert topic.entry.partitions == 4
        await set_own(topics, ORDERS, "retention", lambda _: 1)


async def test_partitions_that_are_written_while_the_topic_begins_to_be_loaded_are_served() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        gates = Gates(world.store, "set_catalog")
        adding = world.tasks.create_task(topics.set_partitions(ORDERS, 4))
        await gates.reached("set_catalog")
        loading = world.tasks.create_task(topics.serve(ORDERS.with_partition(0)))
        await some_turns()
        gates.open("set_catalog")
        topic = await loading
        await adding
        assert (await topics.serve(LAST)).has(LAST)
        assert topic.entry.partitions == 4


async def test_a_topic_that_is_made_anew_while_it_is_deleted_begins_with_nothing() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        await set_own(topics, ORDERS, "retention", lambda _: 1)
        gates = Gates(world.store, "trim")
        deleting = world.tasks.create_task(delete(topics, ORDERS))
        await gates.reached("trim")
        making = asyncio.get_running_loop().create_task(topics.set_partitions(ORDERS, 4))
        await some_turns()
        gates.open("trim")
        await deleting
        with pytest.raises(Unavailable, match="deleted"):
            await making
        assert await in_store(world) is None
        await topics.set_partitions(ORDERS, 4)
        assert await in_store(world) == CatalogEntry(4, (0, 1, 2, 3))


# ------------------------------------------------------------ not answered


async def test_what_was_stored_without_an_answer_is_known() -> None:
    async with serving() as world:
        topics = await partitioned(world)

        async def lose(call: str, when: Moment) -> None:
            if (call, when) == ("set_catalog", "after"):
                raise Undecided("the store did not answer in time")

        hook = world.store.faults.hook
        world.store.faults.hook = lose
        with pytest.raises(Undecided):
            await topics.set_partitions(ORDERS, 4)
        world.store.faults.hook = hook
        assert (await topics.serve(LAST)).has(LAST)
        assert await topics.partitions_of(ORDERS) == 4


async def test_a_topic_whose_deletion_was_not_answered_is_not_served_as_if_it_were_there() -> None:
    async with serving() as world:
        topics = await partitioned(world)

        async def lose(call: str, when: Moment) -> None:
            if (call, when) == ("set_catalog", "after"):
                raise Undecided("the store did not answer in time")

        hook = world.store.faults.hook
        await topics.serve(ORDERS.with_partition(0))
        world.store.faults.hook = lose
        with pytest.raises(Undecided):
            await delete(topics, ORDERS)
        world.store.faults.hook = hook
        assert await topics.partitions_of(ORDERS) is None
        await topics.serve(ORDERS)
        assert await in_store(world) == await topics.entry_of(ORDERS)


async def test_a_write_that_is_cut_off_is_known() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        reached = asyncio.Event()

        async def hang(call: str, when: Moment) -> None:
            if (call, when) == ("set_catalog", "after"):
                reached.set()
                await asyncio.Event().wait()

        hook = world.store.faults.hook
        world.store.faults.hook = hang
        adding = asyncio.get_running_loop().create_task(topics.set_partitions(ORDERS, 4))
        await reached.wait()
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        world.store.faults.hook = hook
        assert await topics.partitions_of(ORDERS) == 4


async def test_a_reader_whose_answer_comes_late_takes_nothing_back() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        topics._catalogs.forget(topics.bucket_of(ORDERS))
        reads, go_on = 0, asyncio.Event()

        async def late(call: str, when: Moment) -> None:
            nonlocal reads
            if (call, when) == ("read_catalog", "after"):
                reads += 1
                await some_turns()
                if reads == 2:
                    await go_on.wait()

        world.store.faults.hook = late
        readers = [world.tasks.create_task(topics.partitions_of(ORDERS)) for _ in range(2)]
        await until(lambda: reads == 2)
        await topics.set_partitions(ORDERS, 4)
        go_on.set()
        assert set(await asyncio.gather(*readers)) == {2, 4}
        assert await topics.partitions_of(ORDERS) == 4
