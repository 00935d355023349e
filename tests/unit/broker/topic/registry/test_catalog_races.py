"""Catalogs during crossing or unanswered calls to the store: the cache has what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from tests.unit.broker.topic.fence_path_world import ORDERS, Gates, World, serving, until
from tests.unit.broker.topic.test_fence_path_partitions import topics_of

from onewriter_broker.log.store.api import Outcome
from onewriter_broker.topic.deletion import delete
from onewriter_broker.topic.registry.catalog import CatalogEntry, Catalogs
from onewriter_broker.topic.registry.policies import COMPACTION_THRESHOLD, set_own
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import Unavailable, Undecided
from onewriter_testing.fake_store.store import FakeLogStore, Moment

FIRST, LAST = ORDERS.with_partition(0), ORDERS.with_partition(3)
THRESHOLD = COMPACTION_THRESHOLD.of_topic

_Result = TypeVar("_Result")


async def in_store(world: World) -> CatalogEntry | None:
    return await Catalogs(FakeLogStore(world.server.resolve), 64).entry(ORDERS, None)


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
        assert topic.has(LAST)
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


async def test_a_topic_that_is_made_again_while_it_is_deleted_begins_with_nothing() -> None:
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


# ------------------------------------------------------------ policies


async def policy_under_way(world: World) -> tuple[Topics, Gates, asyncio.Task[None]]:
    """A policy change waits before its call to the store, and the topic was unloaded meanwhile."""
    topics = await partitioned(world)
    await topics.serve(FIRST)
    gates = Gates(world.store, "set_catalog")
    setting = world.tasks.create_task(set_own(topics, ORDERS, THRESHOLD, lambda _: 7))
    await gates.reached("set_catalog")
    await topics.unload(ORDERS)
    return topics, gates, setting


async def test_a_policy_that_is_set_while_the_topic_unloads_and_gets_partitions_is_kept() -> None:
    """Both have read the catalog before one of them has changed it."""
    async with serving() as world:
        topics, gates, setting = await policy_under_way(world)
        adding = world.tasks.create_task(topics.set_partitions(ORDERS, 4))
        await some_turns()
        gates.open("set_catalog")
        await setting
        await adding
        assert await in_store(world) == CatalogEntry(4, (0, 1, 2, 3), policies={THRESHOLD: 7})


async def test_a_policy_that_is_set_while_the_topic_is_loaded_again_is_followed() -> None:
    async with serving() as world:
        topics, gates, setting = await policy_under_way(world)
        loading = world.tasks.create_task(topics.serve(FIRST))
        await some_turns()
        gates.open("set_catalog")
        await setting
        assert (await loading).compaction_threshold == 7


async def test_changes_during_the_load_of_a_topic_are_applied() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        gates = Gates(world.store, "read_state")
        loading = world.tasks.create_task(topics.serve(FIRST))
        await gates.reached("read_state")
        entry = CatalogEntry(4, (0, 1, 2, 3), policies={THRESHOLD: 7})
        await topics.change_entry(ORDERS, lambda _: entry)
        gates.open("read_state")
        topic = await loading
        assert (topic.entry, topic.compaction_threshold) == (entry, 7)
        await set_own(topics, ORDERS, THRESHOLD, lambda _: 8)
        assert topic.compaction_threshold == 8


# ------------------------------------------------------------ unanswered calls


@dataclass
class Late:
    """A connection to a store: the next such write stays in the socket without an answer.

    It is executed before the next write of any kind, because writes keep the order of the calls. Reads use
    another path.
    """

    store: FakeLogStore
    call: str
    held_back: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    def hold_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        execute = self.store.with_faults

        async def run_in_order(
            call: str,
            run: Callable[[], Awaitable[_Result]],
            *,
            writes: bool,
            about: Sequence[object] = (),
        ) -> _Result:
            if writes and call == self.call:
                self.call = ""
                self.held_back.append(run)
                raise Undecided("the store did not answer in time")
            while writes and self.held_back:
                await execute("late", self.held_back.pop(), writes=True, about=about)
            return await execute(call, run, writes=writes, about=about)

        monkeypatch.setattr(self.store, "with_faults", run_in_order)


async def test_a_block_that_is_stored_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as world:
        topics = await partitioned(world)
        Late(world.store, "set_catalog").hold_back(monkeypatch)
        with pytest.raises(Undecided):
            await topics.set_partitions(ORDERS, 4)
        await topics.partitions_of(ORDERS)
        await topics.serve(FIRST)
        stored = await in_store(world)
        assert stored is not None
        assert await topics.partitions_of(ORDERS) == stored.partitions
        await set_own(topics, ORDERS, THRESHOLD, lambda _: 7)
        assert await in_store(world) == replace(stored, policies={THRESHOLD: 7})


async def test_a_topic_is_not_served_whose_deletion_is_stored_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        topics = await partitioned(world)
        await topics.serve(FIRST)
        late = Late(world.store, "set_catalog")
        late.hold_back(monkeypatch)
        with pytest.raises(Undecided):
            await delete(topics, ORDERS)
        topic = await topics.serve(FIRST)
        assert await in_store(world) == topic.entry
        assert not late.held_back


async def test_a_block_that_is_stored_late_is_found_after_use_of_a_former_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        catalogs, held = Catalogs(world.store, 64), world.owner.held
        assert held is not None
        former, binding = held.binding, replace(held.binding, version=2)
        assert await world.store.stamp(binding) is Outcome.DONE
        assert await catalogs.entry(ORDERS, binding) is None
        Late(world.store, "set_catalog").hold_back(monkeypatch)
        with pytest.raises(Undecided):
            await catalogs.change(binding, ORDERS, lambda _: CatalogEntry(2, (0, 1)))
        await catalogs.entry(ORDERS, former)
        found = await catalogs.entry(ORDERS, binding)
        assert await world.store.write_audit(binding, {"event": "any"}) is Outcome.DONE
        assert await in_store(world) == found


async def test_a_block_stored_without_an_answer_is_found() -> None:
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


async def test_concurrent_readers_share_one_reading() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        topics._catalogs.forget(topics.bucket_of(ORDERS))
        reads = count_readings(world)
        readers = [world.tasks.create_task(topics.partitions_of(ORDERS)) for _ in range(50)]
        assert set(await asyncio.gather(*readers)) == {2}
        assert len(reads) == 1


async def test_concurrent_readers_share_a_failure_and_later_ones_read_again() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        topics._catalogs.forget(topics.bucket_of(ORDERS))

        async def fail(_call: str, _when: Moment) -> None:
            await some_turns()
            raise Undecided("the store does not answer")

        hook, world.store.faults.hook = world.store.faults.hook, fail
        readers = (topics.partitions_of(ORDERS) for _ in range(3))
        answers = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(answer, Undecided) for answer in answers)
        world.store.faults.hook = hook
        assert await topics.partitions_of(ORDERS) == 2


async def test_a_cancelled_reader_leaves_the_reading_to_the_next_one() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        topics._catalogs.forget(topics.bucket_of(ORDERS))
        readers = [world.tasks.create_task(topics.partitions_of(ORDERS)) for _ in range(2)]
        await asyncio.sleep(0)
        readers[0].cancel()
        assert await readers[1] == 2


async def test_a_late_answer_is_not_kept_after_the_catalog_was_forgotten() -> None:
    async with serving() as world:
        topics = await partitioned(world)
        topics._catalogs.forget(topics.bucket_of(ORDERS))
        go_on = asyncio.Event()
        reads = count_readings(world, go_on)
        reader = world.tasks.create_task(topics.partitions_of(ORDERS))
        await until(lambda: len(reads) == 1)
        topics._catalogs.forget(topics.bucket_of(ORDERS))
        go_on.set()
        assert await reader == 2
        await topics.set_partitions(ORDERS, 4)
        assert await topics.partitions_of(ORDERS) == 4
        assert len(reads) == 2


def count_readings(world: World, go_on: asyncio.Event | None = None) -> list[None]:
    """A list that grows with each reading of a catalog, whose answer waits for ``go_on``."""
    reads: list[None] = []

    async def count(call: str, when: Moment) -> None:
        if (call, when) == ("read_catalog", "after"):
            reads.append(None)
            if go_on is not None:
                await go_on.wait()

    world.store.faults.hook = count
    return reads
