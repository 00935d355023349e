"""Decodes chunks of entries to Arrow record batches: one row per message.

Python executes nothing per message. It reads the metadata of all entries of a chunk at once, and all messages of a
group of batches at once. Per entry it only computes checksums (in C), and decompresses or assembles contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position, TopicName
from onewriter_pipeline.binaries import PADDING, Bools, Signed, Unsigned
from onewriter_pipeline.brokers.frames import Chunk
from onewriter_pipeline.decode.batches import (
    BATCH_MESSAGES_MAX,
    MESSAGE_BYTES_MIN,
    read_batches,
)
from onewriter_pipeline.decode.columns import Columns, Source
from onewriter_pipeline.decode.contents import Assembled, Assembler, ChunksMissing, uncompressed
from onewriter_pipeline.decode.entries import DAMAGES, Damage, Entries, Metadata, read_entries
from onewriter_pipeline.decode.rows import Rows, rows_of_batches, rows_of_entries
from onewriter_pipeline.decode.words import words_of
from onewriter_pipeline.errors import Damaged
from onewriter_pipeline.schema import MESSAGE_COLUMNS, arrow_schema

GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
"""Uncompressed contents that are decoded at once; or one entry, if it is larger."""

GROUP_MESSAGES_MAX: Final = 128 * 1024
"""Messages that are decoded at once; or one batch, if it has more."""

RECORD_BATCH_ROWS_MAX: Final = 64 * 1024

Earlier = Callable[[Position, int], Iterable[Chunk]]
"""Returns a number of entries before a position, in the order of the log."""

LOOK_BACK_ENTRIES: Final = (64, 1_024, 10_000)
"""How many entries are searched, in turn, for the first chunks of a message."""

GIVEN_UP_SECONDS: Final = 600
"""If a producer sends other messages for this long after a chunk, its message is incomplete for good: clients send
chunks without a pause, and consumers wait a minute for the next chunk.
"""


class CorruptEntry(Damaged):
    """An entry of a log is not what a Pulsar client sends; names the position and the damage."""

    def __init__(self, topic: str, position: Position, damage: Damage) -> None:
        super().__init__(
            f"{topic}: the entry {position.ledger}:{position.entry} cannot be read: {DAMAGES[damage]}"
        )
        self.topic, self.position, self.damage = topic, position, damage


class Decoder:
    """Decodes one log, chunk by chunk, in order.

    A corrupt entry raises CorruptEntry, or is omitted with ``skip_corrupt``; ``skipped`` counts them. A message
    that was sent in chunks has the position of its last chunk. ``earlier`` returns entries before the first ones,
    for messages whose chunks begin there; without it such a message counts as corrupt. ``epochs`` may be filled
    during decoding.
    """

    def __init__(
        self,
        topic: str,
        columns: Sequence[str] = tuple(MESSAGE_COLUMNS),
        *,
        epochs: Mapping[int, int | None] | None = None,
        verify_checksums: bool = True,
        skip_corrupt: bool = False,
        json: bool = False,
        earlier: Earlier | None = None,
    ) -> None:
        self.schema = arrow_schema(columns, json=json)
        self.skipped = 0
        self.first_skipped: CorruptEntry | None = None
        self._topic = topic
        self._partition = TopicName.parse(topic).partition
        self._epochs = {} if epochs is None else epochs
        self._verify_checksums = verify_checksums
        self._skip_corrupt = skip_corrupt
        self._json = json
        self._earlier = earlier
        self._assembler = Assembler()

    def decode(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The messages of a chunk, in order, as record batches of ``schema``."""
        data = chunk.padded()
        words = words_of(data)
        entries = read_entries(data, words, chunk.offsets, verify_checksums=self._verify_checksums)
        counts = _counts(entries)
        for first, behind in _groups(entries, counts):
            yield from self._group(chunk, entries, counts, range(first, behind), data)

    def _group(
        self, chunk: Chunk, entries: Entries, counts: Signed, group: range, data: bytes
    ) -> Iterator[pa.RecordBatch]:
        special = _special(entries)[group.start : group.stop]
        first_chunks: dict[int, Position] = {}
        if special.any():
            which = group.start + np.flatnonzero(special)
            data, counts, first_chunks = self._with_contents(chunk, entries, counts, which, data)
        words = words_of(data)
        rows = _rows(entries, counts, group, data, words)
        source = Source(
            self._topic,
            self._partition,
            self._epochs,
            chunk,
            entries,
            data,
            words,
            self._json,
            first_chunks,
        )
        batch = self._record_batch(source, rows, group)
        for start in range(0, batch.num_rows, RECORD_BATCH_ROWS_MAX):
            yield batch.slice(start, RECORD_BATCH_ROWS_MAX)

    def _record_batch(self, source: Source, rows: Rows, group: range) -> pa.RecordBatch:
        damage = source.entries.damage
        while True:
            rows = rows.kept(damage[rows.entry] == Damage.NONE)
            columns = Columns(source, rows)
            arrays = [columns.column(name) for name in self.schema.names] if len(rows) else None
            for which, what in columns.damaged:
                source.entries.spoil(which, what)
            if not columns.damaged:
                break
        self._judge(source.chunk, damage, group)
        if arrays is None:
            return pa.RecordBatch.from_pylist([], self.schema)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _judge(self, chunk: Chunk, damage: Signed, group: range) -> None:
        wrong = group.start + np.flatnonzero(damage[group.start : group.stop])
        if not len(wrong):
            return
        first = int(wrong[0])
        position = Position(int(chunk.ledger[first]), int(chunk.entry[first]))
        error = CorruptEntry(self._topic, position, Damage(int(damage[first])))
        if not self._skip_corrupt:
            raise error
        self.skipped += len(wrong)
        self.first_skipped = self.first_skipped or error

    # ------------------------------------------------------------ contents

    def _with_contents(
        self, chunk: Chunk, entries: Entries, counts: Signed, special: Signed, data: bytes
    ) -> tuple[bytes, Signed, dict[int, Position]]:
        """The buffer, with decompressed and assembled contents appended.

        ``entries`` then refers to these contents. The counts are the given ones, without chunks of incomplete
        messages. The positions are those of the first chunks of assembled messages, by the index of their entry.
        """
        metadata = entries.metadata
        codecs = metadata.signed(Metadata.COMPRESSION)
        sizes = (metadata.unsigned(Metadata.UNCOMPRESSED_SIZE) & np.uint64(0xFFFFFFFF)).view(
            np.int64
        )
        chunked = _chunked(entries)
        counts = counts.copy()
        first_chunks: dict[int, Position] = {}
        areas, place = [chunk.payload], len(chunk.payload)
        for index in special.tolist():
            content = data[entries.starts[index] : entries.stops[index]]
            try:
                if chunked[index]:
                    message = self._chunk(chunk, entries, index, data)
                    if message is None:
                        counts[index] = 0
                        continue
                    content, first_chunks[index] = message.content, message.first
                content = uncompressed(int(codecs[index]), content, int(sizes[index]))
            except ProtocolError:
                entries.damage[index] = Damage.CONTENT
                continue
            except ChunksMissing:
                entries.damage[index] = Damage.CHUNKS
                continue
            areas.append(content)
            entries.starts[index], entries.stops[index] = place, place + len(content)
            place += len(content)
        return b"".join([*areas, PADDING]), counts, first_chunks

    def _chunk(self, chunk: Chunk, entries: Entries, index: int, data: bytes) -> Assembled | None:
        """Add a chunk to its message. Returns the message if it is complete."""
        uuid, chunk_id, count = _place_of_chunk(entries, index, data)
        content = data[entries.starts[index] : entries.stops[index]]
        position = Position(int(chunk.ledger[index]), int(chunk.entry[index]))
        for entries_back in LOOK_BACK_ENTRIES:
            try:
                return self._assembler.add(uuid, chunk_id, count, content, position)
            except ChunksMissing:
                if self._earlier is None:
                    raise
            for before in self._earlier(position, entries_back):
                self._remember(before, uuid)
        return self._assembler.add(uuid, chunk_id, count, content, position)

    def _remember(self, chunk: Chunk, uuid: bytes) -> None:
        """Add the chunks of one message that are before the decoded entries."""
        data = chunk.padded()
        entries = read_entries(
            data, words_of(data), chunk.offsets, verify_checksums=self._verify_checksums
        )
        for index in np.flatnonzero(_chunked(entries) & (entries.damage == Damage.NONE)).tolist():
            found, chunk_id, count = _place_of_chunk(entries, index, data)
            if found == uuid:
                content = data[entries.starts[index] : entries.stops[index]]
                with contextlib.suppress(ChunksMissing):  # its first chunks are farther back
                    at = Position(int(chunk.ledger[index]), int(chunk.entry[index]))
                    self._assembler.add(uuid, chunk_id, count, content, at)


