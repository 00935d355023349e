"""Topics without clients leave memory, and the next load continues where they left."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.broker.topic.fence_path_world import (
    BUCKET,
    ORDERS,
    FakeChannel,
    World,
    serving,
    until,
)
from tests.unit.broker.topic.topics_world import BUCKETS, topics_of

from onewriter_broker.log.store.api import Binding
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.ownership.bucket_events import LostReason
from onewriter_broker.settings import Settings
from onewriter_broker.topic.compaction.schedule import Compactions
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.retention.idle_topics import IdleTopics
from onewriter_broker.topic.retention.maintenance import Maintenance
from onewriter_broker.topic.retention.sizes import Sizes
from onewriter_broker.topic.unused_topics import LOG_BYTES_MAX, UnusedTopics
from onewriter_core.api import ExclusiveTopic
from onewriter_core.api.manifests import DesiredState
from onewriter_core.errors import ServerError
from onewriter_core.ids import Position, TopicName
from onewriter_core.topic.effects import Record
from onewriter_core.topic.model import WHOLE, AccessMode, TransitionCause

pytestmark = pytest.mark.looptime

SECONDS = 60.0
KEY = str(ORDERS)


def declared(**spec: Any) -> DesiredState:
    document = {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": "orders"},
        "spec": {"topic": KEY, **spec},
    }
    return DesiredState((ExclusiveTopic.from_document(document),))


class Broker:
    """The topics of a broker, its sweeps over unused topics, and what its topics reported."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.records: list[Record] = []
        self.left: list[tuple[TopicName, Binding, Sequence[Position]]] = []
        self.topics: Topics = topics_of(
            world,
            lambda found: replace(
                found,
                moved=lambda _name, record: self.records.append(record),
                left=lambda *what: self.left.append(what),
            ),
        )
        clock = asyncio.get_running_loop().time
        space: Any = SimpleNamespace(free_bytes=lambda **_: math.inf)
        self.compactions = Compactions(
            self.topics, Settings(), now=clock, wall_ms=lambda: 0, store=space
        )
        self.maintenance = Maintenance(
            self.topics, Settings(**settings), lambda: 1_000, world.appender
        )
        self.unused = UnusedTopics(
            self.topics, self.maintenance, self.compactions, seconds=SECONDS, now=clock
        )

    async def serve(self) -> LoadedTopic:
        return await self.topics.serve(ORDERS)

    @property
    def is_loaded(self) -> bool:
        return KEY in self.topics.loaded

    async def pass_time(self) -> None:
        """Sweep now and after the topics were unused for long enough; what the sweeps begin ends."""
        for _ in range(3):
            await self.unused.sweep()
            await asyncio.sleep(SECONDS)
            await self.unused.sweep()

    async def granted(self, name: str, **more: Any) -> tuple[Any, FakeChannel]:
        topic = await self.serve()
        return await self.world.granted(topic.runner, AccessMode.EXCLUSIVE, name, **more)

    async def write(self, producer: Any, channel: FakeChannel, count: int) -> None:
        for number in range(count):
            self.world.send(producer, number)
        await until(lambda: channel.receipts)

    async def close(self, producer: Any) -> None:
        """A client closes its producer."""
        topic = self.topics.loaded[KEY]
        topic.runner.gone(producer, TransitionCause.CLOSED)
        presence = self.world.dependencies.presence
        await until(lambda: not presence.is_waiting(BUCKET, topic.runner.logs[WHOLE]))


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Broker]:
    async with serving() as world:
        yield Broker(world, **settings)


async def test_a_topic_leaves_memory_some_time_after_its_last_client() -> None:
    async with running() as broker:
        producer, _ = await broker.granted("first")
        await broker.pass_time()
        assert broker.is_loaded
        await broker.close(producer)
        await broker.unused.sweep()
        await asyncio.sleep(SECONDS - 1)
        await broker.unused.sweep()
        assert broker.is_loaded
        await asyncio.sleep(2)
        await broker.unused.sweep()
        assert not broker.is_loaded
        assert broker.topics.resting(ORDERS) is None  # until its runner has ended
        await asyncio.sleep(0)
        await until(lambda: broker.topics.resting(ORDERS) is not None)


