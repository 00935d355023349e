"""For any rows, the packed messages equal those that protobuf encodes one by one."""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onewriter_core.log_format.staged_rows import MAGIC
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline.binaries import binaries, texts, varint_sizes
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.publish.messages import encoded, key_texts
from onewriter_pipeline.publish.parts import FRAME_BYTES, PackedPart, pack

Row = dict[str, Any]

TEXTS = st.text(max_size=6)
SIZES = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 40_000])
VALUES = st.one_of(st.none(), st.binary(max_size=9), SIZES.map(bytes))
KEYS = st.one_of(
    st.none(), TEXTS.map(str.encode), st.binary(max_size=9), SIZES.map(lambda size: b"k" * size)
)
TIMES = st.one_of(st.none(), st.integers(0, 300), st.integers(0, 2**62))
PROPERTIES = st.one_of(
    st.none(), st.lists(st.tuples(TEXTS, st.one_of(st.none(), TEXTS)), max_size=3)
)
rows_strategy = st.lists(
    st.fixed_dictionaries(
        {"value": VALUES, "__key": KEYS, "__eventTime": TIMES, "__messageProperties": PROPERTIES}
    ),
    max_size=12,
)

KINDS = {
    "value": (pa.binary(), pa.large_binary()),
    "__key": (pa.binary(), pa.large_binary()),
    "__eventTime": (pa.int64(),),
    "__messageProperties": (pa.map_(pa.string(), pa.string()),),
}


def one_by_one(row: Row) -> bytes:
    """A row as the plain protobuf library encodes it."""
    value, key = row["value"], row.get("__key")
    metadata = pb.SingleMessageMetadata(payload_size=len(value or b""))
    if value is None:
        metadata.null_value = True
    if key is not None:
        try:
            metadata.partition_key = key.decode()
        except UnicodeDecodeError:
            metadata.partition_key = base64.b64encode(key).decode()
            metadata.partition_key_b64_encoded = True
    if row.get("__eventTime") is not None:
        metadata.event_time = row["__eventTime"]
    for name, text in row.get("__messageProperties") or ():
        metadata.properties.add(key=name, value=text or "")
    head = metadata.SerializeToString()
    return struct.pack(">I", len(head)) + head + (value or b"")


def key_of(message: bytes) -> bytes:
    """The key of a row. An entry without another key repeats it."""
    (size,) = struct.unpack_from(">I", message)
    return pb.SingleMessageMetadata.FromString(message[4 : 4 + size]).partition_key.encode()


def packed_one_by_one(
    rows: Sequence[Row], frame_rows: int, part_bytes: int
) -> Iterator[PackedPart]:
    """Rows packed according to the description of the format: limits of frames in rows and bytes, of parts in
    bytes.
    """
    frames: list[list[bytes]] = [[]]
    for message in map(one_by_one, rows):
        last = frames[-1]
        if last and (len(last) >= frame_rows or sum(map(len, last)) + len(message) > FRAME_BYTES):
            frames.append([])
        frames[-1].append(message)
    body, count, entries, size = MAGIC, 0, 0, 0
    for frame in filter(None, frames):
        messages = b"".join(frame)
        body += struct.pack("<II", 4 + len(messages), len(frame)) + messages
        count += len(frame)
        entries += 1
        size += len(messages) + (len(key_of(messages)) if len(frame) == 1 else 0)
        if len(body) >= part_bytes:
            yield PackedPart(count, body, entries, size)
            body, count, entries, size = MAGIC, 0, 0, 0
    if count:
        yield PackedPart(count, body, entries, size)


