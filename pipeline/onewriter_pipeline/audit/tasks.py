"""Facts out of tasks: each observes its part, wherever it runs.

Little is observed here, at once; more by Spark's executors, whose facts come here. Prints of very many
entries stay where they were made, as a DataFrame.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from onewriter_pipeline.audit import facts
from onewriter_pipeline.engine import Runner, in_process, on_spark
from onewriter_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Observe = Callable[[Any], Iterator[pa.RecordBatch]]

HERE_BYTES: Final = 32 * 1024 * 1024
"""What is observed in this process: Spark would take longer to begin with it."""

PRINTS_HERE_MAX: Final = 100_000
"""Prints that may come here; where there are more, they stay where they were made."""

_PRINT_COLUMNS: Final = ["log", "ledger", "first", "producer", "sequence", "print"]

_FORMAT: Final = "onewriter_facts_"
"""And a name that no other has: sessions beside each other do not take the same one twice."""


def gathered(
    spark: SparkSession, observe: Observe, tasks: Sequence[Any], size_bytes: int | None
) -> pa.Table:
    """The facts of all tasks. ``size_bytes``: what there is to observe, at most; None: nobody knows.

    Raises the PipelineError that a task raised.
    """
    is_small = size_bytes is not None and size_bytes <= HERE_BYTES
    runner: Runner[Any, bytes | PipelineError] = in_process if is_small else on_spark(spark)
    done = list(runner(partial(_observed, observe), tasks))
    failed = next((each for each in done if isinstance(each, PipelineError)), None)
    if failed is not None:
        raise failed
    read = [pa.ipc.open_stream(each).read_all() for each in done]
    return pa.concat_tables([facts.FACTS.empty_table(), *read])


@contextmanager
def printed(
    spark: SparkSession, observe: Observe, tasks: Sequence[Any], size_bytes: int | None, prints: int
) -> Iterator[DataFrame | None]:
    """The prints among the facts of tasks, None where there are none. ``prints``: about how many.

    Raises as ``gathered``; of more than PRINTS_HERE_MAX, whatever Spark makes of it.
    """
    if prints > PRINTS_HERE_MAX:
        frame = _frame(spark, observe, tasks)
        try:
            yield frame.filter(f"kind = '{facts.PRINT}'")
        finally:
            frame.unpersist()
        return
    found = gathered(spark, observe, tasks, size_bytes) if tasks else facts.FACTS.empty_table()
    mine = found.filter(pc.equal(found["kind"], facts.PRINT)).select(_PRINT_COLUMNS)
    yield spark.createDataFrame(mine).coalesce(1) if len(mine) else None


def _observed(observe: Observe, task: Any) -> bytes | PipelineError:
    """The facts of a task as an Arrow stream, or what was wrong: trying again is no use."""
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
    """One Spark task for each of ours."""

    def __init__(self, observe: Observe, tasks: Sequence[Any]) -> None:
        self._observe = observe
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """By their number: what a task knows is not shown anywhere."""
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The facts of a task; Spark asks for None where there are no tasks."""
        if partition.value is not None:
            yield from self._observe(self._tasks[partition.value])


def _frame(spark: SparkSession, observe: Observe, tasks: Sequence[Any]) -> DataFrame:
    """The facts of all tasks, kept until they are unpersisted. What a task raises ends the job."""
    format_name = _FORMAT + uuid.uuid4().hex

    class Facts(DataSource):
        """What these tasks observe."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return facts.DDL

        def reader(self, schema: StructType) -> DataSourceReader:
            del schema
            return FactsReader(observe, tasks)

    spark.dataSource.register(Facts)
    return spark.read.format(format_name).load().persist()
