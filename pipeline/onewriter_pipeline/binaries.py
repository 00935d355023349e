"""Whole columns as numpy arrays: array types, byte strings, protobuf's numbers, validation of UTF-8.

Shared by the decoder of messages (``decode``) and their encoder (``publish``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Signed = NDArray[np.int64]
Unsigned = NDArray[np.uint64]

PADDING: Final = bytes(32)
"""Must follow the last byte of a buffer, so that whole words can be read anywhere."""

_SEVEN_BITS: Final = 0x7F
_CONTINUES: Final = 0x80
_BITS_PER_BYTE: Final = 7

_ASCII_END: Final = 0x80
_LEAD: Final = 0xC0
"""A byte from here on starts a character; a byte between the two constants continues one."""

_MARK: Final = 0xC0
"""The bits that mark a continuation byte: only the higher one is set."""

_TAILS: Final = np.zeros(256, np.uint8)
_TAILS[0xC2:0xE0], _TAILS[0xE0:0xF0], _TAILS[0xF0:0xF5] = 1, 2, 3
"""The number of continuation bytes, by the first byte of a character."""

_SECOND_LEAST: Final = np.full(256, 0x80, np.uint8)
_SECOND_LEAST[[0xE0, 0xF0]] = 0xA0, 0x90
_SECOND_MOST: Final = np.full(256, 0xBF, np.uint8)
_SECOND_MOST[[0xED, 0xF4]] = 0x9F, 0x8F
"""The range of a character's second byte. Other values would be an overlong encoding, a surrogate, or outside
Unicode.
"""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Consecutive byte strings in ``data``: each one extends from a bound to the next."""

    data: Bytes
    bounds: Signed

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> Signed:
        """The size of each byte string."""
        return np.diff(self.bounds)

    def trimmed(self) -> Binaries:
        """The same byte strings, without the data before the first and after the last."""
        first, last = int(self.bounds[0]), int(self.bounds[-1])
        return Binaries(self.data[first:last], self.bounds - first)

    def to_arrow(self, valid: Bools | None = None) -> pa.Array:
        """As an Arrow array (``large_binary``), without a copy; null where ``valid`` is false."""
        import pyarrow as pa  # noqa: PLC0415 - as in ``binaries``

        validity = None if valid is None else pa.array(valid).buffers()[1]
        buffers = [validity, pa.py_buffer(self.bounds), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)


def binaries(column: pa.Array) -> Binaries:
    """A column of binaries or strings as byte strings; a null becomes empty."""
    import pyarrow as pa  # noqa: PLC0415 - Spark imports a sink's modules where pyarrow may be missing

    column = column.cast(pa.large_binary())
    if column.null_count:
        column = column.fill_null(b"")
    if not len(column):
        return Binaries(np.empty(0, np.uint8), np.zeros(1, np.int64))
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return Binaries(content, bounds)


def joined(columns: Sequence[pa.Array]) -> Binaries:
    """For each row, the concatenated byte strings of all columns (``large_binary``); a null counts as empty."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.compute as pc  # noqa: PLC0415

    nothing = pa.scalar(b"", pa.large_binary())
    # Arrow copies each piece once, to its destination.
    found = pc.binary_join_element_wise(
        *columns, nothing, null_handling="replace", null_replacement=b""
    )
    return binaries(found)


def texts(values: Binaries) -> Bools:
    """Which byte strings are valid UTF-8."""
    values = values.trimmed()
    at = np.flatnonzero(values.data >= _ASCII_END)
    found = np.ones(len(values), np.bool_)
    if not len(at):
        return found
    whose = np.searchsorted(values.bounds, at, "right") - 1
    data = np.concatenate([values.data, np.zeros(3, np.uint8)])
    first, second = data[at], data[at + 1]
    tails = _TAILS[first].astype(np.int64)
    leads = first >= _LEAD
    wrong = leads & (tails == 0)
    wrong |= leads & (at + tails >= values.bounds[whose + 1])
    wrong |= leads & ((second < _SECOND_LEAST[first]) | (second > _SECOND_MOST[first]))
    for index in (2, 3):
        wrong |= (tails >= index) & (data[at + index] & _MARK != _ASCII_END)
    found[whose[wrong]] = False
    # Each continuation byte follows a byte that requires it, so comparing the two counts is enough.
    wanted = np.bincount(whose, tails, len(values))
    found &= wanted == np.bincount(whose, ~leads, len(values))
    return found


def varint_sizes(numbers: NDArray[Any]) -> Signed:
    """The size of each non-negative number as a varint, in bytes."""
    values = numbers.astype(np.uint64)
    sizes = np.ones(len(values), np.int64)
    most = int(values.max(initial=0)) >> _BITS_PER_BYTE
    bits = _BITS_PER_BYTE
    while most:
        sizes += (values >> np.uint64(bits)) != 0
        most >>= _BITS_PER_BYTE
        bits += _BITS_PER_BYTE
    return sizes


class Heads:
    """A few bytes for each row, built field by field; a row can lack fields."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._everywhere = np.ones(rows, np.bool_)
        self._columns: list[Bytes] = []
        self._present: list[Bools] = []

    def byte(self, value: int, present: Bools | None = None) -> None:
        """Add a constant byte to the rows that have it."""
        if present is None or present.any():
            self._add(np.full(self._rows, value, np.uint8), present)

    def varint(self, numbers: NDArray[Any], present: Bools | None = None) -> None:
        """Add a non-negative number as a varint to the rows that have it."""
        if present is not None:
            if not present.any():
                return
            numbers = np.where(present, numbers, 0)
        values = numbers.astype(np.uint64)
        sizes = varint_sizes(values)
        for index in range(int(sizes.max(initial=0))):
            low = (values >> np.uint64(_BITS_PER_BYTE * index)).astype(np.uint8) & _SEVEN_BITS
            goes_on = sizes > index + 1
            here = sizes > index
            byte = np.where(goes_on, low | _CONTINUES, low).astype(np.uint8)
            self._add(byte, here if present is None else here & present)

    def big_endian_32(self, numbers: NDArray[Any]) -> None:
        """Add a number of four bytes to each row."""
        encoded = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
        for index in range(4):
            self._add(encoded[:, index], None)

    def to_arrow(self) -> pa.Array:
        """The bytes of each row, as an Arrow array (``large_binary``)."""
        bounds = np.zeros(self._rows + 1, np.int64)
        if not self._columns:  # no row has any field
            return Binaries(np.empty(0, np.uint8), bounds).to_arrow()
        found = np.stack(self._columns, axis=1)
        present = np.stack(self._present, axis=1)
        np.cumsum(np.count_nonzero(present, axis=1), out=bounds[1:])
        return Binaries(found[present], bounds).to_arrow()

    def _add(self, column: Bytes, present: Bools | None) -> None:
        if present is None or present.all():
            present = self._everywhere
        if present.any():
            self._columns.append(column)
            self._present.append(present)
