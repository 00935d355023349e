"""Checks a log's compacted view: it is complete, unchanged, and what compaction of the log yields.

If the log still has its beginning, the compaction is repeated and compared entry by entry. If it was trimmed,
only the view's own hashes can be checked. The check works beside a running broker: a view that is replaced
meanwhile is left to the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from onewriter_broker.log.store.api import Block, LogStore
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.log.store.compacted import View, chain
from onewriter_broker.log.topic_log.batches import Chunk, content_of, without
from onewriter_broker.log.topic_log.log import last_position, payloads
from onewriter_broker.topic.compaction.newest_messages import CompactionRefused, Newest
from onewriter_core.audit.findings import Finding, Findings
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.chain import CHAIN_START
from onewriter_core.log_format.field_names import COMPACTED, TRIMMED

KEYS_MAX: Final = 2_000_000
"""Keys that the repeated compaction keeps in memory. A log with more keys is not compared."""

READ_BLOCKS: Final = 4
"""Blocks of one read; each may contain a large entry."""


class _Differs(Exception):
    """What is wrong, as a sentence."""


async def check_compacted(
    store: LogStore, name: TopicName, state: Mapping[str, str], findings: Findings
) -> None:
    """Check a log's view, if it has one. Raises Undecided."""
    text = state.get(COMPACTED, "")
    if not text:
        return
    log = str(name)
    try:
        view = View.parse(text)
        await _check_whole(store, name, view)
        if TRIMMED in state:
            findings.note(f"the compacted view was not compared up to {state[TRIMMED]}")
        else:
            await _check_fold(store, name, view)
    except CompactionRefused:
        findings.note(f"more than {KEYS_MAX} keys: the view was not compared")
    except (MalformedBlock, _Differs) as error:
        if await store.compacted.named(name) == text:
            findings.add([Finding(log, "S7", (COMPACTED,), str(error))])
        else:
            findings.note("the log was compacted meanwhile: its view was not compared")


async def _entries_of(
    store: LogStore, name: TopicName, view: View
) -> AsyncIterator[tuple[Position, bytes]]:
    """The view's entries in order; each block's hash is checked."""
    number, link, last = 0, CHAIN_START, EARLIEST
    while number < view.blocks:
        count = min(READ_BLOCKS, view.blocks - number)
        blocks = await store.compacted.read(name, view.slot, number, count)
        if not blocks:
            raise _Differs(f"block {number} of the compacted view is gone")
        for block in blocks:
            link = chain(link, block.position, block.offsets, block.lengths, block.payload)
            if link != block.chain:
                raise _Differs(
                    f"the compacted entries at {block.position} are not those that were written"
                )
            for piece in block.pieces():
                entry = piece.position
                for payload in payloads(piece):
                    if entry <= last:
                        raise _Differs(f"the compacted entry {entry} follows on {last}")
                    yield entry, bytes(payload)
                    last, entry = entry, Position(entry.ledger, entry.entry + 1)
        number += len(blocks)
        await asyncio.sleep(0)
    if view.blocks and link != view.chain:
        raise _Differs("the compacted view is not the one that the state names")


async def _check_whole(store: LogStore, name: TopicName, view: View) -> None:
    entries = 0
    async for position, _ in _entries_of(store, name, view):
        if position > view.horizon:
            raise _Differs(f"the compacted entry {position} is after the horizon {view.horizon}")
        entries += 1
    if entries != view.entries:
        raise _Differs(f"the compacted view has {entries} entries instead of {view.entries}")


async def _log_of(store: LogStore, name: TopicName, end: Position) -> AsyncIterator[Block]:
    start = EARLIEST
    while start <= end:
        blocks = await store.read_blocks(name, start, end, count=READ_BLOCKS)
        if not blocks:
            return
        for block in blocks:
            if isinstance(block, Block):
                yield block
        last = last_position(blocks[-1])
        start = Position(last.ledger, last.entry + 1)
        await asyncio.sleep(0)


async def _check_fold(store: LogStore, name: TopicName, view: View) -> None:
    """Compare the view with the log. Messages in chunks are left out, because some may be incomplete."""
    newest, ordinal = Newest(KEYS_MAX), 0
    async for block in _log_of(store, name, view.horizon):
        for payload in payloads(block):
            newest.add(ordinal, content_of(payload))
            ordinal += 1
    there = _entries_of(store, name, view)
    async for position, expected in _folded(store, name, view.horizon, newest):
        found = await _next(there)
        if found != (position, expected):
            raise _Differs(
                f"the next newest message of the log is {position}, "
                f"that of the compacted view is {found[0] if found else 'nothing'}"
            )
    found = await _next(there)
    if found is not None:
        raise _Differs(
            f"the compacted view has {found[0]}, which is not a newest message of the log"
        )


async def _next(
    entries: AsyncIterator[tuple[Position, bytes]],
) -> tuple[Position, bytes] | None:
    async for position, payload in entries:
        if not isinstance(content_of(payload), Chunk):
            return position, payload
    return None


async def _folded(
    store: LogStore, name: TopicName, horizon: Position, newest: Newest
) -> AsyncIterator[tuple[Position, bytes]]:
    """The result of compacting the log up to the horizon."""
    ordinal = 0
    async for block in _log_of(store, name, horizon):
        ledger, entry = block.position
        for payload in payloads(block):
            content = content_of(payload)
            kept = newest.kept(ordinal, content, set())
            if not isinstance(content, Chunk):
                if kept is None:
                    yield Position(ledger, entry), bytes(payload)
                elif kept:
                    yield Position(ledger, entry), without(payload, kept)
            ordinal += 1
            entry += 1