async def test_a_use_begins_the_time_again() -> None:
    async with running() as broker:
        await broker.serve()
        await broker.unused.sweep()
        await asyncio.sleep(SECONDS - 1)
        await broker.topics.serve_existing(ORDERS)
        await broker.unused.sweep()
        await asyncio.sleep(SECONDS - 1)
        await broker.unused.sweep()
        assert broker.is_loaded
        await asyncio.sleep(2)
        await broker.unused.sweep()
        assert not broker.is_loaded


async def test_the_next_producer_gets_the_next_epoch_and_the_cause_is_how_the_last_one_left() -> (
    None
):
    async with running() as broker:
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        await broker.close(first)
        await broker.pass_time()
        assert not broker.is_loaded
        second, _ = await broker.granted("second")
        assert second.epoch > first.epoch
        record = broker.records[-1]
        assert (record.cause, record.old_epoch) == (TransitionCause.CLOSED, first.epoch)
        # A producer that released the topic cannot return and needs no record in the anchor before the answer.
        assert broker.world.owner.recorded == []
        entries = await broker.world.entries_by_ledger()
        assert entries[first.epoch] == 3


async def test_a_former_holder_resumes_until_another_producer_was_granted() -> None:
    async with running() as broker:
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        topic = broker.topics.loaded[KEY]
        topic.runner.gone(first, TransitionCause.CONNECTION_LOST)
        await broker.pass_time()
        assert not broker.is_loaded
        back, _ = await broker.granted("first", topic_epoch=first.epoch, reconnects=1)
        assert back.epoch == first.epoch
        assert (
            back.resends is not None
        )  # its entries were read: a resend is answered, and not stored again

        await broker.close(back)
        await broker.pass_time()
        await broker.granted("second")
        topic = await broker.serve()
        _, late = broker.world.ask(
            topic.runner, AccessMode.EXCLUSIVE, "first", topic_epoch=first.epoch, reconnects=2
        )
        await until(lambda: late.refusals)
        assert late.refusals[0][0] is ServerError.PRODUCER_FENCED


async def _waits(broker: Broker) -> None:
    topic = await broker.serve()
    broker.world.ask(topic.runner, AccessMode.WAIT_FOR_EXCLUSIVE)


async def _shares(broker: Broker) -> None:
    topic = await broker.serve()
    await broker.world.granted(topic.runner, AccessMode.SHARED)


async def _subscribes(broker: Broker) -> None:
    topic = await broker.serve()
    await topic.subscriptions[WHOLE].create("s")


async def _is_large(broker: Broker) -> None:
    topic = await broker.serve()
    topic.runner.logs[WHOLE].set_size(LOG_BYTES_MAX + 1)


async def _is_unmeasured(broker: Broker) -> None:
    topic = await broker.serve()
    topic.runner.logs[WHOLE]._is_measured = False


async def _is_compacted(broker: Broker) -> None:
    topic = await broker.serve()
    topic.compaction_threshold = 1


async def _requests_a_compaction(broker: Broker) -> None:
    topic = await broker.serve()
    broker.compactions.request(topic.runner.logs[WHOLE])


async def _cannot_write(broker: Broker) -> None:
    topic = await broker.serve()
    topic.runner.logs[WHOLE].stop_writes()


async def _may_still_be_led(broker: Broker) -> None:
    producer, _ = await broker.granted("leader", serve_seconds=3.0)
    topic = broker.topics.loaded[KEY]
    topic.runner.gone(producer, TransitionCause.SILENT)


async def _grows(broker: Broker) -> None:
    topic = await broker.serve()
    await topic.growing.acquire()


@pytest.mark.parametrize(
    "use",
    [
        _waits,
        _shares,
        _subscribes,
        _is_large,
        _is_unmeasured,
        _is_compacted,
        _requests_a_compaction,
        _cannot_write,
        _may_still_be_led,
        _grows,
    ],
)
async def test_a_topic_in_use_stays(use: Callable[[Broker], Any]) -> None:
    async with running() as broker:
        await use(broker)
        await broker.pass_time()
        assert broker.is_loaded


async def test_a_record_of_presence_that_waits_keeps_the_topic() -> None:
    async with running() as broker:
        producer, _ = await broker.granted("first")
        allowed = asyncio.Event()

        async def hook(call: str, _moment: str) -> None:
            if call == "set_state":
                await allowed.wait()

        broker.world.store.faults.hook = hook
        topic = broker.topics.loaded[KEY]
        topic.runner.gone(producer, TransitionCause.CLOSED)
        await broker.pass_time()
        assert broker.is_loaded
        allowed.set()
        await broker.pass_time()
        assert not broker.is_loaded


