"""Decodes thousands of protobuf messages at once: a cursor in each, and one field of all of them per round.

Producers write fields in a fixed order, so a round nearly always finds the same tag at all cursors. Otherwise the
cursors are grouped by tag. Duplicate fields count as in protobuf: the last value of a field that is not repeated.
Unknown fields, and known fields of another wire type, are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from onewriter_pipeline.binaries import Bools, Signed, Unsigned
from onewriter_pipeline.decode.words import varints

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED_64: 8, _FIXED_32: 4}
_WIRE_BITS: Final = 3
_TAG_MAX: Final = 2**32 - 1
_AT_ONCE: Final = 16_384
"""Messages of a round: few enough for the arrays of a round to fit into the processor's cache."""


@dataclass(frozen=True, slots=True)
class WantedFields:
    """The fields to decode, by number; all others are skipped.

    ``repeated`` is a field whose pieces all count. With ``until``, a scan leaves each message after the first field
    of that number.
    """

    numbers: Collection[int] = ()
    pieces: Collection[int] = ()
    repeated: int = 0
    until: int = 0


@dataclass(slots=True)
class Pieces:
    """Slices of the buffer, one for each of some messages: index of the message, start, stop."""

    rows: Signed
    starts: Signed
    stops: Signed


@dataclass(slots=True)
class Fields:
    """The fields of ``count`` messages. ``damaged``: those that are invalid protobuf."""

    count: int
    damaged: Bools
    _has: dict[int, Bools] = field(default_factory=dict)
    _numbers: dict[int, Unsigned] = field(default_factory=dict)
    _starts: dict[int, Signed] = field(default_factory=dict)
    _stops: dict[int, Signed] = field(default_factory=dict)
    _repeated: list[Pieces] = field(default_factory=list)

    def has(self, number: int) -> Bools:
        """Which messages have the field."""
        found = self._has.get(number)
        return np.zeros(self.count, np.bool_) if found is None else found

    def unsigned(self, number: int) -> Unsigned:
        """The values of the field; 0 if it is absent."""
        found = self._numbers.get(number)
        return np.zeros(self.count, np.uint64) if found is None else found

    def signed(self, number: int) -> Signed:
        """The values as signed 64-bit numbers."""
        return self.unsigned(number).view(np.int64)

    def signed_32(self, number: int) -> Signed:
        """The values as protobuf's int32."""
        return self.unsigned(number).astype(np.int32).astype(np.int64)

    def true(self, number: int) -> Bools:
        """The values of a bool field."""
        values: Bools = self.unsigned(number) != 0
        return values

    def slices(self, number: int) -> tuple[Signed, Signed]:
        """The starts and stops of the field's bytes; both 0 if it is absent."""
        if number not in self._starts:
            return np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        return self._starts[number], self._stops[number]

    def repeated(self) -> Pieces:
        """All pieces of the repeated field, in the order of messages, and in their order within each."""
        if not self._repeated:
            nothing = np.zeros(0, np.int64)
            return Pieces(nothing, nothing, nothing)
        rows = np.concatenate([pieces.rows for pieces in self._repeated])
        starts = np.concatenate([pieces.starts for pieces in self._repeated])
        stops = np.concatenate([pieces.stops for pieces in self._repeated])
        order = np.argsort(rows, kind="stable")
        return Pieces(rows[order], starts[order], stops[order])

    def note_number(self, number: int, rows: Signed, values: Unsigned) -> None:
        """Add a field's value in some messages."""
        if number not in self._numbers:
            self._numbers[number] = np.zeros(self.count, np.uint64)
        self._numbers[number][rows] = values
        self._note(number, rows)

    def note_pieces(self, number: int, rows: Signed, starts: Signed, ends: Signed) -> None:
        """Add a field's bytes in some messages."""
        if number not in self._starts:
            self._starts[number] = np.zeros(self.count, np.int64)
            self._stops[number] = np.zeros(self.count, np.int64)
        self._starts[number][rows], self._stops[number][rows] = starts, ends
        self._note(number, rows)

    def note_repeated(self, rows: Signed, starts: Signed, stops: Signed) -> None:
        """Add a piece of some messages."""
        self._repeated.append(Pieces(rows, starts, stops))

    def _note(self, number: int, rows: Signed) -> None:
        if number not in self._has:
            self._has[number] = np.zeros(self.count, np.bool_)
        self._has[number][rows] = True


