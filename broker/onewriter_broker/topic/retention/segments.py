"""The index of a log's ledgers: what each holds, by whom it was written, how its blocks are chained.

A *segment* is a ledger as far as it is kept and committed. The index is read from the log, a bounded
part with each request, and kept in memory; of what was added since only that is read. A ledger that
was trimmed in part is read anew, so that its numbers are those of what is there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_broker.log.topic_log.log import TopicLog, stored_bytes
from onewriter_broker.log.topic_log.ranges import Range, behind, first_block
from onewriter_broker.topic.history.audit import audited_marker
from onewriter_broker.topic.retention.retention import Stretch, gather
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, Position

STRETCHES_PER_SEGMENT_MAX: Final = 16
"""Parts of a segment that are measured apart, so that a long one can be split by who plans reads."""

REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a log that one request reads from the store; the next one goes on."""

SEGMENTS_PER_PAGE: Final = 1_000

SEGMENTS_PER_LOG_MAX: Final = 4 * SEGMENTS_PER_PAGE
"""Segments of one log that are kept; of more, those that were told go."""

SEGMENTS_MAX: Final = 16_384
"""Segments kept in memory, of all logs; of more, the logs that nobody asked about for longest go."""

LOGS_MAX: Final = 256
"""Logs whose index is kept."""

PUBLISHERS_MAX: Final = 8
"""Publishers that a segment names; there may have been more."""

READERS_MAX: Final = 2
"""Logs that are read for their index at the same time; the others wait."""

_TOLD: Final = ("epoch", "producer", "subject", "cause", "mode")
"""What is kept of a marker."""


@dataclass(slots=True)
class Segment:
    """One ledger. ``marker`` is what its marker says of whose it is, None: the marker was trimmed.

    ``first`` and ``last`` are entries, None while it has none. Times are those of its blocks.
    """

    ledger: int
    marker: Mapping[str, str] | None = None
    first: Position | None = None
    last: Position | None = None
    chain: bytes = b""
    """The hash of its last block."""
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    blocks: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    publishers: list[str] = field(default_factory=list)
    """Who published to it atomically (``Block.by``), the first ones first."""
    has_more_publishers: bool = False
    is_whole: bool = False
    """Its marker is there: nothing of it was trimmed."""
    _width: int = 1

    @property
    def begins(self) -> Position:
        """Its first block."""
        return Position(self.ledger, 0) if self.is_whole or self.first is None else self.first

    @property
    def ends(self) -> Position:
        """Its last entry, or its marker where it has none."""
        return self.last or Position(self.ledger, 0)

    def add(self, block: Block) -> None:
        """Its next block."""
        size, entries = len(block.payload), len(block.lengths)
        if not self.blocks:
            self.first, self.oldest_ms = block.position, block.time_ms
        self.last, self.chain = block.last, block.chain
        self.entries += entries
        messages = entries if block.counts is None else sum(block.counts)
        self.messages += messages
        if block.by and block.by not in self.publishers:
            if len(self.publishers) < PUBLISHERS_MAX:
                self.publishers.append(block.by)
            else:
                self.has_more_publishers = True
        self.bytes += size
        self.blocks += 1
        self.oldest_ms = min(self.oldest_ms, block.time_ms)
        self.newest_ms = max(self.newest_ms, block.time_ms)
        stretch = Stretch(block.position, 1, entries, size, block.time_ms, messages)
        self._width = gather(self.stretches, stretch, self._width, STRETCHES_PER_SEGMENT_MAX)


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """Segments behind a position, oldest first.

    ``last``: how far the log was committed when this was read; a segment of that ledger may grow.
    ``is_complete``: there are no more up to there. ``next``: the position behind which the others are.
    """

    first: Position
    last: Position
    segments: list[Segment]
    is_complete: bool
    next: Position


