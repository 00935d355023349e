"""Reads of a log that was trimmed: none returns an entry before the trim, wherever such entries are still stored.

A trim leaves the block that contains its position. In a large trim, the store drops a part in each call.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.contents import stored_in
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    TopicHistory,
    entry,
    waiter,
)

from onewriter_broker.log.store.api import Outcome
from onewriter_broker.log.topic_log.entries import entries_of
from onewriter_broker.log.topic_log.log import TopicLog, stored_bytes
from onewriter_broker.topic.retention.retention import Measured, noted, trim_once
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

FIRST, LAST = 5, 6
"""The ledgers of ``history``; the last one is current."""

BLOCK_ENTRIES = 3

CUT = Position(FIRST, 5)
"""In the middle of the second block: entries 4 to 6."""


@pytest.fixture
async def history(server: FakeServer) -> TopicHistory:
    """Three blocks of three entries in the first ledger, and one in the current ledger."""
    history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await history.fence(Purpose.GRANT, waiter("alice"))
    for block in range(4):
        if block == 3:
            await history.fence(Purpose.ROLL)
        numbers = range(block * BLOCK_ENTRIES, (block + 1) * BLOCK_ENTRIES)
        await history.publish(*[entry("alice", number) for number in numbers])
    assert history.log.committed == Position(LAST, BLOCK_ENTRIES)
    return history


async def trim(log: TopicLog, cut: Position) -> None:
    binding = log.binding
    assert binding is not None
    measured = Measured(log, binding.generation)
    done = await trim_once(measured, cut, await noted(log, cut), binding, binding.token(log.ledger))
    assert not done.was_refused


async def read_all(log: TopicLog, after: Position, entries_max: int = 100) -> list[Position]:
    """What a reader at this position gets, with as many reads as it takes."""
    found: list[Position] = []
    while runs := await log.read(after, entries_max, 2**20):
        found += [each.position for each in entries_of(runs)]
        after = found[-1]
    return found


def positions(ledger: int, entries: Sequence[int]) -> list[Position]:
    return [Position(ledger, number) for number in entries]


KEPT = positions(FIRST, range(5, 10)) + positions(LAST, range(1, 4))


@pytest.mark.parametrize("is_in_memory", [True, False], ids=["from memory", "from the store"])
@pytest.mark.parametrize("entries_max", [1, 2, 100])
@pytest.mark.parametrize(
    "after",
    [EARLIEST, Position(FIRST, 0), Position(FIRST, 2), Position(FIRST, 3), Position(FIRST, 4)],
    ids=str,
)
async def test_a_read_of_trimmed_entries_continues_in_the_block_that_contains_the_trim(
    history: TopicHistory, after: Position, entries_max: int, *, is_in_memory: bool
) -> None:
    await trim(history.log, CUT)
    if not is_in_memory:
        history.log.forget_tail()
    assert await read_all(history.log, after, entries_max) == KEPT


async def test_a_read_after_kept_entries_is_not_affected(history: TopicHistory) -> None:
    await trim(history.log, CUT)
    assert await read_all(history.log, Position(FIRST, 7)) == KEPT[3:]


async def test_a_trim_drops_blocks_from_memory(history: TopicHistory) -> None:
    await trim(history.log, CUT)
    tail = history.log.tail
    assert [str(block.position) for block in tail] == ["5-4", "5-7", "6-0", "6-1"]
    assert history.log.tail_bytes == sum(map(stored_bytes, tail))
    assert history.log.read_tail(Position(FIRST, 2), 100, 2**20) is None
    await trim(history.log, Position(LAST, 0))
    assert [str(block.position) for block in history.log.tail] == ["6-0", "6-1"]


async def test_entries_that_the_store_keeps_after_a_large_trim_are_not_read(
    server: FakeServer, history: TopicHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = history.store

    async def in_part(*_arguments: object) -> Outcome:
        return Outcome.DONE  # the store dropped nothing yet: its limit of blocks was in other nodes

    monkeypatch.setattr(store, "trim", in_part)
    await trim(history.log, CUT)
    assert str(stored_in(server.primary).logs[TOPIC].blocks[0].position) == "5-0"
    for _ in range(2):
        assert await read_all(history.log, EARLIEST) == KEPT
        history.log.forget_tail()


async def test_a_broker_that_loads_the_log_does_not_read_them_either(history: TopicHistory) -> None:
    await trim(history.log, CUT)
    state = await history.store.read_state(TOPIC)
    loaded = TopicLog(TOPIC, history.store)
    loaded.load(state)
    loaded.advance(history.log.committed)
    assert await read_all(loaded, EARLIEST) == KEPT


async def test_a_read_of_a_log_that_was_trimmed_to_its_end_is_empty() -> None:
    server = FakeServer()
    history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await history.fence(Purpose.GRANT, waiter("alice"))
    await history.publish(entry("alice", 0))
    await history.fence(Purpose.ROLL)
    await trim(history.log, Position(LAST, 0))
    assert await read_all(history.log, EARLIEST) == []
    await history.publish(entry("alice", 1))
    assert await read_all(history.log, EARLIEST) == [Position(LAST, 1)]


async def test_a_trim_during_a_read_of_the_store_takes_effect_in_its_result(
    history: TopicHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, stored = history.log, history.log.store.read_blocks
    log.forget_tail()

    async def trimmed_meanwhile(*arguments: object, **options: object) -> object:
        found = await stored(*arguments, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        await trim(log, CUT)
        return found

    monkeypatch.setattr(log.store, "read_blocks", trimmed_meanwhile)
    assert await read_all(log, EARLIEST) == KEPT


@pytest.mark.parametrize("is_answered", [True, False], ids=["refused", "unanswered"])
async def test_entries_are_read_until_the_store_confirms_their_trim(
    history: TopicHistory, monkeypatch: pytest.MonkeyPatch, *, is_answered: bool
) -> None:
    async def not_done(*_arguments: object) -> Outcome:
        if is_answered:
            return Outcome.FENCED
        raise Undecided("the store did not answer in time")

    monkeypatch.setattr(history.store, "trim", not_done)
    before = await read_all(history.log, EARLIEST)
    with pytest.raises((AssertionError, Undecided)):
        await trim(history.log, CUT)
    assert await read_all(history.log, EARLIEST) == before