@dataclass(slots=True)
class _ChunkedMessage:
    """A message whose chunks were seen from ``first`` to ``last``; the last one was stored at ``time_ms``."""

    first: Position
    last: Position
    time_ms: int
    producer: bytes
    is_whole: bool


def whole_before(
    chunks: Iterable[Chunk], cut: Position, is_over: Callable[[int], bool] = lambda _: False
) -> Position:
    """The highest position up to ``cut`` that is not within a message that was sent in chunks.

    ``chunks`` are the entries before the cut. A message that is incomplete in them may continue, unless ``is_over``
    returns true for the ledger of its last chunk (its holder can no longer write), or its producer sent other
    messages for GIVEN_UP_SECONDS.
    """
    begun: dict[bytes, _ChunkedMessage] = {}
    newest: dict[bytes, tuple[bytes, int]] = {}  # by producer: the message and its time
    for chunk in chunks:
        _note_chunks(chunk, begun, newest)
    bounds = []
    for uuid, message in begun.items():
        latest, time_ms = newest[message.producer]
        is_given_up = latest != uuid and time_ms - message.time_ms >= GIVEN_UP_SECONDS * 1000
        goes_on = not (message.is_whole or is_given_up or is_over(message.last.ledger))
        bounds.append((message.first, cut if goes_on else message.last))
    while inside := [first for first, last in bounds if first < cut <= last]:
        cut = min(inside)
    return cut


