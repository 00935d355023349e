"""Facts out of Spark's tasks: each observes its part, wherever it runs, and gives record batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from onewriter_pipeline.auditing import facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Observe = Callable[[Any], Iterator[pa.RecordBatch]]

_FORMAT: Final = "onewriter_facts_"
"""And a name that no other has: sessions beside each other do not take the same one twice."""


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


def gather(spark: SparkSession, observe: Observe, tasks: Sequence[Any]) -> DataFrame:
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


def collected(observed: DataFrame) -> tuple[pa.Table, DataFrame | None]:
    """The few facts, here; the prints, where they are, None where there are none."""
    few = observed.filter(f"kind <> '{facts.PRINT}'").toArrow().cast(facts.FACTS)
    prints = observed.filter(f"kind = '{facts.PRINT}'")
    return few, prints if not prints.isEmpty() else None
