"""Entries that are read: runs of entries, which are split only if necessary.

Most entries are written to a socket exactly as their block contains them. The cost of a run does not depend on its
number of entries; an Entry object for each would take a third of the time of a catch-up read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_core.ids import Position


class Entry(NamedTuple):
    """One stored SEND for dispatch; ``messages`` is the number of permits that it costs."""

    position: Position
    payload: memoryview
    messages: int


@dataclass(frozen=True, slots=True, eq=False)
class EntryRun:
    """Consecutive entries of one block, at least one: those from ``start`` up to ``stop``.

    ``ends`` contains the end of each entry of the block in the block's payload.
    """

    block: Block
    ends: list[int]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def position(self) -> Position:
        """The first entry's position."""
        ledger, first = self.block.position
        return Position(ledger, first + self.start)

    @property
    def last(self) -> Position:
        """The last entry's position."""
        ledger, first = self.block.position
        return Position(ledger, first + self.stop - 1)

    @property
    def size(self) -> int:
        """The entries' bytes."""
        return self.ends[self.stop - 1] - self.offset

    @property
    def messages(self) -> int:
        """The number of permits that they cost."""
        counts = self.block.counts
        return len(self) if counts is None else sum(counts[self.start : self.stop])

    @property
    def payload(self) -> memoryview:
        """The concatenated bytes of the entries."""
        return memoryview(self.block.payload)[self.offset : self.ends[self.stop - 1]]

    @property
    def lengths(self) -> Sequence[int]:
        """The bytes of each entry."""
        return self.block.lengths[self.start : self.stop]

    @property
    def offset(self) -> int:
        """The start of the first entry in the block's payload."""
        return self.ends[self.start - 1] if self.start else 0

    def costs(self) -> Iterator[tuple[Position, int]]:
        """Each entry's position and number of permits."""
        ledger, first = self.block.position
        counts = self.block.counts
        for index in range(self.start, self.stop):
            yield Position(ledger, first + index), 1 if counts is None else counts[index]

    def entries(self) -> Iterator[Entry]:
        """The entries one by one."""
        view, offset = memoryview(self.block.payload), self.offset
        for (position, messages), end in zip(
            self.costs(), self.ends[self.start : self.stop], strict=True
        ):
            yield Entry(position, view[offset:end], messages)
            offset = end

    def fitting(self, messages_max: int, bytes_max: int) -> int:
        """The number of entries until a limit is reached, or exceeded by the last of them."""
        counts = self.block.counts
        by_bytes = bisect_left(self.ends, self.offset + bytes_max, self.start, self.stop)
        if counts is None:
            by_messages = messages_max
        else:
            totals = list(accumulate(counts[self.start : self.stop]))
            by_messages = bisect_left(totals, messages_max) + 1
        return max(1, min(len(self), by_bytes - self.start + 1, by_messages))

    def split(self, count: int) -> tuple[EntryRun, EntryRun]:
        """Split the run after ``count`` entries, which are fewer than all."""
        middle = self.start + count
        return (
            EntryRun(self.block, self.ends, self.start, middle),
            EntryRun(self.block, self.ends, middle, self.stop),
        )


def entries_of(runs: Iterable[EntryRun]) -> list[Entry]:
    """The entries of runs one by one."""
    return [entry for run in runs for entry in run.entries()]


def runs_after(
    blocks: Iterable[StoredBlock],
    after: Position,
    committed: Position,
    entries_max: int,
    bytes_max: int,
) -> list[EntryRun]:
    """The committed entries of consecutive blocks after ``after``.

    Returns at least one entry if there is one, at most ``entries_max``, and no further block once
    ``bytes_max`` is reached: a whole block is in memory, and the rest of it would be read again.
    """
    found: list[EntryRun] = []
    size = entries = 0
    for block in blocks:
        if isinstance(block, Marker) or block.last <= after:
            continue
        if block.position > committed or (found and (size >= bytes_max or entries >= entries_max)):
            break
        ledger, first = block.position
        start = max(0, after.entry + 1 - first) if after.ledger == ledger else 0
        stop = min(len(block.lengths), start + max(1, entries_max - entries))
        run = EntryRun(block, list(accumulate(block.lengths)), start, stop)
        found.append(run)
        size += run.size
        entries += len(run)
    return found
