"""Compares tables with a log: the broker's index, the record of the offload, and the rows that are read back. Pure.

Three comparisons are made for each ledger. The log's hash must be the one that was read. The number of entries and
messages must show that everything was offloaded. And the rows in the files, read back with all columns
(``read_back``), must have the digest that was recorded, so changed values are detected like lost rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onewriter_pipeline.brokers.segments import Segment
from onewriter_pipeline.tables.digest import DIGESTS, runs_of, shown, total
from onewriter_pipeline.tables.layout import SegmentRow

DIFFERENCES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Noted:
    """What a row of ``segments`` records about entries [first, end) of a ledger."""

    first: int
    end: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class WantedRows:
    """What to read back of a ledger: entries [first, last], and the records that overlap them."""

    first: int
    last: int
    noted: tuple[Noted, ...]

    @classmethod
    def of(cls, segment: Segment, rows: Iterable[SegmentRow]) -> WantedRows | None:
        """From a segment, and the rows of ``segments`` for its ledger; None: the segment has no entries."""
        if segment.first is None or segment.last is None:
            return None
        first, last = segment.first.entry, segment.last.entry
        inside = (row for row in rows if row.end > first and row.first <= last)
        noted = (Noted(row.first, row.end, row.rows, row.digest) for row in inside)
        in_order = sorted((each for each in noted if each.end > each.first), key=_begins)
        return cls(first, last, tuple(in_order))


def _begins(noted: Noted) -> int:
    return noted.first


@dataclass(slots=True)
class Counted:
    """What the files have of the entries [first, last] of a ledger; ``entries``: number of distinct entries.

    ``at`` is the last counted entry, which may continue in the next rows. ``written``: rows and digest of each
    record, by its first entry.
    """

    rows: int = 0
    entries: int = 0
    first: int = 0
    last: int = 0
    at: int = 0
    written: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(
        self, entries: NDArray[np.int64], hashes: NDArray[np.uint64], wanted: WantedRows
    ) -> None:
        """Add rows in the order of a file: their entries and their hashes."""
        self._count(entries[(entries >= wanted.first) & (entries <= wanted.last)])
        firsts = np.array([each.first for each in wanted.noted], np.int64)
        which = np.searchsorted(firsts, entries, "right") - 1
        for number, begin, end in runs_of(which):
            if number >= 0:  # no record covers rows before the first one
                at = wanted.noted[number].first
                rows, digest = self.written.get(at, (0, 0))
                digest = (digest + total(hashes[begin:end])) % DIGESTS
                self.written[at] = rows + end - begin, digest

    def _count(self, entries: NDArray[np.int64]) -> None:
        """Count entries after those counted so far. An entry that is divided between two batches counts once."""
        if not len(entries):
            return
        low, high = int(entries.min()), int(entries.max())
        different = 1 + int(np.count_nonzero(np.diff(entries)))
        if self.rows:
            different -= 1 if int(entries[0]) == self.at else 0
            low, high = min(low, self.first), max(high, self.last)
        self.rows += len(entries)
        self.entries += different
        self.first, self.last, self.at = low, high, int(entries[-1])


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the table and the log, or between the table and the record of the offload."""

    log: str
    ledger: int
    what: str
    in_log: int | str
    in_table: int | str

    def __str__(self) -> str:
        return (
            f"{self.log} ledger {self.ledger}: {self.what} are {self.in_table} in the table,"
            f" {self.in_log} in the log"
        )


def differences(
    log: str, segment: Segment, rows: Sequence[SegmentRow], counted: Counted
) -> list[Difference]:
    """The differences of a completely offloaded segment.

    ``rows``: the rows of ``segments`` for its ledger; ``counted``: the counts of the files. Numbers of messages are
    compared with the log if each message became a row. Messages that came in chunks, or that their client
    compacted, make fewer rows. The record of the offload is always compared.
    """
    wanted = WantedRows.of(segment, rows)
    if wanted is None:
        return []
    first, last = wanted.first, wanted.last
    found = []

    def compare(what: str, in_log: int | str, in_table: int | str) -> None:
        if in_log != in_table:
            found.append(Difference(log, segment.ledger, what, in_log, in_table))

    compare("entries offloaded", segment.entries, _offloaded(rows, first, last + 1))
    compare("hashes", segment.chain or "", _chain(rows, last + 1))
    inside = [row for row in rows if row.end > first and row.first <= last and row.entries]
    if all(row.rows == row.messages for row in inside):
        compare("messages", segment.messages, counted.rows)
        compare("entries", segment.entries, counted.entries)
        compare("first entries", first, counted.first)
        compare("last entries", last, counted.last)
    elif all(row.first >= first and row.end <= last + 1 for row in inside):
        compare("messages", segment.messages, sum(row.messages for row in inside))
    return found + list(_unlike(log, segment.ledger, wanted, counted))


def _unlike(log: str, ledger: int, wanted: WantedRows, counted: Counted) -> Iterator[Difference]:
    """Differences between the files and the record of the offload."""
    for noted in wanted.noted:
        rows, digest = counted.written.get(noted.first, (0, 0))
        where = f"entries {noted.first} to {noted.end - 1}"
        if rows != noted.rows:
            yield Difference(log, ledger, f"rows of {where}", noted.rows, rows)
        elif shown(digest) != noted.digest:
            yield Difference(log, ledger, f"contents of {where}", noted.digest, shown(digest))


def _chain(rows: Iterable[SegmentRow], end: int) -> str:
    """The hash of the block that ends before an entry, as the offload read it; empty: unknown."""
    return next((row.chain for row in rows if row.end == end and row.chain), "")


def _offloaded(rows: Iterable[SegmentRow], first: int, end: int) -> int:
    """How many entries of [first, end) were offloaded, each counted once."""
    covered, at = 0, first
    for begin, behind in sorted((row.first, row.end) for row in rows):
        low, high = max(begin, at), min(behind, end)
        if low < high:
            covered += high - low
            at = high
    return covered
