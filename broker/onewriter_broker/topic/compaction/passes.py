"""Compaction by key: writes a view of the log that has only the newest message of each key.

There are two passes, as in Pulsar. The first pass finds the newest message of each key. The second pass copies
these messages, at their original positions. Both passes read the former view, if there is one, and then the log
after the view's horizon up to the watermark. An empty message removes its key. The view leaves out messages
without a key. It keeps an entry that cannot be decoded as it is. Compaction does not change the log: its
markers, its token and its epochs stay, whether the attempt succeeds or fails.

An attempt writes to a view slot that no reader sees. Only its last step makes that slot the current view. If
the store does not answer or the log has moved on, the attempt ends and the view stays as it was.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from onewriter_broker.log.store.api import Binding, Block, Outcome
from onewriter_broker.log.store.blocks import READ_BYTES
from onewriter_broker.log.store.compacted import (
    DROP_BLOCKS_MAX,
    SLOTS,
    Attempt,
    CompactedBlock,
    Piece,
    View,
    chain,
    view_of,
)
from onewriter_broker.log.topic_log.batches import (
    Content,
    Cost,
    content_of,
    cost_of,
    without,
)
from onewriter_broker.log.topic_log.compacted_log import READ_BLOCKS_MAX as VIEW_BLOCKS_MAX
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.compaction.newest_messages import (
    CompactionRefused,
    InsufficientSpace,
    Newest,
    footprint,
)
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.chain import CHAIN_START
from onewriter_core.log_format.field_names import COMPACTED, COMPACTING
from onewriter_core.log_format.limits import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX

READ_ENTRIES: Final = 4096
"""Entries that one read of the log requests."""

TICK_ENTRIES: Final = 16
"""Entries processed between two yields to the event loop."""

TICK_BYTES: Final = 32 * 1024
"""Bytes of opened entries between two yields to the event loop. A larger entry is opened in a thread."""

TICK_MESSAGES: Final = 512
"""Messages between two yields to the event loop. An entry with more messages is opened in a thread."""

ROLL_POLLS: Final = 5
ROLL_POLL_SECONDS: Final = 0.2
"""A write that was refused while the log rolled is tried this often, with this time between attempts."""


@dataclass(slots=True)
class Pace:
    """Yields to the event loop at regular intervals."""

    entries: int = 0
    size: int = 0
    messages: int = 0

    async def content(self, entry: memoryview) -> Content:
        """Parse an entry, a large one in a thread."""
        cost = _cost(entry)
        await self.tick(cost)
        if _is_large(cost):
            return await asyncio.to_thread(content_of, entry)
        return content_of(entry)

    async def without(self, entry: memoryview, kept: set[int]) -> bytes:
        """Return an entry without the messages that are not in ``kept``."""
        if _is_large(_cost(entry)):
            return await asyncio.to_thread(without, entry, kept)
        return without(entry, kept)

    async def tick(self, cost: Cost) -> None:
        """Count the cost of an entry. Yields to the event loop if a bound is reached."""
        self.entries += 1
        self.size += cost.size
        self.messages += cost.messages
        is_due = self.entries >= TICK_ENTRIES or self.messages >= TICK_MESSAGES
        if is_due or self.size >= TICK_BYTES:
            self.entries = self.size = self.messages = 0
            await asyncio.sleep(0)


def _cost(entry: memoryview) -> Cost:
    """As ``cost_of``, but it does not parse the metadata of an entry whose stored size is large."""
    return Cost(len(entry), 1) if len(entry) > TICK_BYTES else cost_of(entry)


def _is_large(cost: Cost) -> bool:
    return cost.size > TICK_BYTES or cost.messages > TICK_MESSAGES


@dataclass(frozen=True, slots=True)
class Source:
    """The input of an attempt, which is the same in both passes."""

    topic_log: TopicLog
    view: View | None
    horizon: Position
    check: Callable[[], None]
    """Raises an error if the attempt must end."""

    async def blocks(self) -> AsyncIterator[Block]:
        """Consecutive entries, in order."""
        after = EARLIEST
        if self.view is not None:
            number = 0
            while number < self.view.blocks:
                self.check()
                # Large blocks are read one by one, which bounds the memory in use.
                found = await self.topic_log.compacted.read_blocks(
                    self.view, number, max(1, min(VIEW_BLOCKS_MAX, READ_BYTES // BLOCK_BYTES_MAX))
                )
                if not found:
                    raise CompactionRefused("a block of the present view is gone")
                number += len(found)
                for block in found:
                    for piece in block.pieces():
                        yield piece
            after = self.view.horizon
        while after < self.horizon:
            self.check()
            runs = await self.topic_log.read(after, READ_ENTRIES, READ_BYTES)
            if not runs:
                return
            for run in runs:
                if run.position > self.horizon:
                    return
                yield _cut(run.block, run.start, run.stop)
                after = run.last


def _cut(block: Block, start: int, stop: int) -> Block:
    """A range of a block's entries."""
    if (start, stop) == (0, len(block.lengths)):
        return block
    ends = [0, *accumulate(block.lengths)]
    return replace(
        block,
        position=Position(block.position.ledger, block.position.entry + start),
        lengths=block.lengths[start:stop],
        payload=block.payload[ends[start] : ends[stop]],
        counts=None if block.counts is None else block.counts[start:stop],
    )


