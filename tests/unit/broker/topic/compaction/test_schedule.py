"""When logs are compacted: requested, due, waited for, full store, too many keys, moved topic."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.contents import stored_in
from tests.unit.broker.verify.histories import BUCKETS, TOPIC, TopicHistory, waiter

from onewriter_broker.log.store.api import Observation, ShardState
from onewriter_broker.settings import Settings
from onewriter_broker.store_watch import COMPACT_BELOW, StoreWatch
from onewriter_broker.topic.compaction.newest_messages import footprint
from onewriter_broker.topic.compaction.schedule import (
    LINGER_SECONDS,
    NO_SPACE_RETRY_SECONDS,
    RETRY_SECONDS,
    Compactions,
    Progress,
)
from onewriter_core.api.topic import Durability
from onewriter_core.ids import EARLIEST
from onewriter_core.log_format.field_names import COMPACTING
from onewriter_core.topic.model import Purpose
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore


class Broker:
    """A broker with one topic, and its clock."""

    def __init__(self, server: FakeServer, history: TopicHistory, keys_max: int = 1_000) -> None:
        self.server = server
        self.history = history
        self.seconds = 100.0
        self.free: dict[bool, float] = {False: math.inf, True: math.inf}
        """In bytes; the key is whether retention waits for the compaction."""
        self.topic = SimpleNamespace(
            compaction_threshold=0, runner=SimpleNamespace(logs={-1: history.log})
        )
        self.compactions = Compactions(
            cast("Any", SimpleNamespace(loaded={str(TOPIC): self.topic})),
            Settings(compaction_keys_max=keys_max),
            now=lambda: self.seconds,
            wall_ms=lambda: int(self.seconds * 1000),
            store=self,
        )

    def free_bytes(self, *, is_needed: bool) -> float:
        return self.free[is_needed]

    async def observed_free_bytes(self, *, is_needed: bool) -> float:
        return self.free[is_needed]

    def progress(self) -> Progress:
        return self.compactions.status(self.history.log).progress

    async def publish(self, *keys: str, size: int = 10) -> None:
        await self.history.publish(
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
        """Perform the due work."""
        await self.compactions.check()
        await self.compactions.compact_requested()

    def slots_in_use(self) -> int:
        return sum(bool(blocks) for blocks in stored_in(self.server.primary).compacted.values())


@pytest.fixture
async def broker() -> Broker:
    server = FakeServer()
    history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await history.fence(Purpose.GRANT, waiter("alice"))
    return Broker(server, history)


async def test_nothing_happens_unasked(broker: Broker) -> None:
    await broker.publish(*"abab", size=100_000)
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN
    assert broker.history.log.compacted.horizon == EARLIEST


async def test_a_request_is_done_once(broker: Broker) -> None:
    await broker.publish(*"abab")
    assert broker.compactions.request(broker.history.log)
    assert not broker.compactions.request(broker.history.log)
    assert broker.progress() is Progress.RUNNING
    await broker.round()
    history = broker.compactions.status(broker.history.log)
    assert (history.progress, history.removed) == (Progress.SUCCESS, 2)
    assert broker.compactions.totals.messages_removed == 2
    assert broker.compactions.request(broker.history.log)


async def test_a_compaction_is_due_when_enough_was_added_after_the_horizon(broker: Broker) -> None:
    broker.topic.compaction_threshold = 5_000
    await broker.publish("a", size=4_000)
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN
    await broker.publish("a", size=4_000)
    await broker.round()
    assert broker.progress() is Progress.SUCCESS
    first = broker.history.log.compacted.horizon
    await broker.round()
    assert broker.history.log.compacted.horizon == first
    await broker.publish("b", size=6_000)
    await broker.round()
    assert broker.history.log.compacted.horizon > first


async def test_a_large_view_waits_until_half_as_much_is_new(broker: Broker) -> None:
    broker.topic.compaction_threshold = 1_000
    await broker.publish(*"abcd", size=10_000)
    await broker.round()
    first = broker.history.log.compacted.horizon
    await broker.publish("a", size=15_000)
    await broker.round()
    assert broker.history.log.compacted.horizon == first
    await broker.publish("a", size=10_000)
    await broker.round()
    assert broker.history.log.compacted.horizon > first


async def test_retention_that_waits_has_it_done(broker: Broker) -> None:
    broker.topic.compaction_threshold = 10**9
    await broker.publish("a")
    broker.history.log.compacted.is_waited_for = True
    await broker.round()
    assert broker.progress() is Progress.SUCCESS
    assert not broker.history.log.compacted.is_waited_for


async def test_an_outdated_view_is_deleted_when_it_has_no_readers(broker: Broker) -> None:
    await broker.publish("a")
    broker.compactions.request(broker.history.log)
    await broker.round()
    reading = await broker.history.log.compacted.begin(EARLIEST)
    assert reading is not None
    await broker.publish("b")
    broker.compactions.request(broker.history.log)
    await broker.round()
    await broker.round()
    assert broker.slots_in_use() == 2
    assert not reading.is_retired
    broker.seconds += LINGER_SECONDS
    await broker.round()
    assert broker.slots_in_use() == 1
    assert reading.is_retired
    assert COMPACTING not in stored_in(broker.server.primary).states[TOPIC]


async def test_parts_left_by_a_dead_broker_are_dropped(broker: Broker) -> None:
    await broker.publish("a")
    broker.compactions.request(broker.history.log)
    await broker.round()
    await broker.round()
    log = broker.history.log
    blocks = stored_in(broker.server.primary).compacted
    blocks[TOPIC, 1] = list(blocks[TOPIC, 0])
    await log.save_state({COMPACTING: "1 somebody"})
    await broker.round()
    assert broker.slots_in_use() == 1


async def test_a_full_store_is_spared(broker: Broker) -> None:
    broker.topic.compaction_threshold = 1
    await broker.publish("a")
    broker.free[False] = 0
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN
    broker.compactions.request(broker.history.log)
    await broker.round()
    history = broker.compactions.status(broker.history.log)
    assert history.progress is Progress.ERROR
    assert "almost full" in history.last_error
    broker.free[False] = math.inf
    await broker.round()
    assert broker.progress() is Progress.ERROR  # the retry is not immediate
    broker.seconds += RETRY_SECONDS
    await broker.round()
    assert broker.progress() is Progress.SUCCESS


async def test_a_compaction_that_retention_waits_for_may_use_the_reserve(broker: Broker) -> None:
    broker.topic.compaction_threshold = 10**9
    await broker.publish(*"abab", size=1_000)
    broker.free = {False: 0, True: 4_000}
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN
    broker.history.log.compacted.is_waited_for = True
    await broker.round()
    assert broker.progress() is Progress.SUCCESS
    assert broker.compactions.held_back == 0


async def test_a_view_without_space_is_reported_and_written_when_there_is_space(
    broker: Broker,
) -> None:
    broker.topic.compaction_threshold = 10**9
    await broker.publish(*"abcd", size=1_000)
    broker.free = {False: 0, True: 4_000}
    broker.history.log.compacted.is_waited_for = True
    before = list(broker.history.log.compacted.log.state)
    await broker.round()
    history = broker.compactions.status(broker.history.log)
    assert history.progress is Progress.ERROR
    assert "give it more memory" in history.last_error
    assert "Retention waits for it" in history.last_error
    assert broker.compactions.held_back == 1
    assert broker.history.log.compacted.horizon == EARLIEST  # so retention must not cut anything
    assert broker.slots_in_use() == 0
    assert set(broker.history.log.state) - set(before) <= {COMPACTING}
    broker.seconds += NO_SPACE_RETRY_SECONDS / 2
    failed = broker.compactions.totals.failed
    await broker.round()
    assert broker.compactions.totals.failed == failed  # the log is not read again in vain
    broker.free[True] = 10_000
    await broker.round()
    assert broker.progress() is Progress.SUCCESS
    assert broker.compactions.held_back == 0


class FilledStore:
    """The memory of one store as several brokers observe it: their views, and everything else."""

    def __init__(self, brokers: list[Broker], used: int, limit: int) -> None:
        self.brokers = brokers
        self.used_otherwise = used
        self.limit = limit
        self.grows = 0
        """Growth with each check."""
        for broker in brokers:
            watch = StoreWatch(
                cast("Any", self),
                frozenset({Durability.LOCAL}),
                replicas=0,
                filled=lambda _: None,
                promised=lambda _: None,
                dataset=lambda _replid, _buckets: None,
                returned=lambda _: None,
                now=lambda: 0.0,
                brokers=lambda: len(brokers),
            )
            broker.compactions._store = watch
        self.check()

    def check(self) -> None:
        """Let all brokers check, as they do regularly."""
        for broker in self.brokers:
            watch = cast("StoreWatch", broker.compactions._store)
            watch.observe_shards([ShardState("", None, self.observation())])

    @property
    def views(self) -> int:
        datasets = [stored_in(broker.server.primary).compacted for broker in self.brokers]
        blocks = [block for each in datasets for found in each.values() for block in found]
        return footprint(
            sum(len(block.payload) for block in blocks), sum(len(block.lengths) for block in blocks)
        )

    def observation(self) -> Observation:
        used = self.used_otherwise + self.views
        return Observation(
            "r", "", True, 0, {}, memory_bytes_used=used, memory_bytes_max=self.limit
        )

    async def observe_shards(self) -> list[ShardState]:
        self.used_otherwise += self.grows
        return [ShardState("", None, self.observation())]


async def filled(count: int, used: float, *, keys: int = 10) -> FilledStore:
    """Brokers whose retention waits for views of about 200,000 bytes for each key."""
    brokers: list[Broker] = []
    for _ in range(count):
        server = FakeServer()
        history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
        await history.fence(Purpose.GRANT, waiter("alice"))
        broker = Broker(server, history)
        broker.topic.compaction_threshold = 10**9
        for key in range(keys):
            await broker.publish(f"key-{key}", size=200_000)
        history.log.compacted.is_waited_for = True
        brokers.append(broker)
    return FilledStore(brokers, int(64_000_000 * used), 64_000_000)


@pytest.mark.parametrize("at_once", [False, True])
async def test_several_brokers_do_not_fill_the_store_together(*, at_once: bool) -> None:
    store = await filled(3, 0.92)  # a view takes 2.5 MB; 3.2 MB are free
    if at_once:
        await asyncio.gather(*(broker.round() for broker in store.brokers))
    else:
        for broker in store.brokers:
            await broker.round()
    assert store.used_otherwise + store.views <= COMPACT_BELOW * store.limit
    assert {broker.progress() for broker in store.brokers} == {Progress.ERROR}
    store.used_otherwise = int(store.limit * 0.8)
    store.check()
    await asyncio.gather(*(broker.round() for broker in store.brokers))
    assert {broker.progress() for broker in store.brokers} == {Progress.SUCCESS}
    assert store.used_otherwise + store.views <= COMPACT_BELOW * store.limit


async def test_a_store_that_fills_up_ends_the_copy_with_the_needed_size() -> None:
    store = await filled(1, 0.90)
    (broker,) = store.brokers
    store.grows = 500_000
    await broker.round()
    history = broker.compactions.status(broker.history.log)
    assert history.progress is Progress.ERROR
    assert store.views == 0, "others have the room at once"
    needed = broker.compactions._of(broker.history.log).needed_bytes
    store.grows, store.used_otherwise = 0, int(COMPACT_BELOW * store.limit) - needed + 100_000
    store.check()
    await broker.round()
    assert broker.progress() is Progress.ERROR, "not tried again for nothing"
    store.used_otherwise -= 100_000
    store.check()
    await broker.round()
    assert broker.progress() is Progress.SUCCESS
    assert store.views <= needed


async def test_a_full_store_is_reported(broker: Broker) -> None:
    broker.topic.compaction_threshold = 10**9
    await broker.publish("a")
    broker.free = {False: 0, True: 0}
    broker.history.log.compacted.is_waited_for = True
    await broker.round()
    assert "almost full" in broker.compactions.status(broker.history.log).last_error
    assert broker.compactions.held_back == 1


async def test_too_many_keys_raise_an_error_that_names_the_limit(broker: Broker) -> None:
    narrow = Broker(broker.server, broker.history, keys_max=2)
    await narrow.publish(*"abc")
    narrow.compactions.request(narrow.history.log)
    await narrow.round()
    history = narrow.compactions.status(narrow.history.log)
    assert history.progress is Progress.ERROR
    assert "more than 2 keys" in history.last_error
    assert narrow.compactions.totals.failed == 1


async def test_a_log_that_moves_away_is_forgotten(broker: Broker) -> None:
    await broker.publish("a")
    broker.compactions.request(broker.history.log)
    broker.history.log.close()
    await broker.round()
    assert broker.progress() is Progress.NOT_RUN


async def test_the_task_runs_until_it_is_cancelled(broker: Broker) -> None:
    await broker.publish(*"aa")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(broker.compactions.run())
        await asyncio.sleep(0)
        broker.compactions.request(broker.history.log)
        for _ in range(1_000):
            await asyncio.sleep(0)
        running.cancel()
    assert broker.progress() is Progress.SUCCESS
