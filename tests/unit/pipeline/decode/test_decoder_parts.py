"""Parts of the decoder compared with the plain protobuf library: varints, fields, message ids, slices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline.binaries import PADDING
from onewriter_pipeline.decode.columns import from_base64, gathered, message_ids
from onewriter_pipeline.decode.fields import WantedFields, scan
from onewriter_pipeline.decode.rows import Slices
from onewriter_pipeline.decode.words import big_endian_32, varints, words_of

numbers = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**32),
    st.integers(2**63, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)


@given(st.lists(numbers, min_size=1, max_size=30))
def test_varints_of_all_sizes(values: list[int]) -> None:
    encoded = [_VarintBytes(value) for value in values]
    starts = np.cumsum([0, *map(len, encoded[:-1])])
    found, sizes = varints(words_of(b"".join(encoded) + PADDING), starts)
    assert found.tolist() == values
    assert sizes.tolist() == list(map(len, encoded))


@given(st.binary(min_size=11, max_size=11).filter(lambda raw: raw[0] >= 0x80))
def test_varint_of_any_bytes(raw: bytes) -> None:
    found, sizes = varints(words_of(raw + PADDING), np.zeros(1, np.int64))
    if all(byte >= 0x80 for byte in raw[:10]):
        assert sizes.tolist() == [0]
    else:
        value, behind = _DecodeVarint(raw, 0)
        assert (int(found[0]), int(sizes[0])) == (value % 2**64, behind)


def test_big_endian_numbers() -> None:
    words = words_of(b"\x00\x00\x00\x07\xff\xff\xff\xff" + PADDING)
    assert big_endian_32(words, np.array([0, 4, 1])).tolist() == [7, 2**32 - 1, 0x7FF]


def test_duplicate_fields_and_fields_of_another_wire_type() -> None:
    fields = (b"\x08\x01", b"\x08\x02", b"\x12\x01a", b"\x12\x01b", b"\x0a\x01c", b"\x10\x05")
    raw = b"".join((*fields, b"\x1d....", b"\x21........"))
    wanted = WantedFields(numbers={1, 3}, pieces={2}, repeated=5)
    found = scan(words_of(raw + PADDING), np.zeros(1, np.int64), np.array([len(raw)]), wanted)
    assert not found.damaged.any()
    assert found.unsigned(1).tolist() == [2]
    start, stop = (int(each[0]) for each in found.slices(2))
    assert raw[start:stop] == b"b"
    assert not found.has(3).any()
    assert len(found.repeated().rows) == 0


places = st.tuples(
    st.integers(0, 2**53), st.integers(0, 2**53), st.integers(0, 200_000), st.integers(1, 200_000)
)


@given(
    st.lists(st.tuples(places, st.booleans()), min_size=1, max_size=9),
    st.none() | st.integers(0, 999),
)
def test_message_ids_equal_those_of_clients(
    drawn: list[tuple[tuple[int, int, int, int], bool]], partition: int | None
) -> None:
    columns = np.array([place for place, _ in drawn], np.int64)
    batched = np.array([each for _, each in drawn])
    sizes = np.where(batched, columns[:, 3], 0)
    indexes = np.where(batched, columns[:, 2], -1)
    found = message_ids(columns[:, 0], columns[:, 1], indexes, sizes, partition)
    found.validate(full=True)
    for raw, ((ledger, entry, index, size), in_batch) in zip(found.to_pylist(), drawn, strict=True):
        expected = pb.MessageIdData(ledger_id=ledger, entry_id=entry, partition=partition)
        if in_batch:
            expected.batch_index, expected.batch_size = index, size
        assert raw == expected.SerializeToString()


@given(st.permutations(list(range(8))), st.lists(st.booleans(), min_size=8, max_size=8))
def test_slices_in_any_order(order: list[int], present: list[bool]) -> None:
    data = bytes(range(100))
    starts = np.array([12 * place for place in order])
    stops = starts + np.array(list(order))
    found = gathered(pa.py_buffer(data), Slices(np.array(present), starts, stops), pa.binary())
    found.validate(full=True)
    assert found.to_pylist() == [
        data[start:stop] if there else None
        for there, start, stop in zip(present, starts.tolist(), stops.tolist(), strict=True)
    ]


def test_base64_is_decoded_or_null() -> None:
    texts = pa.array([b"AAECAw==", None, b"", b"=", b"AAECAw", b"AAECAw=="], pa.binary())
    assert from_base64(texts).to_pylist() == [b"\0\1\2\3", None, b"", None, None, b"\0\1\2\3"]
