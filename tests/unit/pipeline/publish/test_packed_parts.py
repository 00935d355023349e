"""Packs rows of Arrow batches into parts that brokers accept: nothing is lost or too large, and errors name the
cause.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from onewriter_core.log_format.staged_rows import FRAME_BYTES_MAX, MAGIC
from onewriter_core.wire.messages import iterate_batch
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.publish.parts import (
    FRAME_BYTES,
    FRAME_ROWS,
    PackedPart,
    pack,
)

Message = tuple[pb.SingleMessageMetadata, bytes]


def frames(part: PackedPart) -> Iterator[list[Message]]:
    assert part.body.startswith(MAGIC)
    at = len(MAGIC)
    while at < len(part.body):
        size, rows = struct.unpack_from("<II", part.body, at)
        messages = part.body[at + 8 : at + 4 + size]
        yield [(metadata, bytes(content)) for metadata, content in iterate_batch(messages, rows)]
        at += 4 + size


def packed(*batches: pa.RecordBatch, **options: int) -> list[Message]:
    return [
        message for part in pack(batches, **options) for frame in frames(part) for message in frame
    ]


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_message_has_all_values_of_its_row() -> None:
    time = dt.datetime(2025, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC)
    rows = batch(
        value=[b"one", None, b""],
        __key=["k", None, ""],
        __eventTime=pa.array([time, None, time], pa.timestamp("us", tz="UTC")),
        __messageProperties=pa.array(
            [[("a", "1"), ("b", None)], None, []], pa.map_(pa.string(), pa.string())
        ),
    )
    (one, other, empty) = packed(rows)
    assert one[1] == b"one"
    assert (one[0].partition_key, one[0].null_value) == ("k", False)
    assert one[0].event_time == int(time.timestamp() * 1000)
    assert [(each.key, each.value) for each in one[0].properties] == [("a", "1"), ("b", "")]
    assert other[0].null_value
    assert not other[0].HasField("partition_key")
    assert not other[0].HasField("event_time")
    assert (empty[1], empty[0].null_value, empty[0].HasField("partition_key")) == (b"", False, True)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "ä"]),
        pa.array(["a", "ä"], pa.large_string()),
        pa.array([b"a", "ä".encode()], pa.large_binary()),
    ],
    ids=lambda values: str(values.type),
)
def test_values_are_bytes_or_texts(values: pa.Array) -> None:
    assert [content for _, content in packed(batch(value=values))] == [b"a", "ä".encode()]


def test_binary_key_is_marked_as_base64() -> None:
    ((metadata, _),) = packed(batch(value=[b"v"], __key=[b"\xff\x00"]))
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("/wA=", True)


def test_event_times_can_be_milliseconds() -> None:
    ((metadata, _),) = packed(batch(value=[b"v"], __eventTime=[5]))
    assert metadata.event_time == 5


def test_frames_are_limited_by_rows_and_bytes() -> None:
    (part,) = pack([batch(value=[b"x"] * (2 * FRAME_ROWS + 1))])
    assert [len(frame) for frame in frames(part)] == [FRAME_ROWS, FRAME_ROWS, 1]
    large = FRAME_BYTES // 3
    (part,) = pack([batch(value=[b"x" * large] * 5)])
    assert [len(frame) for frame in frames(part)] == [2, 2, 1]
    assert len(packed(batch(value=[b"x"] * 3), frame_rows=1)) == 3


def test_parts_have_all_rows_in_order_for_any_batches() -> None:
    batches = [
        batch(value=[b"%d" % n for n in range(first, first + 7)]) for first in range(0, 70, 7)
    ]
    parts = list(pack(batches, frame_rows=3, part_bytes=200))
    assert len(parts) > 3
    assert sum(part.rows for part in parts) == 70
    found = [content for part in parts for frame in frames(part) for _, content in frame]
    assert found == [b"%d" % number for number in range(70)]


def test_part_has_at_most_the_frames_that_a_broker_accepts() -> None:
    parts = list(pack([batch(value=[b"x"] * 9)], frame_rows=1, part_frames=4))
    assert [(part.rows, len(list(frames(part)))) for part in parts] == [(4, 4), (4, 4), (1, 1)]


def test_no_rows_make_no_part() -> None:
    assert list(pack([])) == []
    assert list(pack([batch(value=pa.array([], pa.binary()))])) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (batch(other=[1]), "need a column value"),
        (batch(value=[b""], other=[1], more=[2]), "columns more, other"),
        (batch(value=[1]), "binary or string, not int64"),
        (batch(value=[b""], __key=[1.5]), "__key is binary or string"),
        (batch(value=[b""], __eventTime=["now"]), "timestamp or milliseconds"),
        (batch(value=[b""], __eventTime=[-1]), "before 1970"),
        (batch(value=[b""], __messageProperties=["a"]), "map of strings"),
        (batch(value=[b"x" * (FRAME_BYTES_MAX + 1)]), "a row has"),
        (
            batch(value=[b"x" * (FRAME_BYTES_MAX - 10_000)], __key=["k" * 9_000]),
            "a key of 9000",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_invalid_rows_are_refused_by_name(rows: pa.RecordBatch, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        list(pack([rows]))


def test_columns_with_only_nulls_are_accepted() -> None:
    nothing = pa.nulls(2)
    rows = batch(value=nothing, __key=nothing, __eventTime=nothing, __messageProperties=nothing)
    assert [metadata.null_value for metadata, _ in packed(rows)] == [True, True]
