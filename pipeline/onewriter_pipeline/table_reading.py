"""Messages out of the tables: which files a range of a log lies in, and reading it from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from onewriter_core.ids import Position
from onewriter_pipeline.errors import Gap, Invalid, TableError
from onewriter_pipeline.offsets import END_OF_LOG
from onewriter_pipeline.planning import Epochs, shown
from onewriter_pipeline.schema import ENTRY, EPOCH, LEDGER, PUBLISH_TIME, arrow_schema
from onewriter_pipeline.table import Table
from onewriter_pipeline.table_files import Place
from onewriter_pipeline.table_layout import MESSAGES
from onewriter_pipeline.verifying import files_of

READ_ROWS: Final = 64 * 1024
"""Rows of a batch."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one file has of [start, end) of a log; ``size`` is the file's, in bytes."""

    log: str
    path: str
    start: Position
    end: Position
    size: int


def pieces(table: Table, log: str, start: Position, end: Position) -> list[Piece]:
    """The files that [start, end) of a log lies in, in its order."""
    if end <= start:
        return []
    found = []
    for file in files_of(table, log, start.ledger, end.ledger):
        low, high = file.bounds.get(LEDGER, (0, END_OF_LOG.ledger))
        first, last = file.bounds.get(ENTRY, (0, END_OF_LOG.entry))
        if low == high and (Position(high, last) < start or Position(low, first) >= end):
            continue
        found.append(Piece(log, file.path, start, end, file.size))
    return found


def read_piece(
    place: Place, piece: Piece, columns: Sequence[str], epochs: Epochs | None, *, json: bool
) -> Iterator[pa.RecordBatch]:
    """The messages of a piece, in the log's order. Raises TableError, Invalid."""
    schema = arrow_schema(columns, json=json)
    unknown = [name for name in columns if name not in MESSAGES.columns.names]
    if unknown:
        raise Invalid(f"tables do not keep the column {unknown[0]!r}")
    wanted = list(dict.fromkeys([*columns, LEDGER, ENTRY, EPOCH]))
    for batch in _batches(place, piece.path, wanted):
        keep = _within(batch, piece)
        if epochs is not None:
            keep &= _of_epochs(batch, epochs)
        if not keep.any():
            continue
        rows = batch if keep.all() else batch.filter(pa.array(keep))
        arrays = [rows.column(field.name).cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batches(place: Place, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the log's order. Compaction keeps that only inside what it joined."""
    try:
        with pq.ParquetFile(path, filesystem=place.files()) as parquet:
            stretches = _stretches(parquet)
            if len(stretches) == 1:
                yield from parquet.iter_batches(READ_ROWS, columns=list(columns))
                return
            for start, end in stretches:
                yield from _rows_between(parquet, start, end, list(columns))
    except (OSError, pa.ArrowException) as error:
        said = str(error).splitlines()[0]
        raise TableError(f"{place.location}/{path} cannot be read: {said}") from error


def _stretches(parquet: pq.ParquetFile) -> list[tuple[int, int]]:
    """Ranges of rows that are in the log's order each, in that order themselves."""
    positions = parquet.read(columns=[LEDGER, ENTRY])
    ledger, entry = positions.column(LEDGER).to_numpy(), positions.column(ENTRY).to_numpy()
    back = (np.diff(ledger) < 0) | ((np.diff(ledger) == 0) & (np.diff(entry) < 0))
    edges = [0, *(np.flatnonzero(back) + 1).tolist(), len(ledger)]
    return sorted(itertools.pairwise(edges), key=lambda each: (ledger[each[0]], entry[each[0]]))


def _rows_between(
    parquet: pq.ParquetFile, start: int, end: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Some rows of a file, by their numbers."""
    at = 0
    for number in range(parquet.num_row_groups):
        behind = at + parquet.metadata.row_group(number).num_rows
        if at < end and behind > start:
            for batch in parquet.iter_batches(READ_ROWS, row_groups=[number], columns=columns):
                low, high = max(start - at, 0), min(end - at, batch.num_rows)
                if low < high:
                    yield batch.slice(low, high - low)
                at += batch.num_rows
        at = behind


def _within(batch: pa.RecordBatch, piece: Piece) -> NDArray[np.bool_]:
    ledger, entry = batch.column(LEDGER).to_numpy(), batch.column(ENTRY).to_numpy()
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


def position_at(table: Table, log: str, time_ms: int) -> Position | None:
    """The first entry that its producer published at that time or later; None: there is none."""
    for file in files_of(table, log, 0, END_OF_LOG.ledger):
        for batch in _batches(table.place, file.path, [LEDGER, ENTRY, PUBLISH_TIME]):
            times = batch.column(PUBLISH_TIME).cast(pa.int64()).fill_null(-1).to_numpy()
            late = np.flatnonzero(times >= time_ms * 1000)
            if len(late):
                first = int(late[0])
                return Position(
                    batch.column(LEDGER)[first].as_py(), batch.column(ENTRY)[first].as_py()
                )
    return None


def first_kept(table: Table, log: str) -> Position | None:
    """Where the files of a log begin, at the latest; None: there are none."""
    files = files_of(table, log, 0, END_OF_LOG.ledger)
    if not files:
        return None
    low, high = files[0].bounds.get(LEDGER, (0, 0))
    entry, _ = files[0].bounds.get(ENTRY, (0, 0))
    return Position(low, entry if low == high else 0)


def check_whole(
    log: str, rows: Sequence[Mapping[str, Any]], start: Position, end: Position, kept: Position
) -> None:
    """Raise Gap where the table does not have all of [start, end) that the log once had.

    ``rows``: those of ``segments``; ``kept``: where the files begin.
    """
    of_log = sorted(
        (row for row in rows if row["topic"] == log), key=lambda row: (row["ledger"], row["first"])
    )
    at = start
    for row in of_log:
        first, behind = Position(row["ledger"], row["first"]), Position(row["ledger"], row["end"])
        if behind <= start or first >= end or not row["entries"]:
            continue
        if row["rows"] and behind <= kept:
            raise Gap(
                f"{log}: what was offloaded of {shown(first)} to {shown(behind)} is not in the table"
                f" any more, which begins at {shown(kept)} (failOnDataLoss=false begins there)"
            )
        expected = max(at, Position(first.ledger, 1))
        if first > expected:
            raise Gap(
                f"{log}: {shown(expected)} to {shown(first)} was lost or trimmed before it was offloaded"
                " (failOnDataLoss=false leaves it out)"
            )
        at = behind
