"""The packed stream of a log's blocks: the format of ``GET .../blocks`` (docs/http.md, "Blocks").

No I/O. All integers are little-endian. The contents of blocks are as in the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_core.ids import Position
from onewriter_core.log_format.integers import pack_u32
from onewriter_core.log_format.packed_stream import (
    BLOCK,
    BLOCK_HEAD,
    END,
    END_CONTENT,
    ENDS_PUBLISH,
    ERROR,
    FRAME_HEAD,
    HAS_COUNTS,
    IS_ATOMIC,
    MARKER,
    MARKER_HEAD,
    NAME_HEAD,
    NAMES_PUBLISHER,
    NO_PAYLOAD,
    framed,
)

_BLOCK = framed(BLOCK_HEAD)
_MARKER = framed(MARKER_HEAD)
_END = framed(END_CONTENT)
_NAME_BYTES_MAX: Final = 0xFFFF
_LENGTH_BYTES: Final = 4
"""The length at the beginning of a frame does not include itself."""


def pack(blocks: Iterable[StoredBlock], *, payload: bool = True, publishers: bool = False) -> bytes:
    """Frames of blocks and markers, concatenated.

    ``payload``: include the entries' bytes; ``publishers``: include the publishers of atomic publishes.
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
    """A name after its length. Names that are longer than any that brokers store are truncated."""
    name = text.encode()[:_NAME_BYTES_MAX]
    return NAME_HEAD.pack(len(name)) + name


def _marker(marker: Marker) -> tuple[bytes, bytes]:
    fields = json.dumps(dict(marker.fields)).encode()
    size = _MARKER.size - _LENGTH_BYTES + len(fields)
    return _MARKER.pack(size, MARKER, marker.position.ledger), fields


def pack_end(end: Position) -> bytes:
    """The end of a complete response: it contains all that is committed before ``end``."""
    return _END.pack(_END.size - _LENGTH_BYTES, END, *end)


def pack_error(status: int, message: str, **details: str) -> bytes:
    """The end of an incomplete response; ``status`` is the status that the request would have got."""
    body = json.dumps({"status": status, "message": message} | details).encode()
    return FRAME_HEAD.pack(FRAME_HEAD.size - _LENGTH_BYTES + len(body), ERROR) + body
