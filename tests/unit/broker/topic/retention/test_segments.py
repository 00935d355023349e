"""The index of a log's ledgers matches what is stored, also after trims and losses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import MutableSequence, Sequence
from typing import Any

import pytest
from tests.contents import stored_in
from tests.stamps import stamp_anew
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    TopicHistory,
    a_long_history,
    entry,
    waiter,
)

from onewriter_broker.log.store.api import Block, StoredBlock
from onewriter_broker.topic.retention.retention import Measured, trim_to
from onewriter_broker.topic.retention.segments import (
    Segment,
    SegmentIndexes,
    SegmentLimits,
    SegmentPage,
)
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore


class BusyStore(FakeLogStore):
    """A store to which another producer publishes during reads."""

    history: TopicHistory | None = None

    async def read_blocks(self, *arguments: Any, **options: Any) -> list[StoredBlock]:
        found = await super().read_blocks(*arguments, **options)
        history, self.history = self.history, None
        if history is not None:
            await history.publish(entry("carol", 100))
            await history.fence(Purpose.ROLL)
        self.history = history
        return found


def stored(server: FakeServer) -> MutableSequence[StoredBlock]:
    return stored_in(server.primary).logs[TOPIC].blocks


def counted(blocks: Sequence[StoredBlock]) -> dict[int, tuple[int, int, int, int]]:
    """By ledger: entries, bytes, blocks and messages, counted one by one."""
    found = {block.position.ledger: (0, 0, 0, 0) for block in blocks}
    for block in blocks:
        if isinstance(block, Block):
            entries, size, number, messages = found[block.position.ledger]
            found[block.position.ledger] = (
                entries + len(block.lengths),
                size + len(block.payload),
                number + 1,
                messages + sum(block.counts or [1] * len(block.lengths)),
            )
    return found


def segments_by_ledger(segments: list[Segment]) -> dict[int, tuple[int, int, int, int]]:
    return {
        each.ledger: (each.entries, each.bytes, each.blocks, each.messages) for each in segments
    }


async def everything(indexes: SegmentIndexes, history: TopicHistory) -> list[Segment]:
    """All pages, each requested once."""
    found: dict[int, Segment] = {}
    after = EARLIEST
    for _ in range(1_000):
        page = await indexes.page(history.log, history.binding.bucket, after)
        found |= {each.ledger: each for each in page.segments}
        if page.is_complete:
            return list(found.values())
        after = page.next
    raise AssertionError("there is no end to it")


async def trimmed(history: TopicHistory, before: Position) -> None:
    measured = Measured(history.log, history.binding.generation)
    measured.add((await history.log.read_blocks(EARLIEST, count=1))[0])
    await trim_to(measured, lambda: before)


async def test_each_ledger_is_listed_with_its_holder_and_its_contents(
    server: FakeServer, history: TopicHistory
) -> None:
    page = await SegmentIndexes().page(history.log, history.binding.bucket, EARLIEST)
    assert page.is_complete
    assert segments_by_ledger(page.segments) == counted(stored(server))
    marked = [each.marker or {} for each in page.segments]
    assert [each.get("producer") for each in marked] == [
        "alice",
        "alice",
        "bob",
        None,
        None,
        "carol",
    ]
    assert [each.get("epoch") for each in marked] == ["5", "5", "7", None, None, "10"]
    assert [each["cause"] for each in marked] == [
        "grant",
        "roll",
        "grant",
        "fence",
        "share",
        "grant",
    ]
    alice = page.segments[0]
    assert (alice.first, alice.last) == (Position(5, 1), Position(5, 5))
    last_block = stored(server)[3]
    assert isinstance(last_block, Block)
    assert (alice.chain, alice.newest_ms) == (last_block.chain, last_block.time_ms)
    assert alice.oldest_ms < alice.newest_ms
    fenced = page.segments[3]
    assert (fenced.first, fenced.last, fenced.entries) == (None, None, 0)
    assert (page.first, page.last) == (Position(5, 0), history.log.committed)


@pytest.mark.parametrize("is_remembered", [True, False])
async def test_added_values_are_sent_with_the_next_request(
    server: FakeServer, history: TopicHistory, is_remembered: bool
) -> None:
    indexes = SegmentIndexes()
    first = await indexes.page(history.log, history.binding.bucket, EARLIEST)
    await history.publish(entry("carol", 3))
    await history.fence(Purpose.ROLL)
    await history.publish(entry("carol", 4), entry("carol", 5, batch=9))
    if not is_remembered:
        history.log.forget_tail()
    page = await indexes.page(history.log, history.binding.bucket, first.next)
    assert [each.ledger for each in page.segments] == [10, 11]
    assert segments_by_ledger(await everything(indexes, history)) == counted(stored(server))


@pytest.mark.parametrize("before", [(5, 3), (5, 5), (6, 0), (6, 4), (7, 2), (9, 0), (10, 0)])
@pytest.mark.parametrize("was_known", [True, False])
async def test_of_a_trimmed_log_the_numbers_are_those_of_what_is_kept(
    server: FakeServer, history: TopicHistory, before: tuple[int, int], was_known: bool
) -> None:
    indexes = SegmentIndexes()
    if was_known:
        await everything(indexes, history)
    await trimmed(history, Position(*before))
    found = await everything(indexes, history)
    assert segments_by_ledger(found) == counted(stored(server))
    first = stored(server)[0].position
    assert found[0].is_whole == (first.entry == 0)
    assert (found[0].marker or {}).get("producer") == {5: "alice", 6: "alice", 7: "bob"}.get(
        found[0].ledger, (found[0].marker or {}).get("producer")
    )
    assert (await indexes.page(history.log, history.binding.bucket, EARLIEST)).first == first


async def test_a_log_trimmed_during_its_second_reading_is_reported_correctly(
    server: FakeServer, history: TopicHistory
) -> None:
    indexes = SegmentIndexes(SegmentLimits(request_bytes_max=1, read_bytes_max=1))
    await everything(indexes, history)
    await trimmed(history, Position(5, 3))
    page = await indexes.page(history.log, history.binding.bucket, EARLIEST)
    assert (page.segments, page.is_complete, page.next) == ([], False, EARLIEST)
    await trimmed(history, Position(6, 4))
    assert segments_by_ledger(await everything(indexes, history)) == counted(stored(server))


async def test_one_request_reads_a_limited_part_and_only_whole_ledgers(
    server: FakeServer, history: TopicHistory
) -> None:
    indexes = SegmentIndexes(SegmentLimits(request_bytes_max=1, read_bytes_max=1))
    pages = list[SegmentPage]()
    history.log.forget_tail()
    after = EARLIEST
    while not pages or not pages[-1].is_complete:
        pages.append(await indexes.page(history.log, history.binding.bucket, after))
        after = pages[-1].next
    assert len(pages) > len(counted(stored(server)))
    told_once = [each for page in pages for each in page.segments]
    assert segments_by_ledger(told_once) == counted(stored(server))
    assert len(told_once) == 6


async def test_a_log_of_many_ledgers_is_listed_in_pages_of_bounded_size(
    server: FakeServer,
) -> None:
    limits = SegmentLimits(segments_per_page=3, segments_per_log_max=6, read_blocks_max=2)
    history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    for number in range(20):
        await history.fence(Purpose.GRANT, waiter(f"p{number}"))
        await history.publish(entry(f"p{number}", 0))
    history.log.forget_tail()
    indexes = SegmentIndexes(limits)
    for _ in range(2):  # the second time, the first ones are read again
        assert segments_by_ledger(await everything(indexes, history)) == counted(stored(server))
    kept = sum(len(index.segments) for index in indexes._indexes.values())
    assert kept <= 6 + 3 + 2
    late = await indexes.page(history.log, history.binding.bucket, Position(22, 1))
    assert [each.ledger for each in late.segments] == [23, 24]


async def test_a_log_is_indexed_from_the_requested_position(
    server: FakeServer, history: TopicHistory
) -> None:
    history.log.forget_tail()
    page = await SegmentIndexes().page(history.log, history.binding.bucket, Position(7, 1))
    assert segments_by_ledger(page.segments) == {
        ledger: numbers for ledger, numbers in counted(stored(server)).items() if ledger >= 7
    }


async def test_a_dataset_that_lost_its_tail_is_indexed_again(
    server: FakeServer, history: TopicHistory
) -> None:
    indexes = SegmentIndexes()
    await everything(indexes, history)
    server.restart(server.primary, keep=len(server.primary.history) - 2)
    replid = server.primary.replid
    history.binding = type(history.binding)(
        history.binding.bucket, replid, 2, history.binding.owner, history.binding.version + 1
    )
    await stamp_anew(history.store, history.binding)
    history.log.forget_tail()
    await history.fence(Purpose.REFENCE)
    await history.publish(entry("carol", 8))
    assert segments_by_ledger(await everything(indexes, history)) == counted(stored(server))


async def test_indexes_of_unused_logs_are_dropped(
    server: FakeServer, history: TopicHistory
) -> None:
    indexes = SegmentIndexes(SegmentLimits(logs_max=1))
    await everything(indexes, history)
    other = await TopicHistory.begin(
        history.store, topic=type(TOPIC).parse("payments"), version=2, ledger=64
    )
    await other.fence(Purpose.GRANT, waiter("alice"))
    await everything(indexes, other)
    assert list(indexes._indexes) == [str(other.log.name)]


async def test_entries_published_during_a_read_are_not_promised(
    server: FakeServer,
) -> None:
    """A reader of all segments that continues after ``last`` misses nothing."""
    store = BusyStore(server.resolve, buckets=BUCKETS)
    history = await a_long_history(store)
    history.log.forget_tail()
    store.history, before = history, history.log.committed
    indexes = SegmentIndexes(SegmentLimits(read_bytes_max=1))
    page = await indexes.page(history.log, history.binding.bucket, EARLIEST)
    assert page.is_complete
    assert page.last == max(each.ends for each in page.segments) == before
    assert history.log.committed > before


async def test_requests_that_are_given_up_in_the_middle_leave_a_true_index(
    server: FakeServer,
) -> None:
    for turns in range(40):
        server = FakeServer()
        history = await a_long_history(FakeLogStore(server.resolve, buckets=BUCKETS))
        indexes = SegmentIndexes(SegmentLimits(read_bytes_max=1))
        if turns % 2:
            await everything(indexes, history)
            await trimmed(history, Position(5, 3))
        request = asyncio.ensure_future(  # noqa: TID251 - it is cancelled below
            indexes.page(history.log, history.binding.bucket, EARLIEST)
        )
        for _ in range(turns // 2):
            await asyncio.sleep(0)
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
        assert segments_by_ledger(await everything(indexes, history)) == counted(stored(server))


async def test_a_log_that_is_not_open_here_has_no_index(history: TopicHistory) -> None:
    history.log.close()
    with pytest.raises(Unavailable):
        await SegmentIndexes().page(history.log, history.binding.bucket, EARLIEST)
