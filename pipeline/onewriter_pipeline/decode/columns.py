"""Builds the columns of messages as Arrow arrays, from the rows' numbers and the buffer."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from onewriter_core.ids import Position
from onewriter_pipeline import schema as names
from onewriter_pipeline.binaries import Bools, Heads, Signed, Unsigned, binaries, texts
from onewriter_pipeline.brokers.frames import Chunk
from onewriter_pipeline.decode.entries import Damage, Entries, Metadata
from onewriter_pipeline.decode.fields import WantedFields, scan
from onewriter_pipeline.decode.rows import Rows, Slices

_MICROSECONDS: Final = np.uint64(1000)
_TIME_MS_MAX: Final = np.uint64(253_402_300_799_000)
"""The last second of the year 9999. Neither Spark nor the log of a table supports later times."""
_KEY, _VALUE = 1, 2
_PAIR: Final = WantedFields(pieces=frozenset({_KEY, _VALUE}))


@dataclass(frozen=True, slots=True)
class Source:
    """The input of columns. ``epochs`` has the topic epoch of each ledger, if it is known; ``first_chunks`` the first
    chunk of each message that was sent in chunks, by the index of its entry.
    """

    topic: str
    partition: int | None
    epochs: Mapping[int, int | None]
    chunk: Chunk
    entries: Entries
    data: bytes
    words: Unsigned
    json: bool
    first_chunks: Mapping[int, Position] = field(default_factory=dict)


class Columns:
    """Builds the columns of some rows; ``damaged`` lists entries that turn out to be damaged."""

    def __init__(self, source: Source, rows: Rows) -> None:
        self._source = source
        self._rows = rows
        self._data = pa.py_buffer(source.data)
        self.damaged: list[tuple[Signed, Damage]] = []

    def column(self, name: str) -> pa.Array:
        """A column by its name."""
        return _MAKERS[name](self)

    def value(self) -> pa.Array:
        if self._source.json:
            return self._text(self._rows.value)
        return gathered(self._data, self._rows.value, pa.binary())

    def key(self) -> pa.Array:
        rows = self._rows
        keys = gathered(self._data, rows.key, pa.binary())
        encoded = rows.key_is_base64 & rows.key.present
        if not encoded.any():
            return keys
        which = np.flatnonzero(encoded)
        plain = from_base64(keys.take(pa.array(which)))
        if plain.null_count:
            self._spoil(which[np.asarray(plain.is_null())], Damage.KEY)
        places = np.arange(len(rows))
        places[which] = len(rows) + np.arange(len(which))
        return pa.concat_arrays([keys, plain]).take(pa.array(places))

    def ordering_key(self) -> pa.Array:
        return gathered(self._data, self._rows.ordering_key, pa.binary())

    def topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._source.topic, pa.string()), len(self._rows))

    def message_id(self) -> pa.Array:
        chunk, rows, partition = self._source.chunk, self._rows, self._source.partition
        ids = message_ids(
            chunk.ledger[rows.entry],
            chunk.entry[rows.entry],
            rows.batch_index,
            rows.batch_size,
            partition,
        )
        firsts = self._source.first_chunks
        if not firsts:
            return ids
        which = np.flatnonzero(np.isin(rows.entry, list(firsts)))
        chunked = [
            with_first_chunk(ids[row].as_py(), firsts[entry], partition)
            for row, entry in zip(which.tolist(), rows.entry[which].tolist(), strict=True)
        ]
        places = np.arange(len(rows))
        places[which] = len(rows) + np.arange(len(which))
        return pa.concat_arrays([ids, pa.array(chunked, pa.binary())]).take(pa.array(places))

    def publish_time(self) -> pa.Array:
        times = self._source.entries.metadata.unsigned(Metadata.PUBLISH_TIME)
        return _timestamps(times[self._rows.entry])

    def event_time(self) -> pa.Array:
        times = self._rows.event_time_ms
        return _timestamps(times, absent=times == 0)

    def properties(self) -> pa.Array:
        pieces = self._rows.properties
        kind = pa.map_(pa.string(), pa.string())
        bounds = np.zeros(len(self._rows) + 1, np.int32)
        if not len(pieces.rows):
            nothing = pa.array([], pa.string())
            return pa.MapArray.from_arrays(pa.array(bounds), nothing, nothing, kind)
        pairs = scan(self._source.words, pieces.starts, pieces.stops, _PAIR)
        wrong = pairs.damaged | ~pairs.has(_KEY) | ~pairs.has(_VALUE)
        if wrong.any():
            self._spoil(pieces.rows[wrong], Damage.METADATA)
        keys = self._text(Slices(~wrong, *pairs.slices(_KEY)), pieces.rows)
        values = self._text(Slices(~wrong, *pairs.slices(_VALUE)), pieces.rows)
        last = _last_of_each(pieces.rows, keys) & ~wrong
        if not last.all():
            kept = pa.array(np.flatnonzero(last))
            keys, values = keys.take(kept), values.take(kept)
        np.cumsum(np.bincount(pieces.rows[last], minlength=len(self._rows)), out=bounds[1:])
        return pa.MapArray.from_arrays(pa.array(bounds), keys, values, kind)

    def epoch(self) -> pa.Array:
        ledgers = self._source.chunk.ledger
        distinct, which = np.unique(ledgers, return_inverse=True)
        epochs = [self._source.epochs.get(ledger) for ledger in distinct.tolist()]
        return pa.array(epochs, pa.int64()).take(pa.array(which[self._rows.entry]))

    def ledger(self) -> pa.Array:
        return pa.array(self._source.chunk.ledger[self._rows.entry])

    def entry(self) -> pa.Array:
        return pa.array(self._source.chunk.entry[self._rows.entry])

    def batch_index(self) -> pa.Array:
        return pa.array(self._rows.batch_index.astype(np.int32))

    def producer(self) -> pa.Array:
        """Decoded once for each entry, then repeated for each row."""
        which, place = np.unique(self._rows.entry, return_inverse=True)
        metadata = self._source.entries.metadata
        names_of_entries = Slices(
            metadata.has(Metadata.PRODUCER_NAME), *metadata.slices(Metadata.PRODUCER_NAME)
        ).taken(which)
        found = gathered(self._data, names_of_entries, pa.string())
        self._check_text(found, which)
        return found if len(which) == len(place) else found.take(pa.array(place))

    def sequence(self) -> pa.Array:
        return pa.array(self._rows.sequence_id)

    # ------------------------------------------------------------ texts

    def _text(self, slices: Slices, rows: Signed | None = None) -> pa.Array:
        found = gathered(self._data, slices, pa.string())
        self._check_text(found, self._rows.entry if rows is None else self._rows.entry[rows])
        return found

    def _check_text(self, found: pa.Array, entries: Signed) -> None:
        try:
            found.validate(full=True)
        except pa.ArrowInvalid:
            wrong = ~texts(binaries(found))
            self.damaged.append((np.unique(entries[wrong]), Damage.TEXT))

    def _spoil(self, rows: Signed, damage: Damage) -> None:
        self.damaged.append((np.unique(self._rows.entry[rows]), damage))


_MAKERS: Final[Mapping[str, Callable[[Columns], pa.Array]]] = {
    names.VALUE: Columns.value,
    names.KEY: Columns.key,
    names.TOPIC: Columns.topic,
    names.MESSAGE_ID: Columns.message_id,
    names.PUBLISH_TIME: Columns.publish_time,
    names.EVENT_TIME: Columns.event_time,
    names.PROPERTIES: Columns.properties,
    names.EPOCH: Columns.epoch,
    names.LEDGER: Columns.ledger,
    names.ENTRY: Columns.entry,
    names.BATCH_INDEX: Columns.batch_index,
    names.PRODUCER: Columns.producer,
    names.SEQUENCE: Columns.sequence,
    names.ORDERING_KEY: Columns.ordering_key,
}


def _timestamps(milliseconds: Unsigned, absent: Bools | None = None) -> pa.Array:
    micros = (np.minimum(milliseconds, _TIME_MS_MAX) * _MICROSECONDS).view(np.int64)
    return pa.array(micros, pa.int64(), mask=absent).cast(pa.timestamp("us", tz="UTC"))


def _last_of_each(rows: Signed, keys: pa.Array) -> Bools:
    """Which properties count: the last one if a message has several with the same name."""
    last = np.ones(len(rows), np.bool_)
    if (rows[1:] == rows[:-1]).any():
        codes = keys.dictionary_encode().indices.fill_null(0)
        both = rows * len(rows) + np.asarray(codes)
        _, from_behind = np.unique(both[::-1], return_index=True)
        last[:] = False
        last[len(rows) - 1 - from_behind] = True
    return last


def gathered(data: pa.Buffer, slices: Slices, kind: pa.DataType) -> pa.Array:
    """The slices as an array of a binary or string type; null where a row has none.

    Arrow copies them in one call. Its binary arrays have no gaps, but the slices do. So an array over the buffer,
    without a copy, has the slices and the gaps as alternating elements, and Arrow takes every second one.
    """
    which = np.flatnonzero(slices.present)
    if not len(which):
        return pa.nulls(len(slices.present), kind)
    starts, stops = slices.starts[which], slices.stops[which]
    ranks = np.arange(len(which))
    if (starts[1:] < stops[:-1]).any():  # not in the order of the buffer
        order = np.lexsort((stops, starts))
        starts, stops = starts[order], stops[order]
        ranks[order] = np.arange(len(which))
    bounds = np.empty(2 * len(which), np.int32)
    bounds[0::2], bounds[1::2] = starts, stops
    laid = pa.Array.from_buffers(kind, len(bounds) - 1, [None, pa.py_buffer(bounds), data])
    if len(which) == len(slices.present):
        return laid.take(pa.array((2 * ranks).astype(np.int32)))
    places = np.zeros(len(slices.present), np.int32)
    places[which] = 2 * ranks
    return laid.take(pa.array(places, mask=~slices.present))


def from_base64(texts: pa.Array) -> pa.Array:
    """The values of base64 texts; null for null and for invalid base64."""
    encoded = texts.dictionary_encode()
    plain = pa.array([_plain(text) for text in encoded.dictionary.to_pylist()], pa.binary())
    return plain.take(encoded.indices)


def _plain(text: bytes) -> bytes | None:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        return None


_LEDGER, _ENTRY, _PARTITION, _BATCH_INDEX, _BATCH_SIZE = 0x08, 0x10, 0x18, 0x20, 0x30
"""Tags of fields of MessageIdData that are varints."""

_FIRST_CHUNK: Final = b"\x3a"
"""Tag of the field of MessageIdData that has the id of the first chunk."""


def message_ids(
    ledger: Signed,
    entry: Signed,
    batch_index: Signed,
    batch_size: Signed,
    partition: int | None,
) -> pa.Array:
    """Pulsar's message ids, as its clients serialize them. Batch index and size only if the size is not 0, the
    partition if there is one.
    """
    rows = len(ledger)
    fields: list[tuple[int, Signed, Bools | None]] = [
        (_LEDGER, ledger, None),
        (_ENTRY, entry, None),
    ]
    if partition is not None:
        fields.append((_PARTITION, np.full(rows, partition), None))
    is_batched = batch_size > 0
    fields += [(_BATCH_INDEX, batch_index, is_batched), (_BATCH_SIZE, batch_size, is_batched)]
    ids = Heads(rows)
    for tag, numbers, present in fields:
        ids.byte(tag, present)
        ids.varint(numbers, present)
    return ids.to_arrow().cast(pa.binary())


def with_first_chunk(message_id: bytes, first: Position, partition: int | None) -> bytes:
    """The id of a message that was sent in chunks: that of its last chunk, with that of its first chunk in it."""
    ledger, entry = np.array([first.ledger]), np.array([first.entry])
    nothing = np.zeros(1, np.int64)
    nested: bytes = message_ids(ledger, entry, nothing, nothing, partition)[0].as_py()
    return message_id + _FIRST_CHUNK + bytes([len(nested)]) + nested
