"""Whether the tables hold what a log holds: numbers of the broker against those of the files. Pure at heart.

Files are read, not only their statistics: a file that is gone, or has other rows than were committed, shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from onewriter_pipeline.broker import Segment
from onewriter_pipeline.errors import TableError
from onewriter_pipeline.schema import ENTRY, LEDGER
from onewriter_pipeline.table import Table
from onewriter_pipeline.table_layout import TOPIC_PARTITION, TableFile, folder_of

READ_ROWS: Final = 1024 * 1024
"""Rows that are counted at once."""

DIFFERENCES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Counted:
    """What the files have of the entries [first, last] of a ledger; ``entries``: different ones.

    ``at`` is the entry that was counted last, which may go on in the next rows.
    """

    rows: int = 0
    entries: int = 0
    first: int = 0
    last: int = 0
    at: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same in the log and in the table."""

    log: str
    ledger: int
    what: str
    in_log: int
    in_table: int

    def __str__(self) -> str:
        return (
            f"{self.log} ledger {self.ledger}: {self.what} are {self.in_table} in the table,"
            f" {self.in_log} in the log"
        )


def differences(
    log: str, segment: Segment, rows: Sequence[Mapping[str, Any]], counted: Counted
) -> list[Difference]:
    """What is not the same of a segment that is all offloaded.

    ``rows``: those of the table ``segments`` for its ledger; ``counted``: of the files, between its first
    and its last entry. Messages are compared where each became a row; those that came in chunks, or
    that their client had compacted away, make fewer rows, and what was written is compared instead.
    """
    if segment.first is None or segment.last is None:
        return []
    first, last = segment.first.entry, segment.last.entry
    found = []

    def compare(what: str, in_log: int, in_table: int) -> None:
        if in_log != in_table:
            found.append(Difference(log, segment.ledger, what, in_log, in_table))

    compare("entries offloaded", segment.entries, _offloaded(rows, first, last + 1))
    inside = [row for row in rows if row["end"] > first and row["first"] <= last and row["entries"]]
    is_plain = all(row["rows"] == row["messages"] for row in inside)
    if is_plain:
        compare("messages", segment.messages, counted.rows)
        compare("entries", segment.entries, counted.entries)
        compare("first entries", first, counted.first)
        compare("last entries", last, counted.last)
    elif all(row["first"] >= first and row["end"] <= last + 1 for row in inside):
        compare("messages", segment.messages, sum(row["messages"] for row in inside))
        compare("rows", sum(row["rows"] for row in inside), counted.rows)
    return found


def _offloaded(rows: Iterable[Mapping[str, Any]], first: int, end: int) -> int:
    """How many entries of [first, end) were offloaded, each counted once."""
    total, at = 0, first
    for begin, behind in sorted((row["first"], row["end"]) for row in rows):
        low, high = max(begin, at), min(behind, end)
        if low < high:
            total += high - low
            at = high
    return total


def count(table: Table, log: str, wanted: Mapping[int, tuple[int, int]]) -> dict[int, Counted]:
    """Count what the files have of some ledgers of a log, from a first to a last entry each.

    Raises TableError for files that are gone or cannot be read.
    """
    if not wanted:
        return {}
    found: dict[int, Counted] = {}
    for file in files_of(table, log, min(wanted), max(wanted)):
        for batch in _positions(table, file):
            _add(found, batch, wanted)
    return found


def files_of(table: Table, log: str, first_ledger: int, last_ledger: int) -> list[TableFile]:
    """The files that may hold messages of some ledgers of a log, in the log's order."""
    folder = folder_of(log)
    found = []
    for file in table.files():
        low, high = file.bounds.get(LEDGER, (first_ledger, last_ledger))
        of_log = file.partition.get(TOPIC_PARTITION) == folder
        if of_log and low <= last_ledger and high >= first_ledger:
            found.append(file)
    return sorted(found, key=lambda file: (file.bounds.get(LEDGER), file.bounds.get(ENTRY)))


def _positions(table: Table, file: TableFile) -> Iterable[pa.RecordBatch]:
    try:
        parquet = pq.ParquetFile(file.path, filesystem=table.place.files())
        yield from parquet.iter_batches(READ_ROWS, columns=[LEDGER, ENTRY])
    except (OSError, pa.ArrowException) as error:
        raise TableError(
            f"{table.place.location}/{file.path} cannot be read: {str(error).splitlines()[0]}"
        ) from error


def _add(
    found: dict[int, Counted], batch: pa.RecordBatch, wanted: Mapping[int, tuple[int, int]]
) -> None:
    ledgers = batch.column(LEDGER)
    for ledger in pc.unique(ledgers).to_pylist():
        if ledger not in wanted:
            continue
        first, last = wanted[ledger]
        entries = batch.column(ENTRY).filter(pc.equal(ledgers, ledger)).to_numpy()
        entries = entries[(entries >= first) & (entries <= last)]
        if len(entries):
            found[ledger] = _joined(found.get(ledger), entries)


def _joined(before: Counted | None, entries: NDArray[np.int64]) -> Counted:
    """Entries, in the order of a file, behind what was counted; one cut between two batches counts once."""
    low, high, at = int(entries.min()), int(entries.max()), int(entries[-1])
    different = 1 + int(np.count_nonzero(np.diff(entries)))
    if before is None:
        return Counted(len(entries), different, low, high, at)
    different -= 1 if int(entries[0]) == before.at else 0
    return Counted(
        before.rows + len(entries),
        before.entries + different,
        min(low, before.first),
        max(high, before.last),
        at,
    )
