"""Reads messages from tables: selects the files of a range, and reads the range from them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from onewriter_core.ids import NUMBER_MAX, Position
from onewriter_pipeline.errors import Invalid, TableError
from onewriter_pipeline.read.batch_limits import EntryCounts
from onewriter_pipeline.read.selection import Epochs
from onewriter_pipeline.schema import ENTRY, EPOCH, LEDGER, PUBLISH_TIME, arrow_schema
from onewriter_pipeline.tables.files import Place, line, opened_parquet, rows_at_once
from onewriter_pipeline.tables.layout import MESSAGES, TableFile

Bounds = Mapping[str, tuple[int, int]]
"""Minimum and maximum by column."""

_UNKNOWN: Final = (0, NUMBER_MAX)


@dataclass(frozen=True, slots=True)
class Piece:
    """The messages of [start, end) of a log that are in one file.

    ``size``, ``rows``: bytes and rows of the whole file when it was committed. 0 rows: unknown.
    """

    log: str
    path: str
    start: Position
    end: Position
    size: int
    rows: int = 0


def pieces(log: str, files: Iterable[TableFile], start: Position, end: Position) -> list[Piece]:
    """The parts of [start, end) in the files of a log, in order."""
    return [
        Piece(log, file.path, start, end, file.size, file.rows)
        for file in files
        if lowest_of(file.bounds) < end and highest_of(file.bounds) >= start
    ]


def lowest_of(bounds: Bounds) -> Position:
    """A position that is not after any message within these bounds."""
    return Position(bounds.get(LEDGER, _UNKNOWN)[0], bounds.get(ENTRY, _UNKNOWN)[0])


def highest_of(bounds: Bounds) -> Position:
    """A position that is not before any message within these bounds."""
    return Position(bounds.get(LEDGER, _UNKNOWN)[1], bounds.get(ENTRY, _UNKNOWN)[1])


def read_piece(
    place: Place, piece: Piece, columns: Sequence[str], epochs: Epochs | None, *, json: bool
) -> Iterator[pa.RecordBatch]:
    """The messages of a piece, in the log's order. Raises Invalid, and TableError, also if the file does not have the
    size and the rows with which it was committed.
    """
    schema = arrow_schema(columns, json=json)
    unknown = [name for name in columns if name not in MESSAGES.columns.names]
    if unknown:
        raise Invalid(f"tables do not have the column {unknown[0]!r}")
    wanted = list(dict.fromkeys([*columns, LEDGER, ENTRY, EPOCH]))
    for batch in _batches(place, piece.path, wanted, piece):
        keep = _within(batch.column(LEDGER).to_numpy(), batch.column(ENTRY).to_numpy(), piece)
        if epochs is not None:
            keep &= _of_epochs(batch, epochs)
        if not keep.any():
            continue
        rows = batch if keep.all() else batch.filter(pa.array(keep))
        arrays = [rows.column(field.name).cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def counts_of(place: Place, piece: Piece) -> Iterator[EntryCounts]:
    """The number of messages in each entry of a piece, in the order of the log; entries without messages are
    omitted.
    """
    last: tuple[int, int, int] | None = None
    for batch in read_piece(place, piece, [LEDGER, ENTRY], None, json=False):
        ledger, entry = batch.column(LEDGER).to_numpy(), batch.column(ENTRY).to_numpy()
        edges = np.flatnonzero((np.diff(ledger) != 0) | (np.diff(entry) != 0)) + 1
        starts = np.concatenate(([0], edges))
        rows = np.diff(np.append(starts, len(ledger)))
        for ledger_of, number, count in zip(
            ledger[starts].tolist(), entry[starts].tolist(), rows.tolist(), strict=True
        ):
            if last is not None and last[:2] == (ledger_of, number):
                count += last[2]  # noqa: PLW2901 - two batches of rows have parts of this entry
            elif last is not None:
                yield _counts(*last)
            last = ledger_of, number, count
    if last is not None:
        yield _counts(*last)


def _counts(ledger: int, entry: int, messages: int) -> EntryCounts:
    return EntryCounts(Position(ledger, entry), np.array([messages], np.int64))


def _batches(
    place: Place, path: str, columns: Sequence[str], piece: Piece | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the order of the log; with ``piece``, only row groups that have rows of it.

    Compaction keeps that order only within each file that it joined. What has to be read follows from the positions
    of all rows, because nothing compares the statistics of a file with its rows.
    """
    with opened(place, path) as parquet:
        if piece is not None:
            _check_committed(place, parquet, piece)
        positions = parquet.read(columns=[LEDGER, ENTRY])
        ledger, entry = positions.column(LEDGER).to_numpy(), positions.column(ENTRY).to_numpy()
        wanted = np.ones(len(ledger), np.bool_)
        if piece is not None:
            wanted = _within(ledger, entry, piece)
        row_ranges = _row_ranges(ledger, entry)
        if len(row_ranges) == 1:
            groups = [
                number
                for number, (start, end) in enumerate(_group_ranges(parquet.metadata))
                if wanted[start:end].any()
            ]
            rows = rows_at_once(parquet.metadata)
            yield from parquet.iter_batches(rows, row_groups=groups, columns=list(columns))
            return
        for start, end in row_ranges:
            if wanted[start:end].any():
                yield from _rows_between(parquet, start, end, list(columns))


