"""Runs the tasks that observe parts of logs and tables.

Small amounts are observed in this process, larger ones by Spark's executors, which send their facts to the driver.
A large number of checksums is compared on the executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from onewriter_core.ids import Position
from onewriter_pipeline.audit import facts
from onewriter_pipeline.engine import Runner, in_process, on_spark
from onewriter_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Observe = Callable[[Any], Iterator[pa.RecordBatch]]

IN_PROCESS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Up to this size, this process observes everything, because starting Spark tasks takes longer."""

CHECKSUMS_HERE_MAX: Final = 100_000
"""Checksums that are sent to the driver; a larger number stays on the executors."""

REPEATS_MAX: Final = 10_000
"""Largest number of entries stored twice that Spark returns to the driver."""

_SAME: Final = ["log", "producer", "sequence", "checksum"]
"""Entries with equal values in these columns are the same entry, stored twice."""

_FORMAT: Final = "onewriter_facts_"
"""Prefix of a format's name. A unique suffix keeps concurrent sessions apart."""


def gathered(
    spark: SparkSession | None, observe: Observe, tasks: Sequence[Any], size_bytes: int | None
) -> pa.Table:
    """The facts of all tasks. ``size_bytes``: upper bound of the size to observe; None: unknown. ``spark`` None: this
    process observes everything.

    Raises the PipelineError of a task that failed.
    """
    is_small = size_bytes is not None and size_bytes <= IN_PROCESS_BYTES_MAX
    runner: Runner[Any, bytes | PipelineError] = (
        in_process if is_small or spark is None else on_spark(spark)
    )
    done = list(runner(partial(_observed, observe), tasks))
    failed = next((each for each in done if isinstance(each, PipelineError)), None)
    if failed is not None:
        raise failed
    read = [pa.ipc.open_stream(each).read_all() for each in done]
    return pa.concat_tables([facts.FACTS.empty_table(), *read])


@dataclass(frozen=True, slots=True)
class Repeat:
    """One entry at several positions of a log."""

    log: str
    producer: str
    sequence_id: int
    positions: tuple[Position, ...]


def repeated(
    spark: SparkSession | None,
    observe: Observe,
    tasks: Sequence[Any],
    size_bytes: int | None,
    checksums: int,
) -> list[Repeat]:
    """The entries that are stored twice, from the checksums among the facts of tasks. ``checksums``: their approximate
    number.

    Raises as ``gathered`` does. With more than CHECKSUMS_HERE_MAX, raises errors of Spark.
    """
    if not tasks:
        return []
    if checksums > CHECKSUMS_HERE_MAX and spark is not None:
        return _repeated_there(spark, observe, tasks)
    found = gathered(spark, observe, tasks, size_bytes)
    parts = found.filter(pc.equal(found["kind"], facts.CHECKSUM))
    sums = [("ledger", "list"), ("first", "list"), ("first", "count")]
    groups = parts.select([*_SAME, "ledger", "first"]).group_by(_SAME).aggregate(sums)
    return [
        _repeat(row, zip(row["ledger_list"], row["first_list"], strict=True))
        for row in groups.filter(pc.greater(groups["first_count"], 1)).to_pylist()
    ]


def _repeated_there(spark: SparkSession, observe: Observe, tasks: Sequence[Any]) -> list[Repeat]:
    from pyspark.sql import functions  # noqa: PLC0415 - most audits compare few checksums

    frame = _frame(spark, observe, tasks)
    places = functions.collect_list(functions.struct("ledger", "first")).alias("places")
    groups = frame.filter(f"kind = '{facts.CHECKSUM}'").groupBy(*_SAME).agg(places)
    rows = groups.filter("size(places) > 1").limit(REPEATS_MAX).collect()
    return [_repeat(row, row["places"]) for row in rows]


def _repeat(row: Any, places: Iterable[tuple[int, int]]) -> Repeat:
    positions = tuple(sorted(Position(*place) for place in places))
    return Repeat(row["log"], row["producer"], row["sequence"], positions)


def _observed(observe: Observe, task: Any) -> bytes | PipelineError:
    """The facts of a task as an Arrow stream, or its error, which a retry would repeat."""
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, facts.FACTS) as stream:
            for batch in observe(task):
                stream.write_batch(batch)
    except PipelineError as error:
        return error
    return bytes(sink.getvalue())


# ------------------------------------------------------------ as a DataFrame


class FactsReader(DataSourceReader):
    """Runs one Spark task for each of our tasks."""

    def __init__(self, observe: Observe, tasks: Sequence[Any]) -> None:
        self._observe = observe
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """One partition per task, identified by its number, so that Spark's UI shows no parameters of tasks."""
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The facts of a task. Spark calls it with None if there are no tasks."""
        if partition.value is not None:
            yield from self._observe(self._tasks[partition.value])


def _frame(spark: SparkSession, observe: Observe, tasks: Sequence[Any]) -> DataFrame:
    """The facts of all tasks. An error of a task ends the job."""
    format_name = _FORMAT + uuid.uuid4().hex

    class Facts(DataSource):
        """The facts of these tasks."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return facts.DDL

        def reader(self, schema: StructType) -> DataSourceReader:
            del schema
            return FactsReader(observe, tasks)

    spark.dataSource.register(Facts)
    return spark.read.format(format_name).load()
