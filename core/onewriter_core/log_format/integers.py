"""Lists of unsigned 32-bit integers, little-endian, as blocks store lengths and counts."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

_NUMBER = struct.Struct("<I")
_U32 = next(code for code in "IL" if array(code).itemsize == 4)
_SWAP = sys.byteorder == "big"


def pack_u32(numbers: Sequence[int]) -> bytes:
    """Numbers as consecutive unsigned 32-bit little-endian integers. Raises OverflowError for other numbers."""
    if len(numbers) == 1 and 0 <= numbers[0] < 2**32:
        return _NUMBER.pack(numbers[0])  # the usual unbatched block, at a third of the cost
    packed = array(_U32, numbers)
    if _SWAP:  # pragma: no cover
        packed.byteswap()
    return packed.tobytes()


def unpack_u32(data: bytes) -> list[int]:
    """The inverse of pack_u32. Raises ValueError if the size is not a multiple of four."""
    numbers = array(_U32)
    numbers.frombytes(data)
    if _SWAP:  # pragma: no cover
        numbers.byteswap()
    return numbers.tolist()
