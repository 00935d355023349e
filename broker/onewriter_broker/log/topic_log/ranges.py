"""Committed blocks of one log between two positions, read in parts.

For readers of large parts of a log that need no cursor: bulk readers, the index of its ledgers. The result is
complete: a gap in the log raises EntriesMissing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from onewriter_broker.log.store.api import Block, StoredBlock
from onewriter_broker.log.store.blocks import READ_BYTES, MalformedBlock
from onewriter_broker.log.topic_log.log import TopicLog, last_position, stored_bytes
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import LEDGER_ENDS, TRIMMED
from onewriter_core.log_format.limits import BLOCK_BYTES_MAX

READ_BLOCKS_MAX = 32
"""Largest number of blocks of one read: 8 MiB if small blocks are followed by full ones."""


_NOTHING: Mapping[int, Position] = MappingProxyType({})


class EntriesMissing(Undecided):
    """The log has no entry at a position at which it must have one.

    The entry was trimmed meanwhile, or the store lost it. ``requested``: everything before it was read;
    ``found``: the position at which the log continues.
    """

    def __init__(self, requested: Position, found: Position) -> None:
        super().__init__(f"there is no entry at {requested}: the log continues at {found}")
        self.requested = requested
        self.found = found


def leaves_hole(at: Position, found: Position) -> bool:
    """Whether an entry is certainly missing between ``at`` and the next block that was found.

    The end of a ledger is not marked, so a marker of a higher ledger does not prove that nothing is missing before it.
    """
    if found <= at:
        return False
    if found.ledger == at.ledger:
        return found != at.next or at.entry > 0  # a ledger's marker may be gone, alone
    return found.entry > 0


def is_gone(
    requested: Position,
    first: Position,
    trimmed: Position,
    ends: Sequence[Position],
    noted: Mapping[int, Position] = _NOTHING,
) -> bool:
    """Whether an entry at ``requested`` or after it may have been removed.

    ``first`` is the first block that is kept, ``trimmed`` the position before which the log was trimmed,
    ``ends`` the known last entries of ledgers without a gap between them, ``noted`` the last entries
    before some ledgers.
    """
    if requested >= first or (requested.entry == 0 and first == requested.next):
        return False  # of a ledger's beginning the marker may be gone, alone
    if _is_nothing_between(requested, first, noted):
        return False
    if any(requested <= end < first for end in noted.values()):
        return True
    if first.entry != 0:
        return True  # the first ledger that is left lacks its beginning
    if requested >= trimmed:
        return False
    read = max((end for end in ends if end < requested), default=None)
    if read is None or read.ledger != requested.ledger:
        return True
    return any(read < end < first for end in ends)


def trimmed_of(topic_log: TopicLog) -> Position:
    """The position before which a log was or may have been trimmed; EARLIEST if it was not."""
    text = topic_log.state.get(TRIMMED)
    return EARLIEST if text is None else Position.parse(text)


def _is_nothing_between(
    requested: Position, found: Position, noted: Mapping[int, Position]
) -> bool:
    """Whether certainly only markers were ever between these two positions."""
    return any(end < requested and found <= (ledger, 1) for ledger, end in noted.items())


def noted_ends(topic_log: TopicLog) -> dict[int, Position]:
    """The last entries before some ledgers, as recorded when the log was trimmed there."""
    pairs = (pair.split(" ") for pair in topic_log.state.get(LEDGER_ENDS, "").split(",") if pair)
    return {int(ledger): Position.parse(end) for ledger, end in pairs}


def lacks(topic_log: TopicLog, requested: Position, first: Position) -> bool:
    """Whether entries may have been removed (``is_gone``) from a log that begins at ``first``."""
    return is_gone(requested, first, trimmed_of(topic_log), topic_log.ends, noted_ends(topic_log))


class Range:
    """The committed blocks of [start, end) at the time of the call.

    ``at``: everything before it has been returned. Only one task may read at a time. ``is_stored``: blocks are read
    from the store only, also those that are in memory.
    """

    __slots__ = (
        *("_blocks_max", "_bytes_max", "_careful", "_is_stored", "_largest", "_log"),
        *("at", "end"),
    )

    def __init__(
        self,
        topic_log: TopicLog,
        start: Position,
        end: Position | None = None,
        *,
        read_bytes_max: int = READ_BYTES,
        read_blocks_max: int = READ_BLOCKS_MAX,
        is_stored: bool = False,
    ) -> None:
        self._is_stored = is_stored
        self._bytes_max = read_bytes_max
        self._blocks_max = read_blocks_max
        committed = topic_log.committed.next
        self._log = topic_log
        self._largest = BLOCK_BYTES_MAX
        self._careful = 0
        self.at = start
        self.end = committed if end is None else min(end, committed)

    async def read(self) -> list[StoredBlock]:
        """The next whole blocks; empty if there are no more.

        The first block may begin before the range, and the last one may end after it. Raises EntriesMissing,
        MalformedBlock (everything before that block was returned), Unavailable if this broker no longer
        serves the log, Undecided if the store does not answer.
        """
        if self.at >= self.end:
            return []
        if self._log.is_closed:
            raise Unavailable(f"{self._log.name} is moving to another broker")
        blocks = await self._next()
        if not blocks:
            await self._check_empty()
            self.at = self.end
            return []
        for block in blocks:
            if self._leaves_hole(block.position):
                raise EntriesMissing(self.at, block.position)
            self.at = last_position(block).next
        self._largest = max(map(stored_bytes, blocks))
        return blocks

    async def _next(self) -> list[StoredBlock]:
        remembered = [] if self._is_stored else self._remembered()
        if remembered:
            return [await self._with_fields(block) for block in remembered]
        last = min(self.end.previous, self._log.committed)
        count = max(1, min(self._blocks_max, self._bytes_max // self._largest))
        if self._careful > 0:
            self._careful -= 1
            count = 1
        try:
            blocks = await self._log.read_blocks(self.at, last, count=count)
        except MalformedBlock:
            if count == 1:
                raise
            self._careful = count  # return the blocks before the damaged one, one by one
            return await self._next()
        if not blocks or blocks[0].position != self.at:
            holding = await self._log.read_blocks(
                Position(self.at.ledger, 0), self.at, count=1, reverse=True
            )
            blocks[:0] = [block for block in holding if last_position(block) >= self.at]
        return blocks

    async def _check_empty(self) -> None:
        """No block was found up to the end: raises EntriesMissing if one may have been removed."""
        log = self._log
        following = await log.read_blocks(self.at, log.committed, count=1)
        if following:
            found = following[0].position
        elif log.committed.entry > 0:
            found = log.committed.next
        else:
            return  # nothing was ever there, but a marker perhaps, which may go alone
        if (
            self._leaves_hole(found)
            or lacks(log, self.at, found)
            or any(self.at <= end < self.end for end in log.ends)
        ):
            raise EntriesMissing(self.at, found)

    def _leaves_hole(self, found: Position) -> bool:
        """Like ``leaves_hole``; markers that were trimmed with everything before them leave no gap."""
        if not leaves_hole(self.at, found):
            return False
        return not _is_nothing_between(self.at, found, noted_ends(self._log))

    def _remembered(self) -> list[StoredBlock]:
        """The next blocks from the tail in memory, if it begins early enough."""
        tail = self._log.tail
        if not tail or tail[0].position > self.at:
            return []
        index = bisect_right(tail, self.at, key=lambda block: block.position) - 1
        found = tail[index : index + self._blocks_max]
        within = (block for block in found if self._is_in(block))
        return list(_first_bytes(within, self._bytes_max))

    def _is_in(self, block: StoredBlock) -> bool:
        return self.at <= last_position(block) and block.position < self.end

    async def _with_fields(self, block: StoredBlock) -> StoredBlock:
        """The block; a marker without fields in memory is read from the store."""
        if isinstance(block, Block) or block.fields:
            return block
        stored = await self._log.read_blocks(block.position, block.position, count=1)
        return stored[0] if stored else block


def _first_bytes(blocks: Iterable[StoredBlock], bytes_max: int) -> Iterable[StoredBlock]:
    size = 0
    for block in blocks:
        yield block
        size += stored_bytes(block)
        if size >= bytes_max:
            return


async def first_block(topic_log: TopicLog) -> StoredBlock:
    """The first block that is kept. Raises Undecided if the log has no block yet."""
    blocks = await topic_log.read_blocks(EARLIEST, count=1)
    if not blocks:
        raise Undecided(f"{topic_log.name} has nothing in the store yet")
    return blocks[0]
