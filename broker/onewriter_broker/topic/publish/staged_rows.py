"""Checks the rows of a staged part, and creates the entries that they become.

``onewriter_core.log_format.staged_rows`` defines their form. A frame becomes one entry. The broker only creates the
entry's metadata, so it never parses and reassembles the rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError

from onewriter_core.errors import ProtocolError
from onewriter_core.log_format.staged_rows import (
    FRAME,
    FRAME_BYTES_MAX,
    FRAME_ROWS_MAX,
    KEY_TAG,
    MAGIC,
    PART_FRAMES_MAX,
    SIZE_TAG,
)
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

BYTES_PER_TICK: Final = 1024 * 1024
"""Bytes summed up between two yields to the event loop: a millisecond."""

ROWS_PER_TICK: Final = 2_000
"""Plain rows checked between two yields to the event loop: a few milliseconds."""

ROWS_PER_LOOK: Final = 100
"""Rows checked before the check reports its cost, so that a yield to the event loop can follow."""

PARSED_COST: Final = 5
"""Cost of a row that protobuf has to parse, in plain rows."""
PARSED_BYTES_PER_ROW: Final = 50
"""Bytes of such a row's metadata that add the cost of one more plain row."""

ENTRY_COST: Final = 125
"""Cost of creating an entry, in plain rows: 16 entries between two yields to the event loop, which is 2 MiB if
they are full."""

FRAMES_PER_TICK: Final = 2_000
"""Frames counted between two yields to the event loop: about a millisecond."""

_VARINT_CONTINUES: Final = 0x80
_PADDING: Final = bytes(4)
"""Bytes that the check may read after the end of a frame."""

_SIZE: Final = struct.Struct(">I")


async def checksum(body: bytes) -> str:
    """The checksum that identifies a part: a hash of the CRC-32C of each MiB. It is not a signature.

    A hash of all bytes would take longer than all other work on a part here.
    """
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(body), BYTES_PER_TICK):
        sum_of_piece = google_crc32c.value(body[start : start + BYTES_PER_TICK])
        digest.update(_SIZE.pack(sum_of_piece))
        await asyncio.sleep(0)
    return digest.hexdigest()


def frames(body: bytes) -> Iterator[tuple[int, memoryview]]:
    """The number of rows and the messages of each frame. Raises ProtocolError for a malformed frame."""
    if body[: len(MAGIC)] != MAGIC:
        raise ProtocolError(f"a part begins with {MAGIC.decode()}")
    view, at = memoryview(body), len(MAGIC)
    while at < len(view):
        if len(view) - at < FRAME.size:
            raise ProtocolError("a part is cut short")
        size, rows = FRAME.unpack_from(view, at)
        start, stop = at + FRAME.size, at + 4 + size
        if stop > len(view) or stop <= start:
            raise ProtocolError("a part is cut short")
        if stop - start > FRAME_BYTES_MAX or not 0 < rows <= FRAME_ROWS_MAX:
            raise ProtocolError(
                f"a frame has 1 to {FRAME_ROWS_MAX} rows and at most {FRAME_BYTES_MAX} bytes"
            )
        yield rows, view[start:stop]
        at = stop


async def check(body: bytes, *, frames_max: int = PART_FRAMES_MAX) -> int:
    """Check a part and return its number of rows. Raises ProtocolError if clients could not read its content."""
    total = looked_at = 0
    for number, (rows, messages) in enumerate(frames(body)):
        if number >= frames_max:
            raise ProtocolError(f"a part has at most {frames_max} frames")
        for cost in _checking(rows, messages):
            looked_at += cost
            if looked_at >= ROWS_PER_TICK:
                looked_at = 0
                await asyncio.sleep(0)
        total += rows
    return total


async def count(body: bytes, *, frames_per_tick: int = FRAMES_PER_TICK) -> int:
    """The number of rows of a part that was checked. Raises ProtocolError."""
    total = 0
    for number, (rows, _) in enumerate(frames(body), 1):
        total += rows
        if number % frames_per_tick == 0:
            await asyncio.sleep(0)
    return total


