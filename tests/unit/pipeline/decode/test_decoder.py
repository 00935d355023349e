"""Damaged entries, messages in chunks, unusual sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from tests.unit.pipeline.entries import Entry, Sent, chunk_of, read_one_by_one, rows_of

from onewriter_core.ids import Position
from onewriter_core.wire.compression import compress
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline.brokers.frames import Chunk
from onewriter_pipeline.decode import CorruptEntry, Decoder
from onewriter_pipeline.decode.decoder import (
    GIVEN_UP_SECONDS,
    GROUP_MESSAGES_MAX,
    RECORD_BATCH_ROWS_MAX,
    whole_before,
)
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.schema import MESSAGE_COLUMNS
from onewriter_pipeline.tables.delta import action
from onewriter_pipeline.tables.layout import TableFile

TOPIC = "persistent://public/default/orders"
TIMES = ["__publishTime", "__eventTime"]


def values(decoder: Decoder, *chunks: Chunk) -> list[Any]:
    return [
        value
        for chunk in chunks
        for batch in decoder.decode(chunk)
        for value in batch.column("value").to_pylist()
    ]


def message_ids(decoder: Decoder, chunk: Chunk) -> list[bytes]:
    return [
        each for batch in decoder.decode(chunk) for each in batch.column("__messageId").to_pylist()
    ]


def single(value: bytes = b"good", **more: Any) -> bytes:
    return Entry((Sent(value),), **more).encoded()


def batch(*contents: bytes, codec: int = 0) -> bytes:
    return Entry([Sent(value) for value in contents], batched=True, codec=codec).encoded()


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="w", sequence_id=1, publish_time=2, **fields)


def flipped(entry: bytes, at: int) -> bytes:
    at %= len(entry)
    return entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :]


def batch_entry(count: int, content: bytes, **fields: Any) -> bytes:
    return build_entry(metadata(num_messages_in_batch=count, **fields), content)


DAMAGED = {
    "nothing at all": (b"", "cut short"),
    "half a head": (single()[:5], "cut short"),
    "half the metadata": (single(checksum=False)[:9], "cut short"),
    "a flipped bit": (flipped(single(), -1), "checksum"),
    "no metadata": (b"\0\0\0\0good", "metadata"),
    "no protobuf": (b"\0\0\0\x03\xff\xff\xffgood", "metadata"),
    "a group": (b"\0\0\0\x02\x0b\x0cgood", "metadata"),
    "a field of number 0": (b"\0\0\0\x02\x02\0good", "metadata"),
    "a piece that is too long": (b"\0\0\0\x04\x0a\xff\xff\x7fgood", "metadata"),
    "a varint without an end": (b"\0\0\0\x0c\x10" + b"\xff" * 11 + b"good", "metadata"),
    "no publish time": (b"\0\0\0\x05\x0a\x01w\x10\x01good", "metadata"),
    "encrypted": (
        build_entry(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), b"?"),
        "encrypted",
    ),
    "no LZ4": (build_entry(metadata(compression=1, uncompressed_size=9), b"good"), "uncompressed"),
    "a claim of 4 GiB": (
        build_entry(metadata(compression=3, uncompressed_size=2**32 - 1), b"good"),
        "uncompressed",
    ),
    "a batch that is cut short": (batch_entry(2, b"\0\0\0\x02\x18\x01a"), "batch"),
    "a batch that is too long": (batch_entry(1, b"\0\0\0\x02\x18\x01ab"), "batch"),
    "a batch of nothing that has something": (batch_entry(0, b"\0\0\0\x02\x18\x01a"), "batch"),
    "a batch of minus one": (batch_entry(-1, b""), "batch"),
    "a batch that claims too much": (batch_entry(2**31 - 1, b"\0\0\0\x02\x18\x01a"), "batch"),
    "a message without a size": (batch_entry(1, b"\0\0\0\x02\x48\x01a"), "batch"),
    "a negative size": (batch_entry(1, b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01"), "batch"),
    "a later chunk alone": (
        build_entry(metadata(uuid="u", chunk_id=1, num_chunks_from_msg=2), b"tail"),
        "chunks",
    ),
    "a key that is no base64": (
        build_entry(metadata(partition_key="no!", partition_key_b64_encoded=True), b""),
        "base64",
    ),
    "a producer whose name is no text": (b"\0\0\0\x07\x0a\x01\xff\x10\x01\x18\x02good", "UTF-8"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_entry_is_reported_or_skipped(name: str) -> None:
    entry, what = DAMAGED[name]
    chunk = chunk_of([single(b"before"), batch(b"1", b"2"), entry, batch(b"3", codec=1), single()])
    with pytest.raises(CorruptEntry, match=what) as caught:
        values(Decoder(TOPIC), chunk)
    assert str(caught.value).startswith(f"{TOPIC}: the entry 7:3 cannot be read: ")
    decoder = Decoder(TOPIC, skip_corrupt=True)
    assert values(decoder, chunk) == [b"before", b"1", b"2", b"3", b"good"]
    assert decoder.skipped == 1
    assert what in str(decoder.first_skipped)


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("flips", range(3))
def test_chunk_with_only_damaged_entries(name: str, flips: int) -> None:
    entry, _ = DAMAGED[name]
    decoder = Decoder(TOPIC, skip_corrupt=True)
    assert values(decoder, chunk_of([entry] * (flips + 1))) == []
    assert decoder.skipped == flips + 1


def test_damage_anywhere_is_reported_or_read_as_the_library_reads_it() -> None:
    good = Entry(
        [Sent(b"a" * 20, key=b"k", properties=(("p", "q"),), sequence=9), Sent(b"b")],
        batched=True,
        checksum=False,
    ).encoded()
    for at in range(len(good)):
        chunk = chunk_of([flipped(good, at)])
        decoder = Decoder(TOPIC, skip_corrupt=True)
        rows = rows_of(decoder.decode(chunk))
        if rows:
            expected = [row | {"__epoch": None} for row in read_one_by_one(chunk, TOPIC)]
            assert rows == [{name: row[name] for name in MESSAGE_COLUMNS} for row in expected]
        else:
            assert decoder.skipped == 1


def test_wrong_checksum_counts_only_if_checksums_are_verified() -> None:
    chunk = chunk_of([flipped(single(b"x"), -1)])
    assert values(Decoder(TOPIC, verify_checksums=False), chunk) == [b"y"]


def test_last_size_in_a_message_counts() -> None:
    chunk = chunk_of([batch_entry(1, b"\0\0\0\x04\x18\x01\x18\x02ab")])
    assert values(Decoder(TOPIC), chunk) == [b"ab"]


def test_metadata_of_the_broker_is_skipped() -> None:
    own = pb.BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
    prefixed = b"\x0e\x02" + len(own).to_bytes(4, "big") + own + single(b"x")
    assert values(Decoder(TOPIC), chunk_of([prefixed, single(b"y")])) == [b"x", b"y"]


def test_epochs_are_those_of_the_ledgers() -> None:
    decoder = Decoder(TOPIC, ["__epoch"], epochs={7: 3})
    (batches,) = decoder.decode(chunk_of([single()]))
    assert batches.column(0).to_pylist() == [3]


def test_times_beyond_the_range_of_tables_become_the_last_time() -> None:
    sent = pb.MessageMetadata(
        producer_name="w", sequence_id=1, publish_time=2**62, event_time=2**63
    )
    (found,) = Decoder(TOPIC, TIMES).decode(chunk_of([build_entry(sent, b"v")]))
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert found.to_pylist() == [dict.fromkeys(TIMES, last)]
    micros = int(last.timestamp()) * 1_000_000
    stats = action(TableFile("a", 1, 1, {}, {"__publishTime": (micros, micros)})).stats
    assert '"9999-12-31T23:59:59.001Z"' in stats


def test_values_as_json_are_texts() -> None:
    decoder = Decoder(TOPIC, ["value"], json=True)
    assert values(decoder, chunk_of([single(b'{"a": 1}')])) == ['{"a": 1}']
    with pytest.raises(CorruptEntry, match="UTF-8"):
        values(decoder, chunk_of([single(b"\xff")]))


def test_unknown_column_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="no column 'vlaue'"):
        Decoder(TOPIC, ["vlaue"])


def test_large_batches_become_record_batches_of_bounded_size() -> None:
    count = RECORD_BATCH_ROWS_MAX + 10
    found = list(Decoder(TOPIC, ["__batchIndex"]).decode(chunk_of([batch(*[b"v"] * count)])))
    assert [each.num_rows for each in found] == [RECORD_BATCH_ROWS_MAX, 10]
    assert found[1].column(0).to_pylist() == list(range(RECORD_BATCH_ROWS_MAX, count))


def test_more_batches_than_one_group() -> None:
    size = GROUP_MESSAGES_MAX // 3
    entries = [batch(*[b"%d" % number] * size) for number in range(5)]
    assert len(values(Decoder(TOPIC), chunk_of(entries))) == 5 * size


def sized(sizes: Sequence[int], fill: bytes) -> list[bytes]:
    return [fill * size for size in sizes]


@pytest.mark.parametrize("fill", [b"\0", b"\x0a", b"x"], ids=["zeros", "tags", "text"])
@pytest.mark.parametrize("codec", [0, 3])
def test_contents_that_look_like_the_beginning_of_messages(fill: bytes, codec: int) -> None:
    contents = [
        sized([10, 24, 0, 3, 72, 10, 10], fill),
        sized([5000, 1, 4000, 4000], fill),
        sized([2] * 100 + [3] * 100, fill),
        [b"\0\0\0\x02\x18\x01a" * 5, b"\0\0\0\x02\x18\x01", b"q"],
    ]
    chunk = chunk_of([batch(*each, codec=codec) for each in contents])
    assert values(Decoder(TOPIC), chunk) == [value for each in contents for value in each]


def test_metadata_larger_than_the_search_supports() -> None:
    messages = [Sent(b"%d" % n, properties=(("p", "x" * 70_000 * (n % 2)),)) for n in range(6)]
    chunk = chunk_of([Entry(messages, batched=True).encoded(), batch(b"6")])
    assert values(Decoder(TOPIC), chunk) == [b"%d" % n for n in range(7)]


# ------------------------------------------------------------ messages in chunks


def chunks(uuid: str, *parts: bytes, codec: int = 0, size: int = 0) -> list[bytes]:
    return [
        build_entry(
            metadata(
                uuid=uuid,
                chunk_id=number,
                num_chunks_from_msg=len(parts),
                total_chunk_msg_size=sum(map(len, parts)),
                compression=codec,
                uncompressed_size=size,
            ),
            part,
        )
        for number, part in enumerate(parts)
    ]


def test_chunked_message_has_the_position_of_its_last_chunk() -> None:
    one, two = chunks("one", b"a", b"b", b"c"), chunks("two", b"1", b"2")
    chunk = chunk_of([one[0], two[0], one[1], single(), one[1], one[2], two[1]])
    rows = rows_of(Decoder(TOPIC, ["value", "__entryId", "__messageProperties"]).decode(chunk))
    assert [(row["value"], row["__entryId"]) for row in rows] == [
        (b"good", 4),
        (b"abc", 6),
        (b"12", 7),
    ]


@pytest.mark.parametrize(("topic", "partition"), [(TOPIC, None), (f"{TOPIC}-partition-3", 3)])
def test_id_of_a_chunked_message_names_its_first_chunk(topic: str, partition: int | None) -> None:
    one = chunks("one", b"a", b"b", b"c")
    entries = [single(), *one, batch(b"1", b"2")]
    chunk = chunk_of(entries, first=200)
    found = message_ids(Decoder(topic, ["__messageId"]), chunk)
    expected = pb.MessageIdData(ledger_id=7, entry_id=203, partition=partition)
    expected.first_chunk_message_id.ledger_id = 7
    expected.first_chunk_message_id.entry_id = 201
    if partition is not None:
        expected.first_chunk_message_id.partition = partition
    assert found[1] == expected.SerializeToString()
    assert [pb.MessageIdData.FromString(each).entry_id for each in found] == [200, 203, 204, 204]


def test_first_chunk_of_an_id_can_be_before_the_range() -> None:
    entries = chunks("u", b"a", b"b")
    decoder = Decoder(TOPIC, ["__messageId"], earlier=lambda *_: [chunk_of(entries[:1])])
    (found,) = message_ids(decoder, chunk_of(entries[1:], first=2))
    assert pb.MessageIdData.FromString(found).first_chunk_message_id.entry_id == 1


def test_chunked_message_is_decompressed_as_a_whole() -> None:
    content = compress(1, b"a" * 100)
    entries = chunks("u", content[:4], content[4:], codec=1, size=100)
    assert values(Decoder(TOPIC), chunk_of(entries)) == [b"a" * 100]


def test_chunks_before_the_range_are_looked_up() -> None:
    entries = [single(), *chunks("u", b"a", b"b", b"c")]
    requests = []

    def earlier(position: Any, count: int) -> list[Chunk]:
        requests.append((position, count))
        return (
            [chunk_of(entries[1:3], first=2)] if count > 64 else [chunk_of(entries[2:3], first=3)]
        )

    decoder = Decoder(TOPIC, earlier=earlier)
    assert values(decoder, chunk_of(entries[3:], first=4)) == [b"abc"]
    assert requests == [((7, 4), 64), ((7, 4), 1024)]
    with pytest.raises(CorruptEntry, match="chunks before it are missing"):
        values(Decoder(TOPIC, earlier=lambda *_: []), chunk_of(entries[3:], first=4))


def test_message_chunks_continue_in_the_next_chunk_of_the_log() -> None:
    entries = chunks("u", b"a", b"b")
    parts = [chunk_of(entries[:1]), chunk_of(entries[1:], first=2)]
    assert values(Decoder(TOPIC), *parts) == [b"ab"]


def test_message_without_its_last_chunk_is_omitted() -> None:
    assert values(Decoder(TOPIC), chunk_of(chunks("u", b"a", b"b")[:1])) == []


@pytest.mark.parametrize(
    ("cut", "expected"),
    [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 6), (7, 7), (8, 7), (9, 7)],
)
def test_cut_is_not_within_a_message(cut: int, expected: int) -> None:
    one, two, open_ = chunks("1", b"a", b"b"), chunks("2", b"a", b"b"), chunks("3", b"a", b"b")
    entries = [single(), one[0], two[0], one[1], two[1], single(), open_[0], single()]
    found = whole_before([chunk_of(entries[: cut - 1])], Position(7, cut))
    assert found == Position(7, expected)


def test_abandoned_message_does_not_limit_the_cut() -> None:
    given_up, goes_on = chunks("1", b"a", b"b"), chunks("2", b"a", b"b")
    entries = [single(), given_up[0], single(), goes_on[0]]
    chunk, cut = chunk_of(entries), Position(7, 5)
    minutes = np.array([0, 0, GIVEN_UP_SECONDS, GIVEN_UP_SECONDS]) * 1000
    assert whole_before([chunk], cut) == Position(7, 2)
    assert whole_before([replace(chunk, time_ms=minutes - [0, 0, 0, 1])], cut) == Position(7, 2)
    assert whole_before([replace(chunk, time_ms=minutes)], cut) == Position(7, 4)
    assert whole_before([chunk], cut, lambda ledger: ledger == 7) == cut
    assert whole_before([chunk], cut, lambda ledger: ledger == 6) == Position(7, 2)
    alone = chunk_of([single(), given_up[0]])
    waiting = replace(alone, time_ms=np.array([10**12, 0]))
    assert whole_before([waiting], Position(7, 3)) == Position(7, 2)
