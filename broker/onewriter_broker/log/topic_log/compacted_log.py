"""One log's compacted view on this broker: the current view, its readers, and its entries.

The view that the log's state names becomes current only after a check that the store has all of it, in the
dataset that the log is bound to: a failover may have lost the view, or the log after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from onewriter_broker.log.store.api import Binding
from onewriter_broker.log.store.blocks import READ_BYTES, MalformedBlock
from onewriter_broker.log.store.compacted import CompactedBlock, View, view_of
from onewriter_broker.log.topic_log.entries import EntryRun, runs_after
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import COMPACTED

if TYPE_CHECKING:
    from onewriter_broker.log.topic_log.log import TopicLog

READ_BLOCKS_MAX = 64
"""Largest number of blocks of one read of a view."""

PIECES_PER_TICK = 100
"""Pieces of blocks that are made in one iteration of the event loop: one or two milliseconds. In a view most
entries have no adjacent entry, so each is a separate piece."""

PROBES = 15
"""Blocks whose first positions one step of a search reads."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ViewReading:
    """A reader of a view. The view is kept while it is read, within a bound, even if a newer view is current."""

    view: View
    number: int = 0
    """The block that is read next, if the reader continues at ``after``."""
    after: Position = EARLIEST
    largest: int = 0
    """Bytes of the largest block of the last read; 0: nothing was read yet."""
    is_retired: bool = False
    """The view is being dropped: results of later reads are invalid."""


