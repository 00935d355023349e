"""Tables as plain objects: commits that count once, refusals, and files that stay untouched."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from onewriter_core.ids import Position
from onewriter_pipeline.errors import Invalid, Overtaken, TableError
from onewriter_pipeline.schema import FORMATS, PARQUET, PUBLISH_TIME
from onewriter_pipeline.tables.delta import DeltaLog
from onewriter_pipeline.tables.files import (
    GROUP_BYTES,
    FileWriter,
    Place,
    check_there,
    discard,
    files_of,
    place_of,
    reveal,
    write_rows,
)
from onewriter_pipeline.tables.layout import (
    MESSAGES,
    SEGMENTS,
    TABLE_VERSION,
    SegmentRow,
    TableFile,
    folder_of,
    hidden_path,
    is_ours,
)
from onewriter_pipeline.tables.pieces import position_at
from onewriter_pipeline.tables.publishes import PublishRun
from onewriter_pipeline.tables.read_back import read_back
from onewriter_pipeline.tables.table import State, Table
from onewriter_pipeline.tables.tables import Tables
from onewriter_pipeline.tables.verification import Noted, WantedRows

MEBIBYTE = 1024 * 1024
SECRET = "wJalrXUtnFEMI"  # noqa: S105 - nobody's
LOG = "persistent://public/default/orders"
DIGEST = "00000000000000aa"
PUBLISHES = (PublishRun("app", 1, 3, 1, 3, is_open=False),)


def made(tmp_path: Path, kind: str = "delta") -> tuple[Tables, Table]:
    tables = Tables(str(tmp_path), kind=kind)
    return tables, tables.made(MESSAGES)


def written(table: Table, ledger: int, entries: int = 3, day: str = "2026-01-02") -> TableFile:
    """A file with a few messages of one ledger, published when their day began."""
    writer = FileWriter(table.place, {"topic": folder_of(LOG), "date": day}, MESSAGES.columns)
    moment = datetime.fromisoformat(day).replace(tzinfo=UTC)
    rows = [
        {
            "value": b"%d" % entry,
            "__topic": LOG,
            "__publishTime": moment,
            "__epoch": ledger,
            "__ledgerId": ledger,
            "__entryId": entry,
        }
        for entry in range(1, entries + 1)
    ]
    writer.write(pa.RecordBatch.from_pylist(rows, MESSAGES.columns))
    return writer.close()


def test_writer_reports_the_size_of_its_file(tmp_path: Path) -> None:
    place = made(tmp_path)[1].place
    writer = FileWriter(place, {"topic": folder_of(LOG), "date": "2026-01-02"}, MESSAGES.columns)
    row = {"value": os.urandom(MEBIBYTE), "__publishTime": datetime.now(UTC), "__ledgerId": 1}
    batch = pa.RecordBatch.from_pylist([row | {"__entryId": 1}], MESSAGES.columns)
    for _ in range(GROUP_BYTES // MEBIBYTE + 1):
        writer.write(batch)
    assert writer.bytes > MEBIBYTE  # the size decides when the next file begins
    writer.discard()


def test_files_are_hidden_until_their_commit(tmp_path: Path) -> None:
    tables, table = made(tmp_path)
    file = written(table, 1)
    assert not list(tmp_path.glob("**/*.parquet"))
    assert tables.foreign() == []
    table.commit(table.state(), [file], {LOG: "1:4"}, coverage(1))
    assert [
        str(each.relative_to(table.place.location)) for each in tmp_path.glob("**/*.parquet")
    ] == [file.path]
    reveal(table.place, [file])  # may be repeated


def coverage(ledger: int, entries: int = 3) -> list[list[object]]:
    """The row of ``segments`` for such a file, without its batch."""
    return [segment_row(ledger, entries).as_list()]


def segment_row(ledger: int, entries: int = 3) -> SegmentRow:
    return SegmentRow(
        topic=LOG,
        ledger=ledger,
        epoch=ledger,
        producer="w",
        subject="subject",
        cause="grant",
        mode="exclusive",
        first=1,
        end=entries + 1,
        entries=entries,
        messages=entries,
        rows=entries,
        bytes=99,
        oldest_ms=1_000,
        newest_ms=2_000,
        digest="0" * 16,
        chain="ab",
        publishes=PUBLISHES,
        batch=0,
    )


def commit(table: Table, ledger: int) -> State:
    state = table.state()
    offsets = {LOG: f"{ledger}:4"}
    return table.commit(state, [written(table, ledger)], offsets, coverage(ledger))


@pytest.mark.parametrize("kind", FORMATS)
def test_commits_record_the_offsets_of_the_table(tmp_path: Path, kind: str) -> None:
    tables, table = made(tmp_path, kind)
    assert table.state() == State()
    for ledger in range(1, 25):
        assert commit(table, ledger).batch == ledger - 1
        found = Tables(str(tmp_path), kind=kind).existing(MESSAGES)
        assert found.state() == State(ledger - 1, {LOG: f"{ledger}:4"})
    files = table.files()
    assert sorted(file.bounds["__ledgerId"] for file in files) == [(n, n) for n in range(1, 25)]
    assert {(file.rows, file.bounds["__entryId"]) for file in files} == {(3, (1, 3))}
    assert [batch for batch, _ in table.coverage_since(20)] == [21, 22, 23]
    assert [batch for batch, _ in table.coverage_since(None)] == list(range(24))
    assert list(table.coverage_since(23)) == []
    assert tables.foreign() == []


@pytest.mark.parametrize("kind", FORMATS)
def test_commit_from_an_outdated_state_is_refused(tmp_path: Path, kind: str) -> None:
    _, table = made(tmp_path, kind)
    other = Tables(str(tmp_path), kind=kind).existing(MESSAGES)
    state = other.state()
    commit(table, 1)
    own = written(other, 1)
    with pytest.raises(Overtaken, match="nothing was committed"):
        other.commit(state, [own], {LOG: "9:9"})
    assert table.state().offsets == {LOG: "1:4"}
    assert len(table.files()) == 1


def test_only_one_of_two_simultaneous_commits_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, table = made(tmp_path)
    other = Tables(str(tmp_path)).existing(MESSAGES)
    state = other.state()
    commit(table, 1)
    monkeypatch.setattr(other, "state", lambda: state)  # its state is older than the other's commit
    with pytest.raises(Overtaken):
        other.commit(state, [written(other, 1)], {LOG: "9:9"})
    assert len(table.files()) == 1


@pytest.mark.parametrize("kind", FORMATS)
def test_segments_are_completed_after_a_killed_job(tmp_path: Path, kind: str) -> None:
    tables, table = made(tmp_path, kind)
    commit(table, 1)
    commit(table, 2)
    assert [row.ledger for row in tables.segments()] == [1, 2]  # before such a table exists
    assert tables.catch_up() == 2
    assert tables.catch_up() == 0
    commit(table, 3)
    commit(table, 4)
    rows = tables.segments([LOG])
    assert [(row.ledger, row.batch) for row in rows] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert tables.catch_up() == 2
    assert tables.segments() == rows
    assert rows[0] == segment_row(1)
    assert tables.segments(["persistent://public/default/other"]) == []


@pytest.mark.parametrize(
    ("version", "message"), [(TABLE_VERSION + 1, "newer"), (TABLE_VERSION - 1, "older")]
)
def test_table_of_another_version_is_refused(tmp_path: Path, version: int, message: str) -> None:
    _, table = made(tmp_path)
    DeltaTable(table.place.location).alter.set_table_properties(
        {"onewriter.tableVersion": str(version)}, raise_if_not_exists=False
    )
    with pytest.raises(Invalid, match=f"by an? {message} onewriter: its version is {version}"):
        Tables(str(tmp_path)).made(MESSAGES)


def test_foreign_table_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "messages"
    DeltaTable.create(str(place), pa.schema([("a", pa.int64())]))
    with pytest.raises(Invalid, match="did not create"):
        Tables(str(tmp_path)).made(MESSAGES)


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(Invalid, match="has a Delta log"):
        Tables(str(tmp_path), kind=PARQUET).made(MESSAGES)
    with pytest.raises(Invalid, match="on local disks only"):
        Tables("s3://bucket/table", kind=PARQUET)
    with pytest.raises(TableError, match="has no delta table segments"):
        Tables(str(tmp_path)).existing(SEGMENTS)


def test_compaction_and_expiry_keep_the_offsets(tmp_path: Path) -> None:
    tables, table = made(tmp_path)
    for ledger in range(1, 5):
        commit(table, ledger)
    state = table.state()
    table.commit(state, [written(table, 9, day="2026-03-01")], {LOG: "9:4"}, coverage(9))
    assert table.optimize(10**8) == (1, 4)
    assert table.state() == State(4, {LOG: "9:4"})
    assert sorted(file.rows for file in table.files()) == [3, 12]
    assert table.expire(date(2026, 2, 1)) == 1
    assert [file.rows for file in table.files()] == [3]
    assert table.state() == State(4, {LOG: "9:4"})
    assert tables.catch_up() == 5
    commit(table, 10)
    assert table.state().batch == 5


@pytest.mark.parametrize("kind", FORMATS)
def test_foreign_files_are_listed_and_orphans_deleted(tmp_path: Path, kind: str) -> None:
    tables, table = made(tmp_path, kind)
    commit(table, 1)
    orphan, killed = written(table, 2), written(table, 4)
    reveal(table.place, [orphan])
    fresh = written(table, 3)
    folder = Path(table.place.location)
    old = 0
    for name in ("notes.txt", "data.parquet"):
        (folder / name).write_text("mine")
        os.utime(folder / name, (old, old))
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "x.parquet").write_text("mine")
    os.utime(folder / orphan.path, (old, old))
    os.utime(folder / hidden_path(killed.path), (old, old))
    assert tables.foreign() == ["else/x.parquet", "messages/data.parquet", "messages/notes.txt"]
    hidden = hidden_path(killed.path)
    assert sorted(tables.orphans(168)) == sorted([f"messages/{hidden}", f"messages/{orphan.path}"])
    tables.delete(tables.orphans(168))
    assert not (folder / orphan.path).exists()
    assert not (folder / hidden).exists()
    assert (folder / hidden_path(fresh.path)).exists()
    assert (folder / "data.parquet").read_text() == "mine"
    assert [file.bounds["__ledgerId"] for file in table.files()] == [(1, 1)]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_readers_of_statistics_find_all_rows(tmp_path: Path, is_compacted: bool) -> None:
    _, table = made(tmp_path)
    for epoch in (
        1,
        None,
        2,
    ):  # a file without epochs and, after compaction, one with some epochs and some nulls
        folders = {"topic": folder_of(LOG), "date": "2026-01-02"}
        writer = FileWriter(table.place, folders, MESSAGES.columns)
        rows = [full_row(entry) | {"__epoch": epoch} for entry in (1, 2)]
        writer.write(pa.RecordBatch.from_pylist(rows, MESSAGES.columns))
        table.commit(table.state(), [writer.close()], {LOG: "1:3"})
    if is_compacted:
        assert table.optimize(MEBIBYTE) == (1, 3)
    delta = DeltaTable(table.place.location)
    everything = delta.to_pyarrow_table()
    assert everything.num_rows == 6
    for name in everything.column_names:
        if pa.types.is_map(everything.schema.field(name).type):
            continue
        column, value = ds.field(name), full_row(1).get(name)
        filters = [column.is_null(), column.is_valid()]
        if value is not None:
            filters += [column == value, column <= value, column >= value, column != value]
        for each in filters:
            found = delta.to_pyarrow_dataset().to_table(filter=each)
            assert found.num_rows == everything.filter(each).num_rows, each
    assert delta.to_pyarrow_table(filters=[("__topic", "=", LOG)]).num_rows == 6


def full_row(entry: int) -> dict[str, Any]:
    """A message with most columns filled."""
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    whose = {"__epoch": 1, "__producerName": "p", "__sequenceId": entry}
    place = {"__ledgerId": 1, "__entryId": entry, "__batchIndex": -1, "__messageId": b"m"}
    return {"value": b"v", "__key": b"k", "__topic": LOG, "__publishTime": moment} | whose | place


def test_small_tables_have_no_statistics(tmp_path: Path) -> None:
    tables, table = made(tmp_path)
    for ledger in (1, 2):
        commit(table, ledger)
        tables.catch_up()
    for _ in range(2):
        delta = DeltaTable(tables.existing(SEGMENTS).place.location)
        for name, value, count in (("topic", LOG, 2), ("ledger", 1, 1), ("batch", 1, 1)):
            assert delta.to_pyarrow_table(filters=[(name, "=", value)]).num_rows == count, name
        tables.existing(SEGMENTS).optimize(MEBIBYTE)


def test_log_without_the_record_of_the_offload_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, table = made(tmp_path)
    commit(table, 1)
    commit(table, 2)
    found = [each for each in table.coverage_since(None) if each[0] > 0]
    monkeypatch.setattr(DeltaLog, "coverage_since", lambda *_: iter(found))
    with pytest.raises(TableError, match="does not go back to batch 0"):
        tables.catch_up()


def test_full_disk_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, table = made(tmp_path)
    file = written(table, 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", full)
    with pytest.raises(TableError, match=r"messages: \[Errno 28\] No space left on device"):
        table.commit(State(), [file], {})
    discard(table.place, [file, file])  # may be repeated
    assert table.files() == []


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onewriter_pipeline.tables.files.synced_file", full)
    with pytest.raises(TableError, match="No space left on device"):
        write_rows(place_of(str(tmp_path)), pa.schema([("a", pa.int64())]), [{"a": 1}])
    assert list(tmp_path.iterdir()) == []


def test_files_that_the_driver_cannot_see_are_not_committed(tmp_path: Path) -> None:
    _, table = made(tmp_path)
    file = written(table, 1)
    check_there(table.place, [])
    check_there(table.place, [file])
    (Path(table.place.location) / file.path).unlink()
    with pytest.raises(TableError, match="executors need the same folder"):
        check_there(table.place, [file])


def test_names_of_folders_are_unique_and_plain() -> None:
    names = [
        "orders",
        "public/default/a/b",
        "a__b",
        "a_2Fb",
        "ä ö",
        "orders-partition-3",
        "tenant/ns/a.b",
    ]
    folders = [folder_of(name) for name in names]
    assert folders[0] == "public__default__orders"
    assert folders[-1] == "tenant__ns__a.b"
    assert len(set(folders)) == len(names)
    assert all(
        set(each) <= set("abcdefghijklmnopqrstuvwxyzABCDEF0123456789_.-") for each in folders
    )


def test_names_of_our_files_are_recognized() -> None:
    assert is_ours("topic=a/date=2026-01-01/onewriter-0123456789abcdef0123456789abcdef.parquet")
    compacted = "part-00000-7ead6645-5bcf-42ba-86be-f09d22fee9b3-c000.zstd.parquet"
    assert is_ours(compacted)
    assert not is_ours("part-1.parquet")
    assert not is_ours("onewriter-0123.parquet")


def test_places_are_parsed() -> None:
    place = place_of("s3://bucket/table", {"AWS_SECRET_ACCESS_KEY": SECRET})
    assert place.within("messages").location == "s3://bucket/table/messages"
    assert SECRET not in repr(place)
    assert place_of("here").location == str(Path("here").absolute())
    assert not place.is_local
    assert Place("file:///tmp/x").is_local


def test_statistics_equal_those_of_delta(tmp_path: Path) -> None:
    _, table = made(tmp_path)
    commit(table, 1)
    log = (Path(table.place.location) / "_delta_log").glob("*1.json")
    lines = [json.loads(line) for line in next(log).read_text().splitlines()]
    (added,) = [json.loads(line["add"]["stats"]) for line in lines if "add" in line]
    assert added["numRecords"] == 3
    assert added["minValues"]["__publishTime"] == "2026-01-02T00:00:00.000Z"
    assert added["maxValues"]["__publishTime"] == "2026-01-02T00:00:00.001Z"
    (transaction,) = [line["txn"] for line in lines if "txn" in line]
    assert (transaction["appId"], transaction["version"]) == ("onewriter-offload", 0)


def published_ms(day: str) -> int:
    return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(("kind", "more"), [("delta", 1000), ("parquet", 0)])
def test_bounds_of_files_include_publish_times(tmp_path: Path, kind: str, more: int) -> None:
    _, table = made(tmp_path, kind)
    days = ("2026-01-02", "2026-01-05", "2026-01-09")
    for ledger, day in enumerate(days, 1):
        table.commit(table.state(), [written(table, ledger, day=day)], {LOG: f"{ledger}:4"})
    old, *_ = files = files_of(table.files(), LOG, 1, 9)
    micros = [
        published_ms(day) * 1000 for day in days
    ]  # Delta rounds them outwards, to milliseconds
    assert [file.bounds[PUBLISH_TIME] for file in files] == [(each, each + more) for each in micros]
    (Path(table.place.location) / old.path).unlink()  # files that are too old are not read
    assert position_at(table.place, files, published_ms("2026-01-04")) == Position(2, 1)
    assert position_at(table.place, files, published_ms("2026-01-09")) == Position(3, 1)
    assert position_at(table.place, files, published_ms("2026-01-10")) is None
    with pytest.raises(TableError, match="cannot be read"):
        position_at(table.place, files, published_ms("2026-01-02"))


@pytest.mark.parametrize("kind", FORMATS)
def test_changed_publish_times_of_a_file_are_detected(tmp_path: Path, kind: str) -> None:
    _, table = made(tmp_path, kind)
    file, other = written(table, 1), written(table, 1, day="2026-01-05")
    state = table.commit(table.state(), [file], {LOG: "1:4"})
    wanted = {1: WantedRows(1, 3, (Noted(1, 4, 3, DIGEST),))}
    assert read_back(table, LOG, wanted)[1] == []
    table.commit(state, [replace(file, path=other.path, size=other.size)], {LOG: "1:4"})
    (altered,) = read_back(table, LOG, wanted)[1]
    assert str(altered).endswith(f"has values of {PUBLISH_TIME} that it was not committed with")


def test_compacted_files_keep_their_bounds(tmp_path: Path) -> None:
    _, table = made(tmp_path)
    days = ("2026-01-02", "2026-01-02T12:00:00.001")
    files = [written(table, ledger, day=day) for ledger, day in enumerate(days, 1)]
    same = [replace(file, partition=files[0].partition) for file in files]
    table.commit(table.state(), same, {LOG: "2:4"})
    assert table.optimize(MEBIBYTE) == (1, 2)
    (file,) = table.files()
    assert file.bounds[PUBLISH_TIME] == tuple(published_ms(day) * 1000 for day in days)
    wanted = {ledger: WantedRows(1, 3, (Noted(1, 4, 3, DIGEST),)) for ledger in (1, 2)}
    assert read_back(table, LOG, wanted)[1] == []


def test_object_stores_use_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("messages").mkdir()
    monkeypatch.setattr(Place, "is_local", property(lambda _: False))
    tables = Tables(f"file://{tmp_path}")
    table = tables.made(MESSAGES)
    commit(table, 1)
    orphan = written(table, 2)
    assert tables.catch_up() == 1
    assert tables.segments()[0].ledger == 1
    assert tables.foreign() == []
    wanted = {1: WantedRows(1, 3, (Noted(1, 4, 3, DIGEST),))}
    (counted,) = read_back(table, LOG, wanted)[0].values()
    assert (counted.rows, counted.entries, counted.first, counted.last) == (3, 3, 1, 3)
    discard(table.place, [orphan])
    assert not (tmp_path / "messages" / orphan.path).exists()


def test_reading_back_needs_bounded_memory(tmp_path: Path) -> None:
    _, table = made(tmp_path)
    writer = FileWriter(
        table.place, {"topic": folder_of(LOG), "date": "2026-01-02"}, MESSAGES.columns
    )
    for first in range(1, 81, 8):
        rows = [
            {"value": os.urandom(MEBIBYTE), "__topic": LOG, "__ledgerId": 1, "__entryId": entry}
            for entry in range(first, first + 8)
        ]
        writer.write(pa.RecordBatch.from_pylist(rows, MESSAGES.columns))
    table.commit(table.state(), [writer.close()], {LOG: "1:81"})
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        found, altered = read_back(table, LOG, {1: WantedRows(1, 80, (Noted(1, 81, 80, ""),))})
    finally:
        pa.set_memory_pool(before)
    assert (found[1].rows, altered) == (80, [])
    assert 0 < pool.max_memory() < 60 * MEBIBYTE
