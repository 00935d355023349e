"""The keys of an entry's messages, and the entry without some of its messages, for compaction.

The broker opens batches only here. It does not open encrypted or damaged batches, nor batches larger
than clients send. The metadata states the size of an opened entry: a few bytes may contain very
many messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.commands import MESSAGE_LENGTH_MAX
from onewriter_core.wire.compression import compress, decompress
from onewriter_core.wire.frames import CHECKSUM_MAGIC
from onewriter_core.wire.messages import (
    Bytes,
    build_batch,
    build_entry,
    entry_payload,
    iterate_batch,
    parse_metadata,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

CONTENT_BYTES_MAX: Final = MESSAGE_LENGTH_MAX
"""Largest size of an opened batch; a larger batch is not opened."""

BATCH_MESSAGES_MAX: Final = 10_000
"""Largest number of messages of a batch; a larger batch is not opened. Clients send 1000 by default."""

KEY_BYTES: Final = 16
"""Bytes of the hash that identifies a key: long keys cost no more than short ones."""


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """One message: its index in the batch (-1: the entry is not a batch), its key, and whether it removes the key.

    ``key`` is a hash of the key; None: the message has no key.
    """

    index: int
    key: bytes | None
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """An entry that is a part of a message."""

    uuid: str
    is_last: bool
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Closed:
    """An entry that the broker cannot open."""


Content = tuple[KeyedMessage, ...] | Chunk | Closed
"""The contents of an entry for compaction."""


class Cost(NamedTuple):
    """The cost of opening an entry: bytes in memory, and messages to inspect."""

    size: int
    messages: int


def cost_of(entry: Bytes) -> Cost:
    """The cost of ``content_of`` or ``without``, from the metadata alone; never raises."""
    try:
        metadata = parse_metadata(entry)
        if not metadata.HasField("num_messages_in_batch"):
            return Cost(len(entry), 1)
        _check_bounds(metadata, entry)
    except ProtocolError:  # stays closed
        return Cost(len(entry), 1)
    size = max(len(entry), metadata.uncompressed_size)
    return Cost(size, max(metadata.num_messages_in_batch, 1))


def content_of(entry: Bytes) -> Content:
    """Parse an entry; never raises."""
    try:
        metadata = parse_metadata(entry)
        if metadata.HasField("num_messages_in_batch"):
            return _batch(metadata, entry)
        key = key_hash(metadata.partition_key) if metadata.HasField("partition_key") else None
        if metadata.num_chunks_from_msg > 1:
            is_last = metadata.chunk_id == metadata.num_chunks_from_msg - 1
            return Chunk(metadata.uuid, is_last, key)
        return (KeyedMessage(-1, key, _is_empty(metadata, entry)),)
    except ProtocolError:
        return Closed()


def key_hash(key: str) -> bytes:
    """The identifier of a key."""
    return hashlib.blake2b(key.encode(), digest_size=KEY_BYTES).digest()


def without(entry: Bytes, kept: Collection[int]) -> bytes:
    """The batch with only the messages at these indexes, which keep their indexes.

    As in Pulsar, the other messages are marked as compacted out and lose their content. Raises
    ProtocolError if ``content_of`` returns Closed.
    """
    metadata = parse_metadata(entry)
    messages: list[tuple[pb.SingleMessageMetadata, bytes]] = []
    for index, (single, content) in enumerate(_opened(metadata, entry)):
        if index in kept:
            messages.append((single, bytes(content)))
        else:
            messages.append((pb.SingleMessageMetadata(compacted_out=True, payload_size=0), b""))
    batch = build_batch(messages)
    metadata.uncompressed_size = len(batch)
    has_checksum = bytes(entry[:2]) == CHECKSUM_MAGIC
    return build_entry(metadata, compress(metadata.compression, batch), checksum=has_checksum)


def last_index(entry: Bytes, mask: int | None) -> int:
    """The index of a batch's last message that was not compacted out; -1 if it is not a batch.

    ``mask``: the remaining messages, as in CompactedBlock. Does not open the batch.
    """
    try:
        metadata = parse_metadata(entry)
    except ProtocolError:
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    return (metadata.num_messages_in_batch if mask is None else mask.bit_length()) - 1


def _batch(metadata: pb.MessageMetadata, entry: Bytes) -> tuple[KeyedMessage, ...]:
    return tuple(
        KeyedMessage(
            index,
            key_hash(single.partition_key) if single.HasField("partition_key") else None,
            single.payload_size == 0 or single.null_value,
        )
        for index, (single, _) in enumerate(_opened(metadata, entry))
        if not single.compacted_out
    )


def _opened(
    metadata: pb.MessageMetadata, entry: Bytes
) -> list[tuple[pb.SingleMessageMetadata, memoryview]]:
    _check_bounds(metadata, entry)
    content = decompress(metadata.compression, entry_payload(entry), metadata.uncompressed_size)
    return list(iterate_batch(content, metadata.num_messages_in_batch))


def _check_bounds(metadata: pb.MessageMetadata, entry: Bytes) -> None:
    """Raises ProtocolError for a batch that must not be opened."""
    if metadata.encryption_keys:
        raise ProtocolError("a batch is encrypted")
    if metadata.num_messages_in_batch > BATCH_MESSAGES_MAX:
        raise ProtocolError("a batch has more messages than any client sends")
    if max(metadata.uncompressed_size, len(entry_payload(entry))) > CONTENT_BYTES_MAX:
        raise ProtocolError("a batch is larger than any client sends")


def _is_empty(metadata: pb.MessageMetadata, entry: Bytes) -> bool:
    if metadata.null_value:
        return True
    if metadata.compression != pb.MessageMetadata.NONE:
        return metadata.HasField("uncompressed_size") and metadata.uncompressed_size == 0
    return len(entry_payload(entry)) == 0
