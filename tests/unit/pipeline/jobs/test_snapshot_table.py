"""The Delta table of a snapshot: the files of tasks count after one commit, and never without it. Without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from onewriter_pipeline.errors import EngineFailed, Invalid, Overtaken, TableError
from onewriter_pipeline.jobs import snapshot, snapshot_table
from onewriter_pipeline.jobs.snapshot_table import TABLE_COLUMNS, existing, format_of
from onewriter_pipeline.schema import PARQUET
from onewriter_pipeline.tables.files import Place, made_folder, place_of

RUN = "0123456789abcdef"
SECRET = "wJalrXUtnFEMI"  # noqa: S105 - nobody's


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = place_of(str(tmp_path / "snapshot"))
    made_folder(found)
    return found


def rows(*keys: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"__key": key, "value": b"v"} for key in keys], TABLE_COLUMNS
    )


def writer(place: Place, run: str = RUN) -> DataSourceArrowWriter:
    """The writer as Spark creates it: the class is registered, and its instances are pickled for tasks."""
    pickled = cloudpickle.dumps(format_of(place, run))  # type: ignore[no-untyped-call]
    source = pickle.loads(pickled)  # noqa: S301 - our own
    made = source(options={}).writer(StructType(), overwrite=False)
    found: DataSourceArrowWriter = pickle.loads(pickle.dumps(made))  # noqa: S301
    return found


def written(place: Place, *tasks: Sequence[pa.RecordBatch], run: str = RUN) -> None:
    """One job with several tasks."""
    made = writer(place, run)
    made.commit([made.write(iter(task)) for task in tasks])


def keys(place: Place) -> list[bytes]:
    table = DeltaTable(place.location)
    files = [pa.parquet.read_table(uri) for uri in table.file_uris()]
    return sorted(pa.concat_tables(files)["__key"].to_pylist()) if files else []


def test_snapshot_replaces_the_previous_one(place: Place) -> None:
    assert existing(place) is None
    written(place, [rows(b"a", b"b"), rows(b"c")], [], [rows(b"d")])
    assert keys(place) == [b"a", b"b", b"c", b"d"]
    written(place, [rows(b"e")])
    assert keys(place) == [b"e"]
    written(place, [])
    assert keys(place) == []
    assert DeltaTable(place.location).version() == 2


def test_filters_of_other_readers_find_all_rows_of_a_snapshot(place: Place) -> None:
    place_of_it = {"__ledgerId": 1, "__entryId": 1, "__batchIndex": -1, "__epoch": None}
    written(place, [pa.RecordBatch.from_pylist([{"__key": b"a"} | place_of_it], TABLE_COLUMNS)])
    for name, value in place_of_it.items():
        found = DeltaTable(place.location).to_pyarrow_dataset()
        wanted = ds.field(name).is_null() if value is None else ds.field(name) == value
        assert found.to_table(filter=wanted).num_rows == 1, name


def test_failed_task_leaves_the_table_unchanged(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(place, [rows(b"a")])
    made = writer(place, RUN[::-1])
    good = made.write(iter([rows(b"b")]))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("onewriter_pipeline.tables.files.synced_file", full)
        bad = made.write(iter([rows(b"c")]))
    with pytest.raises(TableError, match=r"snapshot: .*No space left on device"):
        made.commit([good, bad])
    with pytest.raises(TableError, match="without reporting what it wrote"):
        made.commit([good, None])
    assert keys(place) == [b"a"]


def test_only_one_of_two_concurrent_snapshots_commits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(place, [rows(b"a")])
    stale = existing(place)
    written(place, [rows(b"b")])
    monkeypatch.setattr(snapshot_table, "existing", lambda _: stale)
    with pytest.raises(Overtaken):
        written(place, [rows(b"c")])
    assert keys(place) == [b"b"]


class Failing:
    """A DataFrame whose job writes what the test specifies, and then fails."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.sparkSession = self.dataSource = self.write = self
        self.source: Any = None

    @staticmethod
    def getActiveSession() -> None:  # noqa: N802 - as Spark names it
        """There is none."""

    def createDataFrame(self, *_: object) -> None:  # noqa: N802 - as Spark names it
        """It makes the session active."""

    def register(self, source: Any) -> None:
        self.source = source

    def select(self, *_: str) -> Any:
        return self

    format = mode = select

    def save(self) -> None:
        self.job(self.source(options={}).writer(StructType(), overwrite=False))
        raise Py4JError("onewriter_pipeline.errors.TableError: the disk is full")


def test_files_are_removed_if_spark_fails(place: Place) -> None:
    written(place, [rows(b"a")])
    before = sorted(Path(place.location).glob("*.parquet"))
    failing: Any = Failing(lambda made: made.write(iter([rows(b"b")])))
    with pytest.raises(EngineFailed, match=r"nothing was written to .*: the disk is full$"):
        snapshot_table.replace(failing, place)
    assert sorted(Path(place.location).glob("*.parquet")) == before
    assert keys(place) == [b"a"]


def test_committed_files_stay_even_if_spark_reports_a_failure(place: Place) -> None:
    failing: Any = Failing(lambda made: made.commit([made.write(iter([rows(b"b")]))]))
    snapshot_table.replace(failing, place)
    assert keys(place) == [b"b"]


def test_foreign_table_is_refused_as_a_target(place: Place) -> None:
    DeltaTable.create(place.location, pa.schema([("a", pa.int64())]))
    with pytest.raises(Invalid, match=r"a table of other columns \(a \.\.\.\)"):
        existing(place)


def test_object_stores_are_written_without_hadoop() -> None:
    target = snapshot.SnapshotTarget("s3://b/x", PARQUET, True, "", "", None, {"key": SECRET})
    with pytest.raises(Invalid, match="or --format delta"):
        target.check()
    assert SECRET not in repr(target)