async def entries(
    body: bytes, producer_name: str, sequence_id: int, time_ms: int
) -> AsyncIterator[tuple[Send, bytes]]:
    """The entries of a part that was checked, as their producer would send them."""
    sends: dict[int, Send] = {}  # there may be many entries, and equal ones share one object
    made = 0
    for rows, messages in frames(body):
        made += ENTRY_COST
        metadata = pb.MessageMetadata(
            producer_name=producer_name,
            sequence_id=sequence_id,
            publish_time=time_ms,
            num_messages_in_batch=rows,
        )
        if rows == 1:  # so that the entry is routed by its key, as an entry without a batch is
            key, content_at = _metadata_of(messages, 0)
            made += PARSED_COST + content_at // PARSED_BYTES_PER_ROW
            if key.HasField("partition_key"):
                metadata.partition_key = key.partition_key
                metadata.partition_key_b64_encoded = key.partition_key_b64_encoded
        send = sends.setdefault(rows, Send(0, sequence_id, num_messages=rows))
        yield send, build_entry(metadata, messages)
        if made >= ROWS_PER_TICK:
            made = 0
            await asyncio.sleep(0)


def _checking(rows: int, messages: memoryview) -> Iterator[int]:
    """Check a frame, and yield the cost of each group of rows, in plain rows. Raises ProtocolError."""
    limit, at, cost = len(messages), 0, 0
    data = bytes(messages) + _PADDING  # Python indexes it twice as fast
    for _ in range(rows):
        start = at + _SIZE.size
        stop = start + _SIZE.unpack_from(data, at)[0] if start <= limit else limit + 1
        at = _end_of_plain(data, start, stop) if stop <= limit else 0
        cost += 1
        if not at:  # protobuf checks the other rows
            metadata, _ = _metadata_of(messages, start - _SIZE.size)
            if not data[start:stop].isascii():  # otherwise all texts are ASCII, too
                yield from _checking_texts(metadata)
            at = stop + metadata.payload_size if metadata.payload_size >= 0 else limit + 1
            cost += PARSED_COST + (stop - start) // PARSED_BYTES_PER_ROW
        if at > limit:
            raise ProtocolError("a message is cut short")
        if cost >= ROWS_PER_LOOK:
            yield cost
            cost = 0
    if at != limit:
        raise ProtocolError("a frame is longer than its messages")
    yield cost


def _checking_texts(metadata: pb.SingleMessageMetadata) -> Iterator[int]:
    """Reject texts that are not UTF-8, on which Python's clients would fail. Yields as ``_checking`` does."""
    if not isinstance(metadata.partition_key, str):
        raise ProtocolError("a message's key is not UTF-8")
    for number, each in enumerate(metadata.properties, 1):
        if not (isinstance(each.key, str) and isinstance(each.value, str)):
            raise ProtocolError("a message's property is not UTF-8")
        if number % ROWS_PER_LOOK == 0:
            yield ROWS_PER_LOOK


def _end_of_plain(data: bytes, start: int, stop: int) -> int:
    """The end of a message whose metadata is only a size and, optionally, a short key in ASCII. 0: it has more.

    Most messages have no more, and checking a few bytes takes half the time of a call of protobuf.
    """
    at = start
    if data[at] == KEY_TAG and data[at + 1] < _VARINT_CONTINUES:
        at += 2 + data[at + 1]
        if not data[start:at].isascii():
            return 0
    if at + 2 > stop or data[at] != SIZE_TAG:
        return 0
    size, at = data[at + 1], at + 2
    if size >= _VARINT_CONTINUES:
        size, at = size - _VARINT_CONTINUES + (data[at] << 7), at + 1
        if data[at - 1] >= _VARINT_CONTINUES:
            return 0
    return stop + size if at == stop else 0


def _metadata_of(messages: memoryview, at: int) -> tuple[pb.SingleMessageMetadata, int]:
    """A message's metadata, and the position at which its content begins."""
    start = at + _SIZE.size
    if start > len(messages):
        raise ProtocolError("a frame has fewer messages than it says")
    stop = start + _SIZE.unpack_from(messages, at)[0]
    if stop > len(messages):
        raise ProtocolError("a message's metadata is cut short")
    try:
        metadata = pb.SingleMessageMetadata.FromString(bytes(messages[start:stop]))
    except DecodeError as error:
        raise ProtocolError("a message's metadata is damaged") from error
    if not metadata.IsInitialized():
        raise ProtocolError("a message without a size")
    return metadata, stop