def _note_chunks(
    chunk: Chunk, begun: dict[bytes, _ChunkedMessage], newest: dict[bytes, tuple[bytes, int]]
) -> None:
    data = chunk.padded()
    entries = read_entries(data, words_of(data), chunk.offsets, verify_checksums=False)
    chunked = _chunked(entries)
    names = entries.metadata.slices(Metadata.PRODUCER_NAME)
    for index in np.flatnonzero(entries.damage == Damage.NONE).tolist():
        producer = data[names[0][index] : names[1][index]]
        time_ms = int(chunk.time_ms[index])
        if not chunked[index]:
            newest[producer] = b"", time_ms
            continue
        at = Position(int(chunk.ledger[index]), int(chunk.entry[index]))
        uuid, chunk_id, count = _place_of_chunk(entries, index, data)
        newest[producer] = uuid, time_ms
        first = begun[uuid].first if uuid in begun else at
        begun[uuid] = _ChunkedMessage(first, at, time_ms, producer, chunk_id == count - 1)


def _chunked(entries: Entries) -> Bools:
    """Which entries are a chunk of a larger message."""
    metadata = entries.metadata
    chunked: Bools = (metadata.signed_32(Metadata.CHUNKS) > 1) & metadata.has(Metadata.CHUNK_ID)
    return chunked


def _special(entries: Entries) -> Bools:
    """Which entries have contents that must be decompressed or assembled."""
    compressed = entries.metadata.unsigned(Metadata.COMPRESSION) != 0
    special: Bools = (compressed | _chunked(entries)) & (entries.damage == Damage.NONE)
    return special


def _place_of_chunk(entries: Entries, index: int, data: bytes) -> tuple[bytes, int, int]:
    """The name of the message, the number of this chunk from 0, and the number of chunks."""
    metadata = entries.metadata
    starts, stops = metadata.slices(Metadata.UUID)
    chunk_id = int(metadata.signed_32(Metadata.CHUNK_ID)[index])
    return (
        data[starts[index] : stops[index]],
        chunk_id,
        int(metadata.signed_32(Metadata.CHUNKS)[index]),
    )


def _counts(entries: Entries) -> Signed:
    """The number of messages in each entry, from its metadata. Batches with an impossible number are marked as
    damaged.
    """
    metadata = entries.metadata
    counts = metadata.signed_32(Metadata.MESSAGES_IN_BATCH)
    counts[~metadata.has(Metadata.MESSAGES_IN_BATCH)] = 1
    too_many = (counts < 0) | (counts > BATCH_MESSAGES_MAX)
    entries.spoil(np.flatnonzero(too_many), Damage.BATCH)
    counts[entries.damage != Damage.NONE] = 0
    return counts


def _groups(entries: Entries, counts: Signed) -> Iterator[tuple[int, int]]:
    """Ranges of entries that are decoded together, by their uncompressed size."""
    metadata = entries.metadata
    claimed = metadata.unsigned(Metadata.UNCOMPRESSED_SIZE) & np.uint64(0xFFFFFFFF)
    plain = metadata.unsigned(Metadata.COMPRESSION) == 0
    sizes = np.where(plain, entries.stops - entries.starts, claimed.view(np.int64))
    sizes[entries.damage != Damage.NONE] = 0
    bytes_up_to, messages_up_to = np.cumsum(sizes), np.cumsum(counts)
    first, total = 0, len(counts)
    while first < total:
        taken_bytes = bytes_up_to[first - 1] if first else 0
        taken_messages = messages_up_to[first - 1] if first else 0
        behind = min(
            int(np.searchsorted(bytes_up_to, taken_bytes + GROUP_BYTES_MAX, "right")),
            int(np.searchsorted(messages_up_to, taken_messages + GROUP_MESSAGES_MAX, "right")),
        )
        behind = max(behind, first + 1)
        yield first, behind
        first = behind


def _rows(entries: Entries, counts: Signed, group: range, data: bytes, words: Unsigned) -> Rows:
    """The rows of the group's undamaged entries. Batches that turn out to be damaged are marked."""
    part = slice(group.start, group.stop)
    good = entries.damage[part] == Damage.NONE
    batched = entries.metadata.has(Metadata.MESSAGES_IN_BATCH)[part] & ~_chunked(entries)[part]
    available = entries.stops[part] - entries.starts[part]
    fits = (counts[part] * MESSAGE_BYTES_MIN <= available) & ((counts[part] > 0) | (available == 0))
    entries.spoil(group.start + np.flatnonzero(good & batched & ~fits), Damage.BATCH)
    singles = group.start + np.flatnonzero(good & ~batched & (counts[part] > 0))
    batches = group.start + np.flatnonzero(good & batched & fits & (counts[part] > 0))
    rows = rows_of_entries(entries, singles)
    if not len(batches):
        return rows
    starts, stops = entries.starts[batches], entries.stops[batches]
    found = read_batches(data, words, starts, stops, counts[batches])
    entries.spoil(batches[found.damaged], Damage.BATCH)
    return rows.merged(rows_of_batches(entries, batches, counts[batches], found))
