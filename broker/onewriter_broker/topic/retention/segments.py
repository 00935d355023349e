"""The index of a log's ledgers: what each contains, who wrote it, and the hash of its last block.

A *segment* is the part of a ledger that is kept and committed. The index is read from the log, a bounded part
with each request, and kept in memory. Later requests read only what was added. A ledger that was trimmed in
part is read again, so that its numbers match the kept entries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onewriter_broker.log.store.api import Block, Marker, StoredBlock
from onewriter_broker.log.store.blocks import READ_BYTES
from onewriter_broker.log.topic_log.log import TopicLog, stored_bytes
from onewriter_broker.log.topic_log.ranges import READ_BLOCKS_MAX, Range, first_block
from onewriter_broker.topic.history.audit import audited_marker
from onewriter_broker.topic.retention.retention import BlockRun, gather
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, Position

BLOCK_RUNS_PER_SEGMENT_MAX: Final = 16
"""Parts of a segment that are measured separately, so that a planner of reads can split a long segment."""

REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a log that one request reads from the store. The next request continues."""

SEGMENTS_PER_PAGE: Final = 1_000
"""Segments in one answer. The next request continues."""

SEGMENTS_PER_LOG_MAX: Final = 4 * SEGMENTS_PER_PAGE
"""Segments of one log in memory. Beyond it, segments that were already returned are dropped."""

SEGMENTS_MAX: Final = 16_384
"""Segments of all logs in memory. Beyond it, the logs that were requested least recently are dropped."""

LOGS_MAX: Final = 256
"""Logs whose index is in memory."""

PUBLISHERS_MAX: Final = 8
"""Publishers that a segment names. There may have been more."""

READERS_MAX: Final = 2
"""Logs whose index is read at the same time. Other requests wait."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of the indexes of one broker: see the constants. ``read_*``: those of one read (ranges.py)."""

    request_bytes_max: int = REQUEST_BYTES_MAX
    segments_per_page: int = SEGMENTS_PER_PAGE
    segments_per_log_max: int = SEGMENTS_PER_LOG_MAX
    logs_max: int = LOGS_MAX
    read_bytes_max: int = READ_BYTES
    read_blocks_max: int = READ_BLOCKS_MAX

    def range(self, topic_log: TopicLog, start: Position, end: Position) -> Range:
        """The blocks of a log from ``start`` up to ``end``."""
        return Range(
            topic_log,
            start,
            end,
            read_bytes_max=self.read_bytes_max,
            read_blocks_max=self.read_blocks_max,
        )


_REPORTED_FIELDS: Final = ("epoch", "producer", "subject", "cause", "mode")
"""Fields of a marker that the index keeps."""


