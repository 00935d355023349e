"""One log on this broker: its open ledger, the entries that wait to be appended, and the newest blocks.

The publish path ends here. The log buffers an entry, and the Appender takes a block of entries with its
next call. When the block is as durable as the topic promises, the commit watermark moves over it. Readers
get only entries below the watermark. The topic machine decides who may publish, and the store rejects a
ledger that is no longer the newest.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, takewhile
from operator import itemgetter

from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import (
    Binding,
    Block,
    Guard,
    GuardKind,
    LogStore,
    Marker,
    Outcome,
    StoredBlock,
)
from onewriter_broker.log.store.blocks import READ_BYTES
from onewriter_broker.log.topic_log.atomic_publish import Publish, Publishes
from onewriter_broker.log.topic_log.compacted_log import CompactedLog
from onewriter_broker.log.topic_log.entries import EntryRun, runs_after
from onewriter_broker.log.topic_log.guards import GuardedSender, has_space, keep_leading_guard
from onewriter_broker.log.topic_log.losses import LossReports, Report
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock, PendingEntry, Sender
from onewriter_broker.quotas.shares import Share
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.chain import CHAIN_START, chain
from onewriter_core.log_format.field_names import COMPACTED, COMPACTING, TRIMMED
from onewriter_core.log_format.limits import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX

LEDGERS_REMEMBERED_MAX = 64
"""Number of the newest ledgers of a log whose last committed entry is remembered, to detect losses."""

ENTRY_BYTES = 400
"""Approximate memory of a pending entry in bytes, besides its payload."""

STORED_ENTRY_BYTES = 16
STORED_BLOCK_BYTES = 200
"""Approximate bytes of an entry and of a block in the store, besides their payload."""

READ_BLOCKS_MAX = 256
"""Largest number of blocks of one read from the store."""


_SENDER_OF = itemgetter(0)

_LARGEST_BLOCK_BYTES = float(BLOCK_BYTES_MAX)
"""Shared by all logs that were not read yet."""


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """The contents of a ledger: its last position, and the entries and bytes that this broker wrote."""

    last: Position
    entries: int
    bytes: int


class TopicLog:
    """One log. Not fenced until ``open``; then it accepts entries while ``is_writable``.

    Other modules read its state through properties and change it only through methods.
    """

    __slots__ = (
        "__weakref__",
        "_binding",
        "_blocks_in",
        "_bytes_in",
        "_chain",
        "_committed",
        "_compacted",
        "_durability",
        "_ends",
        "_entries_in",
        "_exists",
        "_guarded",
        "_is_closed",
        "_is_measured",
        "_is_writable",
        "_largest_block_bytes",
        "_ledger",
        "_ledger_bytes",
        "_ledger_entries",
        "_limits",
        "_maybe_trimmed_before",
        "_messages_in",
        "_needs_comparison",
        "_next_entry",
        "_opened_at",
        "_publishes",
        "_reports",
        "_share",
        "_size_before",
        "_state",
        "_tail",
        "_tail_bytes",
        "_trimmed_up_to",
        "_trimming",
        "_undecided",
        "_waiting",
        "_wanted_durability",
        "_watchers",
        "name",
        "store",
        "tail_bytes_max",
    )

    def __init__(
        self,
        name: TopicName,
        store: LogStore,
        tail_bytes_max: int = 4 * 1024 * 1024,
        wanted_durability: Durability = Durability.LOCAL,
        *,
        limits: LogLimits = LogLimits(),
    ) -> None:
        self.name = name
        self._limits = limits
        self.store = store
        self.tail_bytes_max = tail_bytes_max
        self._wanted_durability = wanted_durability
        self._state: dict[str, str] = {}
        self._exists = False
        self._durability = Durability.NONE
        self._binding: Binding | None = None
        self._ledger = 0
        self._next_entry = 1
        self._chain = CHAIN_START
        self._is_writable = False
        self._needs_comparison = False
        self._committed = EARLIEST
        self._maybe_trimmed_before = EARLIEST
        self._trimmed_up_to = EARLIEST
        self._ends: list[Position] = []
        self._is_closed = False
        self._ledger_bytes = 0
        self._ledger_entries = 0
        self._opened_at = 0.0
        self._entries_in = 0
        self._messages_in = 0
        self._bytes_in = 0
        self._blocks_in = 0
        self._size_before = 0  # bytes in the store besides the blocks formed here; see ``size``
        self._is_measured = False
        self._share = Share()
        self._guarded: dict[Sender, GuardedSender] = {}  # only senders with pending entries
        self._waiting: list[PendingEntry] = []
        self._undecided: list[PendingBlock] = []
        self._tail: list[StoredBlock] = []
        self._tail_bytes = 0
        self._watchers: list[Callable[[], None]] = []
        self._publishes: Publishes | None = None  # None before the first atomic publish
        self._reports: LossReports | None = None  # None before the first report
        self._largest_block_bytes = _LARGEST_BLOCK_BYTES
        self._compacted: CompactedLog | None = None
        self._trimming: asyncio.Lock | None = None

    # ------------------------------------------------------------ state, read by other modules

    @property
    def limits(self) -> LogLimits:
        """The limits that the log shares with all logs of this broker."""
        return self._limits

    @property
    def state(self) -> Mapping[str, str]:
        """The log's state as last read or written: cursors, and fields of the topic machine."""
        return self._state

    @property
    def exists(self) -> bool:
        """Whether the store has the log."""
        return self._exists

    @property
    def durability(self) -> Durability:
        """The guarantee of acknowledgements in the present ledger; NONE while there is no ledger."""
        return self._durability

    @property
    def wanted_durability(self) -> Durability:
        """The guarantee of acknowledgements from the next ledger on."""
        return self._wanted_durability

    @property
    def binding(self) -> Binding | None:
        """The binding under which the log is open; None if it is not open."""
        return self._binding

    @property
    def ledger(self) -> int:
        """The ledger that the last fence opened; 0 before the first."""
        return self._ledger

    @property
    def next_entry(self) -> int:
        """The entry number of the next block."""
        return self._next_entry

    @property
    def is_writable(self) -> bool:
        """Whether entries are appended now."""
        return self._is_writable

    @property
    def needs_comparison(self) -> bool:
        """Whether this broker must compare its tail with the store after the next fence.

        A write was rejected, or the dataset changed: the store may lack blocks that this broker knows.
        """
        return self._needs_comparison

    @property
    def committed(self) -> Position:
        """The watermark: the last position that may be read."""
        return self._committed

    @property
    def maybe_trimmed_before(self) -> Position:
        """Entries before this position are trimmed, or a call that trims them is under way.

        No durable cursor begins before it.
        """
        return self._maybe_trimmed_before

    @property
    def trimmed_up_to(self) -> Position:
        """Every entry up to this position was trimmed: ``read`` continues after it.

        The store, or a block in memory, may still have some of these entries.
        """
        return self._trimmed_up_to

    @property
    def ends(self) -> Sequence[Position]:
        """The last committed entry of each ledger written here: the store must have these entries."""
        return self._ends

    @property
    def is_closed(self) -> bool:
        """Whether this broker no longer serves the log; a later owner has its own object."""
        return self._is_closed

    @property
    def ledger_bytes(self) -> int:
        """Bytes of entries in the present ledger."""
        return self._ledger_bytes

    @property
    def ledger_entries(self) -> int:
        """Entries in the present ledger."""
        return self._ledger_entries

    @property
    def opened_at(self) -> float:
        """The time at which the present ledger was opened."""
        return self._opened_at

    @property
    def entries_in(self) -> int:
        """Entries in the blocks that this broker formed, over all ledgers."""
        return self._entries_in

    @property
    def messages_in(self) -> int:
        """Messages of these entries."""
        return self._messages_in

    @property
    def bytes_in(self) -> int:
        """Bytes of these entries."""
        return self._bytes_in

    @property
    def is_measured(self) -> bool:
        """Whether ``size`` includes the blocks that the store had before; if not, it counts only this broker's."""
        return self._is_measured

    @property
    def share(self) -> Share:
        """The share of the store's memory that the log uses together with other logs."""
        return self._share

    @property
    def waiting(self) -> Sequence[PendingEntry]:
        """Entries that are in no block yet."""
        return self._waiting

    @property
    def undecided(self) -> Sequence[PendingBlock]:
        """Blocks that were sent to the store and whose result is not known or not durable yet."""
        return self._undecided

    @property
    def tail(self) -> Sequence[StoredBlock]:
        """The newest blocks, kept in memory."""
        return self._tail

    @property
    def tail_bytes(self) -> int:
        """The memory of ``tail`` in bytes."""
        return self._tail_bytes

    @property
    def publishes(self) -> Publishes | None:
        """Atomic publishes to the log; None if there never was one."""
        return self._publishes

    @property
    def reports(self) -> LossReports | None:
        """Losses and ranges at risk since this broker opened the log; None if there are none."""
        return self._reports

    # ------------------------------------------------------------ changes by other modules

    def load(self, state: Mapping[str, str]) -> None:
        """Set the log's state as read from the store; ``state`` is empty if the log does not exist yet."""
        self._state = dict(state)
        trimmed = self._state.get(TRIMMED)
        self._trimmed_up_to = (
            EARLIEST if trimmed is None else _entry_before(Position.parse(trimmed))
        )
        self._exists = "ledger" in self._state
        self._is_measured = not self._exists

    def load_unserved(self, state: Mapping[str, str], binding: Binding, ledger: int) -> None:
        """Prepare a log that is trimmed but not served: nothing after ``ledger`` is read."""
        self._state = dict(state)
        self._binding = binding
        self._ledger = ledger
        self._committed = Position(ledger, 0)

    def restore(self, state: Mapping[str, str], ends: Sequence[Position]) -> None:
        """Restore what this broker knew of the log before it closed it, and request a comparison of the tails."""
        if not self._state:
            self.load(state)
        if ends:
            self._ends = list(ends)
            self._committed = ends[-1]
            self._needs_comparison = True

    def note_state(self, fields: Mapping[str, str], remove: Iterable[str] = ()) -> None:
        """Set and remove these fields in memory: a call has changed them in the store, or is about to."""
        for name, value in fields.items():  # ``update`` allocates twice the space
            self._state[name] = value
        for name in remove:
            self._state.pop(name, None)

    def note_floor(self, guard: Guard | None) -> None:
        """Record the floor that an append under this guard is about to store.

        Call it before the append is sent: a fence must not write a lower floor than the append stores.
        """
        if guard is not None and guard.kind is GuardKind.FLOOR:
            floor = int(self._state.get(guard.floor_field, "0"))
            self._state[guard.floor_field] = str(max(floor, guard.number))

    def note_end(self, end: Position) -> None:
        """Add the last entry of the newest ledger before the present one; the store has it."""
        self._ends.append(end)

    def report(self, report: Report) -> None:
        """Write this report to the audit before the next append."""
        if self._reports is None:
            self._reports = LossReports()
        self._reports.pending.append(report)

    def set_wanted_durability(self, durability: Durability) -> None:
        """Set the guarantee of acknowledgements from the next ledger on."""
        self._wanted_durability = durability

    def use_share(self, share: Share) -> None:
        """Count the log's entries against this share from now on."""
        self._share = share

    def allow_writes(self) -> None:
        """Begin to append: the fence is stored and the tails were compared."""
        self._is_writable = True

    def stop_writes(self, *, compare: bool = False) -> None:
        """Append nothing until the next fence. ``compare``: also ``request_comparison``."""
        self._is_writable = False
        if compare:
            self._needs_comparison = True

    def request_comparison(self) -> None:
        """Request a comparison of the tails after the next fence."""
        self._needs_comparison = True

    def note_compared(self) -> None:
        """Record that the tails were compared after a fence."""
        self._needs_comparison = False

    def set_maybe_trimmed_before(self, position: Position) -> None:
        """Call it before a trim, and with the former position if the store rejected the trim."""
        self._maybe_trimmed_before = position

    def note_trimmed(self, before: Position) -> None:
        """Record a trim that the store has performed, and drop the blocks that end before ``before`` from memory."""
        self._trimmed_up_to = max(self._trimmed_up_to, _entry_before(before))
        gone = takewhile(lambda block: last_position(block) < before, self._tail)
        self._forget_oldest(sum(1 for _ in gone))

    def subtract_size(self, size: int) -> None:
        """Subtract the bytes that a trim has removed from the store."""
        self._size_before -= size

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each move of the watermark; callbacks run in the order of registration."""
        self._watchers.append(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Undo ``watch``. A callback may call this."""
        watchers = self._watchers.copy()  # ``advance`` may be iterating over the present list
        watchers.remove(callback)
        self._watchers = watchers

    def add_guarded(self, sender: Sender, guarded: GuardedSender) -> None:
        """Add a sender with a guard that now has pending entries."""
        self._guarded[sender] = guarded

    def remove_guarded(self, sender: Sender) -> None:
        """Remove a sender without pending entries."""
        self._guarded.pop(sender, None)

    @property
    def compacted(self) -> CompactedLog:
        """The log's compacted view; created on demand, because few logs have one."""
        if self._compacted is None:
            self._compacted = CompactedLog(self)
        return self._compacted

    @property
    def trimming(self) -> asyncio.Lock:
        """The lock for calls that trim the log: each call depends on the state fields of the previous one."""
        if self._trimming is None:  # created on demand: few logs are trimmed at a time
            self._trimming = asyncio.Lock()
        return self._trimming

    def skip_trimmed(self, mark_delete: Position) -> Position:
        """Move a mark-delete position forward over trimmed entries.

        Unchanged in a log with a compacted view, because the view contains the trimmed entries.
        """
        if COMPACTED in self._state:
            return mark_delete
        return max(mark_delete, _entry_before(self._maybe_trimmed_before))

    def keep_uncompacted(self, *, is_wanted: bool) -> None:
        """Set whether trims keep entries that no compacted view contains, although there is no view yet."""
        if is_wanted or self._compacted is not None:
            self.compacted.is_wanted = is_wanted

    def compacted_limit(self, limit: Position) -> Position:
        """Lower the limit of a trim, so that entries that no compacted view contains yet stay."""
        if self._compacted is None and COMPACTED not in self._state:
            return limit
        return self.compacted.trim_limit(limit)

    @property
    def size(self) -> int:
        """Approximate bytes that the log takes in the store."""
        return max(0, self._size_before + self._new_blocks_size)

    @property
    def _new_blocks_size(self) -> int:
        return stored_size(self._bytes_in, self._entries_in, self._blocks_in)

    def set_size(self, size: int) -> None:
        """Set the size that was measured in the store, in bytes."""
        self._size_before = size - self._new_blocks_size
        self._is_measured = True

    # ------------------------------------------------------------ writing

    def accept(self, entry: PendingEntry) -> None:
        """Buffer an entry for the next block. The caller checked that its sender may write."""
        self._waiting.append(entry)

    def publish(self, publish: Publish) -> None:
        """Queue an atomic publish. The caller checked that its sender may write.

        Raises Refused, and Unavailable if the log is not writable now.
        """
        if not self._is_writable:
            raise Unavailable(f"the holder of {self.name} is changing")
        self._publishes = self._publishes or Publishes()
        self._publishes.add(publish, self)

    @property
    def is_publishing(self) -> bool:
        """Whether the next block belongs to an atomic publish; other entries wait until it is complete."""
        return self._publishes is not None and self._publishes.is_first(self)

    @property
    def is_at_rest(self) -> bool:
        """Whether the log is open, and no entry, result, report or trim of it waits or is under way.

        A log with a compacted view, or that is being compacted, is never at rest.
        """
        has_work = (
            self._waiting
            or self._undecided
            or self._guarded
            or (self._publishes is not None and not self._publishes.is_empty)
            or (self._reports is not None and self._reports.pending)
            or (self._trimming is not None and self._trimming.locked())
            or (self._compacted is not None and self._compacted.is_waited_for)
            or COMPACTED in self._state
            or COMPACTING in self._state
        )
        return self._is_writable and not self._needs_comparison and not has_work

    @property
    def has_more(self) -> bool:
        """Whether a block can be formed now."""
        if self._publishes is not None and self._publishes.is_first(self):
            return self._publishes.has_block(self)
        return bool(self._waiting) and not self._share.is_held

    def open(self, ledger: int, binding: Binding, now: float) -> None:
        """Begin the ledger that a fence opened. Entries are appended after ``allow_writes``."""
        if self._is_closed:
            return
        self._ledger = ledger
        self._binding = binding
        self._durability = self._wanted_durability
        self._next_entry = 1
        self._chain = CHAIN_START
        self._ledger_bytes = 0
        self._ledger_entries = 0
        self._opened_at = now
        self._exists = True
        if self._publishes is not None:
            self._publishes.fenced()

    def summary(self) -> LedgerSummary:
        """The present ledger, for the audit record of the fence that ends it."""
        return LedgerSummary(self._committed, self._ledger_entries, self._ledger_bytes)

    def refuse_waiting(self) -> None:
        """Reject the entries that are in no block yet: their epoch ends."""
        waiting, self._waiting = self._waiting, []
        for sender, _, payload in waiting:
            sender.refused(len(payload))
        if self._publishes is not None:
            self._publishes.refuse()

    def next_block(self, time_ms: int) -> PendingBlock | None:
        """Form the next block of waiting entries with the same guard; None if no entry may be appended now."""
        if not self._is_writable or self._binding is None:
            return None
        if self._publishes is not None and self._publishes.is_first(self):
            publishing = self._publishes.next_block(self, time_ms)
            if publishing is not None or self._publishes.is_first(self):
                return publishing
        if not self._waiting or self._share.is_held:
            return None
        if self._guarded and not self._refuse_senders_without_floor():
            return None
        waiting = self._waiting
        # Most entries have similar sizes: take as many as would fit if all were as long as the first.
        count = min(BLOCK_ENTRIES_MAX, BLOCK_BYTES_MAX // max(1, len(waiting[0][2])) + 1)
        if self._publishes is not None:
            count = self._publishes.limit(self, count)
        entries = waiting[:count]
        guard = keep_leading_guard(entries, self._guarded) if self._guarded else None
        payloads = [payload for _, _, payload in entries]
        lengths = list(map(len, payloads))
        size = sum(lengths)
        if size > BLOCK_BYTES_MAX and len(lengths) > 1:
            fitting = max(1, bisect_right(list(accumulate(lengths)), BLOCK_BYTES_MAX))
            del entries[fitting:], payloads[fitting:], lengths[fitting:]
        del waiting[: len(entries)]
        return self.form_block(entries, payloads, lengths, time_ms, guard)

    def form_block(
        self,
        entries: list[PendingEntry],
        payloads: Sequence[memoryview],
        lengths: list[int],
        time_ms: int,
        guard: Guard | None = None,
        publish: Publish | None = None,
    ) -> PendingBlock:
        """Form the next block of these entries. The caller checked that there is space for the guard's floor.

        Raises Unavailable if the log is not open.
        """
        if self._binding is None:
            raise Unavailable(f"{self.name} is not open here")
        position = Position(self._ledger, self._next_entry)
        payload = b"".join(payloads)
        size = len(payload)
        counts = [send.num_messages for _, send, _ in entries]
        if min(counts) < 1:  # a client may send any number; the log stores at least 1
            counts = [max(1, count) for count in counts]
        chain_before = self._chain
        self._chain = chain(self._chain, position, lengths, payload)
        self._next_entry += len(entries)
        self._ledger_bytes += size
        self._ledger_entries += len(entries)
        self._entries_in += len(entries)
        self._messages_in += sum(counts)
        self._bytes_in += size
        self._blocks_in += 1
        block = Block(
            position,
            lengths,
            payload,
            None if counts.count(1) == len(counts) else counts,
            time_ms,
            self._chain,
            publish="" if publish is None else publish.name,
            commits=publish is not None and publish.is_formed,
            by="" if publish is None else publish.by,
        )
        token = self._binding.token(self._ledger)
        pending = PendingBlock(block, token, entries, guard=guard, chain_before=chain_before)
        pending.publish = publish
        self.note_floor(guard)
        self._undecided.append(pending)
        return pending

    def put_back(self, pending: PendingBlock) -> None:
        """Queue the entries of a block again, before all others. The block is certainly not in the log."""
        self._undecided.remove(pending)
        self._waiting[:0] = pending.entries

    def give_up(self, pending: PendingBlock, *, is_definite: bool) -> None:
        """Stop appending a block, and answer its senders.

        ``is_definite``: the block is certainly not in the log; otherwise its result is unknown.
        """
        self._undecided.remove(pending)
        if pending.publish is not None:
            pending.publish.given_up(pending.block, is_definite=is_definite)
            return
        for sender, _, payload in pending.entries:
            if is_definite:
                sender.refused(len(payload))
            else:
                sender.unknown(len(payload))

    # ------------------------------------------------------------ blocks that a guard refused

    def roll_back(
        self, refused: PendingBlock, held: Sequence[PendingBlock], outcome: Outcome
    ) -> None:
        """Undo a block that its guard refused, and the blocks after it, so that the log has no gap.

        Only for blocks that were sent once: the store answered STALE or AHEAD for ``refused`` and HELD
        for each of ``held``. No copy of them is under way, so the next blocks can use their positions.

        * The entries of the held blocks are queued again, before all others.
        * A sender with entries in the refused block loses all its queued entries. If later ones were
          appended, because the guard holds again by then, its messages would have a gap.
        * An atomic publish is refused with its first block, because its version is published already.
          Only its own blocks can come after that block.
        """
        for pending in reversed(held):
            self._take_back(pending)
            if pending.publish is None:
                self._waiting[:0] = pending.entries
        self._take_back(refused)
        if refused.publish is not None:
            refused.publish.duplicate()
            return
        senders = {sender: self._guarded.get(sender) for sender, _, _ in refused.entries}
        later = [entry for entry in self._waiting if entry[0] in senders]
        self._waiting = [entry for entry in self._waiting if entry[0] not in senders]
        for sender, guarded in senders.items():
            own = [entry for entry in (*refused.entries, *later) if entry[0] is sender]
            size = sum(len(payload) for _, _, payload in own)
            if guarded is not None:
                guarded.guard_refused(len(own), size, outcome)

    def withdraw(self, pending: PendingBlock, outcome: Outcome) -> None:
        """Undo a block of several logs' joint append: the store appended none of its blocks."""
        self._take_back(pending)
        if pending.joint_append is not None:
            pending.joint_append.refused_by_store(outcome)
        for sender, _, payload in pending.entries:
            sender.refused(len(payload))

    def _take_back(self, pending: PendingBlock) -> None:
        """Undo ``form_block`` for the log's last block."""
        self._undecided.remove(pending)
        self._next_entry = pending.block.position.entry
        self._chain = pending.chain_before
        counts = pending.block.counts
        self._ledger_bytes -= pending.size
        self._ledger_entries -= len(pending.entries)
        self._entries_in -= len(pending.entries)
        self._messages_in -= len(pending.entries) if counts is None else sum(counts)
        self._bytes_in -= pending.size
        self._blocks_in -= 1

    def _refuse_senders_without_floor(self) -> bool:
        """Reject senders at the head of the queue whose guard needs a floor that the log has no space for.

        More senders may have been admitted than there is space for. Such a sender has no block under
        way: its first block would have recorded the floor. Returns whether entries are left.
        """
        while self._waiting:
            sender = self._waiting[0][0]
            guarded = self._guarded.get(sender)
            if guarded is None or has_space(self._state, guarded.guard, self._limits.floors_max):
                return True
            own = [entry for entry in self._waiting if entry[0] is sender]
            self._waiting = [entry for entry in self._waiting if entry[0] is not sender]
            size = sum(len(payload) for _, _, payload in own)
            guarded.guard_refused(len(own), size, Outcome.AHEAD)
        return False

    def drop_undecided(self, is_dropped: Callable[[PendingBlock], bool]) -> None:
        """Ignore the results of these blocks: their atomic publish was abandoned."""
        self._undecided = [each for each in self._undecided if not is_dropped(each)]

    def close(self) -> None:
        """Close the log: this broker no longer serves it, and answers all its senders."""
        self._is_closed = True
        self._is_writable = False
        self._binding = None
        for pending in list(self._undecided):
            self.give_up(pending, is_definite=not pending.was_sent)
        self.refuse_waiting()
        self.forget_tail()

    def forget_tail(self) -> None:
        """Drop all blocks in memory: the next read comes from the store."""
        self._tail.clear()
        self._tail_bytes = 0

    def block_committed(self, pending: PendingBlock) -> None:
        """Notify the senders of the oldest undecided block, which is durable, and move the watermark."""
        self._undecided.remove(pending)
        if self._publishes and pending.publish and not self._publishes.reaches(self, pending):
            return
        block = pending.block
        ledger, number = block.position
        start = 0
        # One call per run of a sender's entries: receipts are encoded and written together.
        for sender, run in groupby(pending.entries, _SENDER_OF):
            entries = list(run)
            stop = start + len(entries)
            sender.stored(entries, Position(ledger, number + start), sum(block.lengths[start:stop]))
            start = stop
        self.remember(block)
        if self._ends and self._ends[-1].ledger == ledger:
            self._ends[-1] = block.last
        else:
            self._ends.append(block.last)
            del self._ends[:-LEDGERS_REMEMBERED_MAX]
        self.advance(block.last)

    @property
    def kept_ends(self) -> list[Position]:
        """``ends`` without the ledgers that a trim has removed or may have removed."""
        trimmed = self._state.get(TRIMMED)
        horizon = None if trimmed is None else Position.parse(trimmed)
        return [end for end in self._ends if horizon is None or end >= horizon]

    def forget_after(self, survived: Position) -> None:
        """Drop everything after ``survived`` from memory, because the store has lost it."""
        while self._tail and last_position(self._tail[-1]) > survived:
            self._tail_bytes -= stored_bytes(self._tail.pop())
        while self._ends and self._ends[-1] > survived:
            last = self._ends.pop()
            if last.ledger == survived.ledger and survived.entry > 0:
                self._ends.append(survived)

    def advance(self, position: Position) -> None:
        """Move the watermark and call its watchers."""
        if position > self._committed:
            self._committed = position
            for watcher in self._watchers:
                watcher()

    def marker_committed(self, marker: Marker) -> None:
        """Keep the ledger's marker, which is durable, and move the watermark to it."""
        self.remember(marker)
        self.advance(marker.position)

    def remember(self, block: StoredBlock) -> None:
        """Keep the newest block of the log in memory."""
        self._tail.append(block)
        self._tail_bytes += stored_bytes(block)
        self.shrink_tail(self.tail_bytes_max)

    def shrink_tail(self, bytes_max: int) -> None:
        """Drop the oldest blocks in memory until the rest fits the limit; the newest block stays."""
        if self._tail_bytes <= bytes_max:
            return
        # Each removal moves the list, so several blocks are dropped at once, to somewhat below the limit.
        bytes_max -= bytes_max // 16
        count, bytes_left = 0, self._tail_bytes
        while bytes_left > bytes_max and count < len(self._tail) - 1:
            bytes_left -= stored_bytes(self._tail[count])
            count += 1
        self._forget_oldest(count)

    def _forget_oldest(self, count: int) -> None:
        """Drop the ``count`` oldest blocks from memory."""
        self._tail_bytes -= sum(map(stored_bytes, self._tail[:count]))
        del self._tail[:count]

    async def save_state(
        self,
        fields: Mapping[str, str],
        remove: Sequence[str] = (),
        *,
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> None:
        """Set and remove fields of the log's state, under its token.

        ``may_repeat``: whether the write still applies if the log was opened again meanwhile, after a rejected attempt.
        Raises Undecided (perhaps written, or the bucket is being bound to another dataset: retry)
        and Unavailable (this broker does not own the log now, or the write no longer applies; nothing was written).
        """
        await self._under_token(
            lambda binding, token: self.store.set_state(binding, self.name, token, fields, remove),
            may_repeat,
        )
        self.note_state(fields, remove)

    async def swap_state(self, field: str, expected: str | None, value: str | None) -> None:
        """Set one field of the log's state if it has the expected value. None: the field is missing.

        Raises what ``save_state`` raises; Undecided also if the field has another value: read it again.
        """
        outcome = await self._under_token(
            lambda binding, token: self.store.swap_state(
                binding, self.name, token, field, expected, value
            )
        )
        if outcome is Outcome.STALE:
            raise Undecided(f"{field} of {self.name} changed meanwhile; retry")
        self.note_state({} if value is None else {field: value}, [field] if value is None else [])

    async def _under_token(
        self,
        write: Callable[[Binding, str], Awaitable[Outcome]],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> Outcome:
        """Execute a write under the log's token, again if the log was opened again meanwhile; DONE or STALE."""
        while True:
            binding, ledger = self._binding, self._ledger
            if binding is None:
                raise Unavailable(f"{self.name} is not open here")
            outcome = await write(binding, binding.token(ledger))
            if outcome in {Outcome.DONE, Outcome.STALE}:
                return outcome
            if (binding, ledger) == (self._binding, self._ledger):
                if outcome is Outcome.REFENCE:
                    # The broker reads the anchor and binds the bucket again.
                    raise Undecided(f"{self.name} is reconnecting to the store")
                raise Unavailable(
                    f"this broker no longer serves {self.name} ({outcome.value}); retry"
                )
            if not may_repeat():
                raise Unavailable(f"{self.name} was opened again meanwhile ({outcome.value})")

    # ------------------------------------------------------------ reading

    def read_tail(self, after: Position, entries_max: int, bytes_max: int) -> list[EntryRun] | None:
        """Entries after ``after`` from memory; None if memory lacks some of them, or some were trimmed."""
        if after >= self._committed:
            return []
        if not self._tail or after < max(self._tail[0].position.previous, self._trimmed_up_to):
            return None
        index = len(self._tail)
        while index > 0 and self._tail[index - 1].position > after:
            index -= 1
        start = max(index - 1, 0)
        blocks = [self._tail[i] for i in range(start, len(self._tail))]
        return runs_after(blocks, after, self._committed, entries_max, bytes_max)

    async def read(self, after: Position, entries_max: int, bytes_max: int) -> list[EntryRun]:
        """Committed entries after ``after``, in order; empty at the end of the log.

        A read after a trimmed position continues after ``trimmed_up_to``. Limits as in ``runs_after``.
        Raises Undecided if the store does not answer.
        """
        while True:
            after = max(after, self._trimmed_up_to)
            found = self.read_tail(after, entries_max, bytes_max)
            if found is not None:
                return found
            blocks = await self._read_stored(after)
            if not blocks:
                return []
            after = max(after, self._trimmed_up_to)  # the log may have been trimmed meanwhile
            found = runs_after(blocks, after, self._committed, entries_max, bytes_max)
            if found:
                return found
            after = max(after, last_position(blocks[-1]))
            if after >= self._committed:
                return []

    async def read_blocks(
        self, start: Position, end: Position | None = None, *, count: int, reverse: bool = False
    ) -> list[StoredBlock]:
        """Like LogStore.read_blocks, but only from the dataset that the log is bound to.

        A primary that was cut off still answers, with entries that its successors never had.
        """
        replid = "" if self._binding is None else self._binding.replid
        return await self.store.read_blocks(
            self.name, start, end, count=count, reverse=reverse, replid=replid
        )

    async def _read_stored(self, after: Position) -> list[StoredBlock]:
        """Blocks from the store, beginning with the one that contains the position after ``after``."""
        wanted = Position(after.ledger, after.entry + 1)
        count = max(1, min(READ_BLOCKS_MAX, int(READ_BYTES / self._largest_block_bytes)))
        blocks = await self.read_blocks(wanted, self._committed, count=count)
        if not blocks or blocks[0].position != wanted:
            # ``wanted`` is not the beginning of a block: an earlier block may contain it.
            holding = await self.read_blocks(
                Position(after.ledger, 0), wanted, count=1, reverse=True
            )
            blocks[:0] = [block for block in holding if last_position(block) >= wanted]
        sizes = [stored_bytes(block) for block in blocks]
        if sizes:
            # The largest block, not the mean: if small blocks precede large ones, the next reply must not
            # have many times READ_BYTES.
            self._largest_block_bytes = max(*sizes, self._largest_block_bytes / 4)
        return blocks


def stored_size(size: int, entries: int, blocks: int) -> int:
    """Approximate bytes that blocks take in the store; ``size`` is the bytes of their entries alone."""
    return size + STORED_ENTRY_BYTES * entries + STORED_BLOCK_BYTES * blocks


def stored_bytes(block: StoredBlock) -> int:
    """Approximate memory of a block."""
    if isinstance(block, Block):
        return len(block.payload) + 8 * len(block.lengths) + 200
    return 500


def _entry_before(position: Position) -> Position:
    """The position before ``position`` in its ledger; entry 0, which is the marker, stays."""
    return Position(position.ledger, max(position.entry - 1, 0))


def last_position(block: StoredBlock) -> Position:
    """The position of a block's last entry, or of a marker."""
    return block.last if isinstance(block, Block) else block.position


def payloads(block: Block) -> Iterator[memoryview]:
    """A block's entries, one by one."""
    view = memoryview(block.payload)
    offset = 0
    for length in block.lengths:
        yield view[offset : offset + length]
        offset += length
