"""Checks whether the files of a log still have everything that was offloaded, or whether days were dropped.

It compares the files of one commit with the rows of ``segments`` up to that commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow.parquet as pq

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.names import position_of, shown
from onewriter_pipeline.errors import Gap
from onewriter_pipeline.schema import ENTRY, LEDGER
from onewriter_pipeline.tables.digest import runs_of
from onewriter_pipeline.tables.files import Place, rows_at_once
from onewriter_pipeline.tables.layout import SegmentRow, TableFile
from onewriter_pipeline.tables.pieces import Bounds, highest_of, lowest_of, opened

# ------------------------------------------------------------ where the files begin


def first_kept(place: Place, files: Iterable[TableFile]) -> Position | None:
    """The position of the first message in a log's files; None: there is none. Raises TableError."""
    return _first((file.bounds, partial(_first_of_file, place, file.path)) for file in files)


def _first(parts: Iterable[tuple[Bounds, Callable[[], Position | None]]]) -> Position | None:
    """The first position in these parts. A part is read only if its bounds do not determine its first position, and
    if that position may be before those found so far.
    """
    found: Position | None = None
    for bounds, read in parts:
        lowest = lowest_of(bounds)
        if found is not None and lowest >= found:
            continue
        is_exact = lowest.ledger == highest_of(bounds).ledger
        first = lowest if is_exact else read()
        if first is not None:
            found = first if found is None else min(found, first)
    return found


def _first_of_file(place: Place, path: str) -> Position | None:
    with opened(place, path) as parquet:
        groups = range(parquet.num_row_groups)
        return _first(
            (_bounds_of(parquet, each), partial(_first_of_group, parquet, each)) for each in groups
        )


def _bounds_of(parquet: pq.ParquetFile, number: int) -> Bounds:
    """The bounds of a row group."""
    group = parquet.metadata.row_group(number)
    columns = [group.column(each) for each in range(group.num_columns)]
    return {
        column.path_in_schema: (column.statistics.min, column.statistics.max)
        for column in columns
        if column.path_in_schema in {LEDGER, ENTRY}
        and column.statistics is not None
        and column.statistics.has_min_max
    }


def _first_of_group(parquet: pq.ParquetFile, number: int) -> Position | None:
    rows = parquet.read_row_group(number, columns=[LEDGER, ENTRY])
    if not rows.num_rows:
        return None
    ledger, entry = rows.column(LEDGER).to_numpy(), rows.column(ENTRY).to_numpy()
    lowest = ledger.min()
    return Position(int(lowest), int(entry[ledger == lowest].min()))


# ------------------------------------------------------------ what they lack


def check_whole(
    log: str, rows: Iterable[SegmentRow], start: Position, end: Position, kept: Position | None
) -> None:
    """Raise Gap if the table lacks parts of [start, end) that the log had, according to ``segments``.

    ``rows``: the rows of the log, in its order; ``kept``: where the files begin; None: there are no files.
    """
    at = start
    for row in rows:
        first, end_of_row = _first_of(row), _end(row)
        lost = position_of(row.lost) if row.lost else first
        if max(lost, start) < min(first, end):
            raise _lacking(log, max(lost, start), first)
        if end_of_row <= start or first >= end or not row.entries:
            continue
        if row.rows and (kept is None or end_of_row <= kept):
            begins = "is empty" if kept is None else f"begins at {shown(kept)}"
            raise Gap(
                f"{log}: what was offloaded of {shown(first)} to {shown(end_of_row)} is not in the table"
                f" any more, which {begins} (failOnDataLoss=false leaves it out)"
            )
        expected = max(at, Position(first.ledger, 1))
        if first > expected:
            raise _lacking(log, expected, first)
        at = end_of_row


def _lacking(log: str, start: Position, end: Position) -> Gap:
    return Gap(
        f"{log}: {shown(start)} to {shown(end)} was lost or trimmed before it was offloaded"
        " (failOnDataLoss=false leaves it out)"
    )


def check_rows(
    place: Place,
    files: Sequence[TableFile],
    rows: Sequence[SegmentRow],
    start: Position,
    end: Position,
    kept: Position | None,
) -> None:
    """Raise Gap if a log's files lack rows of [start, end) after the position where they begin. The parameters are
    those of ``check_whole``.

    Retention drops the folders of whole days, which may be in the middle of a log: if the clock of a broker that took
    over at midnight was slow, rows of the former day follow rows of the next day. Rows are counted only if the total
    number shows that some are missing. Raises TableError.
    """
    there = [row for row in rows if row.rows and kept is not None and _end(row) > kept]
    if sum(row.rows for row in there) == sum(file.rows for file in files):
        return
    wanted = [row for row in there if _end(row) > start and _first_of(row) < end]
    counted = _counted(place, files, wanted)
    for row in wanted:
        lack = row.rows - counted[_first_of(row)]
        if lack > 0:
            raise Gap(
                f"{row.topic}: {lack:,} of {row.rows:,} messages that were offloaded of"
                f" {shown(_first_of(row))} to {shown(_end(row))} are not in the table any more"
                " (failOnDataLoss=false leaves them out)"
            )


def _counted(
    place: Place, files: Iterable[TableFile], wanted: Sequence[SegmentRow]
) -> dict[Position, int]:
    """The number of rows in the files for some parts of the log, by where the parts begin."""
    found = {_first_of(row): 0 for row in wanted}
    firsts: dict[int, list[int]] = {}
    for first in sorted(found):
        firsts.setdefault(first.ledger, []).append(first.entry)
    for file in files:
        low, high = lowest_of(file.bounds).ledger, highest_of(file.bounds).ledger
        if not any(low <= ledger <= high for ledger in firsts):
            continue
        with opened(place, file.path) as parquet:
            rows = rows_at_once(parquet.metadata)
            for batch in parquet.iter_batches(rows, columns=[LEDGER, ENTRY]):
                entries = batch.column(ENTRY).to_numpy()
                for ledger, begin, end in runs_of(batch.column(LEDGER).to_numpy()):
                    of_ledger = firsts.get(ledger, [])
                    which = np.searchsorted(of_ledger, entries[begin:end], "right") - 1
                    for number, count in enumerate(np.bincount(which[which >= 0])):
                        found[Position(ledger, of_ledger[number])] += int(count)
    return found


def _first_of(row: SegmentRow) -> Position:
    return Position(row.ledger, row.first)


def _end(row: SegmentRow) -> Position:
    return Position(row.ledger, row.end)
