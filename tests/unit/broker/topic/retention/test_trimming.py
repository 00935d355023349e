"""Trimming on request: never more than requested, and never entries that are still needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.contents import stored_in
from tests.unit.broker.verify.histories import BUCKETS, TOPIC, TopicHistory

from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.store.api import Binding, Outcome
from onewriter_broker.log.topic_log.log import last_position
from onewriter_broker.log.topic_log.ranges import Range, lacks, noted_ends
from onewriter_broker.topic.producers.deduplication import FIELD as DEDUPLICATION_FIELD
from onewriter_broker.topic.retention.retention import RetentionLimits
from onewriter_broker.topic.retention.trimming import Cut, Limit, cut_of, trim
from onewriter_broker.verify.reader import verify
from onewriter_core.errors import Unavailable
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_testing.fake_store.server import FakeServer

MARKER = Limit(Position(10, 0), "ledger")
SLOW = Limit(Position(6, 3), "subscription", "slow")


@dataclass
class Cursor:
    mark_delete: Position


@dataclass
class Subscription:
    cursor: Cursor
    is_durable: bool = True


@dataclass
class Readers:
    """The part of subscriptions that a trim uses."""

    standing: dict[str, Position] = field(default_factory=dict)
    passing: dict[str, Position] = field(default_factory=dict)

    def lowest_retained_position(self) -> Position | None:
        return min(self.standing.values(), default=None)

    def names(self) -> list[str]:
        return sorted(self.standing | self.passing)

    def get(self, name: str) -> Subscription | None:
        is_durable = name in self.standing
        return Subscription(Cursor((self.standing | self.passing)[name]), is_durable)


def readers(**standing: Position) -> Subscriptions:
    return cast("Subscriptions", Readers(standing, {"a-reader": Position(5, 1)}))


def stored(server: FakeServer) -> list[str]:
    return [str(block.position) for block in stored_in(server.primary).logs[TOPIC].blocks]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (Position(6, 1), Cut(Position(6, 1), None)),
        (Position(6, 3), Cut(Position(6, 3), None)),
        (Position(6, 4), Cut(Position(6, 3), SLOW)),
        (Position(99, 0), Cut(Position(6, 3), SLOW)),
    ],
)
def test_a_cut_is_the_requested_position_or_the_lowest_limit(
    requested: Position, expected: Cut
) -> None:
    assert cut_of(requested, [MARKER, SLOW]) == expected


async def test_a_requested_trim_is_performed_and_recorded(
    server: FakeServer, history: TopicHistory
) -> None:
    done = await trim(history.log, readers(), Position(6, 4))
    assert (done.cut, done.first) == (Cut(Position(6, 4), None), Position(6, 4))
    assert stored(server)[0] == "6-4"
    assert history.log.state[TRIMMED] == "6-4"
    (report,) = await verify(history.store, [TOPIC], BUCKETS, lambda _log, _entries: None)
    assert report.findings.holds


async def test_the_current_ledger_stays(server: FakeServer, history: TopicHistory) -> None:
    done = await trim(history.log, readers(), Position(99, 0))
    assert (done.cut.before, done.first) == (Position(10, 0), Position(10, 0))
    assert done.cut.limited_by == MARKER


async def test_entries_for_the_slowest_durable_subscription_stay_and_the_status_names_it(
    server: FakeServer, history: TopicHistory
) -> None:
    subscriptions = readers(slow=Position(5, 4), fast=Position(7, 1))
    done = await trim(history.log, subscriptions, Position(7, 0))
    assert done.cut.limited_by == Limit(Position(5, 5), "subscription", "slow")
    assert stored(server)[0] == "5-5"


async def test_entries_that_no_deduplication_snapshot_covers_stay(
    server: FakeServer, history: TopicHistory
) -> None:
    history.log._state[DEDUPLICATION_FIELD] = "6-3 {}"
    done = await trim(history.log, readers(), Position(9, 0))
    assert done.cut.limited_by == Limit(Position(6, 4), "deduplication")
    assert stored(server)[0] == "6-4"


async def test_uncompacted_entries_stay_and_a_compaction_is_requested(
    server: FakeServer, history: TopicHistory
) -> None:
    history.log.keep_uncompacted(is_wanted=True)
    before = stored(server)
    done = await trim(history.log, readers(), Position(9, 0))
    assert done.cut.limited_by is not None
    assert done.cut.limited_by.by == "compaction"
    assert history.log.compacted.is_waited_for
    assert stored(server) == before
    assert TRIMMED not in history.log.state


async def test_a_subscription_created_between_two_calls_keeps_its_backlog(
    server: FakeServer, history: TopicHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing: dict[str, Position] = {}
    trim_in_store, cuts = history.store.trim, list[Position]()

    async def a_block_at_a_time(
        binding: Binding, topic: TopicName, token: str, before: Position, fields: dict[str, str]
    ) -> Outcome:
        cuts.append(before)
        following = stored_in(server.primary).logs[TOPIC].blocks[1].position
        outcome = await trim_in_store(binding, topic, token, min(before, following), fields)
        standing["late"] = Position(5, 4)
        return outcome

    monkeypatch.setattr(history.store, "trim", a_block_at_a_time)
    subscriptions = cast("Subscriptions", Readers(standing))
    done = await trim(history.log, subscriptions, Position(7, 0))
    late = Position(5, 5)
    assert cuts[0] == Position(7, 0)
    assert set(cuts[1:]) == {late}
    assert (done.cut, done.first) == (Cut(late, Limit(late, "subscription", "late")), late)
    assert stored(server)[0] == "5-5"


async def test_a_trim_that_is_repeated_changes_nothing_more(
    server: FakeServer, history: TopicHistory
) -> None:
    first = await trim(history.log, readers(), Position(7, 2))
    before, changes = stored(server), len(server.primary.history)
    assert await trim(history.log, readers(), Position(7, 2)) == first
    assert await trim(history.log, readers(), Position(6, 1)) == type(first)(
        Cut(Position(6, 1), None), first.first
    )
    assert stored(server) == before
    assert len(server.primary.history) == changes


async def test_a_deposed_broker_trims_nothing_and_reports_that(
    server: FakeServer, history: TopicHistory
) -> None:
    before = stored(server)
    await TopicHistory.begin(history.store, owner="broker-b", version=2, ledger=64)
    with pytest.raises(Unavailable, match="no longer serves"):
        await trim(history.log, readers(), Position(7, 0))
    assert stored(server) == before
    history.log.close()
    with pytest.raises(Unavailable, match="not open"):
        await trim(history.log, readers(), Position(7, 0))


# ------------------------------------------------------------ readers that had read everything


def forgotten(history: TopicHistory) -> None:
    """Reduce the log's knowledge to what is stored, as on a broker that has just begun to serve it."""
    history.log._ends.clear()
    history.log.forget_tail()


