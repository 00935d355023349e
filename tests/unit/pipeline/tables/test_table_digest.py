"""The digest of messages: every value matters; division and storage do not."""

from __future__ import annotations

import io
import itertools
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onewriter_pipeline.schema import ENTRY, EPOCH, KEY, PRODUCER, PROPERTIES, PUBLISH_TIME, VALUE
from onewriter_pipeline.tables.digest import DIGESTS, WORDS_BYTES_MAX, row_hashes, shown, total
from onewriter_pipeline.tables.layout import MESSAGES

COLUMNS = MESSAGES.columns
PINNED = "72ff0656de854317"
SIZES = (0, 1, 7, 8, 9, WORDS_BYTES_MAX, WORDS_BYTES_MAX + 1, 1000)


def made(rows: int) -> pa.RecordBatch:
    luck = random.Random(7)
    return pa.RecordBatch.from_pylist(
        [
            {
                VALUE: None if number % 11 == 3 else luck.randbytes(SIZES[number % len(SIZES)]),
                KEY: None if number % 3 else b"k%d" % (number % 5),
                "__topic": "persistent://public/default/t",
                "__messageId": luck.randbytes(20),
                PUBLISH_TIME: datetime(2026, 1, 1, 0, 0, 0, 1000 * number, UTC),
                "__eventTime": None,
                PROPERTIES: {str(key): luck.randbytes(3).hex() for key in range(number % 4)},
                EPOCH: None if number % 5 else 7,
                "__ledgerId": 7,
                ENTRY: number,
                "__batchIndex": number % 2,
                PRODUCER: f"w{number % 3}",
                "__sequenceId": number,
            }
            for number in range(rows)
        ],
        COLUMNS,
    )


def digest(*batches: pa.RecordBatch) -> int:
    return sum(total(row_hashes(batch, COLUMNS)) for batch in batches) % DIGESTS


def test_digests_of_stored_tables_do_not_change() -> None:
    assert shown(digest(made(40))) == PINNED


def test_digest_is_independent_of_batches_row_groups_and_files() -> None:
    batch = made(100)
    whole = digest(batch)
    for cut in (1, 13, 64):
        parts = [batch.slice(at, cut) for at in range(0, 100, cut)]
        assert digest(*parts) == digest(*reversed(parts)) == whole
    stored = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), stored, row_group_size=30, compression="zstd")
    read = pq.ParquetFile(stored).iter_batches(17)
    assert digest(*read) == whole
    large = pa.schema([(VALUE, pa.large_binary()), *[COLUMNS.field(n) for n in COLUMNS.names[1:]]])
    assert digest(pa.Table.from_batches([batch]).cast(large).to_batches()[0]) == whole
    assert digest(made(0)) == 0


def changed(row: dict[str, Any], name: str) -> dict[str, Any]:
    value = row[name]
    other: Any = value
    if isinstance(value, bytes):
        other = bytes([value[0] ^ 1]) + value[1:] if value else b"\0"
    elif isinstance(value, str):
        other = value + "x"
    elif isinstance(value, int):
        other = value + 1
    elif isinstance(value, datetime):
        other = value.replace(microsecond=(value.microsecond + 1) % 1_000_000)
    elif value is None:
        other = {VALUE: b"", KEY: b"", EPOCH: 0, "__eventTime": datetime(1970, 1, 1, tzinfo=UTC)}[
            name
        ]
    else:
        other = {**dict(value), "more": ""}
    return row | {name: other}


@pytest.mark.parametrize("name", COLUMNS.names)
def test_every_value_changes_the_digest(name: str) -> None:
    batch = made(24)
    rows = batch.to_pylist(maps_as_pydicts="strict")
    whole = digest(batch)
    for number, row in enumerate(rows):
        others = [*rows[:number], changed(row, name), *rows[number + 1 :]]
        assert digest(pa.RecordBatch.from_pylist(others, COLUMNS)) != whole


def test_every_byte_and_every_place_changes_the_digest() -> None:
    found = {
        digest(
            pa.RecordBatch.from_pylist([{VALUE: value, ENTRY: 1}, {VALUE: b"x", ENTRY: 2}], COLUMNS)
        )
        for size in (20, 200)
        for value in itertools.chain(
            [bytes(size)],
            (bytes(at) + b"\1" + bytes(size - at - 1) for at in range(size)),
        )
    }
    assert len(found) == 222
    rows = [{VALUE: b"a", KEY: b"b", ENTRY: 1}, {VALUE: b"c", KEY: b"d", ENTRY: 2}]
    swapped = [rows[0] | {VALUE: b"c"}, rows[1] | {VALUE: b"a"}]
    doubled = [rows[0], rows[0]]
    whole, *others = (
        digest(pa.RecordBatch.from_pylist(each, COLUMNS))
        for each in (rows, swapped, doubled, [{VALUE: b"b", KEY: b"a", ENTRY: 1}, rows[1]])
    )
    assert whole not in others
