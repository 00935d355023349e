"""The planners of reads: where topics begin and end, which runs of entries are read, and the tasks that read them.

``Backlog`` plans reads of the live log. ``TieredBacklog`` plans reads of the tables and, unless the tables alone are
read, of the live log after them. Both plan batches and streams. Offsets are positions in the log in any case, so the
rows of a read do not depend on the tier that returns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.datasource import InputPartition

from onewriter_core.ids import EARLIEST, Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.frames import BlockFrame
from onewriter_pipeline.brokers.names import shown
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.errors import Gap, Invalid, LogEnds, Trimmed
from onewriter_pipeline.read.batch_limits import (
    EntryCounts,
    end_after_entries,
    end_after_messages,
    is_even,
    shares,
)
from onewriter_pipeline.read.offsets import Run, of_epochs, runs_between, runs_within
from onewriter_pipeline.read.selection import (
    Bound,
    Kind,
    Selection,
    check_epochs,
    check_kept,
    check_names,
    ends_of,
    logs_of,
    resolved,
    selected,
    warn_if_unmatched,
)
from pyspark_onewriter.options import ReadOptions
from pyspark_onewriter.tasks import Task, counted, divided_pieces, tasks_of

if TYPE_CHECKING:
    from onewriter_pipeline.tables.pieces import Piece
    from pyspark_onewriter.snapshot import TableSnapshot

Positions = Mapping[str, Position]


class Backlog:
    """Plans reads of the live log."""

    def __init__(self, options: ReadOptions, broker: Broker) -> None:
        self._options = options
        self._broker = broker
        self._seen: dict[str, Segments] = {}
        """Segments that are valid for the whole plan."""
        self._is_batch = False

    def selected_range(self) -> tuple[Positions, Positions]:
        """The range of a batch read in each log. ``tasks`` then uses the segments that each log has now.

        Raises Invalid for a range that ends before it begins, and Trimmed if named topic epochs are missing.
        """
        selection = self._options.selection
        begins: dict[str, Position] = {}
        ends: dict[str, Position] = {}
        for log, held in self.selected_segments(selection).items():
            begins[log] = resolved(self._broker, held, selection.starting)
            ends[log] = resolved(self._broker, held, selection.ending)
            if Kind.POSITIONS in {selection.starting.kind, selection.ending.kind}:
                _check_order(log, begins[log], ends[log])
            if self._options.reading.fail_on_loss:
                check_epochs(self._broker, held, selection.epochs)
        return begins, ends

    def selected_segments(self, selection: Selection) -> dict[str, Segments]:
        """The segments of the selected logs, for all of a batch read. Raises Invalid."""
        self._is_batch = True
        logs = logs_of(self._broker, selection)
        warn_if_unmatched(selection, logs)
        _check_bounds(selection, logs)
        self._seen = {log: self._broker.segments(log) for log in logs}
        return self._seen

    def initial(self) -> Positions:
        """Where a new query begins."""
        selection = self._options.selection
        logs = logs_of(self._broker, selection)
        warn_if_unmatched(selection, logs)
        check_names("startingOffsets", selection.starting, logs)
        return {log: self._begin(log) for log in logs}

    def _begin(self, log: str) -> Position:
        held, selection = self._broker.segments(log), self._options.selection
        if self._options.reading.fail_on_loss:
            check_epochs(self._broker, held, selection.epochs)
        return resolved(self._broker, held, selection.starting)

    def first(self, log: str) -> Position:
        """Where a log begins now."""
        return self._broker.segments(log).first

    def ends(self) -> Positions:
        """The ends of the logs now."""
        return ends_of(self._broker, logs_of(self._broker, self._options.selection))

    def runs(self, log: str, begin: Position, end: Position) -> list[Run]:
        """The runs of [begin, end) that are read. Raises Trimmed for missing entries unless loss is accepted."""
        return [run for group in self._groups(self._all_runs(log, begin, end)) for run in group]

    def _all_runs(self, log: str, begin: Position, end: Position) -> list[Run]:
        """The runs of all epochs."""
        if _is_empty(log, begin, end, fail_on_loss=self._options.reading.fail_on_loss):
            return []
        held = self._held(log, begin)
        runs = runs_between(held.segments, begin, end)
        if self._options.reading.fail_on_loss:
            check_kept(self._broker, held, begin)
            if not self._is_batch:
                _check_reached(log, runs, begin, end)
        return runs

    def _held(self, log: str, begin: Position) -> Segments:
        """The segments of a log from a position on."""
        return self._seen.get(log) or self._broker.segments(log, after=begin.previous)

    def _groups(self, runs: Sequence[Run]) -> list[list[Run]]:
        """The runs of the selected epochs, in groups that are consecutive in the log."""
        epochs = self._options.selection.epochs
        return [list(runs)] if epochs is None else of_epochs(runs, epochs)

    def counts(self, log: str, begin: Position, end: Position) -> Iterator[EntryCounts]:
        """The number of messages in the entries of [begin, end), in order. It may include neighbouring entries."""
        for frame in self._broker.frames(log, begin, end, payload=False):
            if isinstance(frame, BlockFrame):
                ones = np.ones(len(frame.lengths), np.int64)
                messages = ones if frame.counts is None else frame.counts.astype(np.int64)
                yield EntryCounts(frame.first, messages)

    def tasks(self, begins: Positions, ends: Positions) -> list[InputPartition]:
        """The tasks that read from one offset to another. Logs that only the second offset has are not read."""
        parts = [
            (log, group)
            for log, end in ends.items()
            if begins.get(log, end) < end
            for group in self._groups(self._all_runs(log, begins[log], end))
        ]
        return tasks_of([part for part in parts if part[1]], self._options)


def _is_empty(log: str, begin: Position, end: Position, *, fail_on_loss: bool) -> bool:
    if end < begin and fail_on_loss:
        raise LogEnds(
            f"{log} ends at {shown(end)}, before {shown(begin)}, which was read:"
            " its tail was lost (failOnDataLoss=false waits until it is there again)",
            end,
        )
    return end <= begin


def _check_bounds(selection: Selection, logs: Sequence[str]) -> None:
    """Raise Invalid unless positions are given for exactly the logs that are read."""
    check_names("startingOffsets", selection.starting, logs)
    check_names("endingOffsets", selection.ending, logs)


def _check_order(log: str, begin: Position, end: Position) -> None:
    if end < begin:
        raise Invalid(f"{log}: the range ends at {shown(end)}, before its start {shown(begin)}")


def _check_reached(log: str, runs: Sequence[Run], begin: Position, end: Position) -> None:
    """Raise LogEnds if entries before ``end`` are missing: a ledger loses only its tail.

    ``runs``: all runs of [begin, end).
    """
    at = Position(runs[-1].ledger, runs[-1].end) if runs else begin
    if end.entry > 1 and at != end:  # entry 0 is the marker
        raise LogEnds(
            f"{log} has nothing of {shown(at)} to {shown(end)}, which was there: its tail was lost"
            " (failOnDataLoss=false leaves it out)",
            at,
        )


class _BehindTables(Backlog):
    """Plans the part of a read after the tables. The segments that ``lacks`` sees are valid for the whole plan."""

    def __init__(self, options: ReadOptions, broker: Broker) -> None:
        super().__init__(options, broker)
        self._asked: set[str] = set()

    def lacks(self, log: str, begin: Position) -> bool:
        """Whether entries after a position are missing. Checked once for each log."""
        if log in self._asked:
            return False
        self._asked.add(log)
        held = self._seen[log] = self._held(log, begin)
        try:
            check_kept(self._broker, held, begin)
        except Trimmed:
            return True
        return False

    def _all_runs(self, log: str, begin: Position, end: Position) -> list[Run]:
        """As for a live log, but raises Gap if the log begins after the end of the tables."""
        try:
            return super()._all_runs(log, begin, end)
        except Trimmed as error:
            begins = "" if error.first is None else f" to {shown(error.first)}"
            raise Gap(
                f"{log}: {shown(begin)}{begins} is neither in the table nor in the log: it was trimmed"
                " before it was offloaded (failOnDataLoss=false leaves it out)"
            ) from error


class TieredBacklog:
    """Plans reads of the tables and, if there is a broker, of the live log after them.

    The read changes from the tables to the log at the end of the last commit. A batch that is planned again may
    find a later end. The entries in between are the same in both tiers.
    """

    def __init__(self, options: ReadOptions, tables: TableSnapshot, broker: Broker | None) -> None:
        self._options = options
        self._tables = tables
        self._broker = broker
        self._hot = None if broker is None else _BehindTables(options, broker)
        self._is_batch = False

    def selected_range(self) -> tuple[Positions, Positions]:
        """The range of a batch read in each log. Raises Invalid, Gap and others."""
        self._is_batch = True
        selection, tables = self._options.selection, self._tables
        begins: dict[str, Position] = {}
        ends: dict[str, Position] = {}
        if self._broker is None or self._hot is None:
            logs = self._logs()
            warn_if_unmatched(selection, logs)
            _check_bounds(selection, logs)
            for log in logs:
                begins[log] = tables.bound(log, selection.starting)
                ends[log] = tables.bound(log, selection.ending)
            return begins, ends
        seen = self._hot.selected_segments(selection)
        tables.renew()  # what was trimmed before the segments were read is in the tables by now
        for log, held in seen.items():
            begins[log] = tables.bound_with_log(self._broker, held, selection.starting)
            ends[log] = tables.bound_with_log(self._broker, held, selection.ending)
            _check_order(log, begins[log], ends[log])
            ends[log] = min(ends[log], held.end)
        return begins, ends

    def initial(self) -> Positions:
        """Where a new query begins."""
        starting = self._options.selection.starting
        logs = self._logs()
        warn_if_unmatched(self._options.selection, logs)
        check_names("startingOffsets", starting, logs)
        return {log: self._bound(log, starting) for log in logs}

    def _bound(self, log: str, bound: Bound) -> Position:
        if self._broker is None:
            return self._tables.bound(log, bound)
        held = self._broker.segments(log)
        if log not in self._tables.offsets:
            self._tables.renew()
        return self._tables.bound_with_log(self._broker, held, bound)

    def _logs(self) -> Sequence[str]:
        selection = self._options.selection
        if self._broker is None:
            return selected(selection, self._tables.offsets)
        return logs_of(self._broker, selection)

    def first(self, log: str) -> Position:
        """Where a log begins now."""
        return self._bound(log, Bound(Kind.EARLIEST))

    def ends(self) -> Positions:
        """The ends of the logs now."""
        if self._hot is not None:
            return self._hot.ends()
        return {log: self._tables.offsets[log] for log in self._logs()}

    def _cut(self, log: str, begin: Position, end: Position) -> Position:
        """Where the tables' part of [begin, end) ends.

        Offload and trim continue meanwhile. If the log lacks entries there, the tables are read again.
        """
        cut = self._table_end(log, begin, end)
        if self._hot is not None and cut < end and self._hot.lacks(log, cut):
            self._tables.renew()
            cut = self._table_end(log, begin, end)
        return cut

    def _table_end(self, log: str, begin: Position, end: Position) -> Position:
        return min(end, max(begin, self._tables.offsets.get(log, EARLIEST)))

    def runs(self, log: str, begin: Position, end: Position) -> list[Run]:
        """The runs of [begin, end). Raises Gap, Trimmed, LogEnds."""
        if _is_empty(log, begin, end, fail_on_loss=self._options.reading.fail_on_loss):
            return []
        cut = self._cut(log, begin, end)
        cold = self._tables.runs(log, begin, cut)
        if self._options.selection.epochs is not None:
            cold = [
                run for group in of_epochs(cold, self._options.selection.epochs) for run in group
            ]
        hot = [] if self._hot is None or cut == end else self._hot.runs(log, cut, end)
        return [*cold, *hot]

    def counts(self, log: str, begin: Position, end: Position) -> Iterator[EntryCounts]:
        """The number of messages in the entries of [begin, end), in order. It may include neighbouring entries."""
        at = self._cut(log, begin, end)
        yield from counted(self._options, self._tables.pieces(log, begin, at))
        if self._hot is None or at == end:
            return
        try:
            for each in self._hot.counts(log, at, end):
                at = Position(each.first.ledger, each.first.entry + len(each.messages))
                yield each
        except Trimmed:  # trimmed after the cut was determined
            self._tables.renew()
            cut = self._table_end(log, at, end)
            if cut == at:
                raise
            yield from counted(self._options, self._tables.pieces(log, at, cut))
            yield from self._hot.counts(log, cut, end)

    def tasks(self, begins: Positions, ends: Positions) -> list[InputPartition]:
        """The tasks that read from one offset to another. Logs that only the second offset has are not read."""
        cuts: dict[str, Position] = {}
        parts: list[tuple[Piece, Sequence[Run]]] = []
        for log, end in ends.items():
            begin = begins.get(log, end)
            if begin < end:
                cuts[log] = self._cut(log, begin, end)
                parts += self._parts(log, begin, cuts[log], end)
        cold = map(Task, divided_pieces(parts, self._options))
        return [*cold, *([] if self._hot is None else self._hot.tasks(cuts, ends))]

    def _parts(
        self, log: str, begin: Position, cut: Position, end: Position
    ) -> list[tuple[Piece, Sequence[Run]]]:
        """The tables' part of [begin, end), up to the cut."""
        is_last = self._hot is None or cut == end
        if is_last and self._options.reading.fail_on_loss and not self._is_batch:
            _check_reached(log, self._tables.runs(log, begin, cut), begin, end)
        return self._tables.parts(log, begin, cut)


