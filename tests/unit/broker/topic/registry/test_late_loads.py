"""Holders keep their right to resume while their new broker loads topics slowly. The clock is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice

import pytest
from tests.unit.broker.topic.fence_path_world import (
    BUCKET,
    ORDERS,
    FakeChannel,
    Gates,
    Owner,
    World,
    serving,
    until,
)
from tests.unit.broker.topic.topics_world import BUCKETS, topics_of

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.settings import Settings
from onewriter_broker.topic.history.tenures import PRESENT
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.registry.resume_windows import LATE_SECONDS_MAX
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import Unavailable
from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.topic.model import AccessMode

pytestmark = pytest.mark.looptime

WINDOW = Settings().resume_window_seconds
HOLDER = "holder"


def names_beside(base: TopicName, count: int) -> list[TopicName]:
    """The names of other topics of the same bucket."""
    candidates = (TopicName.parse(f"persistent://shop/default/t{at}") for at in range(10_000))
    bucket = bucket_of(base, BUCKETS)
    same = (name for name in candidates if bucket_of(name, BUCKETS) == bucket)
    return list(islice(same, count))


def name_beside(base: TopicName) -> TopicName:
    """The name of another topic of the same bucket."""
    return names_beside(base, 1)[0]


class Takeover:
    """A broker that has just acquired the bucket of a topic, whose holder was granted an epoch before."""

    def __init__(self, world: World, topics: Topics, epoch: int) -> None:
        self.world = world
        self.topics = topics
        self.epoch = epoch
        self.gates = Gates(world.store, "read_state")

    async def wait(self) -> FakeChannel:
        """A waiter asks for the topic. Returns its connection once its request was decided."""
        topic = await self.topics.serve(ORDERS)
        return self.world.ask(topic.runner, AccessMode.WAIT_FOR_EXCLUSIVE)[1]

    async def resume(self) -> FakeChannel:
        """The holder asks for the topic with its epoch."""
        topic = await self.topics.serve(ORDERS)
        return self.world.ask(
            topic.runner,
            AccessMode.EXCLUSIVE,
            HOLDER,
            topic_epoch=self.epoch,
            reconnects=1,
        )[1]

    async def resumes(self) -> None:
        """The holder asks for the topic, and gets it under its epoch."""
        holder = await self.resume()
        await until(lambda: holder.ready or holder.refusals)
        assert holder.ready == [self.epoch]

    async def loaded(self) -> FakeChannel:
        """The topic is loaded without delay for a waiter. Returns the waiter's connection."""
        self.gates.open("read_state")
        return await self.wait()

    @asynccontextmanager
    async def slow_load(self) -> AsyncIterator[None]:
        """The broker loads another topic of the bucket until the block ends."""
        gates = Gates(self.world.store, "read_state")
        loading = self.world.tasks.create_task(self.topics.serve(name_beside(ORDERS)))
        await gates.reached("read_state")
        yield
        gates.open("read_state")
        await loading


@asynccontextmanager
async def taken_over() -> AsyncIterator[Takeover]:
    async with serving() as world:
        former = await topics_of(world).serve(ORDERS)
        _, channel = await world.granted(former.runner, AccessMode.EXCLUSIVE, HOLDER)
        topic_log = former.runner.logs[-1]
        await until(lambda: topic_log.state.get(PRESENT) == "1")
        await asyncio.sleep(0.1)  # the record of its presence is stored
        topics = topics_of(world)
        holding = world.owner.holding(BUCKET)
        assert holding is not None
        topics.bucket_acquired(BUCKET, holding)
        epoch = channel.ready[0]
        assert epoch is not None
        yield Takeover(world, topics, epoch)


async def test_a_waiter_that_asks_first_does_not_get_a_topic_whose_load_outlasts_the_window() -> (
    None
):
    async with taken_over() as takeover:
        waiting = takeover.world.tasks.create_task(takeover.wait())
        await takeover.gates.reached("read_state")
        resuming = takeover.world.tasks.create_task(takeover.resume())
        await asyncio.sleep(2 * WINDOW)
        takeover.gates.open("read_state")
        waiter, holder = await waiting, await resuming
        await until(lambda: holder.ready or holder.refusals)
        assert (holder.ready, holder.refusals) == ([takeover.epoch], [])
        assert not waiter.ready