async def _unbounded() -> float:
    return math.inf


@dataclass(slots=True)
class ViewWriter:
    """Combines entries into blocks, and writes each block to the attempt's slot.

    If the store has too little memory for a block, the writer drops all written blocks and only measures the
    rest. ``finish`` then raises InsufficientSpace with the required memory.
    """

    topic_log: TopicLog
    attempt: Attempt
    check: Callable[[], None]
    free_bytes: float = math.inf
    """The memory of the store that the view may take."""
    observed_free_bytes: Callable[[], Awaitable[float]] = _unbounded
    """Reads the memory that the store has left. The next block takes at most that much, because other writers
    use the store's memory, too."""
    lacked_bytes: float | None = None
    """The memory that was free when it did not suffice for a block; None: it has sufficed so far."""
    blocks: int = 0
    entries: int = 0
    size: int = 0
    last: Position = EARLIEST
    chain: bytes = CHAIN_START
    _first: Position = EARLIEST
    _offsets: list[int] = field(default_factory=list)
    _payloads: list[bytes] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    _masks: dict[int, int] = field(default_factory=dict)
    _gathered: int = 0

    async def add(self, position: Position, entry: bytes, messages: int, mask: int | None) -> None:
        """Add the next entry that stays. ``mask`` is as in CompactedBlock."""
        offset = position.entry - self._first.entry
        is_full = (
            position.ledger != self._first.ledger
            or offset >= 2**32
            or len(self._offsets) >= BLOCK_ENTRIES_MAX
            or self._gathered + len(entry) > BLOCK_BYTES_MAX
        )
        if is_full:
            await self.flush()
        if not self._offsets:
            self._first, offset = position, 0
        if mask is not None:
            self._masks[len(self._offsets)] = mask
        self._offsets.append(offset)
        self._payloads.append(entry)
        self._counts.append(messages)
        self._gathered += len(entry)

    async def finish(self) -> None:
        """Write the remaining entries. Raises InsufficientSpace."""
        await self.flush()
        if self.lacked_bytes is not None:
            raise InsufficientSpace(footprint(self.size, self.entries), self.lacked_bytes)

    async def _has_space(self, size: int, entries: int) -> bool:
        """Whether another block of ``size`` bytes may be written. If not, all written blocks are dropped."""
        if self.lacked_bytes is None:
            taken = footprint(self.size, self.entries)
            space = min(self.free_bytes - taken, await self.observed_free_bytes())
            if footprint(size, entries) > space:
                self.lacked_bytes = taken + space
                await drop_slot(self.topic_log, self.attempt.slot)
        return self.lacked_bytes is None

    async def flush(self) -> None:
        """Write the gathered entries as one block."""
        if not self._offsets:
            return
        payload, lengths = b"".join(self._payloads), [len(entry) for entry in self._payloads]
        if await self._has_space(len(payload), len(lengths)):
            await self._write(payload, lengths)
        self.entries += len(lengths)
        self.size += len(payload)
        self._offsets.clear()
        self._payloads.clear()
        self._counts.clear()
        self._masks.clear()
        self._gathered = 0

    async def _write(self, payload: bytes, lengths: list[int]) -> None:
        self.chain = chain(self.chain, self._first, self._offsets, lengths, payload)
        counts = None if self._counts.count(1) == len(self._counts) else list(self._counts)
        block = CompactedBlock(
            self._first,
            list(self._offsets),
            lengths,
            payload,
            counts,
            dict(self._masks),
            self.chain,
        )
        self.check()
        store, name = self.topic_log.store.compacted, self.topic_log.name
        await guarded(
            self.topic_log,
            lambda binding, token: store.write(
                binding, name, token, self.attempt, self.blocks, block
            ),
        )
        self.blocks += 1
        self.last = block.last


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction."""

    view: View
    former: View | None
    removed: int
    """Messages that the view leaves out."""


async def compact(
    topic_log: TopicLog,
    *,
    keys_max: int,
    wall_ms: Callable[[], int],
    check: Callable[[], None],
    free_bytes: Callable[[], Awaitable[float]] = _unbounded,
) -> Compacted:
    """Compact a log up to its watermark, and make the result the current view.

    ``check`` is called repeatedly. It raises an error to end the attempt. ``free_bytes`` is called when the
    size of the view is known, and again before each block. The whole view takes at most the result of the first
    call, and each block at most the result of its call. Raises CompactionRefused, Undecided and Unavailable;
    the view is then unchanged. The former view stays for its readers until ``drop_unused`` drops it.
    """
    compacted = topic_log.compacted
    horizon, view = topic_log.committed, await compacted.view()
    source = Source(topic_log, view, horizon, check)
    compacted.is_running = True
    try:
        attempt = await _begin(topic_log)
        newest, since = await _find(source, keys_max)
        space = await free_bytes()
        if newest.footprint > space:
            raise InsufficientSpace(newest.footprint, space)
        writer = ViewWriter(topic_log, attempt, check, space, free_bytes)
        await _copy(source, newest, newest.chunks(since), writer)
        made = View(
            slot=attempt.slot,
            horizon=horizon,
            blocks=writer.blocks,
            entries=writer.entries,
            size=writer.size,
            last=writer.last,
            chain=writer.chain,
            made_ms=wall_ms(),
        )
        await _finish(topic_log, attempt, made)
    finally:
        compacted.is_running = False
    return Compacted(made, view, newest.removed)


async def _begin(topic_log: TopicLog) -> Attempt:
    """Empty the unused slot, and reserve it for this attempt."""
    store, name = topic_log.store.compacted, topic_log.name
    binding, _ = binding_of(topic_log)
    counts = view_of({COMPACTED: await store.named(name, replid=binding.replid)})
    slot = 0 if counts is None else (counts.slot + 1) % SLOTS
    attempt = Attempt(slot, uuid.uuid4().hex)
    await guarded(topic_log, lambda binding, token: store.begin(binding, name, token, attempt))
    topic_log.note_state({COMPACTING: attempt.encode()})
    await drop_slot(topic_log, slot)
    return attempt


async def _find(source: Source, keys_max: int) -> tuple[Newest, int]:
    """The first pass. Returns the newest messages and the number of entries in the former view."""
    newest, pace, ordinal, since = Newest(keys_max), Pace(), 0, 0
    async for block in source.blocks():
        if source.view is not None and block.position <= source.view.horizon:
            since = ordinal + len(block.lengths)
        for _, entry, _ in _entries(block):
            newest.add(ordinal, await pace.content(entry), len(entry))
            ordinal += 1
    return newest, since


async def _copy(source: Source, newest: Newest, chunks: set[int], writer: ViewWriter) -> None:
    """The second pass: copy the entries that stay."""
    pace, ordinal = Pace(), 0
    async for block in source.blocks():
        masks = block.masks if isinstance(block, Piece) else {}
        for index, (position, entry, messages) in enumerate(_entries(block)):
            kept = newest.kept(ordinal, await pace.content(entry), chunks)
            ordinal += 1
            if kept is None:
                await writer.add(position, bytes(entry), messages, masks.get(index))
            elif kept:
                left = sum(1 << message for message in kept)
                await writer.add(position, await pace.without(entry, kept), messages, left)
    await writer.finish()


def _entries(block: Block) -> list[tuple[Position, memoryview, int]]:
    """A block's entries: the position, the bytes and the number of permits of each."""
    ledger, first = block.position
    view, start = memoryview(block.payload), 0
    found: list[tuple[Position, memoryview, int]] = []
    for index, length in enumerate(block.lengths):
        messages = 1 if block.counts is None else block.counts[index]
        found.append((Position(ledger, first + index), view[start : start + length], messages))
        start += length
    return found


