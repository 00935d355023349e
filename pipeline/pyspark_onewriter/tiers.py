"""Reads that reach into the tables: what was offloaded from there, the rest from the live log.

The cut is where the last commit of the table ends. In front of it everything comes from the table, whether or
not the log still has it, so what a read sees does not depend on what was trimmed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_pipeline.broker import Broker
from onewriter_pipeline.connection import position_of
from onewriter_pipeline.errors import Gap, Invalid, NotFound, Trimmed
from onewriter_pipeline.offsets import TASK_BYTES_MAX, Run, of_epochs, runs_between
from onewriter_pipeline.planning import (
    Bound,
    Kind,
    Selection,
    check_kept,
    check_names,
    logs_of,
    resolved,
    shown,
)

if TYPE_CHECKING:
    from onewriter_pipeline.table import Table
    from onewriter_pipeline.table_reading import Piece
    from onewriter_pipeline.tables import Tables
    from pyspark_onewriter.options import ReadOptions


@dataclass(slots=True)
class Plan:
    """What is read: of the table, file by file, then of the log."""

    cold: list[Piece]
    hot: list[tuple[str, list[Run]]]


@dataclass(slots=True)
class _Kept:
    """What the table has."""

    table: Table
    offsets: Mapping[str, Position]
    segments: Sequence[Mapping[str, object]]


def planned(options: ReadOptions) -> Plan:
    """What a read with a table reads. Raises PipelineError, Gap above all."""
    from onewriter_pipeline.table_layout import MESSAGES  # noqa: PLC0415 - Arrow, where it is needed

    tables = _tables(options)
    table = tables.existing(MESSAGES)
    offsets = {log: position_of(text) for log, text in table.state().offsets.items()}
    kept = _Kept(table, offsets, tables.segments())
    if not options.reads_log:
        return _without_log(options, kept)
    with Broker(options.access) as broker:
        return _with_log(options, kept, broker)


def _tables(options: ReadOptions) -> Tables:
    from onewriter_pipeline.tables import Tables  # noqa: PLC0415

    return Tables(options.table, dict(options.table_options), options.table_format)


# ------------------------------------------------------------ the table alone


def _without_log(options: ReadOptions, kept: _Kept) -> Plan:
    selection = options.selection
    logs = _selected(selection, kept.offsets)
    _check_names(selection, logs)
    plan = Plan([], [])
    for log in logs:
        behind = kept.offsets[log]
        start = _resolved(kept, log, selection.starting, behind)
        end = _resolved(kept, log, selection.ending, behind)
        plan.cold += _pieces(options, kept, log, start, end)
    return plan


def _selected(selection: Selection, logs: Iterable[str]) -> list[str]:
    """The logs in a table that are meant; raises NotFound."""
    if selection.pattern:
        wanted = re.compile(selection.pattern)
        return [
            log
            for log in sorted(logs)
            if wanted.fullmatch(str(TopicName.parse(log).base))
            or wanted.fullmatch(str(TopicName.parse(log).base).removeprefix("persistent://"))
        ]
    found: list[str] = []
    for topic in selection.topics:
        name = TopicName.parse(topic)
        of_topic = [
            log for log in logs if log == str(name) or str(TopicName.parse(log).base) == str(name)
        ]
        if not of_topic:
            raise NotFound(f"the table has nothing of {name}: it was not offloaded yet")
        found += sorted(of_topic, key=lambda log: TopicName.parse(log).partition or 0)
    return list(dict.fromkeys(found))


def _resolved(kept: _Kept, log: str, bound: Bound, behind: Position) -> Position:
    from onewriter_pipeline.table_reading import first_kept, position_at  # noqa: PLC0415

    match bound.kind:
        case Kind.EARLIEST:
            return first_kept(kept.table, log) or behind
        case Kind.LATEST:
            return behind
        case Kind.POSITIONS:
            if bound.positions[log] > behind:
                raise Invalid(
                    f"{log}: the table ends at {shown(behind)}, in front of"
                    f" {shown(bound.positions[log])}"
                )
            first = first_kept(kept.table, log) if bound.positions[log] == EARLIEST else None
            return first or bound.positions[log]
        case Kind.TIME:
            found = position_at(kept.table, log, bound.time_ms)
            if found is None and not bound.or_latest:
                raise Invalid(f"the table has no message of {log} from {bound.time_ms} ms on")
            return found or behind


# ------------------------------------------------------------ both


def _with_log(options: ReadOptions, kept: _Kept, broker: Broker) -> Plan:
    selection = options.selection
    logs = logs_of(broker, selection)
    _check_names(selection, logs)
    plan = Plan([], [])
    for log in logs:
        held = broker.segments(log)
        cut = min(kept.offsets.get(log, held.first), held.end)
        start = _bound(kept, broker, log, selection.starting)
        end = _bound(kept, broker, log, selection.ending)
        if end < start:
            raise Invalid(
                f"{log}: the range ends at {shown(end)}, in front of its start {shown(start)}"
            )
        if log in kept.offsets:
            plan.cold += _pieces(options, kept, log, start, min(end, cut))
        begins = max(start, cut)
        if begins < end and options.reading.fail_on_loss:
            try:
                check_kept(broker, log, held, begins)
            except Trimmed as error:
                raise Gap(
                    f"{log}: {shown(begins)} to {shown(held.first)} is neither in the table nor in the"
                    " log: it was trimmed before it was offloaded (failOnDataLoss=false leaves it out)"
                ) from error
        runs = runs_between(held.segments, begins, end)
        groups = [runs] if selection.epochs is None else of_epochs(runs, selection.epochs)
        plan.hot += [(log, group) for group in groups if group]
    return plan


def _bound(kept: _Kept, broker: Broker, log: str, bound: Bound) -> Position:
    """A bound in the table, where it lies there, else in the log."""
    held = broker.segments(log)
    if log not in kept.offsets:
        return resolved(broker, log, held, bound)
    behind = kept.offsets[log]
    if bound.kind is Kind.LATEST:
        return held.end
    if bound.kind is Kind.POSITIONS and bound.positions[log] > behind:
        return resolved(broker, log, held, bound)
    if bound.kind is Kind.TIME:
        from onewriter_pipeline.table_reading import position_at  # noqa: PLC0415

        found = position_at(kept.table, log, bound.time_ms)
        return found or max(behind, resolved(broker, log, held, bound))
    return _resolved(kept, log, bound, behind)


def _pieces(
    options: ReadOptions, kept: _Kept, log: str, start: Position, end: Position
) -> list[Piece]:
    from onewriter_pipeline.table_reading import check_whole, first_kept, pieces  # noqa: PLC0415

    if options.reading.fail_on_loss and start < end:
        first = first_kept(kept.table, log) or end
        check_whole(log, kept.segments, start, end, first)
    return pieces(kept.table, log, start, end)


def _check_names(selection: Selection, logs: Sequence[str]) -> None:
    check_names("startingOffsets", selection.starting, logs)
    check_names("endingOffsets", selection.ending, logs)


def divided_pieces(pieces: Sequence[Piece], tasks_min: int) -> list[tuple[Piece, ...]]:
    """Files to tasks, in order, of about the same size."""
    total = sum(piece.size for piece in pieces)
    tasks = max(tasks_min, os.cpu_count() or 1, math.ceil(total / TASK_BYTES_MAX))
    share = math.ceil(total / tasks) if pieces else 0
    found: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    for piece in pieces:
        current.append(piece)
        if sum(each.size for each in current) >= share:
            found.append(tuple(current))
            current = []
    return [*found, tuple(current)] if current else found
