"""The packed stream of a log's blocks (``GET .../blocks``), and its conversion to arrays.

docs/http.md, "Blocks", describes the stream. ``Frames`` parses it as its bytes arrive. ``Gatherer`` cuts the blocks
to the requested range and combines them to Chunks. Both work on arrays: the cost of a chunk depends on its bytes
and blocks, not on its entries. This module does no I/O.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.log_format.packed_stream import (
    BLOCK,
    BLOCK_HEAD,
    END,
    END_CONTENT,
    ENDS_PUBLISH,
    ERROR,
    FRAME_BYTES_MAX,
    HAS_COUNTS,
    HEAD,
    IS_ATOMIC,
    LENGTH,
    MARKER,
    MARKER_HEAD,
    NAME_HEAD,
    NAMES_PUBLISHER,
    NO_PAYLOAD,
)
from onewriter_pipeline.binaries import PADDING

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Approximate payload of a chunk. A chunk is complete with the block that reaches this size."""

CHUNK_ENTRIES: Final = 262_144
"""Approximate number of entries in a chunk, for small entries."""


class PublishPart(NamedTuple):
    """Entries [start, stop) of a chunk that belong to the atomic publish ``name``; ``ends``: they include its last
    entry.
    """

    start: int
    stop: int
    name: str
    ends: bool


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive committed entries of one log, as arrays of ``n`` elements.

    Entry ``i`` (from 0) is ``payload[offsets[i] : offsets[i + 1]]``, exactly as its client sent it after the SEND
    command: magic and CRC-32C, the size of the metadata, the metadata, the payload.
    """

    payload: bytes
    """The entries, and perhaps bytes after the last one."""
    offsets: NDArray[np.int64]
    """``n + 1`` offsets; the first is 0, the last is the end of the last entry."""
    ledger: NDArray[np.int64]
    entry: NDArray[np.int64]
    messages: NDArray[np.int32]
    """Messages in each entry according to its client, at least 1."""
    time_ms: NDArray[np.int64]
    """The broker's wall clock when it closed the entry's block, in milliseconds since 1970."""
    publishes: tuple[PublishPart, ...] = ()
    """The parts of atomic publishes among the entries, in order."""
    chains: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    """For each ledger, the entry after its last block, and the hash of that block in hex."""

    def __len__(self) -> int:
        return len(self.ledger)

    def padded(self) -> bytes:
        """The payload with at least PADDING after the last entry, without a copy if it has that already."""
        is_padded = len(self.payload) - int(self.offsets[-1]) >= len(PADDING)
        return self.payload if is_padded else self.payload + PADDING

    @property
    def first(self) -> Position:
        """The position of the first entry."""
        return Position(int(self.ledger[0]), int(self.entry[0]))

    @property
    def last(self) -> Position:
        """The position of the last entry."""
        return Position(int(self.ledger[-1]), int(self.entry[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class BlockFrame:
    """One block, whole as it is stored. ``lengths`` and ``counts`` have one number per entry.

    ``chain`` is the hash of the block and all blocks before it in its ledger (docs/log-format.md). ``publish``:
    ``app/version`` of the atomic publish that the block belongs to, or empty; ``ends_publish``: it is the last
    block of that publish. ``by``: the publisher that the block names; None: not part of the stream. ``payload`` is
    empty if it was not requested.
    """

    first: Position
    time_ms: int
    lengths: NDArray[np.uint32]
    counts: NDArray[np.uint32] | None
    publish: str
    chain: bytes
    payload: memoryview
    ends_publish: bool = False
    by: str | None = None

    @property
    def last(self) -> Position:
        """The position of the block's last entry."""
        return Position(self.first.ledger, self.first.entry + len(self.lengths) - 1)


@dataclass(frozen=True, slots=True)
class MarkerFrame:
    """The beginning of a ledger: why it was opened, and for which producer."""

    ledger: int
    fields: dict[str, str]

    @property
    def position(self) -> Position:
        """The position of the marker."""
        return Position(self.ledger, 0)


