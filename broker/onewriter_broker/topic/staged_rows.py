"""The rows of a staged part, as executors pack them, and the entries that they become.

A part is ``OWR1`` and frames: the size of what follows and a number of rows, both unsigned 32-bit
little-endian, then that many messages as in the payload of a Pulsar batch that is not compressed. A
frame becomes one entry; here only its metadata is made, so that the rows themselves are never taken
apart to be put together again.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from onewriter_broker.log.publishing import ENTRY_BYTES_MAX
from onewriter_core.errors import ProtocolError
from onewriter_core.wire.hot import Send
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

MAGIC: Final = b"OWR1"

FRAME_BYTES_MAX: Final = ENTRY_BYTES_MAX - 4096
"""The messages of one frame; the rest of an entry is for its metadata."""

FRAME_ROWS_MAX: Final = 10_000
"""Messages in one frame; Pulsar's clients put 1000 into a batch."""

PART_FRAMES_MAX: Final = 32_768
"""Frames of one part: each becomes an entry, which takes memory beside its bytes."""

BYTES_PER_TURN: Final = 1024 * 1024
"""Bytes summed up before others get a turn of the event loop: a millisecond."""

ROWS_PER_TURN: Final = 2_000
"""Rows looked at before others get a turn of the event loop: a few milliseconds."""

FRAMES_PER_TURN: Final = 2_000
"""Frames counted before others get a turn of the event loop: about a millisecond."""

_FRAME: Final = struct.Struct("<II")
_SIZE: Final = struct.Struct(">I")


async def checksum(body: bytes) -> str:
    """What tells a part from every other."""
    digest = hashlib.blake2b(digest_size=16)
    view = memoryview(body)
    for start in range(0, len(body), BYTES_PER_TURN):
        digest.update(view[start : start + BYTES_PER_TURN])
        await asyncio.sleep(0)
    return digest.hexdigest()


def frames(body: bytes) -> Iterator[tuple[int, memoryview]]:
    """Rows and messages of each frame. Raises ProtocolError for what is none."""
    if body[: len(MAGIC)] != MAGIC:
        raise ProtocolError(f"a part begins with {MAGIC.decode()}")
    view, at = memoryview(body), len(MAGIC)
    while at < len(view):
        if len(view) - at < _FRAME.size:
            raise ProtocolError("a part is cut short")
        size, rows = _FRAME.unpack_from(view, at)
        start, stop = at + _FRAME.size, at + 4 + size
        if stop > len(view) or stop <= start:
            raise ProtocolError("a part is cut short")
        if stop - start > FRAME_BYTES_MAX or not 0 < rows <= FRAME_ROWS_MAX:
            raise ProtocolError(
                f"a frame has 1 to {FRAME_ROWS_MAX} rows and at most {FRAME_BYTES_MAX} bytes"
            )
        yield rows, view[start:stop]
        at = stop


async def check(body: bytes) -> int:
    """How many rows a part has. Raises ProtocolError where clients could not read what it holds."""
    total = looked_at = 0
    for number, (rows, messages) in enumerate(frames(body)):
        if number >= PART_FRAMES_MAX:
            raise ProtocolError(f"a part has at most {PART_FRAMES_MAX} frames")
        _check_messages(rows, messages)
        total += rows
        looked_at += rows
        if looked_at >= ROWS_PER_TURN:
            looked_at = 0
            await asyncio.sleep(0)
    return total


async def count(body: bytes) -> int:
    """How many rows a part has that was checked. Raises ProtocolError."""
    total = 0
    for number, (rows, _) in enumerate(frames(body), 1):
        total += rows
        if number % FRAMES_PER_TURN == 0:
            await asyncio.sleep(0)
    return total


def entries(
    body: bytes, producer_name: str, sequence_id: int, time_ms: int
) -> Iterator[tuple[Send, bytes]]:
    """The entries of a part that was checked, as their producer would send them."""
    sends: dict[int, Send] = {}  # there may be very many entries: the same ones share theirs
    for rows, messages in frames(body):
        metadata = pb.MessageMetadata(
            producer_name=producer_name,
            sequence_id=sequence_id,
            publish_time=time_ms,
            num_messages_in_batch=rows,
        )
        if rows == 1:  # so that it is routed by its key, as an entry without a batch would be
            key = _metadata_of(messages, 0)[0]
            if key.HasField("partition_key"):
                metadata.partition_key = key.partition_key
                metadata.partition_key_b64_encoded = key.partition_key_b64_encoded
        send = sends.setdefault(rows, Send(0, sequence_id, num_messages=rows))
        yield send, build_entry(metadata, messages)


def _check_messages(rows: int, messages: memoryview) -> None:
    at = 0
    for _ in range(rows):
        metadata, start = _metadata_of(messages, at)
        at = start + metadata.payload_size
        if metadata.payload_size < 0 or at > len(messages):
            raise ProtocolError("a message is cut short")
    if at != len(messages):
        raise ProtocolError("a frame is longer than its messages")


def _metadata_of(messages: memoryview, at: int) -> tuple[pb.SingleMessageMetadata, int]:
    """A message's metadata, and where its content begins."""
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
