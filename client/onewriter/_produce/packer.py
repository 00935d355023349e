"""Packs messages into entries: metadata, compression, batches. It does no I/O; callers pass the time.

One entry is one SEND and one position in the log. A batch is an entry with several messages. Common metadata
is encoded by hand because of its cost per message, all other metadata by protobuf.
"""

from __future__ import annotations

import asyncio
import enum
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from onewriter._errors import ConfigurationError, Refused, ServerError
from onewriter._message import CONTENT_BYTES_MAX, MessageId
from onewriter_core.wire.compression import compress
from onewriter_core.wire.encoding import encode_send_header, encode_varint
from onewriter_core.wire.frames import CHECKSUM_MAGIC
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

BATCH_MESSAGES_MAX = 1_000
BATCH_BYTES_MAX = 128 * 1024
BATCH_DELAY_SECONDS = 0.001
"""The default of Pulsar's Java client."""

CHUNK_CONTENT_SHARE_MIN = 1 / 4
"""Smallest share of content in a chunk's entry; the rest is metadata, which each chunk repeats."""

MESSAGE_OVERHEAD_BYTES = 16
"""Bytes that a message in a batch needs for its lengths and numbers."""

_U32 = struct.Struct(">I")
_crc32c: Callable[[bytes], int] = google_crc32c.value
_crc32c_extended: Callable[[int, bytes], int] = google_crc32c.extend


class Compression(enum.Enum):
    """Compression of contents, by codecs that every Pulsar client supports."""

    NONE = pb.MessageMetadata.NONE
    LZ4 = pb.MessageMetadata.LZ4
    ZLIB = pb.MessageMetadata.ZLIB
    ZSTD = pb.MessageMetadata.ZSTD
    SNAPPY = pb.MessageMetadata.SNAPPY


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The limits of a batch. The limit that is reached first ends the batch.

    A batch is stored as one entry, completely or not at all. With ``delay_seconds`` 0 a batch collects the
    messages of one event-loop tick. Raises ConfigurationError for limits out of range.
    """

    messages_max: int = BATCH_MESSAGES_MAX
    bytes_max: int = BATCH_BYTES_MAX
    delay_seconds: float = BATCH_DELAY_SECONDS

    def __post_init__(self) -> None:
        if self.messages_max < 1 or self.bytes_max < 1 or self.delay_seconds < 0:
            raise ConfigurationError(
                "a batch holds at least one message and one byte, and waits at least 0 s"
            )


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message of a batch that was not written to a connection yet."""

    content: bytes
    key: str | None
    ordering_key: bytes | None
    described: bytes
    """The encoded metadata without size and sequence id; see ``described``."""
    receipt: asyncio.Future[MessageId]
    size: int
    sequence_id: int = -1


def too_large(what: str) -> Refused:
    """Return the error for a message that is too large for the broker."""
    return Refused(ServerError.NOT_ALLOWED_ERROR, what)


def message_size(content: bytes, described: bytes) -> int:
    """Return the approximate size in bytes of a message in a batch."""
    return len(content) + len(described) + MESSAGE_OVERHEAD_BYTES