async def _finish(topic_log: TopicLog, attempt: Attempt, view: View) -> None:
    store, name = topic_log.store.compacted, topic_log.name
    await guarded(
        topic_log, lambda binding, token: store.finish(binding, name, token, attempt, view)
    )
    topic_log.note_state({COMPACTED: view.encode()})


async def drop_unused(topic_log: TopicLog) -> None:
    """Drop all slots of a log's views that no reader sees, whichever broker left them.

    Raises Undecided, Unavailable.
    """
    binding, _ = binding_of(topic_log)
    named = await topic_log.store.compacted.named(topic_log.name, replid=binding.replid)
    counts = view_of({COMPACTED: named})
    for slot in range(SLOTS):
        if counts is None or slot != counts.slot:
            await drop_slot(topic_log, slot)
    await topic_log.save_state({}, [COMPACTING])


async def drop_slot(topic_log: TopicLog, slot: int) -> None:
    """Drop an unused slot, in bounded steps. Raises Undecided, Unavailable."""
    left: Outcome | int = DROP_BLOCKS_MAX
    while left != 0:
        binding, token = binding_of(topic_log)
        left = await topic_log.store.compacted.drop(binding, topic_log.name, token, slot)
        if isinstance(left, Outcome):
            raise Unavailable(
                f"this broker no longer serves {topic_log.name} ({left.value}); retry"
            )


async def guarded(topic_log: TopicLog, write: Callable[[Binding, str], Awaitable[Outcome]]) -> None:
    """Write under the log's current token. A refused write was not stored.

    A refused token does not end the attempt at once, because the log rolls occasionally. Raises Undecided and
    Unavailable.
    """
    for _ in range(ROLL_POLLS):
        binding, token = binding_of(topic_log)
        outcome = await write(binding, token)
        if outcome is Outcome.DONE:
            return
        if outcome is Outcome.REFENCE:
            raise Undecided(f"{topic_log.name} is reconnecting to the store")
        if outcome is not Outcome.FENCED:
            break
        await asyncio.sleep(ROLL_POLL_SECONDS)
        if binding_of(topic_log) == (binding, token):
            break
    raise Unavailable(f"this broker no longer serves {topic_log.name} ({outcome.value}); retry")


def binding_of(topic_log: TopicLog) -> tuple[Binding, str]:
    """The binding and token for writes to a log. Raises Unavailable if the log is not open here."""
    binding = topic_log.binding
    if binding is None or topic_log.is_closed:
        raise Unavailable(f"{topic_log.name} is not open here")
    return binding, binding.token(topic_log.ledger)
