"""The packed stream of a log's blocks: how ``GET .../blocks`` writes them (docs/http.md, "Blocks").

Nothing here does I/O. All integers are little-endian; what is in a block is as the store has it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Final

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_broker.log.store.blocks import pack_u32
from onewriter_core.ids import Position

HEAD: Final = b"OWB2"
"""What the stream begins with: its name and version."""

BLOCK: Final = 1
MARKER: Final = 2
END: Final = 3
ERROR: Final = 4

HAS_COUNTS: Final = 1
"""Flag: how many messages each entry has follows the lengths; else it is one each."""

IS_ATOMIC: Final = 2
"""Flag: the block is a part of an atomic publish, whose name follows what is there of lengths and counts."""

ENDS_PUBLISH: Final = 4
"""Flag: and the last one of it."""

NO_PAYLOAD: Final = 8
"""Flag: the entries' bytes were not asked for, and are left out."""

NAMES_PUBLISHER: Final = 16
"""Flag: the publisher's name, as the block has it, follows the name of the atomic publish; it may be empty."""

_BLOCK = struct.Struct("<IBQQQIB16s")
_HEAD = struct.Struct("<IB")
_MARKER = struct.Struct("<IBQ")
_END = struct.Struct("<IBQQ")
_NAME_LENGTH = struct.Struct("<H")
_NAME_BYTES_MAX: Final = 0xFFFF
_LENGTH_BYTES: Final = 4
"""The length at the beginning of a frame does not count itself."""


def pack(blocks: Iterable[StoredBlock], *, payload: bool = True, publishers: bool = False) -> bytes:
    """Frames of blocks and markers, one behind the other.

    ``payload``: with the entries' bytes; ``publishers``: with who published, of atomic publishes.
    """
    parts: list[bytes] = []
    for block in blocks:
        if isinstance(block, Marker):
            parts += _marker(block)
        else:
            parts += _block(block, payload=payload, publishers=publishers)
    return b"".join(parts)


def _block(block: Block, *, payload: bool, publishers: bool) -> tuple[bytes, ...]:
    lengths = pack_u32(block.lengths)
    counts = b"" if block.counts is None else pack_u32(block.counts)
    name = b""
    if block.publish:
        name = _name(block.publish) + (_name(block.by) if publishers else b"")
    flags = (HAS_COUNTS if counts else 0) | (IS_ATOMIC if name else 0)
    flags |= NAMES_PUBLISHER if name and publishers else 0
    flags |= (ENDS_PUBLISH if block.commits else 0) | (0 if payload else NO_PAYLOAD)
    content = block.payload if payload else b""
    size = _BLOCK.size - _LENGTH_BYTES + len(lengths) + len(counts) + len(name) + len(content)
    ledger, first = block.position
    head = _BLOCK.pack(
        size, BLOCK, ledger, first, block.time_ms, len(block.lengths), flags, block.chain
    )
    return head, lengths, counts, name, content


def _name(text: str) -> bytes:
    """A name behind its length; what no broker stores is cut off."""
    name = text.encode()[:_NAME_BYTES_MAX]
    return _NAME_LENGTH.pack(len(name)) + name


def _marker(marker: Marker) -> tuple[bytes, bytes]:
    fields = json.dumps(dict(marker.fields)).encode()
    size = _MARKER.size - _LENGTH_BYTES + len(fields)
    return _MARKER.pack(size, MARKER, marker.position.ledger), fields


def pack_end(end: Position) -> bytes:
    """The answer is whole: all that is committed in front of ``end`` was sent."""
    return _END.pack(_END.size - _LENGTH_BYTES, END, *end)


def pack_error(status: int, message: str, **details: str) -> bytes:
    """The answer breaks off here; ``status`` is what the request would have been answered with."""
    body = json.dumps({"status": status, "message": message} | details).encode()
    return _HEAD.pack(_HEAD.size - _LENGTH_BYTES + len(body), ERROR) + body
