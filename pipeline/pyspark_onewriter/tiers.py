"""Reads that reach into the tables: what was offloaded from there, the rest from the live log.

The cut is where the last commit of the table ends. In front of it everything comes from the table, whether or
not the log still has it, so what a read sees does not depend on what was trimmed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.positions import behind, shown
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.errors import EntriesLost, Gap, Invalid, Trimmed
from onewriter_pipeline.read.limiting import Counts
from onewriter_pipeline.read.offsets import (
    TASK_BYTES_MAX,
    Run,
    Span,
    of_epochs,
    runs_between,
    runs_within,
)
from onewriter_pipeline.read.planning import (
    Selection,
    check_kept,
    check_names,
    logs_of,
    selected,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from onewriter_pipeline.tables.files import Place
    from onewriter_pipeline.tables.reading import Piece
    from pyspark_onewriter.kept import Kept
    from pyspark_onewriter.options import ReadOptions


@dataclass(slots=True)
class Plan:
    """What is read: of the table, file by file, then of the log."""

    cold: list[Piece]
    hot: list[tuple[str, list[Run]]]


def planned(options: ReadOptions) -> Plan:
    """What a read with a table reads. Raises PipelineError, Gap above all."""
    from pyspark_onewriter.kept import kept_of  # noqa: PLC0415 - Arrow, where it is needed

    if not options.reads_log:
        return _without_log(options, kept_of(options))
    with Broker(options.access) as broker:
        logs = logs_of(broker, options.selection)
        _check_names(options.selection, logs)
        found = [broker.segments(log) for log in logs]
        # Behind them, since offload and trim go on: what was trimmed until then is in the table.
        return _with_log(options, kept_of(options), broker, found)


# ------------------------------------------------------------ the table alone


def _without_log(options: ReadOptions, kept: Kept) -> Plan:
    selection = options.selection
    logs = selected(selection, kept.offsets)
    _check_names(selection, logs)
    plan = Plan([], [])
    for log in logs:
        start, end = kept.bound(log, selection.starting), kept.bound(log, selection.ending)
        plan.cold += kept.pieces(log, start, end)
    return plan


# ------------------------------------------------------------ both


def _with_log(options: ReadOptions, kept: Kept, broker: Broker, logs: Iterable[Segments]) -> Plan:
    selection = options.selection
    plan = Plan([], [])
    for held in logs:
        log = held.log
        cut = min(kept.offsets.get(log, held.first), held.end)
        start = kept.bound_with_log(broker, held, selection.starting)
        end = kept.bound_with_log(broker, held, selection.ending)
        if end < start:
            raise Invalid(f"{log}: the range ends at {shown(end)}, before its start {shown(start)}")
        if log in kept.offsets:
            plan.cold += kept.pieces(log, start, min(end, cut))
        begins = max(start, cut)
        if begins < end and options.reading.fail_on_loss:
            try:
                check_kept(broker, held, begins)
            except Trimmed as error:
                raise Gap(
                    f"{log}: {shown(begins)} to {shown(held.first)} is neither in the table nor in the"
                    " log: it was trimmed before it was offloaded (failOnDataLoss=false leaves it out)"
                ) from error
        runs = runs_between(held.segments, begins, end)
        groups = [runs] if selection.epochs is None else of_epochs(runs, selection.epochs)
        plan.hot += [(log, group) for group in groups if group]
    return plan


def _check_names(selection: Selection, logs: Sequence[str]) -> None:
    check_names("startingOffsets", selection.starting, logs)
    check_names("endingOffsets", selection.ending, logs)


def counted(options: ReadOptions, pieces: Sequence[Piece]) -> Iterator[Counts]:
    """How many messages the entries in some pieces have, in order."""
    from onewriter_pipeline.tables.reading import counts_of  # noqa: PLC0415

    for piece in pieces:
        yield from counts_of(_place(options), piece)


def read_pieces(pieces: Sequence[Piece], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The messages of files of a table."""
    from onewriter_pipeline.tables.reading import read_piece  # noqa: PLC0415

    epochs = options.selection.epochs
    for piece in pieces:
        yield from read_piece(_place(options), piece, options.columns, epochs, json=options.json)


def _place(options: ReadOptions) -> Place:
    from onewriter_pipeline.tables.files import place_of  # noqa: PLC0415
    from onewriter_pipeline.tables.layout import MESSAGES  # noqa: PLC0415

    return place_of(options.table, options.table_options).within(MESSAGES.name)


def read_either(broker: Broker, span: Span, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The messages of a span of the log; what was offloaded and trimmed since it was planned, of the table."""
    from onewriter_pipeline.read.spans import read_chunks, read_span  # noqa: PLC0415
    from pyspark_onewriter.kept import kept_of  # noqa: PLC0415

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
        at = behind(chunk.last)
    kept = kept_of(options)
    cut = min(span.end, kept.offsets.get(span.log, at))
    if cut <= at and options.reading.fail_on_loss:
        raise lost
    yield from read_pieces(kept.pieces(span.log, at, cut), options)
    rest = runs_within(span.runs, max(at, cut))
    if rest:
        yield from read_span(broker, Span(span.log, tuple(rest)), options.reading)


def divided_pieces(pieces: Sequence[Piece], tasks_min: int) -> list[tuple[Piece, ...]]:
    """Files to tasks, in order, of about the same size."""
    total = sum(piece.size for piece in pieces)
    tasks = max(tasks_min, os.cpu_count() or 1, math.ceil(total / TASK_BYTES_MAX))
    share = math.ceil(total / tasks) if pieces else 0
    found: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = 0
    for piece in pieces:
        current.append(piece)
        size += piece.size
        if size >= share:
            found.append(tuple(current))
            current, size = [], 0
    return [*found, tuple(current)] if current else found
