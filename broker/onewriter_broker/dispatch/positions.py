"""Finds positions in a log: by id, by time, of the last message, of the ends of ledgers.

It reads the log and keeps no state.
"""

from __future__ import annotations

import asyncio

from onewriter_broker.dispatch.api import SeekTarget, SeekToId, SeekToTime
from onewriter_broker.dispatch.cursor import before, mask_of
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.log.store.api import Block
from onewriter_broker.log.store.compacted import View
from onewriter_broker.log.topic_log.batches import last_index
from onewriter_broker.log.topic_log.entries import Entry, entries_of
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position
from onewriter_core.wire.messages import summarize
from onewriter_core.wire.values import EARLIEST_ID, MessageId

_SIGN = 2**63
_SCAN_ENTRIES = 512
"""Entries that are examined in one tick of the event loop."""
_BLOCKS = 16
"""Blocks that one read around a position returns."""


def position_before(message_id: MessageId, committed: Position) -> Position:
    """The cursor position after which this message's entry comes next.

    Includes Pulsar's earliest (negative numbers) and latest (the highest numbers). A position after the end
    of the log means its end. The entry itself is delivered even for an exclusive start: every client skips
    what it does not want, and a client that wants a part of a batch needs the entry.
    """
    if message_id.ledger >= _SIGN or message_id.entry >= _SIGN:
        return EARLIEST
    if message_id.position > committed:
        return committed
    return before(message_id.position)


async def seek_position(
    log: TopicLog, target: SeekTarget, limits: Limits
) -> tuple[Position, int | None]:
    """The target of a seek: a mark-delete position, and what remains of a batch after it.

    Raises Undecided.
    """
    match target:
        case SeekToTime(publish_time_ms):
            return await position_before_time(log, publish_time_ms, limits), None
        case SeekToId(message_id):
            mark_delete = position_before(message_id, log.committed)
            is_entry = mark_delete == (message_id.ledger, message_id.entry - 1)
            return mark_delete, mask_of(message_id.ack_set) if is_entry else None


async def last_entry(log: TopicLog) -> Entry | None:
    """The last committed entry; None if the log has none. Raises Undecided."""
    end = log.committed
    if end.entry == 0:
        in_memory = [block for block in log.tail if isinstance(block, Block) and block.last <= end]
        last = in_memory[-1] if in_memory else await _last_stored(log, end)
        if last is None:
            return None
        end = last.last
    entries = entries_of(await log.read(before(end), 1, 1))
    return entries[0] if entries else None


async def _last_stored(log: TopicLog, end: Position) -> Block | None:
    """The last block of entries before ``end``, which is a marker."""
    while True:
        found = await log.read_blocks(EARLIEST, end, count=_BLOCKS, reverse=True)
        for block in found:
            if isinstance(block, Block):
                return block
        if len(found) < _BLOCKS or found[-1].position.ledger == 0:
            return None
        end = Position(found[-1].position.ledger - 1, NUMBER_MAX)


def message_id_of(entry: Entry, partition: int) -> MessageId:
    """The id of an entry's last message: in a batch it has an index."""
    ledger, number = entry.position
    batch_index = -1
    try:
        summary = summarize(entry.payload)
    except ProtocolError:
        pass  # entries are stored unchanged; if it cannot be read, it is not a batch either
    else:
        if summary.is_batch:
            batch_index = summary.num_messages - 1
    return MessageId(ledger, number, partition=partition, batch_index=batch_index)


async def last_message_id(log: TopicLog) -> tuple[MessageId, Position]:
    """The last message and its entry's position; EARLIEST_ID and EARLIEST if there is none."""
    entry = await last_entry(log)
    if entry is None:
        return EARLIEST_ID, EARLIEST
    partition = log.name.partition
    return message_id_of(entry, -1 if partition is None else partition), entry.position


