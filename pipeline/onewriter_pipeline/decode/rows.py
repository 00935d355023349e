"""One row per message, as numbers: the slices of its value, key and properties, and its other fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from onewriter_pipeline.binaries import Bools, Signed, Unsigned
from onewriter_pipeline.decode.batches import Batched, Single
from onewriter_pipeline.decode.entries import Entries, Metadata
from onewriter_pipeline.decode.fields import Fields, Pieces

UNBATCHED: Final = -1
"""The batch index of a message that is an entry of its own."""


@dataclass(frozen=True, slots=True)
class Slices:
    """A slice of the buffer for each row that has one."""

    present: Bools
    starts: Signed
    stops: Signed

    def taken(self, order: Signed) -> Slices:
        """The slices of some rows, in that order."""
        return Slices(self.present[order], self.starts[order], self.stops[order])

    def then(self, others: Slices) -> Slices:
        """These slices, followed by others."""
        return Slices(
            np.concatenate([self.present, others.present]),
            np.concatenate([self.starts, others.starts]),
            np.concatenate([self.stops, others.stops]),
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages in the order of their log. ``entry`` is the index of each one's entry in the chunk."""

    entry: Signed
    batch_index: Signed
    batch_size: Signed
    """0 for a message that is an entry of its own."""
    value: Slices
    key: Slices
    key_is_base64: Bools
    ordering_key: Slices
    event_time_ms: Unsigned
    sequence_id: Signed
    properties: Pieces
    """Encoded KeyValues, by row, in the order of rows."""

    def __len__(self) -> int:
        return len(self.entry)

    def kept(self, which: Bools) -> Rows:
        """A selection of rows."""
        return self if which.all() else self.taken(np.flatnonzero(which))

    def taken(self, order: Signed) -> Rows:
        """Some rows, each at most once, in that order."""
        return Rows(
            self.entry[order],
            self.batch_index[order],
            self.batch_size[order],
            self.value.taken(order),
            self.key.taken(order),
            self.key_is_base64[order],
            self.ordering_key.taken(order),
            self.event_time_ms[order],
            self.sequence_id[order],
            _renumbered(self.properties, len(self), order),
        )

    def merged(self, others: Rows) -> Rows:
        """These rows and others, in the order of their entries."""
        if not len(self) or not len(others):
            return self if len(self) else others
        both = Rows(
            np.concatenate([self.entry, others.entry]),
            np.concatenate([self.batch_index, others.batch_index]),
            np.concatenate([self.batch_size, others.batch_size]),
            self.value.then(others.value),
            self.key.then(others.key),
            np.concatenate([self.key_is_base64, others.key_is_base64]),
            self.ordering_key.then(others.ordering_key),
            np.concatenate([self.event_time_ms, others.event_time_ms]),
            np.concatenate([self.sequence_id, others.sequence_id]),
            Pieces(
                np.concatenate([self.properties.rows, others.properties.rows + len(self)]),
                np.concatenate([self.properties.starts, others.properties.starts]),
                np.concatenate([self.properties.stops, others.properties.stops]),
            ),
        )
        return both.taken(np.argsort(both.entry, kind="stable"))


def rows_of_entries(entries: Entries, which: Signed) -> Rows:
    """The rows of entries that are one message each."""
    metadata = entries.metadata
    key, null_key = Metadata.PARTITION_KEY, Metadata.NULL_KEY
    return Rows(
        entry=which,
        batch_index=np.full(len(which), UNBATCHED),
        batch_size=np.zeros(len(which), np.int64),
        value=Slices(~metadata.true(Metadata.NULL_VALUE), entries.starts, entries.stops).taken(
            which
        ),
        key=Slices(metadata.has(key) & ~metadata.true(null_key), *metadata.slices(key)).taken(
            which
        ),
        key_is_base64=metadata.true(Metadata.KEY_IS_BASE64)[which],
        ordering_key=_slices(metadata, Metadata.ORDERING_KEY).taken(which),
        event_time_ms=metadata.unsigned(Metadata.EVENT_TIME)[which],
        sequence_id=metadata.signed(Metadata.SEQUENCE_ID)[which],
        properties=_renumbered(metadata.repeated(), metadata.count, which),
    )


def rows_of_batches(entries: Entries, which: Signed, counts: Signed, found: Batched) -> Rows:
    """The rows of entries that are batches of ``counts`` messages, without messages that their client compacted
    out.
    """
    metadata = found.metadata
    entry = np.repeat(which, counts)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    key, null_key = Single.PARTITION_KEY, Single.NULL_KEY
    of_entry = entries.metadata.signed(Metadata.SEQUENCE_ID)[entry]
    rows = Rows(
        entry=entry,
        batch_index=np.arange(len(entry)) - firsts,
        batch_size=np.repeat(counts, counts),
        value=Slices(~metadata.true(Single.NULL_VALUE), found.starts, found.stops),
        key=Slices(metadata.has(key) & ~metadata.true(null_key), *metadata.slices(key)),
        key_is_base64=metadata.true(Single.KEY_IS_BASE64),
        ordering_key=_slices(metadata, Single.ORDERING_KEY),
        event_time_ms=metadata.unsigned(Single.EVENT_TIME),
        sequence_id=np.where(
            metadata.has(Single.SEQUENCE_ID), metadata.signed(Single.SEQUENCE_ID), of_entry
        ),
        properties=metadata.repeated(),
    )
    return rows.kept(~metadata.true(Single.COMPACTED_OUT) & ~np.repeat(found.damaged, counts))


def _slices(metadata: Fields, number: int) -> Slices:
    return Slices(metadata.has(number), *metadata.slices(number))


def _renumbered(pieces: Pieces, count: int, order: Signed) -> Pieces:
    """The pieces of some rows of ``count``, under their new numbers."""
    if not len(pieces.rows):
        return pieces
    place = np.full(count, -1)
    place[order] = np.arange(len(order))
    rows = place[pieces.rows]
    kept = np.flatnonzero(rows >= 0)
    kept = kept[np.argsort(rows[kept], kind="stable")]
    return Pieces(rows[kept], pieces.starts[kept], pieces.stops[kept])
