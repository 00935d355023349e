"""What the tables have of the logs that are read: where it begins and ends, which files it lies in, what lacks.

All of it is of one commit of the table, files and offsets: what is checked to be whole is what is read, whatever
``offload`` and ``table --keep-days`` do meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from onewriter_core.ids import EARLIEST, Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.names import position_of, shown
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.read.offsets import END_OF_LOG, Run, runs_within
from onewriter_pipeline.read.selection import Bound, Kind, check_epochs, resolved
from onewriter_pipeline.tables.files import by_folder
from onewriter_pipeline.tables.layout import MESSAGES, SegmentRow, TableFile, folder_of
from onewriter_pipeline.tables.pieces import Piece, pieces, position_at
from onewriter_pipeline.tables.tables import Tables
from onewriter_pipeline.tables.wholeness import check_rows, check_whole, first_kept
from pyspark_onewriter.options import ReadOptions

SEGMENTS_REMEMBERED: Final = 2
"""Commits of tables whose segments a process remembers."""


class TableSnapshot:
    """What the tables had at one look. Raises TableError, Invalid. ``offsets``: behind what was offloaded of each log."""

    offsets: Mapping[str, Position]

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        tables = Tables(options.table, dict(options.table_options), options.table_format)
        self._table = tables.existing(MESSAGES)
        self.renew()

    def renew(self) -> None:
        """Look again: what was trimmed of a log before this was in the tables before that. Raises TableError."""
        state, files = self._table.snapshot()
        self.offsets = {log: position_of(text) for log, text in state.offsets.items()}
        self._files = by_folder(files)
        self._firsts: dict[str, Position | None] = {}
        options = self._options
        self._segments = _segments(
            options.table,
            tuple(sorted(options.table_options.items())),
            options.table_format,
            state.batch,
            tuple(state.offsets.items()),
        )

    def _files_of(self, log: str) -> Sequence[TableFile]:
        return self._files.get(folder_of(log), ())

    def _rows_of(self, log: str) -> Sequence[SegmentRow]:
        return self._segments.get(log, ())

    # ------------------------------------------------------------ what there is

    def first(self, log: str) -> Position | None:
        """Where the messages of a log begin; None: there are none."""
        if log not in self._firsts:
            self._firsts[log] = first_kept(self._table.place, self._files_of(log))
        return self._firsts[log]

    def pieces(self, log: str, start: Position, end: Position) -> list[Piece]:
        """The files that [start, end) of a log lies in. Raises Gap unless loss is accepted."""
        if start == EARLIEST:
            start = self.first(log) or end
        if end <= start:
            return []
        self._check(log, start, end)
        return pieces(log, self._files_of(log), start, end)

    def runs(self, log: str, start: Position, end: Position) -> list[Run]:
        """What was offloaded of [start, end) of a log, in its order, each entry once."""
        found: list[Run] = []
        at = start
        for row in self._rows_of(log):
            if not row.entries:
                continue
            messages = max(row.messages, row.end - row.first)
            whole = Run(row.ledger, row.epoch, row.first, row.end, row.bytes, messages)
            found += runs_within([whole], at, end)
            at = max(at, Position(row.ledger, row.end))
        return found

    # ------------------------------------------------------------ what lacks

    def _check(self, log: str, start: Position, end: Position) -> None:
        """Raise Gap where some of [start, end) was lost, trimmed or dropped; unless loss is accepted.

        Files that have as many rows as were offloaded have all of them, and none has to be looked into.
        """
        if not self._options.reading.fail_on_loss:
            return
        rows, files = self._rows_of(log), self._files_of(log)
        if sum(row.rows for row in rows) == sum(file.rows for file in files):
            check_whole(log, rows, start, end, EARLIEST)
            return
        first = self.first(log)
        check_whole(log, rows, start, end, first)
        check_rows(self._table.place, files, rows, start, end, first)

    def _check_epochs(self, log: str) -> None:
        """Raise Gap where the tables had, or lack, some of the topic epochs that are named; unless loss is accepted."""
        begin, end = self._epochs_begin(log), self.offsets[log]
        if begin < end:
            self._check(log, begin, end)

    def _epochs_begin(self, log: str) -> Position:
        """Where the topic epochs that are named began, as far as that was offloaded, or noted to be lost."""
        epochs, begin = self._options.selection.epochs, END_OF_LOG
        if epochs is None or epochs.lowest is None:
            return begin
        for row in self._rows_of(log):
            if row.epoch is None:
                continue
            if row.lost and epochs.lowest < row.epoch + (row.first > 1):
                begin = min(begin, position_of(row.lost))
            if row.entries and row.epoch in epochs:
                begin = min(begin, Position(row.ledger, 1))
        return begin

    # ------------------------------------------------------------ bounds

    def bound(self, log: str, bound: Bound) -> Position:
        """Where a bound lies in the tables, which end the log. Raises Gap, Invalid."""
        end = self.offsets[log]
        match bound.kind:
            case Kind.EARLIEST:
                self._check_epochs(log)
                return self.first(log) or end
            case Kind.LATEST:
                return end
            case Kind.POSITIONS:
                asked = bound.positions[log]
                if asked > end:
                    raise Invalid(f"{log}: the table ends at {shown(end)}, before {shown(asked)}")
                return (self.first(log) or asked) if asked == EARLIEST else asked
            case Kind.TIME:
                found = self._position_at(log, bound.time_ms)
                if found is None and not bound.or_latest:
                    raise Invalid(f"the table has no message of {log} from {bound.time_ms} ms on")
                return found or end

    def bound_with_log(self, broker: Broker, held: Segments, bound: Bound) -> Position:
        """The same where the log goes on behind the tables; not behind what it had. Raises PipelineError."""
        log = held.log
        if log not in self.offsets:
            if self._options.reading.fail_on_loss and bound.kind is Kind.EARLIEST:
                check_epochs(broker, held, self._options.selection.epochs)
            return min(resolved(broker, held, bound), held.end)
        end = self.offsets[log]
        match bound.kind:
            case Kind.LATEST:
                return held.end
            case Kind.POSITIONS if bound.positions[log] > end:
                return resolved(broker, held, bound)
            case Kind.TIME:
                found = self._position_at(log, bound.time_ms)
                return min(found or max(end, resolved(broker, held, bound)), held.end)
            case _:
                return self.bound(log, bound)

    def _position_at(self, log: str, time_ms: int) -> Position | None:
        return position_at(self._table.place, self._files_of(log), time_ms)


@functools.lru_cache(maxsize=SEGMENTS_REMEMBERED)
def _segments(
    location: str,
    storage: tuple[tuple[str, str], ...],
    kind: str,
    batch: int | None,
    offsets: tuple[tuple[str, str], ...],
) -> Mapping[str, Sequence[SegmentRow]]:
    """What was offloaded up to a commit, by log, in its order: a stream asks for it with every micro-batch."""
    del offsets  # they tell a table from another one that was made at the same place since
    found: dict[str, list[SegmentRow]] = {}
    rows = Tables(location, dict(storage), kind).segments()
    for row in sorted(rows, key=lambda row: (row.ledger, row.first)):
        if batch is not None and row.batch <= batch:
            found.setdefault(row.topic, []).append(row)
    return found
