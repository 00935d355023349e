"""Entries as producers create them, chunks of them, and a reference implementation that reads them one by one."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from onewriter_core.ids import TopicName
from onewriter_core.wire.compression import compress, decompress
from onewriter_core.wire.messages import (
    build_batch,
    build_entry,
    entry_payload,
    iterate_batch,
    parse_metadata,
    split_broker_entry_metadata,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline.brokers.frames import Chunk

LAST_MS = 253_402_300_799_000
"""The last second of the year 9999 in milliseconds; tables support no later time."""


@dataclass(frozen=True)
class Sent:
    """One message of an application; None: the field is absent."""

    value: bytes | None = b""
    key: bytes | None = None
    key_as_base64: bool = False
    properties: Sequence[tuple[str, str]] = ()
    event_time: int | None = None
    sequence: int | None = None
    ordering_key: bytes | None = None
    compacted_out: bool = False


@dataclass(frozen=True)
class Entry:
    """The content of one SEND: a message, or a batch of messages."""

    messages: Sequence[Sent]
    batched: bool = False
    codec: int = 0
    producer: str = "writer"
    sequence: int = 0
    published: int = 1_700_000_000_000
    checksum: bool = True
    more: dict[str, Any] = field(default_factory=dict)
    """Other fields of the metadata, by name."""

    def encoded(self) -> bytes:
        metadata = pb.MessageMetadata(
            producer_name=self.producer,
            sequence_id=self.sequence,
            publish_time=self.published,
            **self.more,
        )
        if self.batched:
            metadata.num_messages_in_batch = len(self.messages)
            content = build_batch(
                (_said(pb.SingleMessageMetadata(), message), message.value or b"")
                for message in self.messages
            )
        else:
            (message,) = self.messages
            _said(metadata, message)
            content = message.value or b""
        if self.codec:
            metadata.compression = self.codec  # type: ignore[assignment]
            metadata.uncompressed_size = len(content)
        return build_entry(metadata, compress(self.codec, content), checksum=self.checksum)


def _said(metadata: Any, message: Sent) -> Any:
    for key, value in message.properties:
        metadata.properties.add(key=key, value=value)
    if message.key is not None and message.key_as_base64:
        metadata.partition_key = base64.b64encode(message.key).decode()
        metadata.partition_key_b64_encoded = True
    elif message.key is not None:
        metadata.partition_key = message.key.decode()
    if message.event_time is not None:
        metadata.event_time = message.event_time
    if message.sequence is not None:
        metadata.sequence_id = message.sequence
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.value is None:
        metadata.null_value = True
    if message.compacted_out:
        metadata.compacted_out = True
    return metadata


def chunk_of(entries: Sequence[bytes], *, ledger: int = 7, first: int = 1) -> Chunk:
    """Consecutive entries of one ledger."""
    sizes = np.array([len(entry) for entry in entries], np.int64)
    return Chunk(
        b"".join(entries),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
        np.full(len(entries), ledger, np.int64),
        np.arange(first, first + len(entries), dtype=np.int64),
        np.ones(len(entries), np.int32),
        np.full(len(entries), 1_700_000_000_123, np.int64),
    )


def read_one_by_one(chunk: Chunk, topic: str) -> Iterator[dict[str, Any]]:
    """The rows of a chunk, according to the plain protobuf library. Times are in microseconds."""
    for index in range(len(chunk)):
        entry = chunk.payload[chunk.offsets[index] : chunk.offsets[index + 1]]
        _, view = split_broker_entry_metadata(entry)
        metadata = parse_metadata(view)
        content = decompress(metadata.compression, entry_payload(view), metadata.uncompressed_size)
        ledger, number = int(chunk.ledger[index]), int(chunk.entry[index])
        partition = TopicName.parse(topic).partition
        message_id = pb.MessageIdData(ledger_id=ledger, entry_id=number, partition=partition)
        row = {
            "__topic": topic,
            "__ledgerId": ledger,
            "__entryId": number,
            "__producerName": metadata.producer_name,
            "__publishTime": min(metadata.publish_time, LAST_MS) * 1000,
            "__sequenceId": metadata.sequence_id,
            "__batchIndex": -1,
        }
        if not metadata.HasField("num_messages_in_batch"):
            row["__messageId"] = message_id.SerializeToString()
            yield row | _row(metadata, content)
            continue
        message_id.batch_size = metadata.num_messages_in_batch
        for place, (single, part) in enumerate(iterate_batch(content, message_id.batch_size)):
            if not single.compacted_out:
                row["__batchIndex"] = message_id.batch_index = place
                row["__messageId"] = message_id.SerializeToString()
                own = {"__sequenceId": single.sequence_id} if single.HasField("sequence_id") else {}
                yield row | own | _row(single, bytes(part))


def _row(metadata: Any, content: bytes) -> dict[str, Any]:
    key = metadata.partition_key.encode() if metadata.HasField("partition_key") else None
    if key is not None and metadata.partition_key_b64_encoded:
        key = base64.b64decode(key)
    return {
        "value": None if metadata.null_value else content,
        "__key": None if metadata.null_partition_key else key,
        "__orderingKey": metadata.ordering_key if metadata.HasField("ordering_key") else None,
        "__eventTime": min(metadata.event_time, LAST_MS) * 1000 or None,
        "__messageProperties": {pair.key: pair.value for pair in metadata.properties},
    }


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Record batches as rows of the same form, with times in microseconds."""
    rows = []
    for batch in batches:
        batch.validate(full=True)
        columns = {
            name: column.cast(pa.int64()) if name.endswith("Time") else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        for row in pa.Table.from_pydict(columns).to_pylist():
            row["__messageProperties"] = dict(row["__messageProperties"])
            rows.append(row)
    return rows
