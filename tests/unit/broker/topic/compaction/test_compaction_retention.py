"""Compaction and retention: which one waits for the other, and what neither holds back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contents import stored_in
from tests.unit.broker.topic.compaction.test_passes import compacting, kept, message
from tests.unit.broker.verify.histories import BUCKETS, TOPIC, Story, nobody, waiter

from onewriter_broker.log.store.fake.server import FakeServer
from onewriter_broker.log.store.fake.store import FakeLogStore
from onewriter_broker.topic.retention import retention
from onewriter_broker.topic.retention.retention import Retention
from onewriter_core.api.topic import Retention as Policy
from onewriter_core.ids import Position
from onewriter_core.topic.model import Purpose


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
async def story(server: FakeServer) -> Story:
    begun = await Story.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await begun.fence(Purpose.GRANT, waiter("alice"))
    return begun


async def test_nothing_that_was_not_compacted_is_trimmed(story: Story, server: FakeServer) -> None:
    await story.publish(message("a", b"1"))
    story.log.keep_uncompacted(is_wanted=True)
    await story.fence(Purpose.ROLL)
    assert await Retention().sweep(story.log, Policy(max_entries=1), nobody, story.clock_ms) == 0
    assert not story.log.compacted.is_waited_for  # so far the current ledger has no entries
    await story.publish(message("a", b"2"), message("a", b"3"))
    await story.fence(Purpose.ROLL)
    assert await Retention().sweep(story.log, Policy(max_entries=1), nobody, story.clock_ms) == 0
    assert story.log.compacted.is_waited_for
    story.log.keep_uncompacted(is_wanted=False)
    assert story.log.compacted_limit(Position(7, 0)) == Position(7, 0)
    story.log.keep_uncompacted(is_wanted=True)
    await compacting(story)
    assert await Retention().sweep(story.log, Policy(max_entries=1), nobody, story.clock_ms) > 0
    assert await kept(story) == [("6-2", b"3")]


async def test_a_view_that_is_renewed_no_more_holds_nothing_back(
    story: Story, server: FakeServer
) -> None:
    await story.publish(message("a", b"1"))
    story.log.keep_uncompacted(is_wanted=True)
    await compacting(story)
    for _ in range(2):
        await story.publish(message("a", b"2"), message("a", b"3"))
        await story.fence(Purpose.ROLL)
    one = Policy(max_entries=1)
    await Retention().sweep(story.log, one, nobody, story.clock_ms)
    assert str(stored_in(server.primary).logs[TOPIC].blocks[0].position) == "5-2"
    story.log.keep_uncompacted(is_wanted=False)
    story.log.compacted.is_waited_for = False
    story.log.compacted.is_running = True  # requested over HTTP
    await Retention().sweep(story.log, one, nobody, story.clock_ms)
    assert str(stored_in(server.primary).logs[TOPIC].blocks[0].position) == "5-2"
    story.log.compacted.is_running = story.log.compacted.is_waited_for = False
    assert await Retention().sweep(story.log, one, nobody, story.clock_ms) > 0
    assert story.log.compacted_limit(Position(7, 0)) == Position(7, 0)
    assert not story.log.compacted.is_waited_for


async def test_a_trim_stops_for_a_compaction_that_begins(
    story: Story, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await story.publish(message("a", b"1"))
    await compacting(story)
    await story.publish(message("a", b"2"))
    await story.fence(Purpose.ROLL)
    await story.publish(message("a", b"3"), message("a", b"4"))
    await story.fence(Purpose.ROLL)
    find = retention.trim_before

    def begun(*given: Any) -> Position | None:
        story.log.compacted.is_running = True
        return find(*given)

    monkeypatch.setattr(retention, "trim_before", begun)
    before = list(stored_in(server.primary).logs[TOPIC].blocks)
    assert await Retention().sweep(story.log, Policy(max_entries=1), nobody, story.clock_ms) == 0
    assert stored_in(server.primary).logs[TOPIC].blocks == before