@contextlib.contextmanager
def opened(place: Place, path: str) -> Iterator[pq.ParquetFile]:
    """Open a file of a table for the length of a ``with`` block. Raises TableError."""
    try:
        with opened_parquet(place, path) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{place.location}/{path} cannot be read: {line(error)}") from error


def _check_committed(place: Place, parquet: pq.ParquetFile, piece: Piece) -> None:
    """Raise TableError if a file has another size or number of rows than its commit says."""
    (info,) = place.files().get_file_info([piece.path])
    rows = parquet.metadata.num_rows
    if piece.rows and rows != piece.rows:
        difference = f"{rows} rows, and had {piece.rows}"
    elif info.size != piece.size:
        difference = f"{info.size} bytes, and had {piece.size}"
    else:
        return
    raise TableError(
        f"{place.location}/{piece.path} has {difference} when it was committed: the file was changed"
        " (onewriter-pipeline audit --from table compares all files)"
    )


def _row_ranges(ledger: NDArray[np.int64], entry: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of rows that are in the order of the log, in that order themselves."""
    back = (np.diff(ledger) < 0) | ((np.diff(ledger) == 0) & (np.diff(entry) < 0))
    edges = [0, *(np.flatnonzero(back) + 1).tolist(), len(ledger)]
    return sorted(itertools.pairwise(edges), key=lambda each: (ledger[each[0]], entry[each[0]]))


def _group_ranges(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    """The ranges of rows of a file's row groups."""
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    return list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


def _rows_between(
    parquet: pq.ParquetFile, start: int, end: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of a file, by their numbers."""
    rows = rows_at_once(parquet.metadata)
    for number, (at, end_of_group) in enumerate(_group_ranges(parquet.metadata)):
        if at >= end or end_of_group <= start:
            continue
        for batch in parquet.iter_batches(rows, row_groups=[number], columns=columns):
            low, high = max(start - at, 0), min(end - at, batch.num_rows)
            if low < high:
                yield batch.slice(low, high - low)
            at += batch.num_rows  # noqa: PLW2901 - the number of the next batch's first row


def _within(ledger: NDArray[np.int64], entry: NDArray[np.int64], piece: Piece) -> NDArray[np.bool_]:
    """Which rows are of a piece, by their positions."""
    begun: NDArray[np.bool_] = (ledger > piece.start.ledger) | (
        (ledger == piece.start.ledger) & (entry >= piece.start.entry)
    )
    ended = (ledger > piece.end.ledger) | (
        (ledger == piece.end.ledger) & (entry >= piece.end.entry)
    )
    within: NDArray[np.bool_] = begun & ~ended
    return within


def _of_epochs(batch: pa.RecordBatch, epochs: Epochs) -> NDArray[np.bool_]:
    column = batch.column(EPOCH)
    wanted = [epoch for epoch in column.unique().to_pylist() if epoch in epochs]
    values = column.fill_null(-1).to_numpy(zero_copy_only=False)
    found: NDArray[np.bool_] = np.isin(values, wanted)
    return found


def position_at(place: Place, files: Iterable[TableFile], time_ms: int) -> Position | None:
    """The first entry in a log's files that was published at that time or later, by its producer's clock; None:
    none.
    """
    found: Position | None = None
    for file in files:
        _, latest = file.bounds.get(PUBLISH_TIME, _UNKNOWN)
        if latest < time_ms * 1000 or (found is not None and lowest_of(file.bounds) >= found):
            continue
        first = _published(place, file, time_ms)
        if first is not None:
            found = first if found is None else min(found, first)
    return found


def _published(place: Place, file: TableFile, time_ms: int) -> Position | None:
    """The same for one file."""
    for batch in _batches(place, file.path, [LEDGER, ENTRY, PUBLISH_TIME]):
        times = batch.column(PUBLISH_TIME).cast(pa.int64()).fill_null(-1).to_numpy()
        late = np.flatnonzero(times >= time_ms * 1000)
        if len(late):
            first = int(late[0])
            return Position(batch.column(LEDGER)[first].as_py(), batch.column(ENTRY)[first].as_py())
    return None
