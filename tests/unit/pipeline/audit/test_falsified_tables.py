"""The audit of tables finds every falsification of a table: its files, its commits, and its audit records.

The tables are on a local disk, as an offload writes them, and need neither brokers nor Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from onewriter_core.ids import Position
from onewriter_pipeline.audit.audit import Audit, AuditReport, missing_between
from onewriter_pipeline.audit.audit_records import AuditRecords
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.errors import TableError
from onewriter_pipeline.jobs.offload_audit import audit_row
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import arrow_schema
from onewriter_pipeline.tables.digest import row_hashes, shown, total
from onewriter_pipeline.tables.files import FileWriter, write_rows
from onewriter_pipeline.tables.layout import AUDIT, MESSAGES, SEGMENTS, SegmentRow, folder_of
from onewriter_pipeline.tables.pieces import pieces, read_piece
from onewriter_pipeline.tables.tables import Tables

LOG = "persistent://public/default/orders"
HOLDERS = {5: "alice", 7: "bob", 8: "carol"}
ROWS = 20
DAY = datetime(2026, 1, 2, tzinfo=UTC)

Rewrite = Callable[[pa.Table], pa.Table]


def batch_of(ledger: int) -> pa.RecordBatch:
    """The messages of a ledger."""
    producer = HOLDERS[ledger]
    return pa.RecordBatch.from_pylist(
        [
            {
                "value": b"%s %d" % (producer.encode(), entry),
                "__topic": LOG,
                "__publishTime": DAY,
                "__epoch": ledger,
                "__ledgerId": ledger,
                "__entryId": entry,
                "__batchIndex": -1,
                "__producerName": producer,
                "__sequenceId": entry,
            }
            for entry in range(1, 1 + ROWS)
        ],
        arrow_schema(),
    )


def segment_of(ledger: int, batch: int) -> SegmentRow:
    messages = batch_of(ledger)
    return SegmentRow(
        topic=LOG,
        ledger=ledger,
        epoch=ledger,
        producer=HOLDERS[ledger],
        first=1,
        end=1 + ROWS,
        entries=ROWS,
        messages=ROWS,
        rows=ROWS,
        bytes=9,
        digest=shown(total(row_hashes(messages, MESSAGES.columns))),
        publishes=(),
        batch=batch,
    )


def grant_of(ledger: int) -> dict[str, Any]:
    before = max((each for each in HOLDERS if each < ledger), default=0)
    return {
        "id": f"{ledger}-0",
        "kind": "grant",
        "topic": LOG,
        "partitions": "",
        "ledger": ledger,
        "epoch": ledger,
        "oldEpoch": before,
        "broker": "b",
        "incarnation": "i",
        "timeMs": ledger,
        "producer": HOLDERS[ledger],
        "previous": {"-1": [f"{before}-{ROWS}", ROWS, 9]} if before else {},
    }


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """The tables after an offload of three commits."""
    tables = Tables(str(tmp_path))
    messages = tables.made(MESSAGES)
    partition = {"topic": folder_of(LOG), "date": "2026-01-02"}
    for number, ledger in enumerate(HOLDERS):
        writer = FileWriter(messages.place, partition, MESSAGES.columns)
        writer.write(batch_of(ledger))
        row = segment_of(ledger, number)
        offsets = {LOG: f"{ledger}:{1 + ROWS}"}
        messages.commit(messages.state(), [writer.close()], offsets, [row.as_list()])
        tables.catch_up()
    audit = tables.made(AUDIT)
    rows = [audit_row(0, grant_of(ledger)) for ledger in HOLDERS]
    audit.commit(
        audit.state(), [write_rows(audit.place, AUDIT.columns, rows)], {"0": rows[-1]["id"]}
    )
    return tables


def audited(tables: Tables) -> AuditReport:
    no_spark = cast("Any", None)  # the tables are small
    access = Access("http://127.0.0.1:1")
    return Audit(access, Selection(topics=(LOG,)), tables).table(no_spark)


def path_of(tables: Tables, ledger: int = 7) -> Path:
    """The file of a ledger."""
    table = tables.existing(MESSAGES)
    (found,) = [
        file.path for file in table.files() if file.bounds["__ledgerId"] == (ledger, ledger)
    ]
    return Path(table.place.location) / found


def rewritten(path: Path, change: Rewrite) -> None:
    """Write a file again. Its name, its commit, and the other files stay."""
    content = change(pq.ParquetFile(path).read())
    pq.write_table(content, path, compression="zstd", coerce_timestamps="us", store_schema=False)


def replaced(content: pa.Table, name: str, values: list[Any]) -> pa.Table:
    at = content.schema.get_field_index(name)
    return content.set_column(at, content.field(at), pa.array(values, content.field(at).type))


def every_row_of(tables: Tables, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    def rewrite(content: pa.Table) -> pa.Table:
        return replaced(content, name, change(content[name].to_pylist()))

    rewritten(path_of(tables), rewrite)


# ------------------------------------------------------------ falsifications


def one_byte_of_a_value_is_changed(tables: Tables) -> None:
    every_row_of(tables, "value", lambda values: [*values[:4], b"bob 9", *values[5:]])


def every_epoch_of_a_file_is_raised(tables: Tables) -> None:
    every_row_of(tables, "__epoch", lambda epochs: [each + 1 for each in epochs])


def every_value_is_longer(tables: Tables) -> None:
    every_row_of(tables, "value", lambda values: [each * 9 for each in values])


def a_producer_is_renamed(tables: Tables) -> None:
    every_row_of(tables, "__producerName", lambda names: ["bab"] * len(names))


def a_sequence_id_is_changed(tables: Tables) -> None:
    every_row_of(tables, "__sequenceId", lambda numbers: [*numbers[:-1], numbers[-1] + 1])


def two_values_are_swapped(tables: Tables) -> None:
    every_row_of(tables, "value", lambda each: [each[4], *each[1:4], each[0], *each[5:]])


def one_row_is_dropped(tables: Tables) -> None:
    rewritten(path_of(tables), lambda content: content.slice(1))


def the_newest_row_is_dropped(tables: Tables) -> None:
    rewritten(path_of(tables, 8), lambda content: content.slice(0, ROWS - 1))


def one_row_is_doubled(tables: Tables) -> None:
    rewritten(path_of(tables), lambda content: pa.concat_tables([content, content.slice(3, 1)]))


def a_row_is_replaced_by_a_copy_of_another(tables: Tables) -> None:
    def change(content: pa.Table) -> pa.Table:
        return pa.concat_tables([content.slice(0, 3), content.slice(2, 1), content.slice(4)])

    rewritten(path_of(tables), change)


def a_file_is_removed(tables: Tables) -> None:
    path_of(tables).unlink()


def a_file_is_cut_short(tables: Tables) -> None:
    path = path_of(tables)
    path.write_bytes(path.read_bytes()[:-9])


def a_file_is_replaced_by_another(tables: Tables) -> None:
    path_of(tables).write_bytes(path_of(tables, 5).read_bytes())


def another_engine_deletes_rows(tables: Tables) -> None:
    location = tables.existing(MESSAGES).place.location
    deltalake.DeltaTable(location).delete("`__ledgerId` = 7 AND `__entryId` = 4")


def another_engine_updates_a_value(tables: Tables) -> None:
    location = tables.existing(MESSAGES).place.location
    where = "`__ledgerId` = 7 AND `__entryId` = 4"
    deltalake.DeltaTable(location).update(predicate=where, new_values={"__sequenceId": 9})


def _rewritten_rows(tables: Tables, layout: Any, change: Rewrite) -> None:
    """Rewrite the files of a small table."""
    table = tables.existing(layout)
    for file in table.files():
        rewritten(Path(table.place.location) / file.path, change)


def the_epochs_of_two_segments_are_swapped(tables: Tables) -> None:
    def change(content: pa.Table) -> pa.Table:
        swapped = {5: 7, 7: 5}
        epochs = [swapped.get(each, each) for each in content["epoch"].to_pylist()]
        return replaced(content, "epoch", epochs)

    _rewritten_rows(tables, SEGMENTS, change)


def a_segment_is_deleted(tables: Tables) -> None:
    _rewritten_rows(
        tables, SEGMENTS, lambda content: content.filter(pc.not_equal(content["ledger"], 7))
    )


def the_holder_of_a_segment_is_changed(tables: Tables) -> None:
    def change(content: pa.Table) -> pa.Table:
        names = ["mallory" if each == "bob" else each for each in content["producer"].to_pylist()]
        return replaced(content, "producer", names)

    _rewritten_rows(tables, SEGMENTS, change)


def a_grant_is_deleted_from_the_audit(tables: Tables) -> None:
    _rewritten_rows(
        tables, AUDIT, lambda content: content.filter(pc.not_equal(content["ledger"], 7))
    )


def the_holder_in_the_audit_is_changed(tables: Tables) -> None:
    def change(content: pa.Table) -> pa.Table:
        records = [json.loads(each) for each in content["record"].to_pylist()]
        named = [
            each | ({"producer": "mallory"} if each["ledger"] == 7 else {}) for each in records
        ]
        return replaced(content, "record", [json.dumps(each) for each in named])

    _rewritten_rows(tables, AUDIT, change)


FALSIFIED: list[tuple[Callable[[Tables], None], str]] = [
    (one_byte_of_a_value_is_changed, "S7"),
    (every_epoch_of_a_file_is_raised, "S7"),
    (every_value_is_longer, "S7"),
    (a_producer_is_renamed, "S7"),
    (a_sequence_id_is_changed, "S7"),
    (two_values_are_swapped, "S7"),
    (one_row_is_dropped, "S5"),
    (the_newest_row_is_dropped, "S5"),
    (one_row_is_doubled, "S5"),
    (a_row_is_replaced_by_a_copy_of_another, "S7"),
    (a_file_is_removed, "S5"),
    (a_file_is_cut_short, "S7"),
    (a_file_is_replaced_by_another, "S7"),
    (another_engine_deletes_rows, "S5"),
    (another_engine_updates_a_value, "S7"),
    (the_epochs_of_two_segments_are_swapped, "S1"),
    (a_segment_is_deleted, "S4"),
    (the_holder_of_a_segment_is_changed, "S2"),
    (a_grant_is_deleted_from_the_audit, "S4"),
    (the_holder_in_the_audit_is_changed, "S2"),
]


def test_table_of_an_offload_holds(tables: Tables) -> None:
    report = audited(tables)
    assert (report.findings, report.topics[0]["messages"]) == ([], 3 * ROWS)


@pytest.mark.parametrize(
    ("falsify", "predicate"), FALSIFIED, ids=[falsify.__name__ for falsify, _ in FALSIFIED]
)
def test_every_falsification_of_a_table_is_found(
    tables: Tables, falsify: Callable[[Tables], None], predicate: str
) -> None:
    falsify(tables)
    report = audited(tables)
    assert predicate in {finding.predicate for finding in report.findings}
    assert all(finding.where and "\n" not in finding.sentence for finding in report.findings)


@pytest.fixture
def joined(tables: Tables) -> Tables:
    """The tables after their small files were joined."""
    tables.existing(MESSAGES).optimize(1024 * 1024)
    return tables


def test_joined_files_hold(joined: Tables) -> None:
    assert len(joined.existing(MESSAGES).files()) == 1
    assert audited(joined).findings == []


def test_order_of_rows_in_a_file_shows_nothing(tables: Tables) -> None:
    """Readers return rows in the order of their positions."""
    order = [4, 1, 2, 3, 0, *range(5, ROWS)]
    rewritten(path_of(tables), lambda content: content.take(pa.array(order)))
    assert {each.predicate for each in audited(tables).findings} <= {"S7"}


def test_flipped_bits_are_found_unless_they_change_no_row(tables: Tables) -> None:
    """Some bytes of a Parquet file, such as those of its statistics, do not change what readers get."""
    path, columns = path_of(tables), arrow_schema().names
    whole, rows = path.read_bytes(), pq.ParquetFile(path).read(columns=columns)
    found = 0
    for at in range(4, len(whole), len(whole) // 60):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        path.write_bytes(bytes(flipped))
        if audited(tables).findings:
            found += 1
        else:
            assert pq.ParquetFile(path).read(columns=columns).equals(rows)
    assert found > 30


def the_newest_commit_is_removed(tables: Tables) -> None:
    log = Path(tables.existing(MESSAGES).place.location) / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.unlink()


def test_removed_newest_commit_is_found_once_the_log_was_trimmed(tables: Tables) -> None:
    the_newest_commit_is_removed(tables)
    report = audited(tables)
    assert report.findings == []
    assert any("removed newest commits" in each for each in report.not_detected)
    known = report.kept.of(LOG).logs[LOG]
    end = position_of(tables.existing(MESSAGES).state().offsets[LOG])
    assert end == Position(7, 1 + ROWS)
    assert missing_between(LOG, known, end, Position(8, 0)) == []
    kept = AuditRecords(buckets={LOG: 0})
    kept.add(0, [*map(grant_of, HOLDERS), next_grant()])
    (finding,) = missing_between(LOG, kept.of(LOG).logs[LOG], end, Position(9, 0))
    assert (finding.predicate, finding.where) == ("S5", ("7-21", "8-20", "9-0"))
    assert missing_between(LOG, kept.of(LOG).logs[LOG], Position(8, 1 + ROWS), Position(9, 0)) == []


def next_grant() -> dict[str, Any]:
    previous = {"-1": [f"8-{ROWS}", ROWS, 9]}
    return grant_of(8) | {"id": "9-0", "ledger": 9, "epoch": 9, "oldEpoch": 8, "previous": previous}


@pytest.mark.parametrize(
    ("falsify", "what"),
    [
        (one_row_is_dropped, "19 rows, and had 20"),
        (one_row_is_doubled, "21 rows, and had 20"),
        (every_value_is_longer, "bytes, and had"),
    ],
)
def test_reading_a_file_compares_rows_and_size_with_its_commit(
    tables: Tables, falsify: Callable[[Tables], None], what: str
) -> None:
    table = tables.existing(MESSAGES)
    (piece,) = pieces(LOG, table.files(), Position(7, 1), Position(8, 0))

    def read() -> list[bytes]:
        found = read_piece(table.place, piece, ["value"], None, json=False)
        return [value for batch in found for value in batch["value"].to_pylist()]

    assert len(read()) == ROWS
    falsify(tables)
    with pytest.raises(TableError, match=what):
        read()
