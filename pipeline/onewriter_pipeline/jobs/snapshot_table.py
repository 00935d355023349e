"""Writes a snapshot as a Delta table: executors write files, and one commit replaces the previous files by them.

The driver sees names of files, but no messages. Readers see the previous contents until the commit, and Delta keeps
the previous files for readers that started earlier. Files of a failed run are removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from onewriter_pipeline.engine import active, message_of
from onewriter_pipeline.errors import EngineFailed, Invalid, TableError
from onewriter_pipeline.schema import SNAPSHOT_COLUMNS, arrow_schema
from onewriter_pipeline.tables.delta import (
    ATTEMPTS_MAX,
    action,
    guarded,
    opened_delta,
    statistics_of,
)
from onewriter_pipeline.tables.files import (
    FileWriter,
    Place,
    check_there,
    discard_run,
    line,
    made_folder,
    reveal,
    synced,
)
from onewriter_pipeline.tables.layout import RUN_DIGITS, TableFile, is_of_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMAT: Final = "onewriter-snapshot"

TABLE_COLUMNS: Final = arrow_schema(SNAPSHOT_COLUMNS)


def existing(place: Place) -> DeltaTable | None:
    """The Delta table at a place; None: there is none. Raises TableError, and Invalid for a table with other
    columns.
    """
    table = opened_delta(place)
    if table is None:
        return None
    names = [each.name for each in table.schema().fields]
    if names != TABLE_COLUMNS.names:
        raise Invalid(f"{place.location} is a table of other columns ({', '.join(names[:5])} ...)")
    return table


def replace(rows: DataFrame, place: Place) -> None:
    """Replace the contents of a table by rows, in one commit. Raises PipelineError; then the table is unchanged."""
    existing(place)
    made_folder(place)
    run = uuid.uuid4().hex[:RUN_DIGITS]
    spark = rows.sparkSession
    spark.dataSource.register(format_of(place, run))
    try:
        with active(spark):
            rows.select(*TABLE_COLUMNS.names).write.format(FORMAT).mode("append").save()
    except (Py4JError, PySparkException, OSError) as error:
        if not _is_committed(place, run):
            discard_run(place, run, [""])
            raise EngineFailed(
                f"nothing was written to {place.location}: {message_of(error)}"
            ) from error
    synced(place, "_delta_log")


def _is_committed(place: Place, run: str) -> bool:
    """Whether the files of a run were committed; Spark may fail after the commit."""
    table = opened_delta(place)
    return table is not None and any(is_of_run(uri, run) for uri in table.file_uris())


# ------------------------------------------------------------ in tasks, and where Spark commits


def format_of(place: Place, run: str) -> type[DataSource]:
    """The data source that Spark writes to. It is a separate class, so that no option in a plan contains secrets."""

    class SnapshotFiles(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            del schema, overwrite
            return _Writer(place, run)

    return SnapshotFiles


@dataclass
class _Written(WriterCommitMessage):
    """What a task wrote, or why it failed."""

    file: TableFile | None = None
    error: str = ""


class _Writer(DataSourceArrowWriter):
    """Writes one file per task, and commits all of them."""

    def __init__(self, place: Place, run: str) -> None:
        self._place = place
        self._run = run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a file. Errors are returned, not raised, because a retry would not help."""
        writer: FileWriter | None = None
        try:
            for batch in iterator:
                if batch.num_rows:
                    writer = writer or FileWriter(self._place, {}, TABLE_COLUMNS, self._run)
                    arrays = [batch.column(each.name).cast(each.type) for each in TABLE_COLUMNS]
                    writer.write(pa.RecordBatch.from_arrays(arrays, schema=TABLE_COLUMNS))
            return _Written(None if writer is None else writer.close())
        except (OSError, pa.ArrowException) as error:
            if writer is not None:
                writer.discard()
            return _Written(error=f"{self._place.location}: {line(error)}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Replace the files of the table."""
        written = [each for each in messages if isinstance(each, _Written)]
        wrong = next((each.error for each in written if each.error), "")
        if wrong or len(written) != len(messages):
            raise TableError(wrong or "a task ended without reporting what it wrote")
        files = [each.file for each in written if each.file is not None]
        check_there(self._place, files)
        commit(self._place, files)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark may call this even after a commit. The job that started it checks, and cleans up."""


def commit(place: Place, files: Sequence[TableFile]) -> None:
    """Replace the files of a table. Raises TableError, especially Overtaken."""
    reveal(place, files)
    actions: list[AddAction | RemoveAction] = [action(file) for file in files]
    properties = CommitProperties(max_commit_retries=ATTEMPTS_MAX)
    before, schema = existing(place), Schema.from_arrow(TABLE_COLUMNS)
    if before is None:
        adds = [each for each in actions if isinstance(each, AddAction)]
        write = partial(
            create_table_with_add_actions,
            table_uri=place.location,
            schema=schema,
            add_actions=adds,
            configuration=statistics_of(TABLE_COLUMNS),
            storage_options=dict(place.options),
            commit_properties=properties,
        )
    else:
        write = partial(
            before.create_write_transaction,
            actions=actions,
            mode="overwrite",
            schema=schema,
            commit_properties=properties,
        )
    guarded(place, write)