@dataclass(frozen=True, slots=True)
class EndFrame:
    """The end of a complete answer: everything committed before ``end`` was sent."""

    end: Position


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The end of an incomplete answer: ``status`` and ``message`` as in an HTTP answer, and its details."""

    status: int
    message: str
    details: dict[str, Any]


Frame = BlockFrame | MarkerFrame | EndFrame | ErrorFrame


class Frames:
    """Parses a stream: ``feed`` it the bytes that arrived, then take the complete frames."""

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        """The beginning of what the parser reads next, if its end has not arrived."""
        self._held = 0
        self._wanted = len(HEAD)
        self._reads = _Reads.HEAD

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes. Take all of them before feeding more.

        A frame refers to the bytes, which stay in memory as long as the frame does. Only a frame that arrives in
        several pieces is copied. Raises ProtocolError for data that brokers do not send.
        """
        view, at = memoryview(data), 0
        while at < len(view):
            piece = view[at : at + self._wanted - self._held]
            at += len(piece)
            self._pieces.append(piece)
            self._held += len(piece)
            if self._held < self._wanted:
                return
            whole = piece if len(self._pieces) == 1 else memoryview(b"".join(self._pieces))
            self._pieces, self._held = [], 0
            if self._reads is _Reads.FRAME:
                self._reads, self._wanted = _Reads.LENGTH, LENGTH.size
                yield _frame(whole)
            elif self._reads is _Reads.LENGTH:
                (size,) = LENGTH.unpack(whole)
                if not 1 <= size <= FRAME_BYTES_MAX:
                    text = f"a stream of blocks has a frame of {size} bytes; 1 to {FRAME_BYTES_MAX} are valid"
                    raise ProtocolError(text)
                self._reads, self._wanted = _Reads.FRAME, size
            else:
                if bytes(whole) != HEAD:
                    text = (
                        f"not a stream of blocks of this version: it begins with {bytes(whole)!r}"
                    )
                    raise ProtocolError(text)
                self._reads, self._wanted = _Reads.LENGTH, LENGTH.size


class _Reads(enum.Enum):
    """What a parser of a stream reads next."""

    HEAD = enum.auto()
    LENGTH = enum.auto()
    FRAME = enum.auto()


def _frame(body: memoryview) -> Frame:
    kind = body[0]
    try:
        if kind == BLOCK:
            return _block(body)
        if kind == MARKER:
            (ledger,) = MARKER_HEAD.unpack_from(body, 1)
            return MarkerFrame(ledger, json.loads(bytes(body[1 + MARKER_HEAD.size :])))
        if kind == END:
            return EndFrame(Position(*END_CONTENT.unpack_from(body, 1)))
        if kind == ERROR:
            document = json.loads(bytes(body[1:]))
            return ErrorFrame(int(document["status"]), str(document["message"]), document)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"a damaged frame in a stream of blocks: {error}") from error
    raise ProtocolError(f"a frame of the unknown kind {kind} in a stream of blocks")


def _block(body: memoryview) -> BlockFrame:
    ledger, entry, time_ms, entries, flags, chain = BLOCK_HEAD.unpack_from(body, 1)
    at = 1 + BLOCK_HEAD.size
    lengths = np.frombuffer(body, "<u4", entries, at)
    at += lengths.nbytes
    counts = None
    if flags & HAS_COUNTS:
        counts = np.frombuffer(body, "<u4", entries, at)
        at += counts.nbytes
    publish, by = "", None
    if flags & IS_ATOMIC:
        name, at = _name(body, at)
        publish = name.decode()
    if flags & NAMES_PUBLISHER:
        name, at = _name(body, at)
        by = name.decode(errors="replace")
    payload = body[at:]
    size = 0 if flags & NO_PAYLOAD else int(lengths.sum(dtype=np.int64))
    if entries == 0 or size != len(payload):
        raise ValueError(
            f"the lengths of block {ledger}:{entry} add up to {size} bytes, and its payload has {len(payload)}"
        )
    return BlockFrame(
        Position(ledger, entry),
        time_ms,
        lengths,
        counts,
        publish,
        chain,
        payload,
        bool(flags & ENDS_PUBLISH),
        by,
    )


