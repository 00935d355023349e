"""Unpacking of entries, and the window of permits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter import MessageId
from onewriter._consume.chunks import CHUNKED_BYTES_MAX, CHUNKED_MAX, ChunkAssembler
from onewriter._consume.unpacker import Item, Unpacker, ack_set_of, permits_of
from onewriter._consume.window import Window
from onewriter._errors import ConfigurationError, Unreadable
from onewriter._message import Message
from onewriter_core.wire.compression import compress
from onewriter_core.wire.messages import build_batch, build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery
from onewriter_core.wire.values import MessageId as WireId

CODECS = pb.MessageMetadata.Compression.values()


def metadata(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="writer", sequence_id=5, publish_time=1, **fields)  # type: ignore[arg-type]  # whatever a test says


def unpack(
    entry: bytes,
    unpacker: Unpacker | None = None,
    *,
    number: int = 1,
    ack_set: tuple[int, ...] = (),
) -> tuple[list[Item], int]:
    delivery = Delivery(1, WireId(7, number), ack_set=ack_set)
    unpacker = unpacker or Unpacker(
        "orders", ChunkAssembler("orders", lambda _: None, lambda _: None)
    )
    items, permits = unpacker.unpack(delivery, memoryview(entry))
    assert permits == permits_of(delivery, memoryview(entry))
    return list(items), permits


def only(items: list[Item]) -> Message:
    assert isinstance(items[0], Message)
    assert len(items) == 1
    return items[0]


def why(items: list[Item]) -> str:
    assert isinstance(items[0], Unreadable)
    assert len(items) == 1
    return str(items[0])


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(codec: int) -> None:
    content = b"the same again and again " * 40
    reported = metadata(compression=codec, uncompressed_size=len(content))
    assert only(unpack(build_entry(reported, compress(codec, content)))[0]).content == content
    batch = build_batch([(pb.SingleMessageMetadata(payload_size=0), content)] * 3)
    reported = metadata(compression=codec, uncompressed_size=len(batch), num_messages_in_batch=3)
    items, permits = unpack(build_entry(reported, compress(codec, batch)))
    assert [item.content for item in items if isinstance(item, Message)] == [content] * 3
    assert permits == 3


def test_an_unreadable_entry_states_the_reason_and_costs_the_brokers_permits() -> None:
    lz4 = pb.MessageMetadata.LZ4
    assert "uncompressed" in why(
        unpack(build_entry(metadata(compression=lz4, uncompressed_size=9), b"rubbish"))[0]
    )
    assert "claims" in why(
        unpack(build_entry(metadata(compression=lz4, uncompressed_size=2**31), b"rubbish"))[0]
    )
    key = [pb.EncryptionKeys(key="k", value=b"v")]
    assert "encrypted" in why(unpack(build_entry(metadata(encryption_keys=key), b"?"))[0])
    items, permits = unpack(build_entry(metadata(num_messages_in_batch=2_000_000_000), b"?" * 20))
    assert "claims" in why(items)
    assert permits == 2_000_000_000
    items, permits = unpack(b"\x00\x00\x00\x09nonsense!")
    assert why(items)
    assert permits == 1


def test_messages_removed_by_compaction_and_tombstones() -> None:
    single = pb.SingleMessageMetadata
    batch = build_batch(
        [
            (single(payload_size=0, partition_key="a", compacted_out=True), b""),
            (single(payload_size=0, partition_key="b", null_value=True), b""),
            (single(payload_size=0, partition_key="c"), b"kept"),
            (single(payload_size=0, partition_key="d", compacted_out=True), b""),
        ]
    )
    items, permits = unpack(build_entry(metadata(num_messages_in_batch=4), batch))
    removed, kept = items
    assert isinstance(removed, Message)
    assert isinstance(kept, Message)
    assert (removed.key, removed.is_null, removed.ends_entry) == ("b", True, False)
    assert (kept.key, kept.is_null, kept.ends_entry) == ("c", False, True)
    assert kept.batch is not None
    assert kept.batch.remaining == 0b0110
    assert permits == 4
    assert only(unpack(build_entry(metadata(null_value=True), b""))[0]).is_null


class Chunked:
    """Chunks as they come, each the text of its number."""

    def __init__(self, messages_max: int = CHUNKED_MAX, bytes_max: int = CHUNKED_BYTES_MAX) -> None:
        self.begun: list[MessageId] = []
        self.given_up: list[list[int]] = []
        self.assembler = ChunkAssembler(
            "orders", self.begun.append, self.note, messages_max, bytes_max
        )
        self.unpacker = Unpacker("orders", self.assembler)

    def note(self, ids: Sequence[MessageId]) -> None:
        self.given_up.append([each.entry for each in ids])

    def comes(self, uuid: str, index: int, *, number: int = 1, count: int = 3) -> list[Item]:
        reported = metadata(uuid=uuid, chunk_id=index, num_chunks_from_msg=count)
        return unpack(build_entry(reported, b"%d" % index), self.unpacker, number=number)[0]


def test_chunks_that_are_missing_or_repeated() -> None:
    chunks = Chunked()
    assert chunks.comes("a", 1, number=1) == [], "without its first one"
    assert chunks.comes("a", 0, number=2) == []
    assert chunks.comes("a", 1, number=3) == []
    assert chunks.comes("a", 1, number=4) == [], "its producer sent it again"
    whole = only(chunks.comes("a", 2, number=5))
    assert whole.content == b"012"
    assert [each.entry for each in whole.chunk_ids] == [2, 3, 5]
    chunks.comes("b", 0, number=6)
    assert "missing" in why(chunks.comes("b", 2, number=7))
    assert chunks.begun == [MessageId(7, 2), MessageId(7, 6)]
    assert chunks.given_up == []


def test_of_too_many_incomplete_messages_the_oldest_gives_way() -> None:
    """Silently as far as nobody can tell whether it would have become whole."""
    chunks = Chunked(messages_max=10)
    for number in range(11):
        chunks.comes(f"c{number}", 0, number=number)
    assert chunks.given_up == [[0]]
    assert chunks.comes("c0", 1) == []
    assert "given up" in why(chunks.comes("c0", 2)), "it would have"
    assert chunks.comes("c0", 2) == [], "told once"
    chunks.comes("c1", 1)
    assert only(chunks.comes("c1", 2)).content == b"012"
    chunks.assembler.forget()
    assert chunks.comes("c2", 1) == []
    assert len(chunks.assembler) == 0


def test_the_bytes_of_incomplete_messages_are_bounded() -> None:
    chunks = Chunked(bytes_max=3)
    for number in range(4):
        chunks.comes(f"c{number}", 0, number=number)
    assert chunks.given_up == [[0]]
    for index in range(1, 9):
        chunks.comes("large", index - 1, number=10 + index, count=9)
    assert chunks.given_up[1:] == [[1], [2], [3]], "one alone may have more"
    assert only(chunks.comes("large", 8, count=9)).content == b"012345678"


def test_a_message_whose_next_chunk_does_not_arrive_expires() -> None:
    chunks = Chunked()
    chunks.comes("slow", 0, number=1)
    chunks.comes("dead", 0, number=2)
    chunks.assembler.expire()
    chunks.comes("slow", 1, number=3)
    chunks.assembler.expire()
    assert chunks.given_up == [[2]]
    assert only(chunks.comes("slow", 2, number=4)).content == b"012"
    assert chunks.comes("dead", 0, number=5) == [], "its producer begins again"
    chunks.comes("dead", 1)
    assert only(chunks.comes("dead", 2)).content == b"012"


@given(st.integers(1, 300), st.data())
def test_ack_sets_are_read_as_they_are_written(size: int, data: st.DataObject) -> None:
    remaining = data.draw(st.integers(1, (1 << size) - 1))
    batch = build_batch([(pb.SingleMessageMetadata(payload_size=0), b"")] * size)
    entry = build_entry(metadata(num_messages_in_batch=size), batch)
    items, permits = unpack(entry, ack_set=ack_set_of(remaining, size))
    found = [item.id.batch_index for item in items if isinstance(item, Message)]
    assert found == [index for index in range(size) if remaining >> index & 1]
    assert permits == len(found)


def test_a_message_id_is_parsed_as_it_is_formatted() -> None:
    for message_id in (MessageId(7, 12), MessageId(7, 12, 3), MessageId(7, 12, -1, 4)):
        assert MessageId.parse(str(message_id)) == message_id
    assert MessageId.parse("7:12") == MessageId(7, 12)
    for text in ("", "7", "7:x", "1:2:3:4:5"):
        with pytest.raises(ConfigurationError, match="not a message id"):
            MessageId.parse(text)


# ---------------------------------------------------------------- permits


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=60))
def test_permits_never_stall_and_never_exceed_the_queue(
    messages_max: int, steps: list[tuple[int, int]]
) -> None:
    """Entries of any number of messages, of which some are dropped, taken at any pace."""
    window = Window(messages_max, 10**6)
    queued = 0
    window.grant()
    for entry_messages, taken in steps:
        if window.open > 0:
            window.received(entry_messages, 10)
            for _ in range(entry_messages):
                window.queued(10)
            queued += entry_messages
        for _ in range(min(taken, queued)):
            window.taken(10)
            queued -= 1
        window.grant()
        assert window.open + queued <= max(messages_max, queued)
        assert window.open > 0 or queued > 0
    assert window.queued_messages == queued


def test_large_messages_narrow_the_window_and_small_ones_widen_it() -> None:
    window = Window(1_000, 1_000_000)
    window.grant()
    assert window.open < 20, "nothing is known of their size yet"
    for _ in range(200):
        window.received(1, 100)
        window.grant()
    assert window.open == pytest.approx(1_000, abs=500)
    window.received(1, 500_000)
    window.queued(500_000)
    assert window.grant() == 0, "what is under way fills it"
    for _ in range(window.open):
        window.received(1, 500_000)
        window.queued(500_000)
    assert window.grant() == 0
    held = window.queued_messages
    for _ in range(held):
        window.taken(500_000)
    assert window.grant() == 2
