"""What the tables have of the selected logs: beginning, end, files, and missing parts.

Everything comes from one commit of the table, so what was checked is what is read, even if ``offload`` or ``table
--keep-days`` runs meanwhile.
"""

from __future__ import annotations

import bisect
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
from onewriter_pipeline.tables.pieces import (
    Piece,
    highest_of,
    lowest_of,
    pieces,
    position_at,
)
from onewriter_pipeline.tables.tables import Tables
from onewriter_pipeline.tables.wholeness import check_rows, check_whole, first_kept
from pyspark_onewriter.options import ReadOptions

SEGMENTS_REMEMBERED: Final = 2
"""Commits of tables whose segments a process caches."""


class TableSnapshot:
    """The tables at one commit. Raises TableError, Invalid. ``offsets``: the end of the offloaded part of each log."""

    offsets: Mapping[str, Position]

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        tables = Tables(options.table, dict(options.table_options), options.table_format)
        self._table = tables.existing(MESSAGES)
        self.renew()

    def renew(self) -> None:
        """Read the newest commit. Entries that were trimmed from a log before this call are in it. Raises
        TableError.
        """
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
        """The files that have [start, end) of a log. Raises Gap unless loss is accepted."""
        if start == EARLIEST:
            start = self.first(log) or end
        if end <= start:
            return []
        self._check(log, start, end)
        return pieces(log, self._files_of(log), start, end)

    def parts(self, log: str, start: Position, end: Position) -> list[tuple[Piece, Sequence[Run]]]:
        """``pieces`` with what was offloaded of the positions that their files have. Raises Gap."""
        found = self.pieces(log, start, end)
        bounds = {file.path: file.bounds for file in self._files_of(log)}
        runs = self.runs(log, start, end) if found else []
        ends = [Position(run.ledger, run.end) for run in runs]
        parts: list[tuple[Piece, Sequence[Run]]] = []
        for piece in found:
            low = lowest_of(bounds[piece.path])
            high = highest_of(bounds[piece.path]).next
            first = bisect.bisect_right(ends, low)
            behind = bisect.bisect_left(ends, high, first) + 1
            parts.append((piece, runs_within(runs[first:behind], low, high)))
        return parts

    def runs(self, log: str, start: Position, end: Position) -> list[Run]:
        """What was offloaded of [start, end) of a log, in order, each entry once."""
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
        """Raise Gap if parts of [start, end) were lost, trimmed or dropped, unless loss is accepted.

        Files with as many rows as were offloaded have all of them, and need not be read.
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
        """Raise Gap if the tables lack entries of the named topic epochs, unless loss is accepted."""
        begin, end = self._epochs_begin(log), self.offsets[log]
        if begin < end:
            self._check(log, begin, end)

    def _epochs_begin(self, log: str) -> Position:
        """Where the named topic epochs begin in the tables, including parts that are recorded as lost."""
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
        """The position of a bound if the tables are the whole log. Raises Gap, Invalid."""
        end = self.offsets[log]
        match bound.kind:
            case Kind.EARLIEST:
                self._check_epochs(log)
                return self.first(log) or end
            case Kind.LATEST:
                return end
            case Kind.POSITIONS:
                requested = bound.positions[log]
                if requested > end:
                    raise Invalid(
                        f"{log}: the table ends at {shown(end)}, before {shown(requested)}"
                    )
                return (self.first(log) or requested) if requested == EARLIEST else requested
            case Kind.TIME:
                found = self._position_at(log, bound.time_ms)
                if found is None and not bound.or_latest:
                    raise Invalid(f"the table has no message of {log} from {bound.time_ms} ms on")
                return found or end

    def bound_with_log(self, broker: Broker, held: Segments, bound: Bound) -> Position:
        """The position of a bound if the log continues after the tables; at most the end of the log. Raises
        PipelineError.
        """
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
    """What was offloaded up to a commit, by log, in order. Cached, because a stream needs it in every micro-batch."""
    del (
        offsets
    )  # part of the cache key: distinguishes a table that was created again at the same place
    found: dict[str, list[SegmentRow]] = {}
    rows = Tables(location, dict(storage), kind).segments()
    for row in sorted(rows, key=lambda row: (row.ledger, row.first)):
        if batch is not None and row.batch <= batch:
            found.setdefault(row.topic, []).append(row)
    return found
