"""One log on this broker: its open ledger, what waits to be appended, and the newest blocks.

The publish path ends here: an entry is buffered, the Appender gathers a block of them in its next
call, and once the block is as durable as the topic promises the commit watermark moves over it.
Only what lies below the watermark is ever read. Who may publish is decided elsewhere (the topic
machine); the store itself refuses a ledger that is no longer the newest.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import itemgetter

from onewriter_broker.log.store.api import (
    Binding,
    Block,
    Durability,
    Guard,
    LogStore,
    Marker,
    Outcome,
    StoredBlock,
)
from onewriter_broker.log.store.blocks import CHAIN_START, READ_BYTES, chain
from onewriter_broker.log.store.compacted import COMPACTED
from onewriter_broker.log.topic_log.atomic_publish import Publish, Publishes
from onewriter_broker.log.topic_log.compacted_log import CompactedLog
from onewriter_broker.log.topic_log.entries import EntryRun, runs_behind
from onewriter_broker.log.topic_log.guards import GuardedSender, cut, note_floor, refuse_surplus
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock, PendingEntry, Sender
from onewriter_broker.quotas.shares import Share
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import Position, TopicName

BLOCK_ENTRIES_MAX = 512
BLOCK_BYTES_MAX = 256 * 1024
"""A block holds at most so much, or one larger entry."""

LEDGERS_REMEMBERED_MAX = 64
"""Ledgers of a log whose last committed entry is remembered, to tell a loss when one happens."""

TRIMMED = "trimmed"
"""State field: the position below which blocks were dropped on purpose, or may have been."""

LEDGER_ENDS = "ledgerEnds"
"""State field: of the ledgers in which the log was cut last, the last entry in front of each."""

ENTRY_BYTES = 400
"""What a pending entry weighs besides its payload, about: small ones count for what they cost."""

STORED_ENTRY_BYTES = 16
STORED_BLOCK_BYTES = 200
"""What an entry, and a block, take in the store besides their payload, about."""

READ_BLOCKS_MAX = 256
"""Blocks that one read from the store asks for at most."""


_SENDER_OF = itemgetter(0)


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What a ledger holds: its last position, entries and bytes as far as this broker wrote it."""

    last: Position
    entries: int
    bytes: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class TopicLog:
    """One log. Not fenced until ``open``; then entries are accepted while ``is_writable``."""

    name: TopicName
    store: LogStore
    tail_bytes_max: int = 4 * 1024 * 1024
    wanted_durability: Durability = Durability.LOCAL
    """What acknowledgements are to promise from the next ledger on."""
    state: dict[str, str] = field(default_factory=dict)
    """The log's state as last read or written: cursors and what the machine needs."""
    exists: bool = False
    durability: Durability = Durability.NONE
    """What they promise in the present ledger; nothing while there is none."""
    binding: Binding | None = None
    ledger: int = 0
    next_entry: int = 1
    chain: bytes = CHAIN_START
    is_writable: bool = False
    was_refused: bool = False
    """A write was refused or the dataset changed: after the next fence, compare the tails."""
    committed: Position = Position(0, 0)
    """The watermark: the last position that may be read."""
    given_up_before: Position = Position(0, 0)
    """What lies in front of it this broker has trimmed, or may have: nobody durable begins there."""
    ends: list[Position] = field(default_factory=list)
    """The last committed entry of each ledger written here: what the store must have."""
    is_closed: bool = False
    """Not served here any more, for good: whoever serves the log next has an object of its own."""
    ledger_bytes: int = 0
    ledger_entries: int = 0
    opened_at: float = 0.0
    entries_in: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    blocks_in: int = 0
    """What this broker gathered into blocks of this log, over all ledgers; for statistics."""
    size_before: int = 0
    """What the log stored besides what came in here, less what was trimmed here; see ``size``."""
    is_measured: bool = False
    """``size`` is what the log stores; else only what came in here."""
    share: Share = field(default_factory=Share)
    """The limit that it has in common with others."""
    guarded: dict[Sender, GuardedSender] = field(default_factory=dict)
    """Who of those with entries on their way has a guard."""
    waiting: list[PendingEntry] = field(default_factory=list)
    undecided: list[PendingBlock] = field(default_factory=list)
    tail: list[StoredBlock] = field(default_factory=list)
    tail_bytes: int = 0
    watchers: list[Callable[[], None]] = field(default_factory=list)
    """Called, in turn, whenever the watermark has moved."""
    publishes: Publishes | None = None
    """Atomic publishes to it; None: there never was one."""
    _largest_block_bytes: float = float(BLOCK_BYTES_MAX)
    _compacted: CompactedLog | None = None
    _trimming: asyncio.Lock | None = None

    @property
    def compacted(self) -> CompactedLog:
        """Its compacted view; made on demand: few logs have one."""
        if self._compacted is None:
            self._compacted = CompactedLog(self)
        return self._compacted

    @property
    def trimming(self) -> asyncio.Lock:
        """Held around a call that trims it: one behind the other, each with what the last one noted."""
        if self._trimming is None:  # made on demand: few logs are trimmed at a time
            self._trimming = asyncio.Lock()
        return self._trimming

    def behind_cuts(self, mark_delete: Position) -> Position:
        """Where a durable cursor that is to begin there begins: in front of nothing that is trimmed.

        What is trimmed of a log with a compacted view is in the view: then it begins where it is to.
        """
        if COMPACTED in self.state:
            return mark_delete
        ledger, entry = self.given_up_before
        return max(mark_delete, Position(ledger, max(entry - 1, 0)))

    def keep_uncompacted(self, *, is_wanted: bool) -> None:
        """Whether what no compacted view has stays, although there is no view at all yet."""
        if is_wanted or self._compacted is not None:
            self.compacted.is_wanted = is_wanted

    def compacted_limit(self, limit: Position) -> Position:
        """Below what the log may be cut at most: what no compacted view has yet stays."""
        if self._compacted is None and COMPACTED not in self.state:
            return limit
        return self.compacted.trim_limit(limit)

    @property
    def size(self) -> int:
        """About so many bytes the log takes in the store."""
        return max(0, self.size_before + self._came_in)

    @property
    def _came_in(self) -> int:
        return stored_size(self.bytes_in, self.entries_in, self.blocks_in)

    def measured(self, size: int) -> None:
        """Somebody has seen that it takes so much now."""
        self.size_before = size - self._came_in
        self.is_measured = True

    # ------------------------------------------------------------ writing

    def accept(self, entry: PendingEntry) -> None:
        """Buffer an entry for the next call. The caller checked that its sender may write."""
        self.waiting.append(entry)

    def publish(self, publish: Publish) -> None:
        """Have the next calls take along an atomic publish. The caller checked, as for ``accept``.

        Raises Refused, Unavailable.
        """
        if not self.is_writable:
            raise Unavailable(f"the holder of {self.name} is changing")
        self.publishes = self.publishes or Publishes()
        self.publishes.add(publish, self)

    @property
    def is_publishing(self) -> bool:
        """Whether entries have to wait behind an atomic publish."""
        return self.publishes is not None and self.publishes.is_first(self)

    @property
    def has_more(self) -> bool:
        """Whether there is something for the next block."""
        if self.publishes is not None and self.publishes.is_first(self):
            return self.publishes.has_block(self)
        return bool(self.waiting) and not self.share.is_held

    def open(self, ledger: int, binding: Binding, now: float) -> None:
        """A fence opened ``ledger``: entries go there once ``is_writable`` is set again."""
        if self.is_closed:
            return
        self.ledger = ledger
        self.binding = binding
        self.durability = self.wanted_durability
        self.next_entry = 1
        self.chain = CHAIN_START
        self.ledger_bytes = 0
        self.ledger_entries = 0
        self.opened_at = now
        self.exists = True
        if self.publishes is not None:
            self.publishes.fenced()

    def summary(self) -> LedgerSummary:
        """The present ledger, for the audit of the fence that ends it."""
        return LedgerSummary(self.committed, self.ledger_entries, self.ledger_bytes)

    def refuse_waiting(self) -> None:
        """Drop what no call has taken yet: it belongs to an epoch that is ending."""
        waiting, self.waiting = self.waiting, []
        for sender, _, payload in waiting:
            sender.refused(len(payload))
        if self.publishes is not None:
            self.publishes.refuse()

    def next_block(self, time_ms: int) -> PendingBlock | None:
        """Gather the next block out of what waits; None when nothing does."""
        if not self.is_writable or self.binding is None:
            return None
        if self.publishes is not None and self.publishes.is_first(self):
            publishing = self.publishes.next_block(self, time_ms)
            if publishing is not None or self.publishes.is_first(self):
                return publishing
        if not self.waiting or self.share.is_held:
            return None
        if self.guarded and not refuse_surplus(self):
            return None
        waiting = self.waiting
        # Entries are mostly alike: so many as long as the first, and no more than may fit.
        likely = min(BLOCK_ENTRIES_MAX, BLOCK_BYTES_MAX // max(1, len(waiting[0][2])) + 1)
        if self.publishes is not None:
            likely = self.publishes.limit(self, likely)
        entries = waiting[:likely]
        guard = cut(entries, self.guarded) if self.guarded else None
        payloads = [payload for _, _, payload in entries]
        lengths = list(map(len, payloads))
        size = sum(lengths)
        if size > BLOCK_BYTES_MAX and len(lengths) > 1:
            fitting = max(1, bisect_right(list(accumulate(lengths)), BLOCK_BYTES_MAX))
            del entries[fitting:], payloads[fitting:], lengths[fitting:]
        del waiting[: len(entries)]
        return self.form(entries, payloads, lengths, time_ms, guard)

    def form(
        self,
        entries: list[PendingEntry],
        payloads: Sequence[memoryview],
        lengths: list[int],
        time_ms: int,
        guard: Guard | None = None,
        publish: Publish | None = None,
    ) -> PendingBlock:
        """The next block, of just these entries; the guard has room. Raises Unavailable: not open."""
        if self.binding is None:
            raise Unavailable(f"{self.name} is not open here")
        position = Position(self.ledger, self.next_entry)
        payload = b"".join(payloads)
        size = len(payload)
        counts = [send.num_messages for _, send, _ in entries]
        if min(counts) < 1:  # what a client claims about its entry is not checked: take it for one
            counts = [max(1, count) for count in counts]
        chain_before = self.chain
        self.chain = chain(self.chain, position, lengths, payload)
        self.next_entry += len(entries)
        self.ledger_bytes += size
        self.ledger_entries += len(entries)
        self.entries_in += len(entries)
        self.messages_in += sum(counts)
        self.bytes_in += size
        self.blocks_in += 1
        block = Block(
            position,
            lengths,
            payload,
            None if counts.count(1) == len(counts) else counts,
            time_ms,
            self.chain,
            publish="" if publish is None else publish.name,
            commits=publish is not None and publish.is_formed,
            by="" if publish is None else publish.by,
        )
        token = self.binding.token(self.ledger)
        pending = PendingBlock(block, token, entries, guard=guard, chain_before=chain_before)
        pending.publish = publish
        note_floor(self.state, guard)
        self.undecided.append(pending)
        return pending

    def put_back(self, pending: PendingBlock) -> None:
        """A block that is certainly not in the log: its entries wait again, in front of all."""
        self.undecided.remove(pending)
        self.waiting[:0] = pending.entries

    def give_up(self, pending: PendingBlock, *, is_definite: bool) -> None:
        """A block that this broker cannot append: refused for certain, or nobody can say."""
        self.undecided.remove(pending)
        if pending.publish is not None:
            pending.publish.given_up(pending.block, is_definite=is_definite)
            return
        for sender, _, payload in pending.entries:
            if is_definite:
                sender.refused(len(payload))
            else:
                sender.unknown(len(payload))

    def close(self) -> None:
        """This broker serves the log no longer: nothing more is appended or read here."""
        self.is_closed = True
        self.is_writable = False
        self.binding = None
        for pending in list(self.undecided):
            self.give_up(pending, is_definite=not pending.was_sent)
        self.refuse_waiting()
        self.forget_tail()

    def forget_tail(self) -> None:
        """Keep no block in memory: what is read next comes from the store."""
        self.tail.clear()
        self.tail_bytes = 0

    def block_committed(self, pending: PendingBlock) -> None:
        """The oldest undecided block is stored and durable: tell its senders, move the watermark."""
        self.undecided.remove(pending)
        if self.publishes and pending.publish and not self.publishes.reaches(self, pending):
            return
        block = pending.block
        ledger, number = block.position
        start = 0
        # Told once per run of a sender's entries: receipts are encoded and written together.
        for sender, run in groupby(pending.entries, _SENDER_OF):
            entries = list(run)
            stop = start + len(entries)
            sender.stored(entries, Position(ledger, number + start), sum(block.lengths[start:stop]))
            start = stop
        self.remember(block)
        if self.ends and self.ends[-1].ledger == ledger:
            self.ends[-1] = block.last
        else:
            self.ends.append(block.last)
            del self.ends[:-LEDGERS_REMEMBERED_MAX]
        self.advance(block.last)

    @property
    def kept_ends(self) -> list[Position]:
        """``ends`` without what retention has dropped on purpose, or may have."""
        trimmed = self.state.get(TRIMMED)
        horizon = None if trimmed is None else Position.parse(trimmed)
        return [end for end in self.ends if horizon is None or end >= horizon]

    def forget_after(self, survived: Position) -> None:
        """The store has nothing behind ``survived`` any more: nor does this memory of it."""
        while self.tail and last_position(self.tail[-1]) > survived:
            self.tail_bytes -= stored_bytes(self.tail.pop())
        while self.ends and self.ends[-1] > survived:
            last = self.ends.pop()
            if last.ledger == survived.ledger and survived.entry > 0:
                self.ends.append(survived)

    def advance(self, position: Position) -> None:
        """Move the watermark and tell those who watch it."""
        if position > self.committed:
            self.committed = position
            for watcher in self.watchers:
                watcher()

    def marker_committed(self, marker: Marker) -> None:
        """The ledger's marker is durable."""
        self.remember(marker)
        self.advance(marker.position)

    def remember(self, block: StoredBlock) -> None:
        """Keep the newest block of the log in memory."""
        self.tail.append(block)
        self.tail_bytes += stored_bytes(block)
        self.shrink_tail(self.tail_bytes_max)

    def shrink_tail(self, bytes_max: int) -> None:
        """Forget the oldest blocks in memory until they weigh no more; the newest one stays."""
        if self.tail_bytes <= bytes_max:
            return
        # Somewhat below, so that blocks leave by the dozen: a list moves up for each time.
        bytes_max -= bytes_max // 16
        forgotten = 0
        while self.tail_bytes > bytes_max and forgotten < len(self.tail) - 1:
            self.tail_bytes -= stored_bytes(self.tail[forgotten])
            forgotten += 1
        del self.tail[:forgotten]

    async def save_state(self, fields: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        """Set and remove fields of the log's state, under its token.

        Raises Undecided (perhaps written, or the bucket is being bound to another dataset: retry)
        and Unavailable (this broker does not own the log now; nothing was written).
        """
        while True:
            binding, ledger = self.binding, self.ledger
            if binding is None:
                raise Unavailable(f"{self.name} is not open here")
            outcome = await self.store.set_state(
                binding, self.name, binding.token(ledger), fields, remove
            )
            if outcome is Outcome.DONE:
                self.state.update(fields)
                for name in remove:
                    self.state.pop(name, None)
                return
            if (binding, ledger) == (self.binding, self.ledger):
                if outcome is Outcome.REFENCE:  # whoever follows the store binds the bucket anew
                    raise Undecided(f"{self.name} is reconnecting to the store")
                raise Unavailable(f"{self.name} has moved on: {outcome.value}")

    # ------------------------------------------------------------ reading

    def read_tail(self, after: Position, entries_max: int, bytes_max: int) -> list[EntryRun] | None:
        """Entries behind ``after`` out of memory; None when they are not all there."""
        if after >= self.committed:
            return []
        if not self.tail or after < self.tail[0].position.previous:
            return None
        index = len(self.tail)
        while index > 0 and self.tail[index - 1].position > after:
            index -= 1
        start = max(index - 1, 0)
        blocks = [self.tail[i] for i in range(start, len(self.tail))]
        return runs_behind(blocks, after, self.committed, entries_max, bytes_max)

    async def read(self, after: Position, entries_max: int, bytes_max: int) -> list[EntryRun]:
        """Committed entries behind ``after``, in order; empty at the end of the log.

        Limits as in ``runs_behind``. Raises Undecided when the store does not answer.
        """
        while True:
            found = self.read_tail(after, entries_max, bytes_max)
            if found is not None:
                return found
            blocks = await self._read_stored(after)
            if not blocks:
                return []
            found = runs_behind(blocks, after, self.committed, entries_max, bytes_max)
            if found:
                return found
            after = max(after, last_position(blocks[-1]))
            if after >= self.committed:
                return []

    async def read_blocks(
        self, start: Position, end: Position | None = None, *, count: int, reverse: bool = False
    ) -> list[StoredBlock]:
        """As LogStore.read_blocks, out of the dataset that the log is bound to and no other.

        A primary that was cut off still answers, with what its successors never had.
        """
        replid = "" if self.binding is None else self.binding.replid
        return await self.store.read_blocks(
            self.name, start, end, count=count, reverse=reverse, replid=replid
        )

    async def _read_stored(self, after: Position) -> list[StoredBlock]:
        """Blocks of the store from the one that holds the position behind ``after``."""
        wanted = Position(after.ledger, after.entry + 1)
        count = max(1, min(READ_BLOCKS_MAX, int(READ_BYTES / self._largest_block_bytes)))
        blocks = await self.read_blocks(wanted, self.committed, count=count)
        if not blocks or blocks[0].position != wanted:
            # Who reads on begins with a block; else one in front of it may hold the position.
            holding = await self.read_blocks(
                Position(after.ledger, 0), wanted, count=1, reverse=True
            )
            blocks[:0] = [block for block in holding if last_position(block) >= wanted]
        sizes = [stored_bytes(block) for block in blocks]
        if sizes:
            # Not the mean: a run of small blocks in front of large
            # ones must not make the next reply many times READ_BYTES.
            self._largest_block_bytes = max(*sizes, self._largest_block_bytes / 4)
        return blocks


def stored_size(size: int, entries: int, blocks: int) -> int:
    """About so many bytes they take in the store; ``size``: of the entries alone."""
    return size + STORED_ENTRY_BYTES * entries + STORED_BLOCK_BYTES * blocks


def stored_bytes(block: StoredBlock) -> int:
    """What a block weighs in memory, about."""
    if isinstance(block, Block):
        return len(block.payload) + 8 * len(block.lengths) + 200
    return 500


def last_position(block: StoredBlock) -> Position:
    """The position of a block's last entry; a marker's own."""
    return block.last if isinstance(block, Block) else block.position


def payloads(block: Block) -> Iterator[memoryview]:
    """A block's entries, one by one."""
    view = memoryview(block.payload)
    offset = 0
    for length in block.lengths:
        yield view[offset : offset + length]
        offset += length
