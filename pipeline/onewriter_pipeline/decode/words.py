"""Reads numbers at many positions of a buffer at once: 8-byte words, varints, big-endian sizes.

All functions work on arrays. A call costs some microseconds for any number of positions, so callers pass thousands.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from onewriter_pipeline.binaries import Signed, Unsigned

_CONTINUES: Final = np.uint64(0x80)
_ALL_CONTINUE: Final = np.uint64(0x8080808080808080)
_LOW_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_BYTE_STARTS: Final = np.uint64(0x0101010101010101)
_ONE: Final = np.uint64(1)
_SEVEN_BITS: Final = np.uint64(0x7F)
_WORD_BYTES: Final = 8
_VARINT_BYTES_MAX: Final = 10

_JOINS: Final = (
    (np.uint64(0x7F007F007F007F00), np.uint64(0x007F007F007F007F), np.uint64(1)),
    (np.uint64(0x3FFF00003FFF0000), np.uint64(0x00003FFF00003FFF), np.uint64(2)),
    (np.uint64(0x0FFFFFFF00000000), np.uint64(0x000000000FFFFFFF), np.uint64(4)),
)
"""Groups of 7 bits become groups of 14, 28 and 56: what to move, what stays, the distance."""


def words_of(data: bytes | bytearray) -> Unsigned:
    """The little-endian 8-byte word at every position of ``data``, which ends in PADDING."""
    return np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, 0, (1,))


def big_endian_32(words: Unsigned, at: Signed) -> Signed:
    """The unsigned big-endian 32-bit number at each position."""
    return words[at].astype(np.uint32).byteswap().astype(np.int64)


def varints(words: Unsigned, at: Signed) -> tuple[Unsigned, Signed]:
    """The varint at each position and its size in bytes; size 0: longer than any varint."""
    word = words[at]
    if not (word & _CONTINUES).any():  # almost always: tags, lengths, small numbers
        return word & _SEVEN_BITS, np.ones(len(at), np.int64)
    ends = ~word & _ALL_CONTINUE
    below_end = (ends & (~ends + _ONE)) - _ONE  # all ones if no byte ends it
    sizes = np.bitwise_count(below_end & _BYTE_STARTS).astype(np.int64)
    values = word & below_end & _LOW_BITS
    for moved, kept, shift in _JOINS:
        values = ((values & moved) >> shift) | (values & kept)
    long = ends == 0
    if long.any():
        _complete(words, at, values, sizes, np.flatnonzero(long))
    return values, sizes


def _complete(words: Unsigned, at: Signed, values: Unsigned, sizes: Signed, long: Signed) -> None:
    """Add the ninth and tenth byte of the varints that have them."""
    rest = words[at[long] + _WORD_BYTES]
    ninth, tenth = rest & np.uint64(0xFF), (rest >> np.uint64(8)) & np.uint64(0xFF)
    values[long] |= (ninth & _SEVEN_BITS) << np.uint64(56)
    goes_on = ninth >= _CONTINUES
    values[long] |= np.where(goes_on, (tenth & _ONE) << np.uint64(63), np.uint64(0))
    sizes[long] = np.where(
        goes_on, np.where(tenth >= _CONTINUES, 0, _VARINT_BYTES_MAX), _VARINT_BYTES_MAX - 1
    )
