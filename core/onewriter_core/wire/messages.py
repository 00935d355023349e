"""Entries, the payloads of SEND and MESSAGE: checksum, metadata, batches.

The broker stores and delivers entries unchanged. It reads them only with this module. Clients and tests build and
parse entries. The module does not touch the contents: clients compress and encrypt.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import google_crc32c
from google.protobuf.message import DecodeError

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.commands import check_values
from onewriter_core.wire.frames import BROKER_ENTRY_METADATA_MAGIC, CHECKSUM_MAGIC
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

Bytes = bytes | bytearray | memoryview

_U32 = struct.Struct(">I")
_crc32c: Callable[[bytes], int] = google_crc32c.value
_CHECKED_START = 6
"""The checksum covers the bytes after its magic (2 bytes) and itself (4 bytes)."""


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """The properties of an entry that the broker uses.

    ``num_messages`` counts the messages of a batch; it is 1 if ``is_batch`` is false.
    ``chunk_id`` and ``num_chunks`` are None unless the entry is a chunk of the message ``uuid``.
    Times are milliseconds since 1970 by the producer's clock, 0 if unset.
    """

    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    publish_time_ms: int
    event_time_ms: int
    num_messages: int
    is_batch: bool
    chunk_id: int | None
    num_chunks: int | None
    uuid: str
    partition_key: str
    compression: int
    is_encrypted: bool


def split_broker_entry_metadata(payload: Bytes) -> tuple[pb.BrokerEntryMetadata | None, memoryview]:
    """Split a payload as a client gets it: the broker's metadata, if any, and the entry."""
    view = memoryview(payload)
    if view[:2] != BROKER_ENTRY_METADATA_MAGIC:
        return None, view
    if len(view) < 6:
        raise ProtocolError("broker entry metadata is cut short")
    stop = 6 + _U32.unpack_from(view, 2)[0]
    if stop > len(view):
        raise ProtocolError("broker entry metadata is cut short")
    try:
        return pb.BrokerEntryMetadata.FromString(bytes(view[6:stop])), view[stop:]
    except DecodeError as error:
        raise ProtocolError("broker entry metadata is damaged") from error


METADATA_BYTES_MAX = 2 * 1024 * 1024
"""The maximum bytes of an entry's metadata: readers, among them brokers, decode it in one step."""


def metadata_is_bounded(entry: Bytes) -> bool:
    """Whether the metadata of an entry, which itself is longer, has at most METADATA_BYTES_MAX bytes."""
    is_checked = entry[0] == CHECKSUM_MAGIC[0] and entry[1] == CHECKSUM_MAGIC[1]
    length: int = _U32.unpack_from(entry, _CHECKED_START if is_checked else 0)[0]
    return length <= METADATA_BYTES_MAX


def entry_checksum_ok(entry: Bytes) -> bool:
    """Whether the entry's CRC32C is correct. An entry without a checksum is valid.

    Raises ProtocolError if the entry is too short for the checksum that it announces.
    """
    # Byte by byte: comparing a slice of a memoryview takes twice as long.
    if len(entry) < 2 or entry[0] != CHECKSUM_MAGIC[0] or entry[1] != CHECKSUM_MAGIC[1]:
        return True
    if len(entry) < _CHECKED_START:
        raise ProtocolError("an entry's checksum is cut short")
    # The library takes only bytes. The copy takes less time than the checksum.
    checksum = _crc32c(bytes(entry[_CHECKED_START:]))
    announced: int = _U32.unpack_from(entry, 2)[0]
    return checksum == announced


def entry_checksum(entry: Bytes) -> int:
    """The CRC32C that an entry announces, else the CRC32C of the whole entry."""
    if (
        len(entry) < _CHECKED_START
        or entry[0] != CHECKSUM_MAGIC[0]
        or entry[1] != CHECKSUM_MAGIC[1]
    ):
        return _crc32c(bytes(entry))
    announced: int = _U32.unpack_from(entry, 2)[0]
    return announced


def content_checksum(entry: Bytes) -> int:
    """The CRC32C of the content. Raises ProtocolError if the metadata is damaged."""
    return _crc32c(bytes(entry_payload(entry)))


def parse_metadata(entry: Bytes) -> pb.MessageMetadata:
    """An entry's complete metadata, with every value checked. Raises ProtocolError if it is damaged."""
    metadata = _metadata(memoryview(entry))
    check_values(metadata)
    return metadata


