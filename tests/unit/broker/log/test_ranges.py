"""Ranges of a log: what is given, from where, and what is never passed over."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contents import stored_in
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    TopicHistory,
    a_long_history,
    entry,
    waiter,
)

from onewriter_broker.log.store.api import Marker, StoredBlock
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.log.topic_log.log import last_position
from onewriter_broker.log.topic_log.ranges import EntriesMissing, Range, leaves_hole
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_core.topic.model import Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

SEEN_FROM = (EARLIEST, Position(5, 0), Position(5, 4), Position(6, 9), Position(10, 5))


class DamagedStore(FakeLogStore):
    """A store that holds something else than a block at one position."""

    damaged = Position(6, 1)

    async def read_blocks(self, *arguments: Any, **options: Any) -> list[StoredBlock]:
        found = await super().read_blocks(*arguments, **options)
        if any(block.position == self.damaged for block in found):
            raise MalformedBlock(f"{self.damaged}: nobody knows what that is")
        return found


async def read_all(blocks: Range, found: list[str] | None = None) -> list[str]:
    found = [] if found is None else found
    while read := await blocks.read():
        found += [str(block.position) for block in read]
    return found


@pytest.mark.parametrize("start", SEEN_FROM)
@pytest.mark.parametrize("is_remembered", [True, False])
async def test_a_range_begins_with_the_block_that_holds_its_start(
    server: FakeServer, history: TopicHistory, start: Position, is_remembered: bool
) -> None:
    stored = stored_in(server.primary).logs[TOPIC].blocks
    expected = [block for block in stored if last_position(block) >= start]
    if not is_remembered:
        history.log.forget_tail()
    found = await read_all(Range(history.log, start))
    assert found == [str(block.position) for block in expected]
    assert len(found) < len(stored) or start <= Position(5, 0)


async def test_a_range_ends_with_the_block_that_holds_its_last_entry(history: TopicHistory) -> None:
    for _ in range(2):
        blocks = Range(history.log, Position(5, 0), Position(5, 4))
        assert await read_all(blocks) == ["5-0", "5-1", "5-3"]
        found = await read_all(Range(history.log, Position(5, 0), Position(6, 0)))
        assert found[-1] == "5-5"
        history.log.forget_tail()
    assert await read_all(Range(history.log, Position(7, 9), Position(7, 9))) == []


async def test_range_ends_at_the_watermark_and_does_not_grow(
    server: FakeServer,
) -> None:
    history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await history.fence(Purpose.GRANT, waiter("alice"))
    await history.publish(entry("alice", 0))
    blocks = Range(history.log, EARLIEST, Position(99, 0))
    await history.publish(entry("alice", 1))
    assert blocks.end == Position(5, 2)
    assert await read_all(blocks) == ["5-0", "5-1"]


async def test_a_marker_is_given_with_its_fields_though_memory_has_none(
    history: TopicHistory,
) -> None:
    history.log._tail[0] = Marker(history.log.tail[0].position, {})
    (first, *_) = await Range(history.log, EARLIEST).read()
    assert isinstance(first, Marker)
    assert first.fields["producer"] == "alice"


async def test_a_hole_is_an_error_wherever_it_is(server: FakeServer, history: TopicHistory) -> None:
    history.log.forget_tail()
    stored = stored_in(server.primary).logs[TOPIC].blocks
    (gone,) = (block for block in stored if block.position == Position(5, 3))
    stored.remove(gone)
    with pytest.raises(EntriesMissing) as raised:
        await read_all(Range(history.log, EARLIEST))
    assert (raised.value.requested, raised.value.found) == (Position(5, 3), Position(5, 5))
    with pytest.raises(EntriesMissing):
        await read_all(Range(history.log, Position(5, 4)))


@pytest.mark.parametrize("gone", [slice(0, 5), slice(0, 4), slice(2, 4)])
async def test_a_range_that_goes_altogether_while_it_is_read_is_not_an_empty_one(
    server: FakeServer, history: TopicHistory, gone: slice
) -> None:
    history.log.forget_tail()
    blocks = Range(history.log, Position(5, 3), Position(5, 6))
    stored = stored_in(server.primary).logs[TOPIC].blocks
    del stored[gone]
    if gone.start == 0:
        history.log._state[TRIMMED] = str(stored[0].position)
    with pytest.raises(EntriesMissing) as raised:
        await blocks.read()
    assert raised.value.requested == Position(5, 3)
    assert blocks.at == Position(5, 3)


async def test_a_range_after_the_end_of_a_ledger_is_empty_also_after_a_trim(
    server: FakeServer,
    history: TopicHistory,
) -> None:
    history.log.forget_tail()
    end = next(end for end in history.log.ends if end.ledger == 5)
    for _ in range(2):
        blocks = Range(history.log, end.next, Position(6, 0))
        assert await blocks.read() == []
        assert blocks.at == blocks.end
        stored = stored_in(server.primary).logs[TOPIC].blocks
        stored[:] = [block for block in stored if block.position >= Position(6, 0)]
        history.log._state[TRIMMED] = "6-0"


async def test_blocks_before_a_damaged_one_are_returned(server: FakeServer) -> None:
    history = await a_long_history(DamagedStore(server.resolve, buckets=BUCKETS))
    history.log.forget_tail()
    blocks, found = Range(history.log, EARLIEST), list[str]()
    with pytest.raises(MalformedBlock):
        await read_all(blocks, found)
    assert found == ["5-0", "5-1", "5-3", "5-5", "6-0"]
    assert blocks.at == DamagedStore.damaged


async def test_a_log_that_moves_away_is_read_no_further(history: TopicHistory) -> None:
    blocks = Range(history.log, EARLIEST)
    history.log.close()
    with pytest.raises(Unavailable, match="moving"):
        await blocks.read()


async def test_reads_are_bounded_by_the_size_of_blocks(server: FakeServer) -> None:
    history = await TopicHistory.begin(FakeLogStore(server.resolve, buckets=BUCKETS))
    await history.fence(Purpose.GRANT, waiter("alice"))
    for _ in range(10):
        await history.publish(bytes(900))
    for _ in range(2):
        blocks, sizes = Range(history.log, EARLIEST, read_bytes_max=2_000), []
        while read := await blocks.read():
            sizes.append(len(read))
        assert sum(sizes) == 11
        assert max(sizes) <= 4
        history.log.forget_tail()


@pytest.mark.parametrize(
    ("at", "found", "hole"),
    [
        ((5, 3), (5, 3), False),
        ((5, 3), (5, 1), False),  # the block that holds it
        ((5, 3), (5, 4), True),
        ((5, 3), (6, 0), False),  # the ledger ended there
        ((5, 3), (6, 1), True),
        ((5, 0), (5, 1), False),  # a marker may go alone
        ((5, 0), (5, 2), True),
        ((0, 0), (5, 7), True),
    ],
)
def test_a_hole_is_detected_by_the_position_of_the_next_block(
    at: tuple[int, int], found: tuple[int, int], hole: bool
) -> None:
    assert leaves_hole(Position(*at), Position(*found)) is hole


@pytest.mark.parametrize("falsified", ["5-3", "9-1", "10-2", "10-5"])
async def test_a_stored_range_shows_what_the_store_lost_after_the_broker_read_it(
    server: FakeServer, history: TopicHistory, falsified: str
) -> None:
    """The broker has these blocks in memory, and returns them to readers that do not ask for the store's."""
    whole = await read_all(Range(history.log, Position(5, 0)))
    stored = stored_in(server.primary).logs[TOPIC].blocks
    del stored[whole.index(falsified)]
    assert await read_all(Range(history.log, Position(5, 0))) == whole
    with pytest.raises(EntriesMissing):
        await read_all(Range(history.log, Position(5, 0), is_stored=True))