async def last_compacted_id(log: TopicLog, view: View) -> tuple[MessageId, Position]:
    """As ``last_message_id``, of a compacted view. Raises Undecided and MalformedBlock."""
    block = await log.compacted.last(view)
    if block is None:
        return EARLIEST_ID, EARLIEST
    *_, piece = block.pieces()
    entry = Entry(piece.last, memoryview(piece.payload)[-piece.lengths[-1] :], 1)
    partition = -1 if log.name.partition is None else log.name.partition
    batch_index = last_index(entry.payload, piece.masks.get(len(piece.lengths) - 1))
    return (
        MessageId(*entry.position, partition=partition, batch_index=batch_index),
        entry.position,
    )


async def position_before_time(log: TopicLog, time_ms: int, limits: Limits) -> Position:
    """The cursor position after which the first entry published at ``time_ms`` or later comes next.

    Blocks carry the owner's clock: a binary search finds the last block that is safely before, and the
    entries after it are examined one by one. Raises Undecided.
    """
    after = await _safely_before(log, time_ms - limits.clock_skew_ms)
    while True:
        entries = entries_of(await log.read(after, _SCAN_ENTRIES, limits.read_bytes))
        if not entries:
            return after
        for entry in entries:
            if _publish_time(entry) >= time_ms:
                return after if entry is entries[0] else before(entry.position)
        after = entries[-1].position
        await asyncio.sleep(0)  # a long scan must not block the event loop


def _publish_time(entry: Entry) -> int:
    try:
        return summarize(entry.payload).publish_time_ms
    except ProtocolError:
        return 0  # the time is unknown: it does not end the search


async def _safely_before(log: TopicLog, time_ms: int) -> Position:
    """The position before the last block stored before ``time_ms``, or before the whole log."""

    async def block_at(position: Position) -> Block | None:
        """The first block of entries at or after a position, if it is that old; otherwise None."""
        while True:
            found = await log.read_blocks(position, log.committed, count=2)
            for block in found:
                if isinstance(block, Block):
                    return block if block.time_ms < time_ms else None
            if len(found) < 2:
                return None
            position = Position(found[-1].position.ledger, 1)

    best = await block_at(EARLIEST)
    if best is None:
        return EARLIEST
    low, high = best.position.ledger, log.committed.ledger
    while low < high:
        middle = (low + high + 1) // 2
        block = await block_at(Position(middle, 0))
        if block is None:
            high = middle - 1
        else:
            best = block
            low = max(middle, block.position.ledger)
    ledger = best.position.ledger
    last = await log.read_blocks(best.position, Position(ledger, NUMBER_MAX), count=1, reverse=True)
    lowest = best.position.entry
    highest = last[0].position.entry if last else lowest
    while lowest < highest:
        middle = (lowest + highest + 1) // 2
        block = await block_at(Position(ledger, middle))
        if block is None or block.position.ledger != ledger:
            highest = middle - 1
        else:
            best = block
            lowest = max(middle, block.position.entry)
    return before(best.position)


async def learn_ledger_ends(log: TopicLog, gaps: LedgerGaps, lowest: Position) -> None:
    """Learn where the ledgers from ``lowest`` on end, with one small read for each unknown end.

    At most as many as LedgerGaps holds. Raises Undecided.
    """
    first = await log.read_blocks(Position(lowest.ledger, 0), log.committed, count=1)
    if first and isinstance(first[0], Block) and first[0].position.ledger > lowest.ledger:
        gaps.learn(lowest, first[0].position)  # the log's beginning was trimmed
    ledger = log.committed.ledger
    for _ in range(gaps.gaps_max):
        if ledger <= lowest.ledger:
            return
        known = gaps.before_ledger(ledger)
        if known is None:
            found = await log.read_blocks(
                Position(lowest.ledger, 0),
                Position(ledger - 1, NUMBER_MAX),
                count=1,
                reverse=True,
            )
            known = lowest
            if found:
                known = found[0].last if isinstance(found[0], Block) else found[0].position
            gaps.learn(known, Position(ledger, 1))
        ledger = known.ledger