def entry_payload(entry: Bytes) -> memoryview:
    """The content after the metadata: one message or a batch, as the producer made it."""
    view = memoryview(entry)
    return view[_metadata_bounds(view)[1] :]


def summarize(entry: Bytes) -> EntrySummary:
    """The summary of an entry. Raises ProtocolError if its metadata is damaged.

    protobuf parses all fields, which is faster than skipping some in Python.
    """
    metadata = _metadata(memoryview(entry))
    for text in (metadata.producer_name, metadata.uuid, metadata.partition_key):
        if not isinstance(text, str):
            raise ProtocolError("an entry's metadata has a text that is not UTF-8")
    return EntrySummary(
        producer_name=metadata.producer_name,
        sequence_id=metadata.sequence_id,
        highest_sequence_id=metadata.highest_sequence_id,
        publish_time_ms=metadata.publish_time,
        event_time_ms=metadata.event_time,
        num_messages=metadata.num_messages_in_batch,
        is_batch=metadata.HasField("num_messages_in_batch"),
        chunk_id=metadata.chunk_id if metadata.HasField("chunk_id") else None,
        num_chunks=metadata.num_chunks_from_msg
        if metadata.HasField("num_chunks_from_msg")
        else None,
        uuid=metadata.uuid,
        partition_key=metadata.partition_key,
        compression=metadata.compression,
        is_encrypted=bool(metadata.encryption_keys),
    )


def build_entry(metadata: pb.MessageMetadata, payload: Bytes, *, checksum: bool = True) -> bytes:
    """Build an entry as a producer sends it."""
    encoded = metadata.SerializeToString()
    body = b"".join((_U32.pack(len(encoded)), encoded, payload))
    if not checksum:
        return body
    return b"".join((CHECKSUM_MAGIC, _U32.pack(_crc32c(body)), body))


def build_batch(messages: Iterable[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    """Build the payload of a batch. Sets the payload_size of each metadata."""
    parts: list[bytes] = []
    for metadata, content in messages:
        metadata.payload_size = len(content)
        encoded = metadata.SerializeToString()
        parts += (_U32.pack(len(encoded)), encoded, content)
    return b"".join(parts)


def iterate_batch(
    payload: Bytes, count: int
) -> Iterator[tuple[pb.SingleMessageMetadata, memoryview]]:
    """The ``count`` messages of a batch that is neither compressed nor encrypted.

    Raises ProtocolError if the batch is damaged or has another length.
    """
    view = memoryview(payload)
    position = 0
    for _ in range(count):
        if len(view) - position < _U32.size:
            raise ProtocolError("a batch is cut short")
        metadata_start = position + _U32.size
        content_start = metadata_start + _U32.unpack_from(view, position)[0]
        if content_start > len(view):
            raise ProtocolError("a batch is cut short")
        try:
            metadata = pb.SingleMessageMetadata.FromString(
                bytes(view[metadata_start:content_start])
            )
        except DecodeError as error:
            raise ProtocolError("a message's metadata is damaged") from error
        if not metadata.IsInitialized() or metadata.payload_size < 0:
            raise ProtocolError("a message without a size")
        check_values(metadata)
        position = content_start + metadata.payload_size
        if position > len(view):
            raise ProtocolError("a batch is cut short")
        yield metadata, view[content_start:position]
    if position != len(view):
        raise ProtocolError("a batch is longer than its messages")


def _metadata(view: memoryview) -> pb.MessageMetadata:
    start, stop = _metadata_bounds(view)
    try:
        metadata = pb.MessageMetadata.FromString(bytes(view[start:stop]))
    except DecodeError as error:
        raise ProtocolError("an entry's metadata is damaged") from error
    if not metadata.IsInitialized():
        raise ProtocolError("an entry's metadata lacks a required field")
    return metadata


def _metadata_bounds(view: memoryview) -> tuple[int, int]:
    size_at = _CHECKED_START if view[:2] == CHECKSUM_MAGIC else 0
    start = size_at + _U32.size
    if len(view) < start:
        raise ProtocolError("an entry without metadata")
    stop = start + _U32.unpack_from(view, size_at)[0]
    if stop > len(view):
        raise ProtocolError("an entry's metadata is cut short")
    return start, stop
