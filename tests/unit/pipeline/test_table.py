"""Tables as plain objects: commits that count once, what is refused, what is left alone."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from onewriter_pipeline.errors import Invalid, Overtaken, TableError
from onewriter_pipeline.table import DeltaLog, State, Table
from onewriter_pipeline.table_files import FileWriter, Place, check_there, discard, place_of
from onewriter_pipeline.table_layout import MESSAGES, SEGMENTS, TableFile, folder_of, is_ours
from onewriter_pipeline.tables import FORMATS, PARQUET, Tables
from onewriter_pipeline.verifying import count

SECRET = "wJalrXUtnFEMI"  # noqa: S105 - nobody's
LOG = "persistent://public/default/orders"


def made(tmp_path: Path, kind: str = "delta") -> tuple[Tables, Table]:
    tables = Tables(str(tmp_path), kind=kind)
    return tables, tables.made(MESSAGES)


def written(table: Table, ledger: int, entries: int = 3, day: str = "2026-01-02") -> TableFile:
    """A file with a few messages of one ledger."""
    writer = FileWriter(table.place, {"topic": folder_of(LOG), "date": day}, MESSAGES.columns)
    moment = datetime(2026, 1, 2, tzinfo=UTC)
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


def coverage(ledger: int, entries: int = 3) -> list[list[object]]:
    """The row of ``segments`` that belongs to such a file, without its batch."""
    whose = [ledger, "w", "subject", "grant", "exclusive"]
    return [
        [LOG, ledger, *whose, 1, entries + 1, entries, entries, entries, 99, 1_000, 2_000, "ab"]
    ]


def commit(table: Table, ledger: int) -> State:
    state = table.state()
    offsets = {LOG: f"{ledger}:4"}
    return table.commit(state, [written(table, ledger)], offsets, coverage(ledger))


@pytest.mark.parametrize("kind", FORMATS)
def test_commits_say_how_far_the_table_goes(tmp_path: Path, kind: str) -> None:
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
def test_who_commits_from_an_older_state_is_refused(tmp_path: Path, kind: str) -> None:
    _, table = made(tmp_path, kind)
    other = Tables(str(tmp_path), kind=kind).existing(MESSAGES)
    state = other.state()
    commit(table, 1)
    mine = written(other, 1)
    with pytest.raises(Overtaken, match="nothing was committed"):
        other.commit(state, [mine], {LOG: "9:9"})
    assert table.state().offsets == {LOG: "1:4"}
    assert len(table.files()) == 1


def test_of_two_that_commit_in_the_same_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, table = made(tmp_path)
    other = Tables(str(tmp_path)).existing(MESSAGES)
    state = other.state()
    commit(table, 1)
    monkeypatch.setattr(other, "state", lambda: state)  # it looked before the other one committed
    with pytest.raises(Overtaken):
        other.commit(state, [written(other, 1)], {LOG: "9:9"})
    assert len(table.files()) == 1


@pytest.mark.parametrize("kind", FORMATS)
def test_segments_are_caught_up_whenever_a_job_was_killed(tmp_path: Path, kind: str) -> None:
    tables, table = made(tmp_path, kind)
    commit(table, 1)
    commit(table, 2)
    assert [row["ledger"] for row in tables.segments()] == [1, 2]  # before there is such a table
    assert tables.catch_up() == 2
    assert tables.catch_up() == 0
    commit(table, 3)
    commit(table, 4)
    rows = tables.segments([LOG])
    assert [(row["ledger"], row["batch"]) for row in rows] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert tables.catch_up() == 2
    assert tables.segments() == rows
    assert rows[0]["newest"] == datetime.fromtimestamp(2, UTC)
    assert tables.segments(["persistent://public/default/other"]) == []


def test_a_table_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    _, table = made(tmp_path)
    DeltaTable(table.place.location).alter.set_table_properties(
        {"onewriter.tableVersion": "2"}, raise_if_not_exists=False
    )
    with pytest.raises(Invalid, match="written by a newer onewriter: its version is 2"):
        Tables(str(tmp_path)).made(MESSAGES)


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "messages"
    DeltaTable.create(str(place), pa.schema([("a", pa.int64())]))
    with pytest.raises(Invalid, match="none of onewriter's"):
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
def test_foreign_files_are_named_and_orphans_go(tmp_path: Path, kind: str) -> None:
    tables, table = made(tmp_path, kind)
    commit(table, 1)
    orphan = written(table, 2)
    fresh = written(table, 3)
    folder = Path(table.place.location)
    old = 0
    for name in ("notes.txt", "data.parquet"):
        (folder / name).write_text("mine")
        os.utime(folder / name, (old, old))
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "x.parquet").write_text("mine")
    os.utime(folder / orphan.path, (old, old))
    assert tables.foreign() == ["else/x.parquet", "messages/data.parquet", "messages/notes.txt"]
    assert tables.orphans(168) == [f"messages/{orphan.path}"]
    tables.delete(tables.orphans(168))
    assert not (folder / orphan.path).exists()
    assert (folder / fresh.path).exists()
    assert (folder / "data.parquet").read_text() == "mine"
    assert [file.bounds["__ledgerId"] for file in table.files()] == [(1, 1)]


def test_a_log_that_does_not_say_what_was_offloaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, table = made(tmp_path)
    commit(table, 1)
    commit(table, 2)
    found = [each for each in table.coverage_since(None) if each[0] > 0]
    monkeypatch.setattr(DeltaLog, "coverage_since", lambda *_: iter(found))
    with pytest.raises(TableError, match="does not go back to batch 0"):
        tables.catch_up()


def test_a_full_disk_ends_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, table = made(tmp_path)
    file = written(table, 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", full)
    with pytest.raises(TableError, match=r"messages: \[Errno 28\] No space left on device"):
        table.commit(State(), [file], {})
    discard(table.place, [file, file])  # may be repeated
    assert table.files() == []


def test_files_that_only_a_task_sees_are_not_committed(tmp_path: Path) -> None:
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


def test_which_files_are_ours() -> None:
    assert is_ours("topic=a/date=2026-01-01/onewriter-0123456789abcdef0123456789abcdef.parquet")
    compacted = "part-00000-7ead6645-5bcf-42ba-86be-f09d22fee9b3-c000.zstd.parquet"
    assert is_ours(compacted)
    assert not is_ours("part-1.parquet")
    assert not is_ours("onewriter-0123.parquet")


def test_places() -> None:
    place = place_of("s3://bucket/table", {"AWS_SECRET_ACCESS_KEY": SECRET})
    assert place.within("messages").location == "s3://bucket/table/messages"
    assert SECRET not in repr(place)
    assert place_of("here").location == str(Path("here").absolute())
    assert not place.is_local
    assert Place("file:///tmp/x").is_local


def test_statistics_are_those_of_delta(tmp_path: Path) -> None:
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


def test_object_stores_take_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("messages").mkdir()
    monkeypatch.setattr(Place, "is_local", property(lambda _: False))
    tables = Tables(f"file://{tmp_path}")
    table = tables.made(MESSAGES)
    commit(table, 1)
    orphan = written(table, 2)
    assert tables.catch_up() == 1
    assert tables.segments()[0]["ledger"] == 1
    assert tables.foreign() == []
    (counted,) = count(table, LOG, {1: (1, 3)}).values()
    assert (counted.rows, counted.entries, counted.first, counted.last) == (3, 3, 1, 3)
    discard(table.place, [orphan])
    assert not (tmp_path / "messages" / orphan.path).exists()
