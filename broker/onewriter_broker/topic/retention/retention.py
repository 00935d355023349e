"""Retention: how much of a log is kept, by age, bytes and entries.

``trim_before`` decides and is pure. ``Retention`` measures logs and trims them. A log without a declared bound
is never trimmed. Only blocks before the current ledger's marker are trimmed, so a log with a long-lived holder
is trimmed up to its last roll.

Retention drops only entries that are completely beyond the bounds. The kept entries may exceed the bounds by
one stretch of the measurements, which are coarser for a longer log, and by what the store keeps in addition.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from onewriter_broker.log.store.api import Binding, Block, Outcome, StoredBlock
from onewriter_broker.log.store.blocks import READ_BYTES
from onewriter_broker.log.topic_log.log import TopicLog, last_position, stored_bytes, stored_size
from onewriter_broker.log.topic_log.ranges import noted_ends, trimmed_of
from onewriter_broker.topic.producers.deduplication import trim_limit
from onewriter_core.api.topic import Retention as RetentionPolicy
from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position
from onewriter_core.log_format.field_names import LEDGER_ENDS, TRIMMED

BLOCK_RUNS_MAX = 256
"""Most stretches into which a log is divided. Beyond that, neighbours are joined."""

SWEEP_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a log that one sweep reads from the store. The next sweep continues."""

READ_BLOCKS_MAX = 256
"""Most blocks in one read."""

TRIMS_MAX = 20
"""Most trim calls of one sweep. The store drops at most 1000 blocks in each."""

MARKERS_MAX = 16
"""Markers before a cut that are skipped in the search for the last entry."""

LEDGER_ENDS_MAX = 8
"""Ledgers of a log whose ends are stored at a cut. The oldest are dropped beyond that."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Limits of the measurement and trim of one log: see the constants."""

    stretches_max: int = BLOCK_RUNS_MAX
    sweep_bytes_max: int = SWEEP_BYTES_MAX
    read_blocks_max: int = READ_BLOCKS_MAX
    ledger_ends_max: int = LEDGER_ENDS_MAX


_CUT_FIELDS = (TRIMMED, LEDGER_ENDS)
"""State fields of a cut."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Consecutive blocks of a log: the start, the content, and the time of the newest block.

    ``messages`` is set only if messages are counted.
    """

    start: Position
    blocks: int
    entries: int
    bytes: int
    newest_ms: int
    messages: int = 0

    @property
    def weight(self) -> int:
        """Approximate size in the store, in bytes."""
        return stored_size(self.bytes, self.entries, self.blocks)


def trim_before(
    block_runs: Sequence[BlockRun],
    policy: RetentionPolicy,
    lowest_retained: Position | None,
    marker: Position,
    now_ms: int,
) -> Position | None:
    """The position before which the log may be trimmed. None: no entry may be trimmed.

    ``block_runs`` describe the log from its beginning, perhaps not to its end. The unmeasured rest counts as
    empty, so that the cut may be too low, but never too high. ``lowest_retained`` is the position of the
    slowest durable subscription; entries up to it may be trimmed (None: there is no such subscription).
    ``marker`` is that of the current ledger, or the position of something else that must stay. Times are wall
    clock, milliseconds since 1970.
    """
    bounds = (policy.max_age_seconds, policy.max_bytes, policy.max_entries)
    if not block_runs or all(bound is None for bound in bounds):
        return None
    left_bytes = sum(block_run.bytes for block_run in block_runs)
    left_entries = sum(block_run.entries for block_run in block_runs)
    cut, is_worth_it = block_runs[0].start, False
    for block_run, following in itertools.pairwise(block_runs):
        left_bytes -= block_run.bytes
        left_entries -= block_run.entries
        is_old = (
            policy.max_age_seconds is not None
            and block_run.newest_ms < now_ms - policy.max_age_seconds * 1000
        )
        is_beyond_bytes = policy.max_bytes is not None and left_bytes >= policy.max_bytes
        is_beyond_entries = policy.max_entries is not None and left_entries >= policy.max_entries
        if not (is_old or is_beyond_bytes or is_beyond_entries):
            break
        cut = following.start
        is_worth_it = is_worth_it or is_old or block_run.entries > 0  # not for a marker alone
    cut = min(cut, marker, unacknowledged_from(policy, lowest_retained))
    return cut if is_worth_it and cut > block_runs[0].start else None


