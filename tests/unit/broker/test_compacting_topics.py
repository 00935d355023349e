"""When logs are compacted: asked for, due, waited for, too full, too many keys, moved away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.broker.verify_histories import BUCKETS, TOPIC, Story, waiter

from onewriter_broker.log.compacted import COMPACTING
from onewriter_broker.log.memory import MemoryLogStore
from onewriter_broker.log.memory_server import MemoryServer
from onewriter_broker.settings import Settings
from onewriter_broker.topic.compacting import LINGER_SECONDS, RETRY_SECONDS, Compactions, Progress
from onewriter_core.ids import EARLIEST
from onewriter_core.topic.model import Purpose
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


class Broker:
    """One topic, and the clock."""

    def __init__(self, server: MemoryServer, story: Story, keys_max: int = 1_000) -> None:
        self.server = server
        self.story = story
        self.seconds = 100.0
        self.is_full = False
        self.topic = SimpleNamespace(
            compaction_threshold=0, runner=SimpleNamespace(logs={-1: story.log})
        )
        self.compactions = Compactions(
            cast("Any", SimpleNamespace(loaded={str(TOPIC): self.topic})),
            Settings(compaction_keys_max=keys_max),
            now=lambda: self.seconds,
            wall_ms=lambda: int(self.seconds * 1000),
            is_store_full=lambda: self.is_full,
        )

    def progress(self) -> Progress:
        return self.compactions.story(self.story.log).progress

    async def publish(self, *keys: str, size: int = 10) -> None:
        await self.story.publish(
            *(
                build_entry(
                    pb.MessageMetadata(
                        producer_name="p", sequence_id=1, publish_time=1, partition_key=key
                    ),
                    bytes([1]) * size,
                )
                for key in keys
            )
        )

    async def round(self) -> None:
        """What is due, done."""
        await self.compactions.look()
        await self.compactions.compact_requested()

    def slots_in_use(self) -> int:
        return sum(bool(blocks) for blocks in self.server.primary.dataset.compacted.values())


@pytest.fixture
async def broker() -> Broker:
    server = MemoryServer()
    story = await Story.begin(MemoryLogStore(server.resolve, buckets=BUCKETS))
    await story.fence(Purpose.GRANT, waiter("alice"))
    return Broker(server, story)


async def test_nothing_happens_unasked(broker: Broker) -> None:
    await broker.publish(*"abab", size=100_000)
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN
    assert broker.story.log.compacted.horizon == EARLIEST


async def test_a_request_is_done_once(broker: Broker) -> None:
    await broker.publish(*"abab")
    assert broker.compactions.request(broker.story.log)
    assert not broker.compactions.request(broker.story.log)
    assert broker.progress() is Progress.RUNNING
    await broker.round()
    story = broker.compactions.story(broker.story.log)
    assert (story.progress, story.removed) == (Progress.SUCCESS, 2)
    assert broker.compactions.totals.messages_removed == 2
    assert broker.compactions.request(broker.story.log)


async def test_it_is_due_when_enough_came_behind_the_horizon(broker: Broker) -> None:
    broker.topic.compaction_threshold = 5_000
    await broker.publish("a", size=4_000)
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN
    await broker.publish("a", size=4_000)
    await broker.round()
    assert broker.progress() is Progress.SUCCESS
    first = broker.story.log.compacted.horizon
    await broker.round()
    assert broker.story.log.compacted.horizon == first
    await broker.publish("b", size=6_000)
    await broker.round()
    assert broker.story.log.compacted.horizon > first


async def test_a_large_view_waits_until_half_as_much_is_new(broker: Broker) -> None:
    broker.topic.compaction_threshold = 1_000
    await broker.publish(*"abcd", size=10_000)
    await broker.round()
    first = broker.story.log.compacted.horizon
    await broker.publish("a", size=15_000)
    await broker.round()
    assert broker.story.log.compacted.horizon == first
    await broker.publish("a", size=10_000)
    await broker.round()
    assert broker.story.log.compacted.horizon > first


async def test_retention_that_waits_has_it_done(broker: Broker) -> None:
    broker.topic.compaction_threshold = 10**9
    await broker.publish("a")
    broker.story.log.compacted.is_waited_for = True
    await broker.round()
    assert broker.progress() is Progress.SUCCESS
    assert not broker.story.log.compacted.is_waited_for


async def test_a_view_that_counts_no_more_goes_when_nobody_reads_it(broker: Broker) -> None:
    await broker.publish("a")
    broker.compactions.request(broker.story.log)
    await broker.round()
    reading = await broker.story.log.compacted.begin(EARLIEST)
    assert reading is not None
    await broker.publish("b")
    broker.compactions.request(broker.story.log)
    await broker.round()
    await broker.round()
    assert broker.slots_in_use() == 2
    assert not reading.is_retired
    broker.seconds += LINGER_SECONDS
    await broker.round()
    assert broker.slots_in_use() == 1
    assert reading.is_retired
    assert COMPACTING not in broker.server.primary.dataset.states[TOPIC]


async def test_what_a_broker_that_died_has_left_is_dropped(broker: Broker) -> None:
    await broker.publish("a")
    broker.compactions.request(broker.story.log)
    await broker.round()
    await broker.round()
    log = broker.story.log
    blocks = broker.server.primary.dataset.compacted
    blocks[TOPIC, 1] = list(blocks[TOPIC, 0])
    await log.save_state({COMPACTING: "1 somebody"})
    await broker.round()
    assert broker.slots_in_use() == 1


async def test_a_full_store_is_spared(broker: Broker) -> None:
    broker.topic.compaction_threshold = 1
    await broker.publish("a")
    broker.is_full = True
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN
    broker.compactions.request(broker.story.log)
    await broker.round()
    story = broker.compactions.story(broker.story.log)
    assert story.progress is Progress.ERROR
    assert "nearly full" in story.last_error
    broker.is_full = False
    await broker.round()
    assert broker.progress() is Progress.ERROR  # not at once
    broker.seconds += RETRY_SECONDS
    await broker.round()
    assert broker.progress() is Progress.SUCCESS


async def test_too_many_keys_are_an_error_that_says_so(broker: Broker) -> None:
    narrow = Broker(broker.server, broker.story, keys_max=2)
    await narrow.publish(*"abc")
    narrow.compactions.request(narrow.story.log)
    await narrow.round()
    story = narrow.compactions.story(narrow.story.log)
    assert story.progress is Progress.ERROR
    assert "more than 2 keys" in story.last_error
    assert narrow.compactions.totals.failed == 1


async def test_a_log_that_moves_away_is_forgotten(broker: Broker) -> None:
    await broker.publish("a")
    broker.compactions.request(broker.story.log)
    broker.story.log.close()
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN


async def test_it_runs_until_it_is_cancelled(broker: Broker) -> None:
    await broker.publish(*"aa")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(broker.compactions.run())
        await asyncio.sleep(0)
        broker.compactions.request(broker.story.log)
        for _ in range(1_000):
            await asyncio.sleep(0)
        running.cancel()
    assert broker.progress() is Progress.SUCCESS
