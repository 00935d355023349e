"""Reads the entries of a chunk, all at once: checksums and metadata.

An entry is what a Pulsar client sent after SEND (docs/wire.md): optionally the broker's own metadata, optionally a
checksum, the size of the metadata, the metadata, the content. The content is one message, a batch of messages, or a
chunk of a large message, compressed or not.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np

from onewriter_core.wire.frames import BROKER_ENTRY_METADATA_MAGIC, CHECKSUM_MAGIC
from onewriter_pipeline.binaries import Signed, Unsigned
from onewriter_pipeline.decode.fields import Fields, WantedFields, scan
from onewriter_pipeline.decode.words import big_endian_32

_BROKER_METADATA: Final = np.uint64(int.from_bytes(BROKER_ENTRY_METADATA_MAGIC, "little"))
_CHECKSUM: Final = np.uint64(int.from_bytes(CHECKSUM_MAGIC, "little"))
_MAGIC_BITS: Final = np.uint64(0xFFFF)
_MAGIC_BYTES, _SIZE_BYTES, _CHECKSUM_BYTES = 2, 4, 6

_COPIED_BYTES_MAX: Final = 4096
"""Average size of entries up to which the checksum of a copy is faster."""

_crc32c: Callable[[bytes], int] = google_crc32c.value


class Metadata(enum.IntEnum):
    """The fields of Pulsar's MessageMetadata that are decoded."""

    PRODUCER_NAME = 1
    SEQUENCE_ID = 2
    PUBLISH_TIME = 3
    PROPERTIES = 4
    PARTITION_KEY = 6
    COMPRESSION = 8
    UNCOMPRESSED_SIZE = 9
    MESSAGES_IN_BATCH = 11
    EVENT_TIME = 12
    ENCRYPTION_KEYS = 13
    KEY_IS_BASE64 = 17
    ORDERING_KEY = 18
    NULL_VALUE = 25
    UUID = 26
    CHUNKS = 27
    CHUNK_ID = 29
    NULL_KEY = 30


_WANTED: Final = WantedFields(
    numbers=frozenset(
        {
            Metadata.SEQUENCE_ID,
            Metadata.PUBLISH_TIME,
            Metadata.COMPRESSION,
            Metadata.UNCOMPRESSED_SIZE,
            Metadata.MESSAGES_IN_BATCH,
            Metadata.EVENT_TIME,
            Metadata.KEY_IS_BASE64,
            Metadata.NULL_VALUE,
            Metadata.CHUNKS,
            Metadata.CHUNK_ID,
            Metadata.NULL_KEY,
        }
    ),
    pieces=frozenset(
        {
            Metadata.PRODUCER_NAME,
            Metadata.PARTITION_KEY,
            Metadata.ENCRYPTION_KEYS,
            Metadata.ORDERING_KEY,
            Metadata.UUID,
        }
    ),
    repeated=Metadata.PROPERTIES,
)


class Damage(enum.IntEnum):
    """The damage of an entry; 0: none."""

    NONE = 0
    CUT_SHORT = 1
    CHECKSUM = 2
    METADATA = 3
    ENCRYPTED = 4
    CONTENT = 5
    BATCH = 6
    CHUNKS = 7
    KEY = 8
    TEXT = 9


DAMAGES: Final = {
    Damage.CUT_SHORT: "it is cut short",
    Damage.CHECKSUM: "its checksum is wrong",
    Damage.METADATA: "its metadata is damaged",
    Damage.ENCRYPTED: "it is encrypted",
    Damage.CONTENT: "its content cannot be uncompressed",
    Damage.BATCH: "its batch is damaged",
    Damage.CHUNKS: "the chunks before it are missing",
    Damage.KEY: "one of its keys is not base64",
    Damage.TEXT: "one of its texts is not UTF-8",
}


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries as arrays: their metadata, the slices of their contents, and their damage."""

    metadata: Fields
    starts: Signed
    """The beginning of the content, after the metadata."""
    stops: Signed
    damage: Signed
    """A value of Damage for each entry. The other values of a damaged entry have no meaning."""

    def spoil(self, which: Signed, damage: Damage) -> None:
        """Mark entries as damaged, unless they are already."""
        fresh = which[self.damage[which] == Damage.NONE]
        self.damage[fresh] = damage


def read_entries(
    data: bytes, words: Unsigned, offsets: Signed, *, verify_checksums: bool
) -> Entries:
    """Read the entries in ``data`` between consecutive ``offsets``."""
    starts, stops = offsets[:-1].copy(), offsets[1:].copy()
    damage = np.zeros(len(starts), np.int64)
    _skip_broker_metadata(words, starts, stops)
    damage[stops - starts < _SIZE_BYTES] = Damage.CUT_SHORT
    checked = (words[starts] & _MAGIC_BITS == _CHECKSUM) & (stops - starts >= _MAGIC_BYTES)
    sizes_at = np.where(checked, starts + _CHECKSUM_BYTES, starts)
    damage[sizes_at + _SIZE_BYTES > stops] = Damage.CUT_SHORT
    if verify_checksums:
        which = np.flatnonzero(checked & (damage == Damage.NONE))
        announced = big_endian_32(words, starts[which] + _MAGIC_BYTES)
        damage[which[_checksums(data, sizes_at[which], stops[which]) != announced]] = (
            Damage.CHECKSUM
        )
    begins = sizes_at + _SIZE_BYTES
    sizes = big_endian_32(words, np.where(damage == Damage.NONE, sizes_at, 0))
    contents = begins + sizes
    damage[(damage == Damage.NONE) & (contents > stops)] = Damage.CUT_SHORT
    good = damage == Damage.NONE
    metadata = scan(words, np.where(good, begins, 0), np.where(good, contents, 0), _WANTED)
    lacks = ~(
        metadata.has(Metadata.PRODUCER_NAME)
        & metadata.has(Metadata.SEQUENCE_ID)
        & metadata.has(Metadata.PUBLISH_TIME)
    )
    damage[good & (metadata.damaged | lacks)] = Damage.METADATA
    damage[(damage == Damage.NONE) & metadata.has(Metadata.ENCRYPTION_KEYS)] = Damage.ENCRYPTED
    return Entries(metadata, contents, stops, damage)


def _skip_broker_metadata(words: Unsigned, starts: Signed, stops: Signed) -> None:
    """Move the starts of entries that begin with the broker's own metadata."""
    announced = np.flatnonzero(words[starts] & _MAGIC_BITS == _BROKER_METADATA)
    if len(announced):
        begins = starts[announced] + _MAGIC_BYTES
        behind = begins + _SIZE_BYTES + big_endian_32(words, begins)
        starts[announced] = np.minimum(behind, stops[announced])


def _checksums(data: bytes, starts: Signed, stops: Signed) -> Signed:
    """The CRC-32C of each slice. A comprehension creates slices faster than ``map`` and ``slice``.

    A slice of bytes is a copy, and one of an array is not, but takes longer to create.
    """
    crc32c, bounds = _crc32c, zip(starts.tolist(), stops.tolist(), strict=True)
    is_large = len(starts) and int((stops - starts).sum()) >= len(starts) * _COPIED_BYTES_MAX
    source: Any = np.frombuffer(data, np.uint8) if is_large else data
    return np.array([crc32c(source[start:stop]) for start, stop in bounds], np.int64)
