"""Batch reads: what a topic holds when Spark plans, one span of log after the other in each task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.positions import shown
from onewriter_pipeline.read.offsets import Run, Span, divided, entries_of, tasks_for
from onewriter_pipeline.read.planning import parts_of
from pyspark_onewriter.options import ReadOptions
from pyspark_onewriter.tiers import divided_pieces, planned, read_either, read_pieces

if TYPE_CHECKING:
    import pyarrow as pa

    from onewriter_pipeline.tables.reading import Piece


class Task(InputPartition):
    """What one task reads, in order."""

    def __init__(self, spans: Sequence[Span | Piece]) -> None:
        super().__init__(tuple(spans))

    def __repr__(self) -> str:
        spans = [f"{span.log} {shown(span.start)} to {shown(span.end)}" for span in self.value]
        return f"Task({', '.join(spans)})"


class TopicReader(DataSourceReader):
    """Reads topics; planned once for each ``load()``, so that one DataFrame is one snapshot."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks; none where there is nothing."""
        options = self._options
        if options.reads_table:
            plan = planned(options)
            cold = divided_pieces(plan.cold, options.partitions_min)
            return [*map(Task, cold), *tasks_of(plan.hot, options)]
        with Broker(options.access) as broker:
            parts = parts_of(broker, options.selection, fail_on_loss=options.reading.fail_on_loss)
        return tasks_of(parts, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task."""
        return read_task(partition, self._options)


def tasks_of(
    parts: Sequence[tuple[str, Sequence[Run]]], options: ReadOptions
) -> list[InputPartition]:
    """Divide what is to be read among tasks."""
    count = tasks_for(
        sum(run.weight for _, runs in parts for run in runs),
        sum(entries_of(runs) for _, runs in parts),
        cores=os.cpu_count() or 1,
        tasks_min=options.partitions_min,
        entries_max=options.partition_entries_max,
    )
    spans = divided(parts, count, entries_max=options.partition_entries_max)
    return [Task(each) for each in spans]


def read_task(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The messages of a task's spans. Spark asks for a partition of None where there are no tasks."""
    from onewriter_pipeline.read.spans import read_span  # noqa: PLC0415 - executors need Arrow, planners do not

    if partition.value is None:
        return
    cold = [part for part in partition.value if not isinstance(part, Span)]
    if cold:
        yield from read_pieces(cold, options)
        return
    with Broker(options.access) as broker:
        for span in partition.value:
            if options.reads_table:
                yield from read_either(broker, span, options)
            else:
                yield from read_span(broker, span, options.reading)
