"""Retention of topics that no client has looked up since this broker acquired their buckets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.contents import stored_in
from tests.unit.broker.topic.fence_path_world import ORDERS, serving
from tests.unit.broker.topic.test_fence_path_partitions import topics_of
from tests.unit.broker.verify.histories import BUCKETS, TOPIC, TopicHistory, entry, waiter

from onewriter_broker.dispatch.saved_cursors import STATE_PREFIX
from onewriter_broker.log.store.api import Block
from onewriter_broker.log.store.compacted import View
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.loaded_topic import Settling
from onewriter_broker.topic.registry.policies import NoPolicies
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.registry.unloaded_topics import UnloadedTopics
from onewriter_broker.topic.retention.idle_topics import IdleTopics, kept_at_rest
from onewriter_broker.topic.retention.retention import RetentionLimits
from onewriter_broker.verify.reader import verify
from onewriter_core.api.topic import Compaction
from onewriter_core.api.topic import Retention as Policy
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.field_names import COMPACTED, LEDGER_ENDS, TRIMMED
from onewriter_core.topic.model import WHOLE, Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Faults

LEDGERS = 3
BLOCKS = 4
"""Blocks of each ledger, with two entries each."""


class Registry:
    """The part of Topics that a round uses: one topic, declared with a bound."""

    def __init__(self, holding: Holding, policy: Policy) -> None:
        self.leaving: dict[str, Settling] = {}
        self.unloaded = UnloadedTopics()
        self.namespaces = NoPolicies()
        self.compaction = Compaction()
        self.is_loaded = False
        self.served: list[TopicName] = []
        self.declare(policy)
        self._holding = holding

    def declare(self, policy: Policy) -> None:
        declared = SimpleNamespace(
            topic_name=TOPIC, spec=SimpleNamespace(retention=policy, compaction=self.compaction)
        )
        self.desired = SimpleNamespace(topics=[declared], topic=lambda _base: declared)

    def resting(self, base: TopicName) -> Holding | None:
        return None if self.is_loaded or str(base) in self.leaving else self._holding

    async def serve(self, name: TopicName) -> None:
        self.served.append(name)

    async def entry_of(self, name: TopicName) -> CatalogEntry:
        assert name == TOPIC
        return CatalogEntry(log_numbers=(WHOLE,))


class World:
    """A log that another broker wrote, and the rounds of the broker that owns it now."""

    def __init__(
        self,
        server: FakeServer,
        former: TopicHistory,
        mine: TopicHistory,
        policy: Policy,
        limits: RetentionLimits,
    ) -> None:
        self.server = server
        self.former = former
        self.mine = mine
        self.clock_ms = former.clock_ms
        holding = Holding(mine.binding, grants_known=True, known_since=0)
        self.topics = Registry(holding, policy)
        self.resting = IdleTopics(
            cast("Topics", self.topics),
            mine.store,
            wall_ms=lambda: self.clock_ms,
            limits=limits,
        )

    @property
    def stored(self) -> list[str]:
        blocks = stored_in(self.server.primary).logs[TOPIC].blocks
        return [str(block.position) for block in blocks]

    async def state(self) -> dict[str, str]:
        return await self.mine.store.read_state(TOPIC)

    def count_reads(self) -> list[str]:
        """The calls to the store from now on."""
        calls: list[str] = []

        async def hook(call: str, when: str) -> None:
            if when == "before":
                calls.append(call)

        faults = cast("FakeLogStore", self.mine.store).faults
        faults.hook = hook
        return calls


async def world(policy: Policy, limits: RetentionLimits = RetentionLimits()) -> World:
    server = FakeServer()
    former = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await former.fence(Purpose.GRANT, waiter("alice"))
    number = 0
    for ledger in range(LEDGERS):
        if ledger:
            await former.fence(Purpose.ROLL)
        for _ in range(BLOCKS):
            await former.publish(entry("alice", number), entry("alice", number + 1))
            number += 2
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    own = await TopicHistory.begin(store, owner="broker-b", version=2, ledger=64)
    return World(server, former, own, policy, limits)


async def test_a_resting_log_is_cut_and_neither_fenced_nor_loaded() -> None:
    w = await world(Policy(max_entries=4))
    before = await w.state()
    await w.resting.go_round()
    # Entries after the marker are not counted, so four entries before it stay, too.
    assert w.stored == ["6-5", "6-7", "7-0", "7-1", "7-3", "7-5", "7-7"]
    assert await w.state() == before | {TRIMMED: "6-5", LEDGER_ENDS: "6 5-8"}
    (report,) = await verify(w.mine.store, [TOPIC], BUCKETS, lambda _log, _entries: None)
    assert report.findings.holds


async def test_a_long_log_is_measured_whole_a_part_at_a_time() -> None:
    limits = RetentionLimits(sweep_bytes_max=1, read_blocks_max=2)
    w = await world(Policy(max_entries=4), limits)
    await w.resting.go_round()
    assert w.stored[0] == "6-5"


async def test_entries_that_a_subscription_needs_stay() -> None:
    w = await world(Policy(max_entries=1))
    saved = {f"{STATE_PREFIX}audit": '{"v":1,"m":"5-4"}'}
    await w.former.store.set_state(w.mine.binding, TOPIC, (await w.state())["tok"], saved, ())
    await w.resting.go_round()
    assert w.stored[0] == "5-5"


async def test_of_a_compacted_topic_nothing_goes_that_no_view_has() -> None:
    """The topic is loaded instead, so that it is compacted and then trimmed as a topic in use."""
    w = await world(Policy(max_entries=1))
    w.topics.compaction = Compaction(enabled=True)
    w.topics.declare(Policy(max_entries=1))
    before = w.stored
    await w.resting.go_round()
    assert w.stored == before
    assert w.topics.served == [TOPIC]
    view = View(0, Position(5, 6), 0, 0, 0, EARLIEST, b"", 0)
    token = (await w.state())["tok"]
    fields = {COMPACTED: view.encode()}
    await w.former.store.set_state(w.mine.binding, TOPIC, token, fields, ())
    w.topics.declare(Policy(max_entries=2))
    await w.resting.go_round()
    assert w.stored[0] == "5-7"
    assert w.topics.served == [TOPIC, TOPIC]
    w.topics.compaction = Compaction()  # it gets no further view
    w.topics.declare(Policy(max_entries=3))
    await w.resting.go_round()
    assert w.stored[0] > "5-7"
    assert w.topics.served == [TOPIC, TOPIC]


async def test_a_cursor_that_cannot_be_read_needs_everything() -> None:
    w = await world(Policy(max_entries=1))
    before = w.stored
    saved = {f"{STATE_PREFIX}audit": "?"}
    await w.former.store.set_state(w.mine.binding, TOPIC, (await w.state())["tok"], saved, ())
    await w.resting.go_round()
    assert w.stored == before


async def test_a_measured_log_is_checked_again_when_its_entries_are_too_old() -> None:
    w = await world(Policy(max_age_seconds=60, max_entries=10_000))
    before = w.stored
    await w.resting.go_round()
    calls = w.count_reads()
    await w.resting.go_round()
    assert calls == ["read_state"]
    assert w.stored == before
    last_of_first_ledger = stored_in(w.server.primary).logs[TOPIC].blocks[BLOCKS]
    assert isinstance(last_of_first_ledger, Block)
    w.clock_ms = last_of_first_ledger.time_ms + 60_001
    await w.resting.go_round()
    assert w.stored[0] == "6-0"
    w.topics.declare(Policy(max_entries=2))
    await w.resting.go_round()
    assert w.stored[0] == "6-7", "another bound is a reason to look"


async def test_a_topic_that_is_in_use_is_left_to_the_other_sweep() -> None:
    w = await world(Policy(max_entries=1))
    w.topics.is_loaded = True
    calls = w.count_reads()
    await w.resting.go_round()
    assert calls == []


async def test_loading_a_topic_waits_for_the_trim_under_way() -> None:
    w = await world(Policy(max_entries=1))
    trimming, may_go_on = asyncio.Event(), asyncio.Event()

    async def hook(call: str, when: str) -> None:
        if (call, when) == ("trim", "before"):
            trimming.set()
            await may_go_on.wait()

    cast("FakeLogStore", w.mine.store).faults.hook = hook
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(w.resting.go_round())
        await trimming.wait()
        settled = tasks.create_task(cast("Any", w.topics.leaving[str(TOPIC)]).settled())
        await asyncio.sleep(0)
        assert not settled.done()
        may_go_on.set()
    assert w.topics.leaving == {}
    assert w.stored[0] == "6-7"


async def test_topics_count_as_in_use_until_they_are_left_and_wait_for_who_keeps_them() -> None:
    async with serving() as w:
        topics = topics_of(w)
        assert topics.resting(ORDERS) == w.owner.held
        await topics.serve(ORDERS)
        assert topics.resting(ORDERS) is None
        await topics.unload(ORDERS)
        assert topics.resting(ORDERS) is None
        await topics.leaving[str(ORDERS)].settled()
        for _ in range(10):
            await asyncio.sleep(0)
        with kept_at_rest(topics, ORDERS):
            assert topics.resting(ORDERS) is None
            served = asyncio.gather(topics.serve(ORDERS))
            for _ in range(100):
                await asyncio.sleep(0)
            assert str(ORDERS) not in topics.loaded
        (topic,) = await served
        assert topics.loaded[str(ORDERS)] is topic


async def test_a_log_fenced_during_the_preparation_is_not_trimmed() -> None:
    w = await world(Policy(max_entries=1))
    before = w.stored

    async def hook(call: str, when: str) -> None:
        if (call, when) == ("read_blocks", "before"):
            cast("FakeLogStore", w.mine.store).faults.hook = Faults().hook
            state = stored_in(w.server.primary).states[TOPIC]
            state["tok"] = "65:broker-b"

    cast("FakeLogStore", w.mine.store).faults.hook = hook
    await w.resting.go_round()
    assert w.stored == before
