"""The keys of an entry's messages, and the entry without some of them: what compaction looks at.

The only place where the broker opens a batch. What cannot be opened is told apart and left alone:
encrypted batches, and what is damaged or larger than anybody sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from onewriter_core.errors import ProtocolError
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

CONTENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a compressed batch may become; a larger one is left closed."""

KEY_BYTES: Final = 16
"""Keys are told apart by a hash of so many bytes, so that long ones cost no more than short ones."""


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """One message: its place in the batch (-1: the entry is none), its key, whether it removes it.

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
    """An entry whose messages nobody can tell apart here."""


Content = tuple[KeyedMessage, ...] | Chunk | Closed
"""What an entry holds for compaction."""


def content_of(entry: Bytes) -> Content:
    """Take an entry apart; never raises."""
    try:
        metadata = parse_metadata(entry)
        if metadata.HasField("num_messages_in_batch"):
            return Closed() if metadata.encryption_keys else _batch(metadata, entry)
        key = key_hash(metadata.partition_key) if metadata.HasField("partition_key") else None
        if metadata.num_chunks_from_msg > 1:
            is_last = metadata.chunk_id == metadata.num_chunks_from_msg - 1
            return Chunk(metadata.uuid, is_last, key)
        return (KeyedMessage(-1, key, _is_empty(metadata, entry)),)
    except ProtocolError:
        return Closed()


def key_hash(key: str) -> bytes:
    """What stands for a key."""
    return hashlib.blake2b(key.encode(), digest_size=KEY_BYTES).digest()


def without(entry: Bytes, kept: Collection[int]) -> bytes:
    """A batch of which only the messages at these indexes are left; their indexes stay.

    As Pulsar does it: the others are marked as compacted out and lose their content. Raises
    ProtocolError for what ``content_of`` calls closed.
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


def last_index(entry: Bytes) -> int:
    """The index of a batch's last message that was not compacted out; -1: it is no batch."""
    try:
        metadata = parse_metadata(entry)
        if not metadata.HasField("num_messages_in_batch"):
            return -1
        if metadata.encryption_keys:
            return metadata.num_messages_in_batch - 1
        return max(
            (
                index
                for index, (single, _) in enumerate(_opened(metadata, entry))
                if not single.compacted_out
            ),
            default=metadata.num_messages_in_batch - 1,
        )
    except ProtocolError:
        return -1


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
    if metadata.uncompressed_size > CONTENT_BYTES_MAX:
        raise ProtocolError("a batch is larger than anybody sends")
    content = decompress(metadata.compression, entry_payload(entry), metadata.uncompressed_size)
    return list(iterate_batch(content, metadata.num_messages_in_batch))


def _is_empty(metadata: pb.MessageMetadata, entry: Bytes) -> bool:
    if metadata.null_value:
        return True
    if metadata.compression != pb.MessageMetadata.NONE:
        return metadata.HasField("uncompressed_size") and metadata.uncompressed_size == 0
    return len(entry_payload(entry)) == 0
