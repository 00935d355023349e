"""Parsing of the packed stream that the broker creates, in any pieces."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import numpy as np
import pytest

from onewriter_broker.http.onewriter import packed
from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.log_format import packed_stream
from onewriter_pipeline.binaries import PADDING
from onewriter_pipeline.brokers.frames import (
    BlockFrame,
    Chunk,
    EndFrame,
    ErrorFrame,
    Frame,
    Frames,
    Gatherer,
    MarkerFrame,
)


def block(ledger: int, first: int, *sizes: int, counts: list[int] | None = None) -> Block:
    """A block whose entries' bytes encode their positions."""
    entries = [bytes([(first + index) % 256]) * size for index, size in enumerate(sizes)]
    return Block(
        Position(ledger, first),
        list(sizes),
        b"".join(entries),
        counts,
        1_000 * ledger + first,
        bytes([ledger] * 16),
    )


STORED: list[StoredBlock] = [
    Marker(Position(5, 0), {"cause": "grant", "epoch": "5", "producer": "ä"}),
    block(5, 1, 3, 0, 2),
    block(5, 4, 1),
    Marker(Position(7, 0), {"cause": "roll"}),
    block(7, 1, 4, 5, counts=[2, 9]),
    block(7, 3, 6, 7, 8),
]
WHOLE = packed_stream.HEAD + packed.pack(STORED) + packed.pack_end(Position(7, 6))


def taken(data: bytes, *cuts: int) -> list[Frame]:
    """The frames of a stream that arrives in these pieces."""
    frames, found = Frames(), list[Frame]()
    for start, stop in zip((0, *cuts), (*cuts, len(data)), strict=True):
        found += frames.feed(data[start:stop])
    assert not frames._held
    return found


def test_frames_equal_what_the_broker_packed() -> None:
    *found, end = taken(WHOLE)
    assert end == EndFrame(Position(7, 6))
    assert len(found) == len(STORED)
    for frame, stored in zip(found, STORED, strict=True):
        if isinstance(stored, Marker):
            assert frame == MarkerFrame(stored.position.ledger, dict(stored.fields))
            continue
        assert isinstance(frame, BlockFrame)
        assert (frame.first, frame.last, frame.time_ms, frame.chain) == (
            *(stored.position, stored.last),
            *(stored.time_ms, stored.chain),
        )
        assert frame.lengths.tolist() == stored.lengths
        assert (frame.counts is None) == (stored.counts is None)
        assert frame.counts is None or frame.counts.tolist() == stored.counts
        assert bytes(frame.payload) == stored.payload
        assert frame.publish == ""


@pytest.mark.parametrize("seed", range(20))
def test_stream_can_arrive_in_any_pieces(seed: int) -> None:
    drawn = random.Random(seed)
    cuts = sorted(drawn.randrange(len(WHOLE)) for _ in range(drawn.randrange(1, 60)))
    found, whole = taken(WHOLE, *cuts), taken(WHOLE)
    for one, other in zip(found, whole, strict=True):
        if isinstance(one, BlockFrame):
            assert isinstance(other, BlockFrame)
            assert (one.first, bytes(one.payload)) == (other.first, bytes(other.payload))
        else:
            assert one == other


def test_broken_stream_yields_its_complete_frames() -> None:
    for size in range(len(WHOLE)):
        frames = Frames()
        found = list(frames.feed(WHOLE[:size]))
        assert len(found) <= len(STORED)
        assert not any(isinstance(frame, EndFrame) for frame in found)


def test_parts_of_atomic_publishes_are_marked() -> None:
    stored = block(5, 1, 3)
    parts = type(stored)(
        *(stored.position, stored.lengths, stored.payload, None, 1, stored.chain), publish="app/7"
    )
    ending = type(stored)(
        *(stored.position, stored.lengths, stored.payload, None, 1, stored.chain),
        publish="app/7",
        commits=True,
    )
    frame, last = taken(packed_stream.HEAD + packed.pack([parts, ending]))
    assert isinstance(frame, BlockFrame)
    assert isinstance(last, BlockFrame)
    assert (frame.publish, frame.ends_publish) == ("app/7", False)
    assert (last.publish, last.ends_publish) == ("app/7", True)
    assert bytes(frame.payload) == stored.payload


@pytest.mark.parametrize("payload", [True, False])
def test_publishers_are_included_on_request(*, payload: bool) -> None:
    plain, by = block(5, 1, 3), '{"subject":"ä"}'
    blocks = [
        replace(plain, publish="app/7", by=by),
        replace(plain, publish="app/8", commits=True),
        replace(plain, publish="app/9", by="x" * 70_000),
        plain,
    ]
    request = taken(packed_stream.HEAD + packed.pack(blocks, payload=payload, publishers=True))
    assert [each.by for each in request if isinstance(each, BlockFrame)] == [
        by,
        "",
        "x" * 65_535,
        None,
    ]
    assert [each.publish for each in request if isinstance(each, BlockFrame)][1:] == [
        *("app/8", "app/9", "")
    ]
    others = taken(packed_stream.HEAD + packed.pack(blocks, payload=payload))
    assert [each.by for each in others if isinstance(each, BlockFrame)] == [None] * 4
    for before, after in zip(request, others, strict=True):
        assert isinstance(before, BlockFrame)
        assert isinstance(after, BlockFrame)
        assert bytes(before.payload) == bytes(after.payload)