async def test_retention_of_idle_topics_trims_all_entries_of_a_bounded_topic() -> None:
    async with running() as broker:
        broker.topics.apply(declared(retention={"maxAgeSeconds": 5}))
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        await broker.close(first)
        await broker.pass_time()
        assert not broker.is_loaded  # after a roll, so that no entry is in the open ledger
        idle = IdleTopics(broker.topics, broker.world.store, wall_ms=lambda: 3_600_000)
        stored = (await Sizes(broker.topics, lambda _: None, dict).sums()).total()
        await idle.go_round()
        assert sum((await broker.world.entries_by_ledger()).values()) == 0
        assert (await Sizes(broker.topics, lambda _: None, dict).sums()).total() < stored
        second, _ = await broker.granted("second")
        assert second.epoch > first.epoch


async def test_an_undeclared_topic_stays_until_retention_has_cut_it() -> None:
    async with running(undeclared_retention_bytes=1) as broker:
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        await broker.close(first)
        await broker.pass_time()
        assert broker.is_loaded


async def test_the_bytes_of_unloaded_topics_count_for_their_share() -> None:
    async with running() as broker:
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        await broker.close(first)
        sizes = Sizes(broker.topics, lambda _: None, dict)
        before = await sizes.sums()
        await broker.pass_time()
        assert not broker.is_loaded
        assert before.total() > 0
        assert await sizes.sums() == before
        topic = await broker.serve()
        assert topic.runner.logs[WHOLE].is_measured
        assert await sizes.sums() == before


async def test_entries_that_the_store_lost_meanwhile_are_reported_at_the_next_load() -> None:
    async with running() as broker:
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        await broker.close(first)
        await broker.pass_time()
        world = broker.world
        world.server.delete_key(world.server.primary, Keys(BUCKETS).log(ORDERS))
        await broker.serve()
        (loss,) = world.losses
        assert (loss.topic, loss.entries) == (ORDERS, 3)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_was_acknowledged_is_compared_with_the_next_dataset(is_lost: bool) -> None:
    async with running() as broker:
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        await broker.close(first)
        await broker.pass_time()
        holding = broker.world.owner.held
        assert holding is not None
        if is_lost:
            broker.topics.bucket_lost(BUCKET, LostReason.GIVEN_BACK)
        else:
            broker.topics.dataset_changed(BUCKET, holding)
        assert broker.left == [(ORDERS, holding.binding, (Position(first.epoch, 3),))]
        assert len(broker.topics.unloaded) == 0
        assert broker.topics.unloaded.sizes.total() == 0


@pytest.mark.parametrize("cause", [TransitionCause.CLOSED, TransitionCause.CONNECTION_LOST])
async def test_the_next_broker_knows_how_the_last_writer_left_and_records_the_next_grant(
    cause: TransitionCause,
) -> None:
    async with running() as broker:
        first, channel = await broker.granted("first")
        await broker.write(first, channel, 3)
        topic = broker.topics.loaded[KEY]
        topic.runner.gone(first, cause)
        await broker.pass_time()
        assert not broker.is_loaded
        next_broker = Broker(broker.world)  # in another process
        topic = await next_broker.serve()
        topic.runner.logs[WHOLE].set_size(100)  # as Sizes measures it
        await next_broker.pass_time()
        assert not next_broker.is_loaded
        second, _ = await next_broker.granted("second")
        assert next_broker.records[-1].cause is cause
        # The next broker did not see whether the writer has returned since, so the anchor records the grant.
        assert broker.world.owner.recorded == [second.epoch]


async def test_the_store_counts_if_the_log_was_fenced_meanwhile() -> None:
    async with running() as broker:
        first, _ = await broker.granted("first")
        await broker.close(first)
        await broker.pass_time()
        other, _ = await Broker(broker.world).granted("other")  # in another process
        broker.records.clear()
        second, _ = await broker.granted("second")
        assert second.epoch > other.epoch
        assert broker.records[-1].former is not None
        assert cast("Any", broker.records[-1].former).producer_name == "other"
