"""Batch reads: the contents of topics at the time of planning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_onewriter.backlog import backlog_of
from pyspark_onewriter.options import ReadOptions
from pyspark_onewriter.tasks import read_task
from pyspark_onewriter.user_errors import without_traceback

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(DataSourceReader):
    """Reads topics. It plans once for each ``load()``, so one DataFrame is one snapshot."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @without_traceback()
    def partitions(self) -> list[InputPartition]:
        """The tasks; none if there is nothing to read."""
        with backlog_of(self._options) as backlog:
            begins, ends = backlog.selected_range()
            return backlog.tasks(begins, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task."""
        with without_traceback():
            yield from read_task(partition, self._options)