def test_error_frame_has_the_status_and_message_of_an_answer() -> None:
    data = packed_stream.HEAD + packed.pack_error(410, "gone", first="6:1")
    (frame,) = taken(data)
    assert isinstance(frame, ErrorFrame)
    assert (frame.status, frame.message, frame.details["first"]) == (410, "gone", "6:1")


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b"OWB1",
        packed_stream.HEAD + struct.pack("<I", 0),
        packed_stream.HEAD + struct.pack("<I", 2**31),
        packed_stream.HEAD + struct.pack("<IB", 1, 77),
        packed_stream.HEAD + struct.pack("<IBQ", 9, packed_stream.END, 1),
        packed_stream.HEAD + struct.pack("<IBQ", 11, packed_stream.MARKER, 1) + b"{]",
        packed_stream.HEAD + struct.pack("<IB", 3, packed_stream.ERROR) + b"{}",
        packed_stream.HEAD
        + struct.pack("<IBQQQIB16s", 46, packed_stream.BLOCK, 1, 1, 1, 0, 0, bytes(16)),
        packed_stream.HEAD
        + struct.pack("<IBQQQIB16s", 46, packed_stream.BLOCK, 1, 1, 1, 9, 0, bytes(16)),
        packed_stream.HEAD + packed.pack([block(1, 1, 5)])[:-1] + b"",
    ],
)
def test_invalid_data_is_an_error_or_waits_for_more(data: bytes) -> None:
    frames = Frames()
    if data.endswith(b"\x01"):  # cut short: neither an error nor a frame
        assert list(frames.feed(data)) == []
        assert frames._held
        return
    with pytest.raises(ProtocolError):
        list(frames.feed(data))


def test_mutated_streams_raise_only_protocol_errors() -> None:
    drawn = random.Random(7)
    damaged = 0
    for _ in range(2_000):
        data = bytearray(WHOLE)
        for _ in range(drawn.randrange(1, 4)):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
        try:
            list(Frames().feed(bytes(data)))
        except ProtocolError:
            damaged += 1
    assert damaged > 100


# ---------------------------------------------------------------- chunks


def gathered(start: Position, end: Position | None = None) -> Chunk | None:
    gatherer = Gatherer(start, end)
    for frame in taken(WHOLE):
        if isinstance(frame, BlockFrame):
            gatherer.add(frame)
    chunk = gatherer.chunk()
    assert gatherer.chunk() is None
    return chunk


def one_by_one(start: Position, end: Position | None) -> list[tuple[int, int, bytes, int, int]]:
    """The same in plain Python: ledger, entry, bytes, messages, time of each entry."""
    found = []
    for stored in STORED:
        if isinstance(stored, Marker):
            continue
        at = 0
        for index, length in enumerate(stored.lengths):
            position = Position(stored.position.ledger, stored.position.entry + index)
            if start <= position and (end is None or position < end):
                data = stored.payload[at : at + length]
                messages = 1 if stored.counts is None else stored.counts[index]
                found.append((*position, data, messages, stored.time_ms))
            at += length
    return found


POSITIONS = [Position(ledger, entry) for ledger in (4, 5, 6, 7, 8) for entry in range(7)]


def test_chunk_has_exactly_the_entries_of_its_range() -> None:
    checked = 0
    for start in POSITIONS:
        for end in (*POSITIONS, None):
            chunk, expected = gathered(start, end), one_by_one(start, end)
            if not expected:
                assert chunk is None
                continue
            assert chunk is not None
            found = [
                (
                    int(chunk.ledger[index]),
                    int(chunk.entry[index]),
                    chunk.payload[chunk.offsets[index] : chunk.offsets[index + 1]],
                    int(chunk.messages[index]),
                    int(chunk.time_ms[index]),
                )
                for index in range(len(chunk))
            ]
            assert found == expected
            assert (chunk.offsets[0], len(chunk.padded())) == (0, chunk.offsets[-1] + len(PADDING))
            assert (chunk.first, chunk.last) == (
                Position(*expected[0][:2]),
                Position(*expected[-1][:2]),
            )
            checked += 1
    assert checked > 100


def test_chunk_has_the_hash_of_the_last_block_of_each_ledger() -> None:
    five, seven = (5, (5, bytes([5] * 16).hex())), (7, (6, bytes([7] * 16).hex()))
    for end, chains in (
        (None, [five, seven]),
        (Position(7, 4), [five, seven]),
        (Position(5, 5), [five]),
    ):
        chunk = gathered(Position(5, 2), end)
        assert chunk is not None
        assert list(chunk.chains.items()) == chains


def test_chunk_has_the_documented_types() -> None:
    chunk = gathered(Position(0, 0))
    assert chunk is not None
    assert chunk.messages.dtype == np.int32
    for array in (chunk.offsets, chunk.ledger, chunk.entry, chunk.time_ms):
        assert array.dtype == np.int64
    assert isinstance(chunk.payload, bytes)


def test_chunk_is_due_by_its_bytes_or_by_its_entries() -> None:
    blocks = [frame for frame in taken(WHOLE) if isinstance(frame, BlockFrame)]
    for chunk_bytes, chunk_entries, due_after in ((6, 1_000, 2), (1_000, 6, 3)):
        gatherer = Gatherer(Position(0, 0), chunk_bytes=chunk_bytes, chunk_entries=chunk_entries)
        added = 0
        while not gatherer.is_due:
            gatherer.add(blocks[added])
            added += 1
        assert added == due_after
        assert gatherer.chunk() is not None
        assert not gatherer.is_due