@dataclass(slots=True, eq=False)
class CompactedLog:
    """See the module."""

    log: TopicLog
    is_wanted: bool = False
    """Compaction is on: entries after the horizon are kept until they are compacted."""
    is_running: bool = False
    """A compaction reads the log now."""
    is_waited_for: bool = False
    """Retention would drop entries that are not compacted yet."""
    _checked: tuple[Binding, str] | None = None
    _readings: list[ViewReading] = field(default_factory=list)
    _horizon: tuple[str, Position] = ("", EARLIEST)

    @property
    def horizon(self) -> Position:
        """The position up to which the current view represents the log; EARLIEST if there is no view."""
        text = self.log.state.get(COMPACTED, "")
        if text != self._horizon[0]:
            view = view_of(self.log.state)
            self._horizon = (text, EARLIEST if view is None else view.horizon)
        return self._horizon[1]

    def trim_limit(self, limit: Position) -> Position:
        """Like ``limit``, but keeps the entries that no view has yet, while the log is compacted.

        A view that is no longer renewed keeps nothing: otherwise the log would grow without bound.
        """
        if not (self.is_wanted or self.is_running):
            return limit
        horizon = self.horizon
        if horizon == EARLIEST:
            return EARLIEST
        return min(limit, Position(horizon.ledger, horizon.entry + 1))

    async def view(self) -> View | None:
        """The current view, checked for completeness; None if there is none. Raises Undecided."""
        binding, text = self.log.binding, self.log.state.get(COMPACTED, "")
        if binding is None:
            raise Undecided(f"{self.log.name} is not open here")
        if self._checked != (binding, text):
            text = await self._check(binding, text)
            if self.log.binding != binding:
                raise Undecided(f"{self.log.name} is reconnecting to the store")
            self._checked = (binding, text)
        return view_of(self.log.state)

    async def _check(self, binding: Binding, text: str) -> str:
        """Update the state in memory to the view that the store has, and return its text."""
        store, name = self.log.store.compacted, self.log.name
        stored = await store.named(name, replid=binding.replid)
        view = view_of({COMPACTED: stored})
        if view is not None:
            extent = await store.extent(name, view.slot, replid=binding.replid)
            if not extent.is_whole(view):
                log.error("compacted.damaged", topic=str(name), horizon=str(view.horizon))
                view = None
        if self.log.state.get(COMPACTED, "") != text:  # a compaction has ended meanwhile
            return text
        if view is None:
            self.log.note_state({}, [COMPACTED])
            return ""
        self.log.note_state({COMPACTED: stored})
        return stored

    # ------------------------------------------------------------ reading

    async def begin(self, after: Position) -> ViewReading | None:
        """Begin to read the view after the position ``after``; None if no view covers it.

        End it with ``end``. Raises Undecided.
        """
        view = await self.view()
        if view is None or after >= view.horizon:
            return None
        reading = ViewReading(view)
        self._readings.append(reading)
        return reading

    def end(self, reading: ViewReading) -> None:
        """End a read."""
        if reading in self._readings:
            self._readings.remove(reading)

    def is_read(self, view: View) -> bool:
        """Whether this view still has a reader."""
        return any(reading.view == view for reading in self._readings)

    def retire(self, view: View) -> None:
        """The view is about to be dropped: its readers continue with the current view."""
        for reading in [reading for reading in self._readings if reading.view == view]:
            reading.is_retired = True
            self._readings.remove(reading)

    async def read(
        self, reading: ViewReading, after: Position, entries_max: int, bytes_max: int
    ) -> list[EntryRun] | None:
        """Entries of the view after ``after``; empty at its end, None if the view is retired.

        Limits as in ``runs_after``. Raises Undecided if the store does not answer, and
        MalformedBlock.
        """
        view = reading.view
        if reading.after != after:
            reading.number = await self._find(view, after)
            reading.after = after
        while reading.number < view.blocks and not reading.is_retired:
            count = max(1, min(READ_BLOCKS_MAX, READ_BYTES // max(reading.largest, 64 * 1024)))
            blocks = await self.read_blocks(view, reading.number, count)
            if reading.is_retired:
                break
            if not blocks:
                raise MalformedBlock(f"{self.log.name}: block {reading.number} of a view is gone")
            reading.largest = max(len(block.payload) for block in blocks)
            found = await _runs(blocks, after, view.horizon, entries_max, bytes_max)
            if reading.is_retired:
                break
            if found:
                reached = found[-1].last
                reading.number += sum(block.last <= reached for block in blocks)
                reading.after = reached
                return found
            reading.number += len(blocks)
        return None if reading.is_retired else []

    async def last(self, view: View) -> CompactedBlock | None:
        """The last block of a view; None if the view is empty. Raises Undecided and MalformedBlock."""
        if view.blocks == 0:
            return None
        blocks = await self.read_blocks(view, view.blocks - 1, 1)
        if not blocks:
            raise MalformedBlock(f"{self.log.name}: the last block of a view is gone")
        return blocks[0]

    async def read_blocks(self, view: View, first: int, count: int) -> list[CompactedBlock]:
        """Blocks of a view from a number on, from the dataset that the log is bound to."""
        count = min(count, view.blocks - first)
        return await self.log.store.compacted.read(
            self.log.name, view.slot, first, count, replid=self._replid
        )

    async def _find(self, view: View, after: Position) -> int:
        """The last block that begins at or before the position after ``after``."""
        low, high = 0, view.blocks - 1
        if after == EARLIEST or high <= 0:
            return 0
        while low < high:
            step = max(1, (high - low) // (PROBES + 1))
            numbers = list(range(low + step, high + 1, step))[: PROBES + 1]
            places = await self.log.store.compacted.places(
                self.log.name, view.slot, numbers, replid=self._replid
            )
            reached = [
                number for number, place in zip(numbers, places, strict=True) if place <= after
            ]
            beyond = [
                number for number, place in zip(numbers, places, strict=True) if place > after
            ]
            low = reached[-1] if reached else low
            high = beyond[0] - 1 if beyond else high
        return low

    @property
    def _replid(self) -> str:
        return "" if self.log.binding is None else self.log.binding.replid


async def _runs(
    blocks: Iterable[CompactedBlock],
    after: Position,
    horizon: Position,
    entries_max: int,
    bytes_max: int,
    *,
    pieces_per_tick: int = PIECES_PER_TICK,
) -> list[EntryRun]:
    """Like ``runs_after``, in steps; makes only the pieces that are read."""
    pieces = (piece for block in blocks for piece in block.pieces())
    found: list[EntryRun] = []
    while some := list(islice(pieces, pieces_per_tick)):
        runs = runs_after(some, after, horizon, entries_max, bytes_max)
        found += runs
        entries_max -= sum(map(len, runs))
        bytes_max -= sum(run.size for run in runs)
        if entries_max <= 0 or bytes_max <= 0:
            break
        await asyncio.sleep(0)
    return found