class LogIndex:
    """The segments of one log, as far as they are known: consecutive ones, up to what is read next."""

    def __init__(self, topic_log: TopicLog, generation: int) -> None:
        self.topic_log = topic_log
        self.generation = generation
        """The dataset that was read: after a failover its successor may have lost the tail."""
        self.segments: list[Segment] = []
        self.lock = asyncio.Lock()
        self._at = EARLIEST
        self._mending: tuple[Segment, Range] | None = None

    async def page(self, bucket: int, after: Position) -> SegmentPage:
        """The segments that end behind ``after``, as many as one request may read and tell.

        The caller holds ``lock``. Raises as Range.read does.
        """
        log, last = self.topic_log, self.topic_log.committed
        first = (await first_block(log)).position
        self._forget_before(first)
        begins = self.segments[0].begins if self.segments else None
        if begins is None or after < begins > first:
            self.segments, self._at = [], max(first, Position(after.ledger, 0))
        # What is committed meanwhile is told by the next request: `last` must not promise more than this.
        rest, budget = Range(log, self._at, behind(last)), _Budget()
        is_read = await self._mend(budget) and await self._read_on(rest, after, budget)
        found = [segment for segment in self.segments if segment.ends > after]
        if self._mending is not None:
            found = []
        elif not is_read:
            del found[-1:]  # not to be told before all of it was read
        is_cut = len(found) > SEGMENTS_PER_PAGE
        del found[SEGMENTS_PER_PAGE:]
        if found and found[0].marker is None:
            found[0].marker = await audited_marker(log.store, bucket, log.name, found[0].ledger)
        while len(self.segments) > SEGMENTS_PER_LOG_MAX and self.segments[0].ends <= after:
            del self.segments[0]
        following = found[-1].ends if found else after
        return SegmentPage(first, last, found, is_read and not is_cut, following)

    def _forget_before(self, first: Position) -> None:
        """The log begins at ``first`` now; a ledger that went in part is to be read anew."""
        while self.segments and self.segments[0].ends < first:
            del self.segments[0]
        if not self.segments or self.segments[0].begins >= first:
            self._mending = None
            return
        part = self.segments[0]
        if self._mending is None or self._mending[0].begins != first:
            rest = Range(self.topic_log, first, min(self._at, Position(part.ledger + 1, 0)))
            self._mending = Segment(part.ledger, part.marker, first), rest

    async def _mend(self, budget: _Budget) -> bool:
        """Read anew what is left of the first segment; whether that is done."""
        if self._mending is None:
            return True
        segment, rest = self._mending
        while blocks := await budget.read(rest):
            for block in blocks:
                if isinstance(block, Block):
                    segment.add(block)
        if rest.at < rest.end:
            return False
        self.segments[0], self._mending = segment, None
        return True

    async def _read_on(self, rest: Range, after: Position, budget: _Budget) -> bool:
        """Read what is not known yet; whether that is all of the range."""
        while blocks := await budget.read(rest):
            for block in blocks:
                self._add(block)
            self._at = rest.at
            # The last one may not be all there yet, so one more than a page tells.
            page_and_more = self.segments[-SEGMENTS_PER_PAGE - 2 :]
            if len(page_and_more) > SEGMENTS_PER_PAGE + 1 and page_and_more[0].ends > after:
                return False
        return rest.at >= rest.end

    def _add(self, block: StoredBlock) -> None:
        if isinstance(block, Marker):
            told = {name: block.fields[name] for name in _TOLD if name in block.fields}
            self.segments.append(Segment(block.position.ledger, told, is_whole=True))
            return
        if not self.segments or self.segments[-1].ledger != block.position.ledger:
            self.segments.append(Segment(block.position.ledger))
        self.segments[-1].add(block)


class _Budget:
    """How much of a log one request may still read."""

    def __init__(self) -> None:
        self._left = REQUEST_BYTES_MAX

    async def read(self, blocks: Range) -> list[StoredBlock]:
        """The next blocks; empty at the range's end, or when nothing is left of the budget."""
        if self._left <= 0:
            return []
        await asyncio.sleep(0)  # what is read out of memory waits for nothing
        found = await blocks.read()  # and no wait behind it: who is cancelled must not lose them
        self._left -= sum(map(stored_bytes, found))
        return found


class SegmentIndexes:
    """The indexes of a broker's logs."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[str, LogIndex] = OrderedDict()
        self._reading = asyncio.Semaphore(READERS_MAX)

    async def page(self, topic_log: TopicLog, bucket: int, after: Position) -> SegmentPage:
        """A page of one log's segments (LogIndex.page). Raises Unavailable, Undecided, MalformedBlock."""
        binding = topic_log.binding
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        name = str(topic_log.name)
        index = self._indexes.get(name)
        if (
            index is None
            or index.topic_log is not topic_log
            or index.generation != binding.generation
        ):
            index = self._indexes[name] = LogIndex(topic_log, binding.generation)
        self._indexes.move_to_end(name)
        async with index.lock, self._reading:
            page = await index.page(bucket, after)
        self._make_room(index)
        return page

    def _make_room(self, newest: LogIndex) -> None:
        size = sum(len(index.segments) for index in self._indexes.values())
        while len(self._indexes) > LOGS_MAX or size > SEGMENTS_MAX:
            name, oldest = next(iter(self._indexes.items()))
            if oldest is newest:
                return  # bounded by itself
            size -= len(oldest.segments)
            del self._indexes[name]
