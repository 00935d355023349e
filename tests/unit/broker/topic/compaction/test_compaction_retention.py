"""Compaction and retention: which one waits for the other, and what neither holds back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contents import stored_in
from tests.unit.broker.topic.compaction.test_passes import compacting, kept, message
from tests.unit.broker.verify.histories import TOPIC, TopicHistory, no_subscription

from onewriter_broker.topic.retention import retention
from onewriter_broker.topic.retention.retention import Retention
from onewriter_core.api.topic import Retention as Policy
from onewriter_core.ids import Position
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer


async def test_nothing_that_was_not_compacted_is_trimmed(
    history: TopicHistory, server: FakeServer
) -> None:
    await history.publish(message("a", b"1"))
    history.log.keep_uncompacted(is_wanted=True)
    await history.fence(Purpose.ROLL)
    assert (
        await Retention().sweep(
            history.log, Policy(max_entries=1), no_subscription, history.clock_ms
        )
        == 0
    )
    assert not history.log.compacted.is_waited_for  # so far the current ledger has no entries
    await history.publish(message("a", b"2"), message("a", b"3"))
    await history.fence(Purpose.ROLL)
    assert (
        await Retention().sweep(
            history.log, Policy(max_entries=1), no_subscription, history.clock_ms
        )
        == 0
    )
    assert history.log.compacted.is_waited_for
    history.log.keep_uncompacted(is_wanted=False)
    assert history.log.compacted_limit(Position(7, 0)) == Position(7, 0)
    history.log.keep_uncompacted(is_wanted=True)
    await compacting(history)
    assert (
        await Retention().sweep(
            history.log, Policy(max_entries=1), no_subscription, history.clock_ms
        )
        > 0
    )
    assert await kept(history) == [("6-2", b"3")]


async def test_a_view_that_is_renewed_no_more_holds_nothing_back(
    history: TopicHistory, server: FakeServer
) -> None:
    await history.publish(message("a", b"1"))
    history.log.keep_uncompacted(is_wanted=True)
    await compacting(history)
    for _ in range(2):
        await history.publish(message("a", b"2"), message("a", b"3"))
        await history.fence(Purpose.ROLL)
    one = Policy(max_entries=1)
    await Retention().sweep(history.log, one, no_subscription, history.clock_ms)
    assert str(stored_in(server.primary).logs[TOPIC].blocks[0].position) == "5-2"
    history.log.keep_uncompacted(is_wanted=False)
    history.log.compacted.is_waited_for = False
    history.log.compacted.is_running = True  # requested over HTTP
    await Retention().sweep(history.log, one, no_subscription, history.clock_ms)
    assert str(stored_in(server.primary).logs[TOPIC].blocks[0].position) == "5-2"
    history.log.compacted.is_running = history.log.compacted.is_waited_for = False
    assert await Retention().sweep(history.log, one, no_subscription, history.clock_ms) > 0
    assert history.log.compacted_limit(Position(7, 0)) == Position(7, 0)
    assert not history.log.compacted.is_waited_for


async def test_a_trim_stops_for_a_compaction_that_begins(
    history: TopicHistory, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.publish(message("a", b"1"))
    await compacting(history)
    await history.publish(message("a", b"2"))
    await history.fence(Purpose.ROLL)
    await history.publish(message("a", b"3"), message("a", b"4"))
    await history.fence(Purpose.ROLL)
    find = retention.trim_before

    def begun(*given: Any) -> Position | None:
        history.log.compacted.is_running = True
        return find(*given)

    monkeypatch.setattr(retention, "trim_before", begun)
    before = list(stored_in(server.primary).logs[TOPIC].blocks)
    assert (
        await Retention().sweep(
            history.log, Policy(max_entries=1), no_subscription, history.clock_ms
        )
        == 0
    )
    assert stored_in(server.primary).logs[TOPIC].blocks == before