def _name(body: memoryview, at: int) -> tuple[bytes, int]:
    """A name with its length before it, and the position after it."""
    (size,) = NAME_HEAD.unpack_from(body, at)
    at += NAME_HEAD.size + size
    return bytes(body[at - size : at]), at


class Gatherer:
    """Combines blocks to chunks, cut to [start, end); ``end`` None: no upper bound.

    Add blocks in order. Take a ``chunk`` whenever one is due, and once at the end.
    """

    def __init__(
        self,
        start: Position,
        end: Position | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        chunk_entries: int = CHUNK_ENTRIES,
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._chunk_entries = chunk_entries
        self._start = start
        self._end = end
        self._clear()

    def _clear(self) -> None:
        self._payloads: list[memoryview] = []
        self._lengths: list[NDArray[np.uint32]] = []
        self._counts: list[NDArray[np.uint32] | None] = []
        self._heads: list[tuple[int, int, int, int]] = []
        self._publishes: list[PublishPart] = []
        self._chains: dict[int, tuple[int, str]] = {}
        self._bytes = 0
        self._entries = 0

    @property
    def is_due(self) -> bool:
        """Whether a chunk is full."""
        return self._bytes >= self._chunk_bytes or self._entries >= self._chunk_entries

    def add(self, block: BlockFrame) -> None:
        """Add the part of the next block that is within the range."""
        ledger, first = block.first
        payload, lengths, counts = block.payload, block.lengths, block.counts
        ends = block.ends_publish
        if block.first < self._start or (self._end is not None and block.last >= self._end):
            low, high = self._bounds(block)
            if low >= high:
                return
            edges = np.cumsum(lengths, dtype=np.int64)
            payload = payload[int(edges[low - 1]) if low else 0 : int(edges[high - 1])]
            ends = ends and high == len(lengths)
            lengths, first = lengths[low:high], first + low
            counts = None if counts is None else counts[low:high]
        self._payloads.append(payload)
        self._lengths.append(lengths)
        self._counts.append(counts)
        self._heads.append((ledger, first, block.time_ms, len(lengths)))
        self._chains[ledger] = (block.last.entry + 1, block.chain.hex())
        if block.publish:
            at = self._entries
            self._publishes.append(PublishPart(at, at + len(lengths), block.publish, ends))
        self._bytes += len(payload)
        self._entries += len(lengths)

    def _bounds(self, block: BlockFrame) -> tuple[int, int]:
        """The indexes [low, high) of the block's entries that are within the range."""
        ledger, first = block.first
        size = len(block.lengths)
        low, high = 0, size
        if block.first < self._start:
            low = min(size, self._start.entry - first) if ledger == self._start.ledger else size
        if self._end is not None and block.last >= self._end:
            high = max(0, self._end.entry - first) if ledger == self._end.ledger else 0
        return low, high

    def chunk(self) -> Chunk | None:
        """Everything added since the last chunk; None: nothing was added."""
        if not self._heads:
            return None
        heads = np.array(self._heads, dtype=np.int64)
        sizes = heads[:, 3]
        total = self._entries
        offsets = np.zeros(total + 1, dtype=np.int64)
        np.cumsum(np.concatenate(self._lengths), dtype=np.int64, out=offsets[1:])
        # The distance of each entry from the first entry of its block.
        starts = np.cumsum(sizes) - sizes
        steps = np.arange(total, dtype=np.int64) - np.repeat(starts, sizes)
        chunk = Chunk(
            b"".join([*self._payloads, PADDING]),
            offsets,
            np.repeat(heads[:, 0], sizes),
            np.repeat(heads[:, 1], sizes) + steps,
            self._messages(),
            np.repeat(heads[:, 2], sizes),
            tuple(self._publishes),
            self._chains,
        )
        self._clear()
        return chunk

    def _messages(self) -> NDArray[np.int32]:
        if all(counts is None for counts in self._counts):
            return np.ones(self._entries, dtype=np.int32)
        return np.concatenate(
            [
                np.ones(head[3], dtype=np.int32) if counts is None else counts.astype(np.int32)
                for head, counts in zip(self._heads, self._counts, strict=True)
            ]
        )