def batch_of(rows: Sequence[Row], columns: Sequence[str], kind: int = 0) -> pa.RecordBatch:
    arrays = {
        name: pa.array([row[name] for row in rows], KINDS[name][kind % len(KINDS[name])])
        for name in columns
    }
    return pa.record_batch(arrays)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows_strategy,
    st.sets(st.sampled_from(["__key", "__eventTime", "__messageProperties"])),
    st.integers(0, 1),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_messages_of_any_rows_equal_those_of_protobuf(
    rows: list[Row], more: set[str], kind: int, front: int, back: int
) -> None:
    columns = ["value", *sorted(more)]
    batch = batch_of(rows, columns, kind)
    sliced = batch.slice(front, max(0, len(rows) - front - back))
    kept = [{name: row[name] for name in columns} for row in rows[front : front + len(sliced)]]
    found = encoded(sliced).trimmed()
    assert found.data.tobytes() == b"".join(map(one_by_one, kept))
    assert found.lengths.tolist() == [len(one_by_one(row)) for row in kept]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(rows_strategy, max_size=6),
    st.integers(1, 5),
    st.sampled_from([30, 300, 50_000, 2**23]),
)
def test_parts_of_any_batches_have_all_rows(
    batches: list[list[Row]], frame_rows: int, part_bytes: int
) -> None:
    made = [batch_of(rows, list(KINDS)) for rows in batches]
    found = list(pack(made, frame_rows=frame_rows, part_bytes=part_bytes))
    everything = list(itertools.chain.from_iterable(batches))
    assert found == list(packed_one_by_one(everything, frame_rows, part_bytes))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")),
            st.binary(max_size=4),
            st.lists(
                st.sampled_from(
                    b"\x00\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xed\xee\xf0\xf4\xf5\xff"
                ),
                max_size=5,
            ).map(bytes),
        ),
        max_size=20,
    )
)
def test_keys_are_texts_or_base64(keys: list[bytes | None]) -> None:
    def is_text(key: bytes) -> bool:
        try:
            key.decode()
        except UnicodeDecodeError:
            return False
        return True

    column = pa.array(keys, pa.binary())
    assert texts(binaries(column)).tolist() == [is_text(key or b"") for key in keys]
    written, foreign = key_texts(column)
    expected = [key if key is None or is_text(key) else base64.b64encode(key) for key in keys]
    assert written.to_pylist() == expected
    reported = [False] * len(keys) if foreign is None else foreign.tolist()
    assert reported == [key is not None and not is_text(key) for key in keys]


def test_strings_are_written_unchanged() -> None:
    rows: list[Row] = [
        {"value": "ä".encode(), "__key": "ö".encode()},
        {"value": b"", "__key": None},
    ]
    for kind in (pa.string(), pa.large_string()):
        columns = {
            name: pa.array([row[name] and row[name].decode() for row in rows], kind)
            for name in ("value", "__key")
        }
        columns["value"] = pa.array(["ä", ""], kind)
        found = encoded(pa.record_batch(columns)).trimmed()
        assert found.data.tobytes() == b"".join(map(one_by_one, rows))


def test_large_types_of_arrow_are_accepted() -> None:
    rows: list[Row] = [{"value": b"x", "__messageProperties": [("a", "1"), ("b", "")]}]
    kind = pa.map_(pa.large_string(), pa.large_string())
    properties = pa.array([rows[0]["__messageProperties"]], kind)
    found = encoded(pa.record_batch({"value": [b"x"], "__messageProperties": properties}))
    assert found.trimmed().data.tobytes() == one_by_one(rows[0])


def test_properties_of_null_rows_are_ignored() -> None:
    hidden = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), pa.array(["1", "2"])
    )
    masked = pa.Array.from_buffers(
        hidden.type,
        2,
        [pa.array([False, True]).buffers()[1], hidden.buffers()[1]],
        children=[pa.StructArray.from_arrays([hidden.keys, hidden.items], ["key", "value"])],
    )
    batch = pa.record_batch({"value": [b"x", b"y"], "__messageProperties": masked})
    rows: list[Row] = [
        {"value": b"x"},
        {"value": b"y", "__messageProperties": [("b", "2")]},
    ]
    assert encoded(batch).trimmed().data.tobytes() == b"".join(map(one_by_one, rows))


def test_properties_that_are_not_texts_are_refused() -> None:
    broken = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")],
    )
    properties = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a"]), broken)
    with pytest.raises(Invalid, match="not UTF-8"):
        encoded(pa.record_batch({"value": [b""], "__messageProperties": properties}))


@pytest.mark.parametrize("power", range(1, 10))
def test_sizes_of_varints(power: int) -> None:
    def size(number: int) -> int:
        return max(1, -(-number.bit_length() // 7))

    numbers = [0, 2 ** (7 * power) - 1, 2 ** (7 * power)]
    assert varint_sizes(np.array(numbers, np.uint64)).tolist() == list(map(size, numbers))
