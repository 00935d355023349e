"""The hash that chains the blocks of a ledger."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c

from onewriter_core.ids import Position
from onewriter_core.log_format.integers import pack_u32

CHAIN_BYTES: Final = 16
CHAIN_START: Final = bytes(CHAIN_BYTES)
"""The hash before the first block of a ledger."""

_POSITION = struct.Struct("<QQ")
_NUMBER = struct.Struct("<I")


def chain(previous: bytes, position: Position, lengths: Sequence[int], payload: bytes) -> bytes:
    """As ``chain_packed``, of lengths that are numbers."""
    return chain_packed(previous, position, pack_u32(lengths), payload)


def chain_packed(
    previous: bytes, position: Position, packed_lengths: bytes, payload: bytes
) -> bytes:
    """The hash of a block after the block with the hash ``previous`` in the same ledger.

    BLAKE2b-128 over ``previous``, ledger and entry (u64), the lengths (``pack_u32``) and the payload's CRC-32C (u32),
    all little-endian. It shows a missing, foreign or reordered block to later readers. It is not a signature.
    """
    digest = hashlib.blake2b(previous, digest_size=CHAIN_BYTES)
    digest.update(_POSITION.pack(*position))
    digest.update(packed_lengths)
    digest.update(_NUMBER.pack(google_crc32c.value(payload)))
    return digest.digest()
