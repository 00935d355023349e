"""Tasks of a read, and how an executor reads them: files of a table, and spans of a log.

A span whose entries were offloaded and trimmed after it was planned is read from the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.names import shown
from onewriter_pipeline.errors import EntriesLost, Trimmed
from onewriter_pipeline.read.batch_limits import EntryCounts
from onewriter_pipeline.read.offsets import (
    Run,
    Span,
    divided,
    entries_of,
    runs_within,
    tasks_for,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from onewriter_pipeline.tables.files import Place
    from onewriter_pipeline.tables.pieces import Piece
    from pyspark_onewriter.options import ReadOptions


class Task(InputPartition):
    """What one task reads, in order."""

    def __init__(self, spans: Sequence[Span | Piece]) -> None:
        super().__init__(tuple(spans))

    def __repr__(self) -> str:
        spans = [f"{span.log} {shown(span.start)} to {shown(span.end)}" for span in self.value]
        return f"Task({', '.join(spans)})"


def tasks_of(
    parts: Sequence[tuple[str, Sequence[Run]]], options: ReadOptions
) -> list[InputPartition]:
    """Divide what is read among tasks."""
    return [Task(each) for each in _spans_of(parts, options)]


def _spans_of(parts: Sequence[tuple[str, Sequence[Run]]], options: ReadOptions) -> list[list[Span]]:
    count = tasks_for(
        sum(run.weight for _, runs in parts for run in runs),
        sum(entries_of(runs) for _, runs in parts),
        cores=os.cpu_count() or 1,
        tasks_min=options.partitions_min,
        entries_max=options.partition_entries_max,
    )
    return divided(
        parts,
        count,
        entries_max=options.partition_entries_max,
        tasks_min=max(1, options.partitions_min),
    )


def read_task(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The messages of a task. Spark calls it with a partition of None if there are no tasks."""
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


def counted(options: ReadOptions, pieces: Sequence[Piece]) -> Iterator[EntryCounts]:
    """The number of messages in the entries of some pieces, in order."""
    from onewriter_pipeline.tables.pieces import counts_of  # noqa: PLC0415

    for piece in pieces:
        yield from counts_of(_place(options), piece)


def read_pieces(pieces: Sequence[Piece], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The messages of files of a table."""
    from onewriter_pipeline.tables.pieces import read_piece  # noqa: PLC0415

    epochs = options.selection.epochs
    for piece in pieces:
        yield from read_piece(_place(options), piece, options.columns, epochs, json=options.json)


def _place(options: ReadOptions) -> Place:
    from onewriter_pipeline.tables.files import place_of  # noqa: PLC0415
    from onewriter_pipeline.tables.layout import MESSAGES  # noqa: PLC0415

    return place_of(options.table, options.table_options).within(MESSAGES.name)


def read_either(broker: Broker, span: Span, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The messages of a span of the log. Entries that were offloaded and trimmed after planning come from the
    table.
    """
    from onewriter_pipeline.read.spans import read_chunks, read_span  # noqa: PLC0415
    from pyspark_onewriter.snapshot import TableSnapshot  # noqa: PLC0415

    strict = replace(options.reading, fail_on_loss=True)
    chunks, at = read_chunks(broker, span, strict), span.start
    while True:
        try:
            chunk, batches = next(chunks, (None, iter(())))
        except (Trimmed, EntriesLost) as error:
            lost = error
            break
        if chunk is None:
            return
        yield from batches
        at = chunk.last.next
    tables = TableSnapshot(options)
    cut = min(span.end, tables.offsets.get(span.log, at))
    if cut <= at and options.reading.fail_on_loss:
        raise lost
    yield from read_pieces(tables.pieces(span.log, at, cut), options)
    rest = runs_within(span.runs, max(at, cut))
    if rest:
        yield from read_span(broker, Span(span.log, tuple(rest)), options.reading)


def divided_pieces(
    parts: Sequence[tuple[Piece, Sequence[Run]]], options: ReadOptions
) -> list[tuple[Piece, ...]]:
    """Divide files among tasks, in order, as ``tasks_of`` divides logs. ``parts``: with what was offloaded to each.

    Several tasks may read parts of one file.
    """
    named = [
        (str(number), runs or [Run(piece.start.ledger, None, 0, 1, piece.size, 1)])
        for number, (piece, runs) in enumerate(parts)
    ]
    tasks: list[tuple[Piece, ...]] = []
    read: dict[int, Position] = {}
    for spans in _spans_of(named, options):
        task = []
        for span in spans:
            piece, runs = parts[int(span.log)]
            is_last = not runs or span.end == Position(runs[-1].ledger, runs[-1].end)
            start = read.get(int(span.log), piece.start)
            end = piece.end if is_last else span.end
            read[int(span.log)] = end
            task.append(replace(piece, start=start, end=end))
        tasks.append(tuple(task))
    return tasks