def unacknowledged_from(policy: RetentionPolicy, lowest_retained: Position | None) -> Position:
    """The position from which a log is kept for its durable subscriptions. The highest position: nothing is kept."""
    if not policy.keep_unacknowledged or lowest_retained is None:
        return Position(NUMBER_MAX, NUMBER_MAX)
    return lowest_retained.next


def gather(block_runs: list[BlockRun], following: BlockRun, width: int, most: int) -> int:
    """Add the next block to stretches of ``width`` blocks, and return the width for later blocks.

    If there are more than ``most`` stretches, neighbours are joined, and stretches become twice as wide.
    """
    if block_runs and block_runs[-1].blocks < width:
        block_runs[-1] = _joined(block_runs[-1], following)
    else:
        block_runs.append(following)
    if len(block_runs) <= most:
        return width
    pairs = zip(block_runs[::2], block_runs[1::2], strict=False)
    odd = block_runs[-1:] if len(block_runs) % 2 else []
    block_runs[:] = [_joined(one, other) for one, other in pairs] + odd
    return width * 2


@dataclass(slots=True)
class Measured:
    """The measurements of one log: stretches from its beginning, and the position up to which they reach.

    ``width`` is the number of blocks that a new stretch gathers.
    """

    topic_log: TopicLog
    generation: int
    """The dataset that was measured. After a failover, its successor may have lost the tail."""
    block_runs: list[BlockRun] = field(default_factory=list)
    reaches: Position = EARLIEST
    width: int = 1
    largest: int = READ_BYTES
    limits: RetentionLimits = RetentionLimits()

    @property
    def begins(self) -> Position:
        """The first known block, or the highest position if none is known."""
        return self.block_runs[0].start if self.block_runs else Position(NUMBER_MAX, NUMBER_MAX)

    @property
    def size(self) -> int:
        """Approximate bytes of the measured part in the store."""
        return sum(block_run.weight for block_run in self.block_runs)

    def add(self, block: StoredBlock) -> None:
        """Add the next block of the log."""
        size, entries, time_ms = 0, 0, _time(block)
        if isinstance(block, Block):
            size, entries = len(block.payload), len(block.lengths)
        block_run = BlockRun(block.position, 1, entries, size, time_ms)
        self.width = gather(self.block_runs, block_run, self.width, self.limits.stretches_max)
        self.reaches = last_position(block)

    def forget_before(self, first: Position) -> int:
        """Note that the log begins at ``first`` now. Returns the approximate number of dropped blocks.

        The rest of a stretch that was dropped in part is unknown, and counts as empty.
        """
        before = sum(block_run.blocks for block_run in self.block_runs)
        while len(self.block_runs) > 1 and self.block_runs[1].start <= first:
            del self.block_runs[0]
        if self.block_runs and self.block_runs[0].start < first:
            rest = self.block_runs[0]
            self.block_runs[0] = BlockRun(first, 0, 0, 0, rest.newest_ms)
        return before - sum(block_run.blocks for block_run in self.block_runs)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The result of trim calls: the approximate number of dropped blocks, and whether the last call was rejected."""

    blocks: int = 0
    was_refused: bool = False


class Retention:
    """Trims a broker's logs to their retention policies.

    It remembers the measurements of each log. The next broker measures again, a part in each sweep. Two tasks must
    not use it for one log at the same time.
    """

    def __init__(self, limits: RetentionLimits = RetentionLimits()) -> None:
        self._limits = limits
        self._measured: dict[str, Measured] = {}

    @property
    def has_measured(self) -> bool:
        """Whether it remembers a measurement of any log."""
        return bool(self._measured)

    async def sweep(
        self,
        topic_log: TopicLog,
        policy: RetentionPolicy,
        lowest_retained: Callable[[], Position | None],
        now_ms: int,
    ) -> int:
        """Trim one log to its policy, a bounded part in each call. Returns about how many blocks were dropped.

        ``lowest_retained`` is as in ``trim_before``. It is called before each call to the store, because a
        durable subscription may be added or set back while a log is measured and trimmed. A subscription that
        is added during a call begins after the cut (``trim_once``). Nothing is done for a log that is not open
        here. Raises Undecided if the store does not answer; call it again later.
        """
        if (policy.max_age_seconds, policy.max_bytes, policy.max_entries) == (None, None, None):
            self.forget(topic_log)
            return 0
        binding = topic_log.binding
        if binding is None or topic_log.ledger == 0:
            self.forget(topic_log)
            return 0
        name, generation = str(topic_log.name), binding.generation
        measured = self._measured.get(name)
        if (
            measured is None
            or measured.topic_log is not topic_log
            or measured.generation != generation
        ):
            measured = Measured(topic_log, generation, limits=self._limits)
            self._measured[name] = measured
        await measure(measured)
        limit = trim_limit(topic_log, Position(topic_log.ledger, 0))
        compacted_limit = topic_log.compacted_limit(limit)
        lowest = lowest_retained()
        cut = trim_before(measured.block_runs, policy, lowest, limit, now_ms)
        if cut is not None and cut > compacted_limit:
            topic_log.compacted.is_waited_for = True
            cut = trim_before(measured.block_runs, policy, lowest, compacted_limit, now_ms)
        if cut is None:
            return 0
        done = await trim_to(
            measured, lambda: min(cut, unacknowledged_from(policy, lowest_retained()))
        )
        dropped = done.blocks
        if dropped:
            log.info(
                "retention.trimmed",
                topic=str(topic_log.name),
                blocks=dropped,
                before=str(trimmed_of(topic_log)),
            )
        return dropped

    def forget(self, topic_log: TopicLog) -> None:
        """Forget a log that has no bound any more, or that this broker does not serve."""
        self._measured.pop(str(topic_log.name), None)

    def forget_closed(self) -> None:
        """Forget the closed logs."""
        for name in [name for name, each in self._measured.items() if each.topic_log.is_closed]:
            del self._measured[name]


async def measure(measured: Measured) -> None:
    """Continue the measurement, from the tail in memory if it reaches back far enough.

    Reads at most about ``sweep_bytes_max`` from the store. Call it again for the rest.
    """
    topic_log, limits = measured.topic_log, measured.limits
    read_bytes = 0
    while measured.reaches < topic_log.committed:
        tail = topic_log.tail
        if tail and tail[0].position <= (measured.reaches.ledger, measured.reaches.entry + 1):
            for block in list(tail):
                if measured.reaches < block.position <= topic_log.committed:
                    measured.add(block)
            return
        if read_bytes >= limits.sweep_bytes_max:
            return
        count = max(1, min(limits.read_blocks_max, READ_BYTES // measured.largest))
        start = measured.reaches.next
        blocks = await topic_log.read_blocks(start, topic_log.committed, count=count)
        if not blocks:
            return
        for block in blocks:
            measured.add(block)
            read_bytes += stored_bytes(block)
        measured.largest = max(stored_bytes(block) for block in blocks)


async def trim_to(measured: Measured, cut_now: Callable[[], Position]) -> Dropped:
    """Trim a log that is open here, with as many calls as needed, but at most TRIMS_MAX.

    ``cut_now`` is called right before each call, because meanwhile more entries may have to stay. Raises
    Undecided, and what ``cut_now`` raises.
    """
    topic_log = measured.topic_log
    blocks = 0
    for _ in range(TRIMS_MAX):
        begins, cut = measured.begins, cut_now()
        # A compaction that has begun meanwhile reads the log twice, and must find the same entries.
        if begins >= cut or topic_log.compacted_limit(cut) < cut:
            break
        if topic_log.binding is None:
            return Dropped(blocks, was_refused=True)
        async with topic_log.trimming:
            fields = await noted(topic_log, cut, measured.limits.ledger_ends_max)
            binding = topic_log.binding
            if binding is None or cut_now() < cut or topic_log.compacted_limit(cut) < cut:
                continue
            token = binding.token(topic_log.ledger)
            done = await trim_once(measured, cut, fields, binding, token)
        blocks += done.blocks
        if done.was_refused:
            return Dropped(blocks, was_refused=True)
        if measured.begins == begins:
            break
    return Dropped(blocks)


async def trim_once(
    measured: Measured, cut: Position, fields: Mapping[str, str], binding: Binding, token: str
) -> Dropped:
    """Perform one trim call up to ``cut``, under the token that the log's state has now.

    ``fields`` is the result of ``noted`` for the cut. The caller ensures that no other call trims the log
    meanwhile.

    From here on the log counts as trimmed up to the cut, until the store rejects the call. The call, or a late
    copy of an unanswered one, may drop the entries before the cut. So no reader passes over them as a hole, and
    no backlog of a durable subscription contains them. Once the store has performed the call, no read returns
    them. The store drops whole nodes of a stream; later calls drop the rest. Raises Undecided.
    """
    topic_log, state = measured.topic_log, measured.topic_log.state
    maybe_trimmed_before = topic_log.maybe_trimmed_before
    former = {name: state[name] for name in fields if name in state}
    topic_log.set_maybe_trimmed_before(max(maybe_trimmed_before, cut))
    topic_log.note_state(fields)
    outcome = await topic_log.store.trim(binding, topic_log.name, token, cut, fields)
    if outcome is not Outcome.DONE:
        topic_log.set_maybe_trimmed_before(maybe_trimmed_before)
        topic_log.note_state(former, fields.keys() - former.keys())
        log.info("retention.refused", topic=str(topic_log.name), outcome=outcome.value)
        return Dropped(was_refused=True)
    topic_log.note_trimmed(cut)
    first = await topic_log.read_blocks(EARLIEST, count=1)
    if not first:
        return Dropped(0)
    before = measured.size
    dropped = measured.forget_before(first[0].position)
    if topic_log.is_measured:
        topic_log.subtract_size(before - measured.size)
    return Dropped(dropped)


async def noted(
    topic_log: TopicLog, cut: Position, ledger_ends_max: int = LEDGER_ENDS_MAX
) -> dict[str, str]:
    """The state fields of a cut: its position, and the last entry before the ledger at that position.

    They distinguish a reader that had read that entry from one that missed entries. Raises Undecided.
    """
    if cut <= trimmed_of(topic_log):
        # Return both fields, because the store lacks both if it did not execute an unanswered call.
        return {name: topic_log.state[name] for name in _CUT_FIELDS if name in topic_log.state}
    fields, ends = {TRIMMED: str(cut)}, noted_ends(topic_log)
    if cut.ledger not in ends:
        end = await _end_before(topic_log, cut.ledger, ends)
        if end is not None:
            newest = [*ends.items(), (cut.ledger, end)][-ledger_ends_max:]
            fields[LEDGER_ENDS] = ",".join(f"{ledger} {last}" for ledger, last in newest)
    return fields


async def _end_before(
    topic_log: TopicLog, ledger: int, ends: Mapping[int, Position]
) -> Position | None:
    """The last entry before a ledger, read from the log. None if it is not found."""
    at = Position(ledger, 0)
    for _ in range(MARKERS_MAX):
        found = await topic_log.read_blocks(EARLIEST, at.previous, count=1, reverse=True)
        if not found:
            return None  # an unanswered call may have dropped it
        if isinstance(found[0], Block):
            return found[0].last
        at = found[0].position
        if at.ledger in ends:
            return ends[at.ledger]
    return None


def _joined(one: BlockRun, other: BlockRun) -> BlockRun:
    return BlockRun(
        one.start,
        one.blocks + other.blocks,
        one.entries + other.entries,
        one.bytes + other.bytes,
        max(one.newest_ms, other.newest_ms),
        one.messages + other.messages,
    )


def _time(block: StoredBlock) -> int:
    if isinstance(block, Block):
        return block.time_ms
    text = block.fields.get("t", "")
    return int(text) if text.isdecimal() else 0
