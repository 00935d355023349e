"""Reads the files of a table back: counts their rows of some ledgers, and finds files that changed since their
commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from onewriter_pipeline.errors import TableError
from onewriter_pipeline.schema import ENTRY, LEDGER
from onewriter_pipeline.tables.digest import row_hashes, runs_of
from onewriter_pipeline.tables.files import (
    Place,
    files_of,
    line,
    opened_parquet,
    rows_at_once,
    table_errors,
)
from onewriter_pipeline.tables.layout import MESSAGES, TableFile
from onewriter_pipeline.tables.table import Table
from onewriter_pipeline.tables.verification import Counted, WantedRows

COPY_BYTES: Final = 1024 * 1024
"""Size of one read of a file."""


@dataclass(frozen=True, slots=True)
class Altered:
    """A file that changed since it was committed."""

    log: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.log}: the file {self.path} {self.what}"


def read_back(
    table: Table, log: str, wanted: Mapping[int, WantedRows]
) -> tuple[dict[int, Counted], list[Altered]]:
    """Count the rows of some ledgers of a log in the files, and list the files that changed since their commit.

    Raises TableError if the files cannot be reached.
    """
    found: dict[int, Counted] = {}
    altered: list[Altered] = []
    if not wanted:
        return found, altered
    files = files_of(table.files(), log, min(wanted), max(wanted))
    with table_errors(table.place):
        sizes = table.place.files().get_file_info([file.path for file in files]) if files else []
    for file, info in zip(files, sizes, strict=True):
        if not info.is_file:
            altered.append(Altered(log, file.path, "is gone"))
            continue
        if info.size != file.size:
            message = f"has {info.size} bytes, and had {file.size} when it was committed"
            altered.append(Altered(log, file.path, message))
        what = _read_file(table, file, wanted, found)
        altered += [Altered(log, file.path, what)] if what else []
    return found, altered


def _read_file(
    table: Table, file: TableFile, wanted: Mapping[int, WantedRows], found: dict[int, Counted]
) -> str:
    """Count the rows of a file. Returns what is wrong with the file; empty: nothing."""
    rows = 0
    seen: dict[str, tuple[int, int]] = {}
    try:
        with opened_parquet(table.place, file.path) as parquet:
            names = MESSAGES.columns.names
            missing = [name for name in names if name not in parquet.schema_arrow.names]
            if missing:
                return f"has no column {missing[0]}"
            for batch in parquet.iter_batches(rows_at_once(parquet.metadata), columns=names):
                rows += batch.num_rows
                widen(seen, batch, file.bounds)
                _add(found, batch, wanted)
    except (OSError, pa.ArrowException) as error:
        check_readable(table.place, file.path, error)
        return f"cannot be read as it was written: {line(error)}"
    if rows != file.rows:
        return f"has {rows} rows, and had {file.rows} when it was committed"
    beyond = [name for name, bounds in seen.items() if not is_within(bounds, file.bounds[name])]
    return f"has values of {beyond[0]} that it was not committed with" if beyond else ""


def check_readable(place: Place, path: str, error: Exception) -> None:
    """Raise TableError if the file cannot be read at all, instead of having wrong contents."""
    try:
        with place.files().open_input_stream(path) as stream:
            while stream.read(COPY_BYTES):
                pass
    except (OSError, pa.ArrowException):
        raise TableError(f"{place.location}/{path} cannot be read: {line(error)}") from error


def widen(seen: dict[str, tuple[int, int]], batch: pa.RecordBatch, names: Iterable[str]) -> None:
    """Extend the bounds of some columns with those of a batch."""
    for name in names:
        if name not in batch.schema.names:
            continue
        pair = pc.min_max(batch.column(name).cast(pa.int64())).as_py()
        if pair["min"] is not None:
            low, high = seen.get(name, (pair["min"], pair["max"]))
            seen[name] = (min(low, pair["min"]), max(high, pair["max"]))


def is_within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _add(
    found: dict[int, Counted], batch: pa.RecordBatch, wanted: Mapping[int, WantedRows]
) -> None:
    ledgers, entries = batch.column(LEDGER).to_numpy(), batch.column(ENTRY).to_numpy()
    hashes = None
    for ledger, low, high in runs_of(ledgers):
        if ledger not in wanted:
            continue
        if hashes is None:
            hashes = row_hashes(batch, MESSAGES.columns)
        counted = found.setdefault(ledger, Counted())
        counted.add(entries[low:high], hashes[low:high], wanted[ledger])