@dataclass(slots=True)
class Segment:
    """One ledger. ``marker`` has the fields of its marker. None: the marker was trimmed.

    ``first`` and ``last`` are entries. None: it has no entries. Times are those of its blocks.
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
    block_runs: list[BlockRun] = field(default_factory=list)
    publishers: list[str] = field(default_factory=list)
    """The publishers of its atomic publishes (``Block.by``), the first ones first."""
    has_more_publishers: bool = False
    is_whole: bool = False
    """Whether its marker is kept, so that nothing of it was trimmed."""
    _width: int = 1

    @property
    def begins(self) -> Position:
        """The position of its first block."""
        return Position(self.ledger, 0) if self.is_whole or self.first is None else self.first

    @property
    def ends(self) -> Position:
        """The position of its last entry, or of its marker if it has no entries."""
        return self.last or Position(self.ledger, 0)

    def add(self, block: Block) -> None:
        """Add its next block."""
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
        block_run = BlockRun(block.position, 1, entries, size, block.time_ms, messages)
        self._width = gather(self.block_runs, block_run, self._width, BLOCK_RUNS_PER_SEGMENT_MAX)


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """Segments after a position, oldest first.

    ``last``: the commit watermark at the time of the read; a segment of that ledger may grow. ``is_complete``:
    there are no more segments up to ``last``. ``next``: the position after which further segments follow.
    """

    first: Position
    last: Position
    segments: list[Segment]
    is_complete: bool
    next: Position


class LogIndex:
    """The known segments of one log: consecutive ones, up to the position of the next read."""

    def __init__(
        self, topic_log: TopicLog, generation: int, limits: SegmentLimits = SegmentLimits()
    ) -> None:
        self._limits = limits
        self.topic_log = topic_log
        self.generation = generation
        """The dataset that was read. After a failover, its successor may have lost the tail."""
        self.segments: list[Segment] = []
        self.lock = asyncio.Lock()
        self._at = EARLIEST
        self._mending: tuple[Segment, Range] | None = None

    async def page(self, bucket: int, after: Position) -> SegmentPage:
        """The segments that end after ``after``, within the limits of one request.

        The caller holds ``lock``. Raises as Range.read does.
        """
        log, last = self.topic_log, self.topic_log.committed
        first = (await first_block(log)).position
        self._forget_before(first)
        begins = self.segments[0].begins if self.segments else None
        if begins is None or after < begins > first:
            self.segments, self._at = [], max(first, Position(after.ledger, 0))
        # The next request returns what is committed meanwhile, because `last` must not promise more than this
        # page covers.
        limits = self._limits
        rest = limits.range(log, self._at, last.next)
        budget = _Budget(limits.request_bytes_max)
        is_read = await self._mend(budget) and await self._read_on(rest, after, budget)
        found = [segment for segment in self.segments if segment.ends > after]
        if self._mending is not None:
            found = []
        elif not is_read:
            del found[-1:]  # do not return it before it was read completely
        is_cut = len(found) > limits.segments_per_page
        del found[limits.segments_per_page :]
        if found and found[0].marker is None:
            found[0].marker = await audited_marker(log.store, bucket, log.name, found[0].ledger)
        while len(self.segments) > limits.segments_per_log_max and self.segments[0].ends <= after:
            del self.segments[0]
        following = found[-1].ends if found else after
        return SegmentPage(first, last, found, is_read and not is_cut, following)

    def _forget_before(self, first: Position) -> None:
        """Note that the log begins at ``first`` now. A ledger that was trimmed in part has to be read again."""
        while self.segments and self.segments[0].ends < first:
            del self.segments[0]
        if not self.segments or self.segments[0].begins >= first:
            self._mending = None
            return
        part = self.segments[0]
        if self._mending is None or self._mending[0].begins != first:
            end = min(self._at, Position(part.ledger + 1, 0))
            rest = self._limits.range(self.topic_log, first, end)
            self._mending = Segment(part.ledger, part.marker, first), rest

    async def _mend(self, budget: _Budget) -> bool:
        """Read the kept part of the first segment again. Returns whether that is complete."""
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
        """Read the unknown part of the range. Returns whether the whole range was read."""
        while blocks := await budget.read(rest):
            for block in blocks:
                self._add(block)
            self._at = rest.at
            # One more segment than a page is needed, because the last one may be incomplete.
            page = self._limits.segments_per_page
            page_and_more = self.segments[-page - 2 :]
            if len(page_and_more) > page + 1 and page_and_more[0].ends > after:
                return False
        return rest.at >= rest.end

    def _add(self, block: StoredBlock) -> None:
        if isinstance(block, Marker):
            fields = {name: block.fields[name] for name in _REPORTED_FIELDS if name in block.fields}
            self.segments.append(Segment(block.position.ledger, fields, is_whole=True))
            return
        if not self.segments or self.segments[-1].ledger != block.position.ledger:
            self.segments.append(Segment(block.position.ledger))
        self.segments[-1].add(block)


class _Budget:
    """How much of a log one request may still read."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    async def read(self, blocks: Range) -> list[StoredBlock]:
        """The next blocks. Empty at the end of the range, or if the budget is used up."""
        if self._left <= 0:
            return []
        await asyncio.sleep(0)  # a read from memory does not yield to the event loop
        found = await blocks.read()
        # No await follows, because a cancelled caller must not lose the blocks.
        self._left -= sum(map(stored_bytes, found))
        return found


class SegmentIndexes:
    """The indexes of a broker's logs."""

    def __init__(self, limits: SegmentLimits = SegmentLimits()) -> None:
        self._limits = limits
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
            index = LogIndex(topic_log, binding.generation, self._limits)
            self._indexes[name] = index
        self._indexes.move_to_end(name)
        async with index.lock, self._reading:
            page = await index.page(bucket, after)
        self._make_space(index)
        return page

    def _make_space(self, newest: LogIndex) -> None:
        size = sum(len(index.segments) for index in self._indexes.values())
        while len(self._indexes) > self._limits.logs_max or size > SEGMENTS_MAX:
            name, oldest = next(iter(self._indexes.items()))
            if oldest is newest:
                return  # bounded by itself
            size -= len(oldest.segments)
            del self._indexes[name]