AnyBacklog = Backlog | TieredBacklog


@contextmanager
def backlog_of(options: ReadOptions) -> Iterator[AnyBacklog]:
    """The planner for some options, within the block. Raises PipelineError."""
    if not options.reads_table:
        with Broker(options.access) as broker:
            yield Backlog(options, broker)
        return
    from pyspark_onewriter.snapshot import TableSnapshot  # noqa: PLC0415 - imports Arrow, which not every read needs

    tables = TableSnapshot(options)
    if not options.reads_log:
        yield TieredBacklog(options, tables, None)
        return
    with Broker(options.access) as broker:
        yield TieredBacklog(options, tables, broker)


def within_messages(
    backlog: AnyBacklog,
    ahead: Mapping[str, Sequence[Run]],
    reached: Mapping[str, Position],
    messages: int,
) -> dict[str, Position]:
    """How far to read each log so that all together stay within a number of messages.

    ``reached``: how far other limits allow. Each log with unread entries gets at least one.
    """
    bounded = {log: runs_within(runs, EARLIEST, reached[log]) for log, runs in ahead.items()}
    found = dict(reached)
    for log, share in shares(bounded, messages).items():
        runs = bounded[log]
        if share is None or not runs:
            continue
        if is_even(runs):
            end = end_after_entries(runs, share)
        else:
            start = Position(runs[0].ledger, runs[0].first)
            end = end_after_messages(backlog.counts(log, start, reached[log]), start, share)
        if end is not None:
            found[log] = min(end, reached[log])
    return found