def checked_content(content: bytes) -> bytes:
    """Return an immutable copy of the content. Raises ConfigurationError if it is not bytes."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise ConfigurationError(f"a message's content is bytes, not {type(content).__name__}")


def described(
    key: str | None,
    ordering_key: bytes | None,
    properties: Mapping[str, str] | None,
    event_time_ms: int,
) -> bytes:
    """Return a message's encoded metadata for a batch, so that an invalid message does not fail the batch.

    Raises ConfigurationError for wrong types, a negative time, or text that is not valid Unicode.
    """
    if key is None and ordering_key is None and not event_time_ms and not properties:
        return b""
    metadata = pb.SingleMessageMetadata()
    _describe(metadata, key, ordering_key, properties, event_time_ms)
    return metadata.SerializePartialToString()


class Packed(NamedTuple):
    """An entry and the header of its SEND command."""

    header: bytes
    entry: bytes


class Packer:
    """Packs messages of one producer, under the name that the broker has given it."""

    def __init__(
        self,
        producer_id: int,
        producer_name: str,
        compression: Compression,
        *,
        content_bytes_max: int = CONTENT_BYTES_MAX,
    ) -> None:
        self._content_bytes_max = content_bytes_max
        self._producer_id = producer_id
        self._name = producer_name
        self._codec = compression.value
        encoded = producer_name.encode()
        self._head = b"\x0a" + encode_varint(len(encoded)) + encoded + b"\x10"
        self._ms = -1
        self._encoded_ms = b""

    def single(
        self,
        sequence_id: int,
        content: bytes,
        *,
        key: str | None,
        ordering_key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int,
        now_ms: int,
    ) -> Packed:
        """Pack one message into an entry. Raises ConfigurationError for invalid metadata."""
        if self._codec or key is not None or ordering_key is not None or properties:
            is_usual = False
        else:
            is_usual = not event_time_ms
        if is_usual:
            encoded = self._head + encode_varint(sequence_id) + self._published(now_ms)
        else:
            metadata = self._metadata(sequence_id, now_ms)
            _describe(metadata, key, ordering_key, properties, event_time_ms)
            content = self._compressed(metadata, content)
            encoded = metadata.SerializeToString()
        entry = _entry(encoded, content)
        return Packed(encode_send_header(self._producer_id, sequence_id, len(entry)), entry)

    def chunked(
        self,
        sequence_id: int,
        content: bytes,
        *,
        key: str | None,
        ordering_key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int,
        now_ms: int,
        entry_bytes_max: int,
    ) -> list[Packed]:
        """Pack a large message into entries of at most ``entry_bytes_max`` bytes.

        The result is one entry if the compressed message fits, else chunks in Pulsar's format. The method is
        slow: do not call it in the event loop's thread. Raises ConfigurationError for invalid metadata,
        Refused for a message above ``content_bytes_max`` or with too much metadata for its chunks.
        """
        most = self._content_bytes_max
        if len(content) > most:
            raise too_large(f"a message of {len(content)} bytes; {most} can be sent")
        metadata = self._metadata(sequence_id, now_ms)
        _describe(metadata, key, ordering_key, properties, event_time_ms)
        content = self._compressed(metadata, content)
        entry = _entry(metadata.SerializeToString(), content)
        if len(entry) <= entry_bytes_max:
            header = encode_send_header(self._producer_id, sequence_id, len(entry))
            return [Packed(header, entry)]
        metadata.uuid = str(uuid.uuid4())
        metadata.total_chunk_msg_size = len(content)
        metadata.num_chunks_from_msg = metadata.chunk_id = len(
            content
        )  # upper bounds, to measure the metadata
        space = entry_bytes_max - len(_entry(metadata.SerializeToString(), b""))
        if space < entry_bytes_max * CHUNK_CONTENT_SHARE_MIN:
            raise too_large("a message whose properties leave no room for content in its chunks")
        metadata.num_chunks_from_msg = -(-len(content) // space)
        return [
            self._chunk(
                metadata, sequence_id, number, content[number * space : (number + 1) * space]
            )
            for number in range(metadata.num_chunks_from_msg)
        ]

    def _chunk(
        self, metadata: pb.MessageMetadata, sequence_id: int, number: int, content: bytes
    ) -> Packed:
        metadata.chunk_id = number
        entry = _entry(metadata.SerializeToString(), content)
        header = encode_send_header(self._producer_id, sequence_id, len(entry), is_chunk=True)
        return Packed(header, entry)

    def batch(self, messages: Sequence[Outgoing], now_ms: int) -> Packed:
        """Pack messages that have their sequence ids into one entry."""
        first, last, count = messages[0], messages[-1], len(messages)
        metadata = self._metadata(first.sequence_id, now_ms)
        metadata.num_messages_in_batch = count
        if count > 1:
            metadata.highest_sequence_id = last.sequence_id
        # Dispatch by key uses the entry's key: set it only if all messages have the same one.
        if first.key is not None and all(each.key == first.key for each in messages):
            metadata.partition_key = first.key
        if first.ordering_key is not None and all(
            each.ordering_key == first.ordering_key for each in messages
        ):
            metadata.ordering_key = first.ordering_key
        content = self._compressed(metadata, b"".join(_parts(messages)))
        entry = _entry(metadata.SerializeToString(), content)
        header = encode_send_header(
            self._producer_id,
            first.sequence_id,
            len(entry),
            num_messages=count,
            highest_sequence_id=last.sequence_id if count > 1 else 0,
        )
        return Packed(header, entry)

    def _metadata(self, sequence_id: int, now_ms: int) -> pb.MessageMetadata:
        return pb.MessageMetadata(
            producer_name=self._name, sequence_id=sequence_id, publish_time=now_ms
        )

    def _compressed(self, metadata: pb.MessageMetadata, content: bytes) -> bytes:
        if not self._codec or not content:
            return content  # the stock C++ client cannot decompress empty content with zlib
        metadata.compression = self._codec
        metadata.uncompressed_size = len(content)
        return compress(self._codec, content)

    def _published(self, now_ms: int) -> bytes:
        """Return the encoded field publish_time, cached for one millisecond."""
        if now_ms != self._ms:
            self._ms, self._encoded_ms = now_ms, b"\x18" + encode_varint(now_ms)
        return self._encoded_ms


def _entry(metadata: bytes, content: bytes) -> bytes:
    head = _U32.pack(len(metadata)) + metadata
    checksum = _crc32c_extended(_crc32c(head), content)
    return b"".join((CHECKSUM_MAGIC, _U32.pack(checksum), head, content))


def _parts(messages: Sequence[Outgoing]) -> list[bytes]:
    """Return the parts of a batch: length, metadata and content of each message."""
    parts: list[bytes] = []
    for each in messages:
        metadata = (
            each.described  # protobuf fields may be in any order
            + b"\x18"
            + encode_varint(len(each.content))
            + b"\x40"
            + encode_varint(each.sequence_id)
        )
        parts += (_U32.pack(len(metadata)), metadata, each.content)
    return parts


def _describe(
    metadata: pb.MessageMetadata | pb.SingleMessageMetadata,
    key: str | None,
    ordering_key: bytes | None,
    properties: Mapping[str, str] | None,
    event_time_ms: int,
) -> None:
    """Write the given fields into the metadata. Raises ConfigurationError for invalid ones."""
    try:
        if key is not None:
            metadata.partition_key = key
        if ordering_key is not None:
            metadata.ordering_key = ordering_key
        if event_time_ms:
            metadata.event_time = event_time_ms
        if properties:
            metadata.properties.extend(
                pb.KeyValue(key=name, value=value) for name, value in properties.items()
            )
            if not all(each.IsInitialized() for each in metadata.properties):
                raise TypeError("a property lacks its name or its value")
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"invalid metadata of a message: {error}") from error