def entry_ends(server: FakeServer, cut: Position) -> Position:
    """The last entry before a position."""
    blocks = stored_in(server.primary).logs[TOPIC].blocks
    return max(
        last_position(block) for block in blocks if block.position < cut and block.position.entry
    )


@pytest.mark.parametrize("cut", [Position(6, 0), Position(6, 1), Position(10, 0)])
async def test_a_reader_that_had_read_all_trimmed_entries_continues(
    server: FakeServer, history: TopicHistory, cut: Position
) -> None:
    end = entry_ends(server, cut)
    await trim(history.log, readers(), cut)
    assert noted_ends(history.log) == {cut.ledger: end}
    forgotten(history)
    request = Position(end.ledger, end.entry + 1)
    assert not lacks(history.log, request, cut)
    assert lacks(history.log, end, cut)
    found = await Range(history.log, request).read()
    assert found[0].position == cut


async def test_cuts_that_follow_each_other_over_a_marker_remember_the_last_entry(
    server: FakeServer, history: TopicHistory
) -> None:
    end = entry_ends(server, Position(6, 0))
    await trim(history.log, readers(), Position(6, 0))
    await trim(history.log, readers(), Position(6, 1))
    assert noted_ends(history.log) == {6: end}
    assert not lacks(history.log, Position(end.ledger, end.entry + 1), Position(6, 1))


async def test_an_unrecorded_trim_is_not_explained_by_an_older_record(
    history: TopicHistory,
) -> None:
    await trim(history.log, readers(), Position(6, 0))
    forgotten(history)
    history.log._state[TRIMMED] = "7-0"  # by a broker of an older version, or by a deletion
    (end,) = noted_ends(history.log).values()
    assert lacks(history.log, Position(end.ledger, end.entry + 1), Position(7, 0))


async def test_the_recorded_ledger_ends_are_limited(history: TopicHistory) -> None:
    limits = RetentionLimits(ledger_ends_max=2)
    for cut in (Position(6, 0), Position(7, 0), Position(10, 0)):
        await trim(history.log, readers(), cut, limits)
    assert list(noted_ends(history.log)) == [7, 10]


async def test_a_trim_without_an_answer_is_not_assumed(
    server: FakeServer, history: TopicHistory
) -> None:
    await trim(history.log, readers(), Position(5, 3))
    blocks = stored_in(server.primary).logs[TOPIC].blocks
    del blocks[: [block.position for block in blocks].index(Position(6, 0))]
    await trim(history.log, readers(), Position(6, 1))
    assert list(noted_ends(history.log)) == []