async def test_a_holder_that_asks_after_a_long_load_has_a_whole_window() -> None:
    async with taken_over() as takeover:
        waiting = takeover.world.tasks.create_task(takeover.wait())
        await takeover.gates.reached("read_state")
        await asyncio.sleep(2 * WINDOW)
        takeover.gates.open("read_state")
        waiter = await waiting
        await asyncio.sleep(0.9 * WINDOW)
        await takeover.resumes()
        assert not waiter.ready


async def test_a_holder_whose_request_waits_behind_another_load_keeps_its_epoch() -> None:
    async with taken_over() as takeover:
        waiter = await takeover.loaded()
        async with takeover.slow_load():
            await asyncio.sleep(2 * WINDOW)
        await asyncio.sleep(0.9 * WINDOW)
        await takeover.resumes()
        assert not waiter.ready


async def test_a_waiter_is_promoted_one_window_after_the_last_late_load() -> None:
    async with taken_over() as takeover:
        waiter = await takeover.loaded()
        async with takeover.slow_load():
            await asyncio.sleep(2 * WINDOW)
        await asyncio.sleep(0.9 * WINDOW)
        assert not waiter.ready
        await asyncio.sleep(0.2 * WINDOW)
        await until(lambda: waiter.ready)


async def test_a_load_that_never_ends_does_not_keep_a_topic_without_a_holder() -> None:
    async with taken_over() as takeover:
        waiter = await takeover.loaded()
        async with takeover.slow_load():
            await asyncio.sleep(LATE_SECONDS_MAX)
            assert not waiter.ready
            await asyncio.sleep(1.1 * WINDOW)
            await until(lambda: waiter.ready)


async def test_a_load_that_failed_gives_the_holder_time_for_another_attempt() -> None:
    async with taken_over() as takeover:
        waiter = await takeover.loaded()
        await asyncio.sleep(0.9 * WINDOW)
        takeover.world.owner.unavailable = 1
        with pytest.raises(Unavailable):
            await takeover.topics.serve(name_beside(ORDERS))
        await asyncio.sleep(0.9 * WINDOW)
        await takeover.resumes()
        assert not waiter.ready


async def test_topic_that_cannot_be_loaded_before_a_repair_extends_no_window() -> None:
    """Its clients try again every few seconds. Waiters of other topics must not wait because of that."""
    async with taken_over() as takeover:
        waiter = await takeover.loaded()
        beside = name_beside(ORDERS)
        takeover.world.server.put_foreign_key(
            takeover.world.server.primary, Keys(BUCKETS).log(beside)
        )
        await asyncio.sleep(0.9 * WINDOW)
        with pytest.raises(BrokenKey):
            await takeover.topics.serve(beside)
        await asyncio.sleep(0.2 * WINDOW)
        await until(lambda: waiter.ready)


async def test_quick_loads_extend_no_window() -> None:
    async with taken_over() as takeover:
        waiter = await takeover.loaded()
        await asyncio.sleep(0.9 * WINDOW)
        await takeover.topics.serve(name_beside(ORDERS))
        await asyncio.sleep(0.2 * WINDOW)
        await until(lambda: waiter.ready)


async def test_a_topic_that_is_loaded_at_the_end_of_the_window_has_a_whole_window() -> None:
    async with taken_over() as takeover:
        takeover.gates.open("read_state")
        await asyncio.sleep(0.9 * WINDOW)
        waiter = await takeover.wait()
        await asyncio.sleep(0.9 * WINDOW)
        assert not waiter.ready
        await takeover.resumes()


class SlowOwner(Owner):
    """Bucket ownership that takes a second for each ledger, and counts the topics that wait for one."""

    waiting = most = 0

    async def reserve_ledger(self, bucket: int) -> int:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(1.0)
        self.waiting -= 1
        return await super().reserve_ledger(bucket)


async def test_a_bucket_loads_a_limited_number_of_topics_at_the_same_time() -> None:
    async with serving(limits=TopicLimits(loads_max=2 * BUCKETS)) as world:
        holding = world.owner.holding(BUCKET)
        assert holding is not None
        world.owner = owner = SlowOwner(holding.binding)
        topics = topics_of(world)
        beside = names_beside(ORDERS, 5)
        served = await asyncio.gather(*(topics.serve(name) for name in beside))
        assert [topic.name for topic in served] == beside
        assert owner.most == 2
