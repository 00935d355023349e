"""The stream of a log's blocks: complete, or marked as incomplete, and bounded whatever its reader does."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, cast

import pytest
from aiohttp import web
from tests.contents import stored_in
from tests.unit.broker.log.test_ranges import DamagedStore
from tests.unit.broker.verify.histories import BUCKETS, TOPIC, TopicHistory, a_long_history

from onewriter_broker.http.metrics import BlockStreams
from onewriter_broker.http.onewriter.blocks import STREAMS_MAX, BlockStream, one_more
from onewriter_broker.http.site import Refusal
from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.ranges import Range, is_gone
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format import packed_stream
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_testing.fake_store.server import FakeServer

NOBODY_KNOWS: tuple[Position, ...] = ()
ENDS = (Position(4, 100), Position(6, 3))


class Response:
    """A reader that takes ``takes`` writes, and does nothing from then on."""

    def __init__(self, takes: int = 1_000_000) -> None:
        self.data = b""
        self.has_ended = False
        self._takes = takes

    async def write(self, data: bytes) -> None:
        if self._takes == 0:
            await asyncio.Event().wait()
        self._takes -= 1
        self.data += data

    async def write_eof(self) -> None:
        self.has_ended = True


def stream(history: TopicHistory, response: Response, **options: Any) -> BlockStream:
    expires_at = options.pop("expires_at", None)
    figures = options.pop("figures", BlockStreams())
    options.setdefault("token_seconds", lambda: 1_000.0)
    return BlockStream(
        history.log, cast("web.StreamResponse", response), expires_at, figures, **options
    )


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """Kind and body of each frame; nothing is left over."""
    assert data[:4] == b"OWB2"
    found, at = [], 4
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        found.append((data[at + 4], data[at + 5 : at + 4 + size]))
        at += 4 + size
    assert at == len(data)
    return found


async def test_a_stream_holds_every_block_as_it_is_stored_and_its_end(
    server: FakeServer, history: TopicHistory
) -> None:
    response, figures = Response(), BlockStreams()
    history.log.forget_tail()
    await stream(history, response, figures=figures).run(Range(history.log, EARLIEST))
    assert figures.bytes == len(response.data)
    *sent, (kind, end) = frames(response.data)
    assert response.has_ended
    assert (kind, struct.unpack("<QQ", end)) == (packed_stream.END, (10, 6))
    stored = stored_in(server.primary).logs[TOPIC].blocks
    assert len(sent) == len(stored)
    for (kind, body), block in zip(sent, stored, strict=True):
        if not isinstance(block, Block):
            assert kind == packed_stream.MARKER
            assert struct.unpack_from("<Q", body) == (block.position.ledger,)
            assert json.loads(body[8:]) == block.fields
            continue
        ledger, first, time_ms, count, flags, chain = struct.unpack_from("<QQQIB16s", body)
        assert (kind, ledger, first) == (packed_stream.BLOCK, *block.position)
        assert (time_ms, chain) == (block.time_ms, block.chain)
        numbers = struct.unpack_from(f"<{count}I", body, 45)
        at = 45 + 4 * count
        if flags & packed_stream.HAS_COUNTS:
            assert list(struct.unpack_from(f"<{count}I", body, at)) == block.counts
            at += 4 * count
        else:
            assert block.counts is None
        assert (list(numbers), body[at:]) == (block.lengths, block.payload)


async def test_a_reader_that_takes_nothing_is_given_up(history: TopicHistory) -> None:
    response = Response(takes=1)
    with pytest.raises(TimeoutError):
        await stream(history, response, write_seconds=0.01).run(Range(history.log, EARLIEST))
    assert response.data == packed_stream.HEAD


async def last_frame(history: TopicHistory, blocks: Range, **options: Any) -> tuple[list[int], Any]:
    """The kinds of the frames before the last one, and what that says: an error."""
    response = Response()
    await stream(history, response, **options).run(blocks)
    *sent, (kind, body) = frames(response.data)
    assert kind == packed_stream.ERROR
    assert response.has_ended
    return [each for each, _ in sent], json.loads(body)


async def test_a_log_that_moves_ends_its_streams(history: TopicHistory) -> None:
    blocks = Range(history.log, EARLIEST)
    history.log.close()
    sent, answer = await last_frame(history, blocks)
    assert (sent, answer["status"]) == ([], 503)
    assert "moving to another broker" in answer["message"]


async def test_a_damaged_block_ends_the_stream_after_the_blocks_before_it_and_is_named(
    server: FakeServer,
) -> None:
    history = await a_long_history(DamagedStore(server.resolve, buckets=BUCKETS))
    history.log.forget_tail()
    sent, answer = await last_frame(history, Range(history.log, EARLIEST))
    assert sent == [2, 1, 1, 1, 2]
    assert (answer["status"], answer["at"]) == (500, "6:1")
    assert "6-1" in answer["message"]


async def test_a_trim_ahead_of_a_stream_ends_it(server: FakeServer, history: TopicHistory) -> None:
    history.log.forget_tail()
    blocks = Range(history.log, Position(5, 3))
    del stored_in(server.primary).logs[TOPIC].blocks[:5]  # up to the marker of ledger 6
    history.log._state[TRIMMED] = "6-1"
    sent, answer = await last_frame(history, blocks)
    assert (sent, answer["status"], answer["first"], answer["trimmed"]) == ([], 410, "6:1", "6:1")


async def test_a_stream_whose_whole_rest_is_trimmed_does_not_end_as_if_it_were_whole(
    server: FakeServer, history: TopicHistory
) -> None:
    history.log.forget_tail()
    blocks = Range(history.log, Position(5, 3), Position(5, 6))
    del stored_in(server.primary).logs[TOPIC].blocks[:5]
    history.log._state[TRIMMED] = "6-1"
    sent, answer = await last_frame(history, blocks)
    assert (sent, answer["status"], answer["first"], answer["trimmed"]) == ([], 410, "6:1", "6:1")


async def test_lost_entries_are_reported_differently_from_trimmed_ones(
    server: FakeServer, history: TopicHistory
) -> None:
    history.log.forget_tail()
    del stored_in(server.primary).logs[TOPIC].blocks[2]
    sent, answer = await last_frame(history, Range(history.log, EARLIEST))
    assert sent == []  # the hole lies in the first read
    assert (answer["status"], answer["first"]) == (410, "5:5")
    assert "trimmed" not in answer
    assert "not in the store any more" in answer["message"]


async def test_a_stream_ends_with_its_readers_token(history: TopicHistory) -> None:
    sent, answer = await last_frame(history, Range(history.log, EARLIEST), expires_at=1.0)
    assert (sent, answer["status"]) == ([], 401)


def test_the_number_of_streams_is_limited() -> None:
    figures, inside = BlockStreams(), []
    for _ in range(STREAMS_MAX):
        inside.append(one_more(figures))
        inside[-1].__enter__()
    with pytest.raises(Refusal) as raised, one_more(figures):
        pass
    assert (raised.value.status, figures.open) == (429, STREAMS_MAX)
    inside.pop().__exit__(None, None, None)
    with one_more(figures):
        assert figures.open == STREAMS_MAX


@pytest.mark.parametrize(
    ("asked", "first", "trimmed", "ends", "gone"),
    [
        ((5, 3), (5, 1), (5, 2), NOBODY_KNOWS, False),
        ((5, 3), (5, 5), (5, 5), NOBODY_KNOWS, True),
        ((5, 0), (5, 1), (5, 1), NOBODY_KNOWS, False),  # a marker alone
        ((0, 0), (4, 0), (0, 0), NOBODY_KNOWS, False),  # nothing was there ever
        ((0, 0), (4, 7), (0, 0), NOBODY_KNOWS, True),  # lost
        ((4, 101), (5, 0), (4, 101), NOBODY_KNOWS, False),  # all that was asked to go was read
        ((4, 101), (5, 0), (5, 0), NOBODY_KNOWS, True),  # perhaps
        ((4, 101), (5, 0), (5, 0), ENDS, False),  # the ledger is known to have ended there
        ((4, 100), (5, 0), (5, 0), ENDS, True),
        ((4, 101), (7, 0), (7, 0), ENDS, True),  # there was a ledger between
        ((4, 101), (5, 9), (5, 9), ENDS, True),
    ],
)
def test_missing_entries_are_reported_differently_from_ones_that_never_existed(
    asked: tuple[int, int],
    first: tuple[int, int],
    trimmed: tuple[int, int],
    ends: tuple[Position, ...],
    gone: bool,
) -> None:
    assert is_gone(Position(*asked), Position(*first), Position(*trimmed), ends) is gone


@pytest.mark.parametrize(
    ("asked", "first", "trimmed", "noted", "gone"),
    [
        ((4, 101), (5, 0), (5, 0), {5: (4, 100)}, False),
        ((4, 101), (5, 1), (5, 1), {5: (4, 100)}, False),  # the next marker went, too
        ((4, 101), (7, 0), (7, 0), {7: (4, 100)}, False),  # nobody wrote between
        ((4, 101), (7, 0), (7, 0), {5: (4, 100), 7: (6, 3)}, True),
        ((4, 100), (5, 0), (5, 0), {5: (4, 100)}, True),  # the last one itself
        ((4, 101), (5, 4), (5, 4), {5: (4, 100)}, True),
        ((4, 101), (5, 0), (5, 9), {5: (4, 100)}, False),  # the store keeps more than it has to
        ((4, 101), (5, 0), (6, 9), {5: (4, 100), 6: (5, 9)}, False),
        ((4, 101), (5, 0), (4, 101), {5: (4, 150)}, True),  # though no cut is known to go that far
    ],
)
def test_the_ledger_ends_recorded_at_a_cut_show_which_readers_were_complete(
    asked: tuple[int, int],
    first: tuple[int, int],
    trimmed: tuple[int, int],
    noted: dict[int, tuple[int, int]],
    gone: bool,
) -> None:
    positions = Position(*asked), Position(*first), Position(*trimmed)
    ends = {ledger: Position(*end) for ledger, end in noted.items()}
    assert is_gone(*positions, NOBODY_KNOWS, ends) is gone
