"""The operations of a map, their formats, and the map's snapshot: chunks of columns.

Keys and values are bytes here; SharedMap decodes them when they are read. An operation has two formats:
``COMPACT``, and ``SAMPLE``, the JSON of PIP-137's reference sample.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from onewriter.state.envelope import CompactFraming, Framing, MessageFraming
from onewriter.state.map_content import MapContent

CHUNK_KEYS_MAX = 50_000
CHUNK_BYTES = 512 * 1024
"""Target size of a chunk in bytes; a larger key with its value is a chunk of its own."""

_LENGTH = struct.Struct("<I")
_CHUNK = struct.Struct("<4sI")
_CHUNK_MAGIC = b"OWM1"


class Kind(enum.IntEnum):
    """The kinds of operations, with the numbers of PIP-137's sample."""

    CLEAR = 0
    PUT = 1
    DELETE = 2


class MapOperation(NamedTuple):
    """One change of a map. ``key`` is empty for CLEAR; ``value`` is empty except for PUT."""

    kind: Kind
    key: bytes = b""
    value: bytes = b""


def apply(content: MapContent, operation: MapOperation) -> MapContent:
    """Return the map after an operation."""
    match operation.kind:
        case Kind.PUT:
            return content.set(operation.key, operation.value)
        case Kind.DELETE:
            return content.delete(operation.key)
        case Kind.CLEAR:
            return MapContent()


class MapFormat(NamedTuple):
    """The format of operations in the log."""

    dump: Callable[[MapOperation], bytes]
    load: Callable[[bytes], MapOperation]
    framing: Callable[[], Framing]


def _dump_compact(operation: MapOperation) -> bytes:
    kind, key, value = operation
    if kind is Kind.PUT:
        return b"".join((b"\x01", _LENGTH.pack(len(key)), key, value))
    return bytes((kind,)) + key


def _load_compact(content: bytes) -> MapOperation:
    if not content:
        raise ValueError("an operation without bytes")
    kind = Kind(content[0])
    if kind is not Kind.PUT:
        if kind is Kind.CLEAR and len(content) > 1:
            raise ValueError("CLEAR has a key")
        return MapOperation(kind, content[1:])
    if len(content) < 1 + _LENGTH.size:
        raise ValueError("a PUT that is cut short")
    stop = 1 + _LENGTH.size + _LENGTH.unpack_from(content, 1)[0]
    if stop > len(content):
        raise ValueError("a PUT that is cut short")
    return MapOperation(Kind.PUT, content[1 + _LENGTH.size : stop], content[stop:])


def _dump_sample(operation: MapOperation) -> bytes:
    kind, key, value = operation
    return json.dumps(
        {
            "type": int(kind),
            "key": None if kind is Kind.CLEAR else base64.b64encode(key).decode(),
            "value": base64.b64encode(value).decode() if kind is Kind.PUT else None,
        }
    ).encode()


def _load_sample(content: bytes) -> MapOperation:
    read = json.loads(content)
    if not isinstance(read, dict) or read.get("type") not in (0, 1, 2):
        raise ValueError(f"this is not an operation of a map: {content[:80]!r}")
    kind = Kind(read["type"])
    key = b"" if kind is Kind.CLEAR else _from_base64(read.get("key"))
    return MapOperation(kind, key, _from_base64(read.get("value")) if kind is Kind.PUT else b"")


def _from_base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("an operation lacks its key or value")  # noqa: TRY004 - what was read is wrong
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("a key or value that is not base64") from error


COMPACT = MapFormat(_dump_compact, _load_compact, CompactFraming)
"""onewriter's format: a byte, the lengths, the bytes; an entry contains many writes."""

SAMPLE = MapFormat(_dump_sample, _load_sample, MessageFraming)
"""The format of PIP-137's sample: each operation is a message with a JSON object; one write per entry."""


class MapSnapshots:
    """Implements Snapshots. A chunk is a column of lengths, then the keys, then the values."""

    def dump(self, state: MapContent) -> Iterator[bytes]:
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for key, value in state.items():
            item = len(key) + len(value) + 2 * _LENGTH.size
            if keys and (size + item > CHUNK_BYTES or len(keys) >= CHUNK_KEYS_MAX):
                yield _pack_chunk(keys, values)
                keys, values, size = [], [], 0
            keys.append(key)
            values.append(value)
            size += item
        if keys:
            yield _pack_chunk(keys, values)

    def load(self, chunks: Iterable[bytes]) -> MapContent:
        base: dict[bytes, bytes] = {}
        for chunk in chunks:
            keys, values = _unpack_chunk(chunk)
            base.update(zip(keys, values, strict=True))
        return MapContent(base)


def _pack_chunk(keys: list[bytes], values: list[bytes]) -> bytes:
    lengths = _numbers([*map(len, keys), *map(len, values)])
    return b"".join((_CHUNK.pack(_CHUNK_MAGIC, len(keys)), lengths, *keys, *values))


def _unpack_chunk(chunk: bytes) -> tuple[list[bytes], list[bytes]]:
    if len(chunk) < _CHUNK.size or chunk[:4] != _CHUNK_MAGIC:
        raise ValueError("not a chunk of a map")
    count = _CHUNK.unpack_from(chunk)[1]
    start = _CHUNK.size + 2 * count * _LENGTH.size
    if start > len(chunk):
        raise ValueError("a chunk that is cut short")
    lengths = array("I", chunk[_CHUNK.size : start])
    if sys.byteorder == "big":
        lengths.byteswap()
    bounds = list(accumulate(lengths, initial=start))
    if bounds[-1] != len(chunk):
        raise ValueError(f"a chunk has {len(chunk)} bytes, but its lengths add up to {bounds[-1]}")
    parts = [chunk[begin:stop] for begin, stop in pairwise(bounds)]
    return parts[:count], parts[count:]


def _numbers(values: list[int]) -> bytes:
    numbers = array("I", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