def scan(words: Unsigned, starts: Signed, stops: Signed, wanted: WantedFields) -> Fields:
    """Decode the messages in ``words`` from each start to its stop."""
    fields = Fields(len(starts), starts > stops)
    for first in range(0, len(starts), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        rows = first + np.flatnonzero(starts[part] < stops[part])
        _scan(words, rows, starts[rows], stops[rows], wanted, fields)
    return fields


def _scan(
    words: Unsigned,
    rows: Signed,
    cursors: Signed,
    ends: Signed,
    wanted: WantedFields,
    fields: Fields,
) -> None:
    while len(rows):
        tags, sizes = varints(words, cursors)
        cursors = cursors + sizes
        damaged = (sizes == 0) | (cursors > ends) | (tags > _TAG_MAX)
        leaves = damaged.copy()
        for tag, chosen in _by_tag(tags):
            some = _Round(words, rows[chosen], cursors[chosen], ends[chosen])
            cursors[chosen], wrong = some.read(tag, wanted, fields)
            damaged[chosen] |= wrong
            if tag >> _WIRE_BITS == wanted.until:
                leaves[chosen] = True
        if damaged.any():
            fields.damaged[rows[damaged]] = True
        alive = (cursors < ends) & ~(damaged | leaves)
        if not alive.all():
            rows, cursors, ends = rows[alive], cursors[alive], ends[alive]


def _by_tag(tags: Unsigned) -> Iterator[tuple[int, Signed | slice]]:
    if (tags == tags[0]).all():
        yield int(tags[0]), slice(None)
        return
    for tag in np.unique(tags).tolist():
        yield tag, np.flatnonzero(tags == np.uint64(tag))


@dataclass(frozen=True, slots=True)
class _Round:
    """Messages that have the same tag at their cursors."""

    words: Unsigned
    rows: Signed
    cursors: Signed
    ends: Signed

    def read(self, tag: int, wanted: WantedFields, fields: Fields) -> tuple[Signed, Bools]:
        """Read the field. Returns where the next one begins, and which messages are damaged."""
        number, wire = tag >> _WIRE_BITS, tag & 7
        if number and wire == _VARINT:
            return self._varint(number, wanted, fields)
        if number and wire == _BYTES:
            return self._bytes(number, wanted, fields)
        if number and wire in _FIXED_SIZES:
            after = self.cursors + _FIXED_SIZES[wire]
            return after, after > self.ends
        return self.ends, np.ones(len(self.rows), np.bool_)

    def _varint(self, number: int, wanted: WantedFields, fields: Fields) -> tuple[Signed, Bools]:
        values, sizes = varints(self.words, self.cursors)
        after = self.cursors + sizes
        if number in wanted.numbers:
            fields.note_number(number, self.rows, values)
        return after, (sizes == 0) | (after > self.ends)

    def _bytes(self, number: int, wanted: WantedFields, fields: Fields) -> tuple[Signed, Bools]:
        lengths, sizes = varints(self.words, self.cursors)
        starts = self.cursors + sizes
        available = (self.ends - starts).clip(0).astype(np.uint64)
        wrong = (sizes == 0) | (starts > self.ends) | (lengths > available)
        stops = starts + np.minimum(lengths, available).view(np.int64)
        if number == wanted.repeated:
            fields.note_repeated(self.rows, starts, stops)
        elif number in wanted.pieces:
            fields.note_pieces(number, self.rows, starts, stops)
        return stops, wrong
