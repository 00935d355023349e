"""Unpacks delivered entries into messages: checksum, codec, batches, chunks. No I/O.

This module also counts permits as brokers do: an entry costs as many permits as it has messages that were not
acknowledged when it was delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onewriter._consume.chunks import ChunkAssembler
from onewriter._errors import Unreadable
from onewriter._message import CONTENT_BYTES_MAX, NO_PROPERTIES, Batch, Message, MessageId
from onewriter_core.errors import ProtocolError
from onewriter_core.wire.compression import decompress
from onewriter_core.wire.messages import (
    entry_checksum_ok,
    entry_payload,
    iterate_batch,
    parse_metadata,
    split_broker_entry_metadata,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery

_WORD = 2**64 - 1
_BATCHED_BYTES_MIN = 4
"""Smallest size of a message in a batch: the length of its metadata."""

Item = Message | Unreadable
"""A received message, or the error in its place."""


class Unpacker:
    """Unpacks the deliveries of one consumer, in their order."""

    def __init__(self, topic: str, assembler: ChunkAssembler) -> None:
        self._topic = topic
        self._assembler = assembler

    def unpack(self, delivery: Delivery, payload: memoryview) -> tuple[Sequence[Item], int]:
        """Return the messages that an entry completes, and the permits that it cost."""
        entry_id = MessageId.of(delivery.message_id)
        try:
            return self._unpack(delivery, entry_id, payload)
        except ProtocolError as error:
            return (Unreadable(entry_id, str(error)),), permits_of(delivery, payload)

    def _unpack(
        self, delivery: Delivery, entry_id: MessageId, payload: memoryview
    ) -> tuple[Sequence[Item], int]:
        _, entry = split_broker_entry_metadata(payload)
        if not entry_checksum_ok(entry):
            raise ProtocolError("the entry's checksum is wrong")
        metadata = parse_metadata(entry)
        if metadata.encryption_keys:
            raise ProtocolError("the entry is encrypted, and this client has no keys")
        content = entry_payload(entry)
        if metadata.num_chunks_from_msg > 1 and metadata.HasField("chunk_id"):
            chunks = self._assembler.add(metadata, entry_id, content)
            if chunks is None:
                return (), 1
            plain = _plain(metadata, b"".join(chunks.parts))
            message = self._single(delivery, entry_id, metadata, plain)
            message.chunk_ids = tuple(chunks.ids)
            return (message,), 1
        plain = _plain(metadata, content)
        if not metadata.HasField("num_messages_in_batch"):
            return (self._single(delivery, entry_id, metadata, plain),), 1
        messages = self._batch(delivery, entry_id, metadata, plain)
        return messages, _permits(metadata.num_messages_in_batch, delivery.ack_set)

    def _single(
        self,
        delivery: Delivery,
        message_id: MessageId,
        metadata: pb.MessageMetadata,
        content: bytes,
    ) -> Message:
        return Message(
            message_id,
            content,
            self._topic,
            metadata.partition_key if metadata.HasField("partition_key") else None,
            properties_of(metadata),
            metadata.publish_time,
            metadata.event_time,
            metadata.producer_name,
            metadata.sequence_id,
            metadata.ordering_key,
            metadata.schema_version,
            delivery.redelivery_count,
            is_null=metadata.null_value,
        )

    def _batch(
        self,
        delivery: Delivery,
        entry_id: MessageId,
        metadata: pb.MessageMetadata,
        content: bytes,
    ) -> list[Message]:
        size = metadata.num_messages_in_batch
        if size * _BATCHED_BYTES_MIN > len(content):
            raise ProtocolError(f"a batch that claims {size} messages")
        batch = Batch(size, _mask(size, delivery.ack_set))
        ledger, entry, partition, _ = entry_id
        publish_time, producer_name = metadata.publish_time, metadata.producer_name
        schema_version, redelivery_count = metadata.schema_version, delivery.redelivery_count
        messages: list[Message] = []
        for index, (single, part) in enumerate(iterate_batch(content, size)):
            if single.compacted_out:
                batch.remaining &= ~(1 << index)
            elif batch.remaining >> index & 1:
                message = Message(
                    MessageId(ledger, entry, partition, index),
                    bytes(part),
                    self._topic,
                    single.partition_key if single.HasField("partition_key") else None,
                    properties_of(single),
                    publish_time,
                    single.event_time,
                    producer_name,
                    single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id,
                    single.ordering_key,
                    schema_version,
                    redelivery_count,
                    size,
                    ends_entry=False,
                    is_null=single.null_value,
                    batch=batch,
                )
                messages.append(message)
        if messages:
            messages[-1].ends_entry = True
        return messages


def properties_of(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> Mapping[str, str]:
    """Return a message's properties."""
    pairs = metadata.properties
    return {pair.key: pair.value for pair in pairs} if pairs else NO_PROPERTIES


def permits_of(delivery: Delivery, payload: memoryview) -> int:
    """Return the permits of an entry that is not unpacked; 1 for damaged metadata, as brokers count."""
    try:
        _, entry = split_broker_entry_metadata(payload)
        metadata = parse_metadata(entry)
    except ProtocolError:
        return 1
    if not metadata.HasField("num_messages_in_batch"):
        return 1
    return _permits(metadata.num_messages_in_batch, delivery.ack_set)


def ack_set_of(remaining: int, size: int) -> tuple[int, ...]:
    """Return Pulsar's ack set: the unacknowledged messages of a batch, as signed 64-bit words."""
    words = []
    for start in range(0, max(size, 1), 64):
        word = remaining >> start & _WORD
        words.append(word - 2**64 if word >= 2**63 else word)
    return tuple(words)


def _mask(size: int, ack_set: Sequence[int]) -> int:
    """Return the unacknowledged messages of a batch as a bit mask; without an ack set, all of them."""
    if not ack_set:
        return (1 << size) - 1
    mask = 0
    for index, word in enumerate(ack_set):
        mask |= (word & _WORD) << (64 * index)
    return mask & ((1 << min(size, 64 * len(ack_set))) - 1)


def _permits(size: int, ack_set: Sequence[int]) -> int:
    return _mask(size, ack_set).bit_count() if ack_set else max(size, 1)


def _plain(metadata: pb.MessageMetadata, content: memoryview | bytes) -> bytes:
    if metadata.compression == pb.MessageMetadata.NONE:
        return bytes(content)
    if metadata.uncompressed_size > CONTENT_BYTES_MAX:
        raise ProtocolError(f"a content that claims {metadata.uncompressed_size} bytes")
    return decompress(metadata.compression, content, metadata.uncompressed_size)
