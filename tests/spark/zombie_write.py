"""A driver program that writes a batch on a cluster, and another one on request.

Arguments: the master, the address that tasks write to, a topic, a folder where each attempt of a task creates a
file (``Attempt`` reads it). It prints ``committed`` after each batch, and begins the second one when it reads a
line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from tests.spark.conftest import session
from tests.spark.standalone import DRIVER_SETTINGS

from pyspark_onewriter import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ROWS = 2_000
ROWS_MORE = 10
PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """The processes of one attempt of a task: the executor's Java process, and the Python process that stages."""

    executor: int
    python: int

    @classmethod
    def of(cls, folder: Path, version: int, partition: int, number: int) -> Self:
        """The attempt from its file. Raises FileNotFoundError."""
        left = Path(folder, f"{version}-{partition}-{number}").read_text()
        return cls(*map(int, left.split()))


def main(master: str, url: str, topic: str, folder: str) -> None:
    class Traced(DataSourceArrowWriter):
        """A sink whose tasks record their processes. They are in their own session, so signals to the executor do
        not reach them.
        """

        def __init__(self, sink: DataSourceArrowWriter, version: str) -> None:
            self._sink, self._version = sink, version

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            import os

            context = TaskContext.get()
            assert context is not None
            if os.getsid(0) != os.getpid():  # otherwise it was used before
                os.setsid()
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            name = f"{self._version}-{context.partitionId()}-{context.attemptNumber()}"
            Path(folder, name).write_text(f"{daemon[1]} {os.getpid()}")
            return self._sink.write(iterator)

        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            self._sink.commit(messages)

        def abort(self, messages: list[WriterCommitMessage | None]) -> None:
            self._sink.abort(messages)

    class TracedSource(DefaultSource):
        """The same data source as the installed one, under another name."""

        @classmethod
        def name(cls) -> str:
            return "traced"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return Traced(super().writer(schema, overwrite), self.options["txnVersion"])

    spark = session(master, DRIVER_SETTINGS)
    spark.dataSource.register(TracedSource)
    for version, (start, end) in enumerate([(0, ROWS), (ROWS, ROWS + ROWS_MORE)]):
        if version:
            sys.stdin.readline()
        rows = spark.range(start, end, 1, PARTITIONS).selectExpr("cast(id as string) as value")
        named = {"admin.url": url, "topic": topic, "txnAppId": "job", "txnVersion": str(version)}
        rows.write.format("traced").options(**named).mode("append").save()
        print("committed", flush=True)  # noqa: T201 - heard by who started it
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
