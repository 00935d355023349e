"""Entries: checksums, metadata, batches, and their damage."""

from __future__ import annotations

import google_crc32c
import pytest

from onewriter_core.errors import ProtocolError
from onewriter_core.wire import messages
from onewriter_core.wire.messages import EntrySummary
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

METADATA = bytes.fromhex("0a0170 1005 1807")
"""By hand: producer "p", sequence 5, published at 7 ms."""
BODY = len(METADATA).to_bytes(4) + METADATA + b"content"
CHECKSUM = google_crc32c.value(BODY).to_bytes(4)
ENTRY = b"\x0e\x01" + CHECKSUM + BODY


def test_an_entry_by_hand_is_what_build_entry_builds() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=7)
    assert messages.build_entry(metadata, b"content") == ENTRY
    assert messages.build_entry(metadata, b"content", checksum=False) == BODY


def test_the_checksum_covers_everything_after_it() -> None:
    assert messages.entry_checksum_ok(ENTRY)
    assert messages.entry_checksum_ok(memoryview(bytearray(ENTRY)))
    for position in range(2, len(ENTRY)):
        damaged = bytearray(ENTRY)
        damaged[position] ^= 1
        assert not messages.entry_checksum_ok(damaged)


def test_an_entry_without_a_checksum_is_fine() -> None:
    assert messages.entry_checksum_ok(BODY)


def test_a_known_checksum() -> None:
    # The check value of CRC-32C, as its catalogues give it.
    assert messages.entry_checksum_ok(b"\x0e\x01" + (0xE3069283).to_bytes(4) + b"123456789")


def test_a_plain_entry_in_summary() -> None:
    for entry in (ENTRY, BODY, memoryview(ENTRY)):
        assert messages.summarize(entry) == EntrySummary(
            producer_name="p",
            sequence_id=5,
            highest_sequence_id=0,
            publish_time_ms=7,
            event_time_ms=0,
            num_messages=1,
            is_batch=False,
            chunk_id=None,
            num_chunks=None,
            uuid="",
            partition_key="",
            compression=0,
            is_encrypted=False,
        )
        assert bytes(messages.entry_payload(entry)) == b"content"


def test_a_chunk_of_an_encrypted_batch_in_summary() -> None:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=5,
        publish_time=7,
        highest_sequence_id=9,
        event_time=6,
        num_messages_in_batch=5,
        chunk_id=0,
        num_chunks_from_msg=3,
        uuid="p-5",
        partition_key="key",
        compression=pb.MessageMetadata.ZSTD,
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
    )
    entry = messages.build_entry(metadata, b"")
    assert messages.parse_metadata(entry) == metadata
    assert messages.summarize(entry) == EntrySummary(
        producer_name="p",
        sequence_id=5,
        highest_sequence_id=9,
        publish_time_ms=7,
        event_time_ms=6,
        num_messages=5,
        is_batch=True,
        chunk_id=0,
        num_chunks=3,
        uuid="p-5",
        partition_key="key",
        compression=3,
        is_encrypted=True,
    )


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (b"\x0e\x01\x00\x00", "without metadata"),
        (b"\x00\x00", "without metadata"),
        (b"\x00\x00\x00\x09abc", "metadata is cut short"),
        (b"\x00\x00\x00\x02\x0a\x05", "metadata is damaged"),
        (b"\x00\x00\x00\x03\x0a\x01p", "metadata lacks a required field"),
        (b"\x00\x00\x00\x07\x0a\x01\xff\x10\x05\x18\x07", "not UTF-8"),
    ],
)
def test_a_damaged_entry_is_refused(entry: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        messages.summarize(entry)
    with pytest.raises(ProtocolError, match=complaint):
        messages.parse_metadata(entry)


def test_a_checksum_cut_short_is_refused() -> None:
    with pytest.raises(ProtocolError, match="checksum is cut short"):
        messages.entry_checksum_ok(ENTRY[:5])


def test_a_client_sees_the_brokers_own_metadata() -> None:
    broker = pb.BrokerEntryMetadata(broker_timestamp=5, index=3)
    encoded = broker.SerializeToString()
    payload = b"\x0e\x02" + len(encoded).to_bytes(4) + encoded + ENTRY
    assert messages.split_broker_entry_metadata(payload) == (broker, ENTRY)
    assert messages.split_broker_entry_metadata(ENTRY) == (None, ENTRY)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"\x0e\x02\x00", "cut short"),
        (b"\x0e\x02\x00\x00\x00\x05abc", "cut short"),
        (b"\x0e\x02\x00\x00\x00\x01\x08", "damaged"),
    ],
)
def test_damaged_broker_metadata_is_refused(payload: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=f"broker entry metadata is {complaint}"):
        messages.split_broker_entry_metadata(payload)


def batch() -> bytes:
    return messages.build_batch(
        (pb.SingleMessageMetadata(partition_key=str(number)), b"x" * number) for number in range(3)
    )


def test_a_batch_decodes_to_the_messages_it_was_built_from() -> None:
    assert [
        (metadata.partition_key, bytes(content))
        for metadata, content in messages.iterate_batch(batch(), 3)
    ] == [("0", b""), ("1", b"x"), ("2", b"xx")]
    assert list(messages.iterate_batch(b"", 0)) == []


@pytest.mark.parametrize(
    ("payload", "count", "complaint"),
    [
        (batch(), 4, "cut short"),
        (batch(), 2, "longer than its messages"),
        (batch()[:-1], 3, "cut short"),
        (b"\x00\x00\x00\x09a", 1, "cut short"),
        (b"\x00\x00\x00\x01\x18", 1, "metadata is damaged"),
        (b"\x00\x00\x00\x00", 1, "without a size"),
        (b"\x00\x00\x00\x0b\x18" + b"\xff" * 9 + b"\x01", 1, "without a size"),
    ],
)
def test_a_damaged_batch_is_refused(payload: bytes, count: int, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        list(messages.iterate_batch(payload, count))
