"""Retention: how much of a log is kept, by age, bytes and entries.

``trim_before`` decides, purely; ``Retention`` measures logs and trims them. A log without a declared
bound is never touched. Only blocks below the current ledger's marker are ever cut, so a holder that
stays long is cut behind its rolls.

Nothing within the bounds is dropped: what goes lies wholly beyond them. What stays may exceed them
by one stretch of the measurements, which grow coarser with the log, and by what the store keeps.
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

STRETCHES_MAX = 256
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

_CUT_FIELDS = (TRIMMED, LEDGER_ENDS)
"""State fields of a cut."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive blocks of a log: where they begin, what they hold, how new the newest is.

    ``messages``: only where they are counted.
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
    stretches: Sequence[Stretch],
    policy: RetentionPolicy,
    lowest_retained: Position | None,
    marker: Position,
    now_ms: int,
) -> Position | None:
    """The position before which the log may be trimmed. None: nothing may be trimmed.

    ``stretches`` are the log from its beginning, perhaps not to its end: what is not measured yet
    counts as nothing, so that too little is cut, never too much. ``lowest_retained`` is how far the
    slowest durable subscription is, all up to it may go (None: there is none); ``marker`` is the
    current ledger's, or what else must stay. Times are wall clock, milliseconds since 1970.
    """
    bounds = (policy.max_age_seconds, policy.max_bytes, policy.max_entries)
    if not stretches or all(bound is None for bound in bounds):
        return None
    left_bytes = sum(stretch.bytes for stretch in stretches)
    left_entries = sum(stretch.entries for stretch in stretches)
    cut, is_worth_it = stretches[0].start, False
    for stretch, following in itertools.pairwise(stretches):
        left_bytes -= stretch.bytes
        left_entries -= stretch.entries
        is_old = (
            policy.max_age_seconds is not None
            and stretch.newest_ms < now_ms - policy.max_age_seconds * 1000
        )
        is_beyond_bytes = policy.max_bytes is not None and left_bytes >= policy.max_bytes
        is_beyond_entries = policy.max_entries is not None and left_entries >= policy.max_entries
        if not (is_old or is_beyond_bytes or is_beyond_entries):
            break
        cut = following.start
        is_worth_it = is_worth_it or is_old or stretch.entries > 0  # not for a marker alone
    cut = min(cut, marker, unacknowledged_from(policy, lowest_retained))
    return cut if is_worth_it and cut > stretches[0].start else None


def unacknowledged_from(policy: RetentionPolicy, lowest_retained: Position | None) -> Position:
    """The position from which a log is kept for its durable subscriptions. The highest position: nothing is kept."""
    if not policy.keep_unacknowledged or lowest_retained is None:
        return Position(NUMBER_MAX, NUMBER_MAX)
    return Position(lowest_retained.ledger, lowest_retained.entry + 1)


def gather(stretches: list[Stretch], following: Stretch, width: int, most: int) -> int:
    """Add the block that follows to stretches of ``width`` blocks; the width from then on.

    When there are more than ``most``, neighbours are joined, and stretches are twice as wide.
    """
    if stretches and stretches[-1].blocks < width:
        stretches[-1] = _joined(stretches[-1], following)
    else:
        stretches.append(following)
    if len(stretches) <= most:
        return width
    pairs = zip(stretches[::2], stretches[1::2], strict=False)
    odd = stretches[-1:] if len(stretches) % 2 else []
    stretches[:] = [_joined(one, other) for one, other in pairs] + odd
    return width * 2


@dataclass(slots=True)
class Measured:
    """What is known of one log: stretches from its beginning, and how far they reach.

    ``width`` is the number of blocks that a new stretch gathers.
    """

    topic_log: TopicLog
    generation: int
    """The dataset that was measured: after a failover its successor may have lost the tail."""
    stretches: list[Stretch] = field(default_factory=list)
    reaches: Position = EARLIEST
    width: int = 1
    largest: int = READ_BYTES

    @property
    def begins(self) -> Position:
        """The first known block, or the highest position if none is known."""
        return self.stretches[0].start if self.stretches else Position(NUMBER_MAX, NUMBER_MAX)

    def add(self, block: StoredBlock) -> None:
        """Add the next block of the log."""
        size, entries, time_ms = 0, 0, _time(block)
        if isinstance(block, Block):
            size, entries = len(block.payload), len(block.lengths)
        stretch = Stretch(block.position, 1, entries, size, time_ms)
        self.width = gather(self.stretches, stretch, self.width, STRETCHES_MAX)
        self.reaches = last_position(block)

    def forget_before(self, first: Position) -> int:
        """The log begins at ``first`` now; about how many blocks went.

        Of a stretch that went in part nobody knows what is left: it counts as nothing.
        """
        before = sum(stretch.blocks for stretch in self.stretches)
        while len(self.stretches) > 1 and self.stretches[1].start <= first:
            del self.stretches[0]
        if self.stretches and self.stretches[0].start < first:
            rest = self.stretches[0]
            self.stretches[0] = Stretch(first, 0, 0, 0, rest.newest_ms)
        return before - sum(stretch.blocks for stretch in self.stretches)


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

    def __init__(self) -> None:
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
        """Trim one log to its policy, a bounded part in each call; about how many blocks went.

        ``lowest_retained`` is as in ``trim_before``, and asked before each call to the store: while a
        log is measured and trimmed, a durable subscription may come, or be set back. One that comes
        while a call is under way begins behind the cut (``trim_once``). Nothing is done for a log that
        is not open here. Raises Undecided when the store does not answer: call it again later.
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
            measured = self._measured[name] = Measured(topic_log, generation)
        await measure(measured)
        limit = trim_limit(topic_log, Position(topic_log.ledger, 0))
        compacted_limit = topic_log.compacted_limit(limit)
        lowest = lowest_retained()
        cut = trim_before(measured.stretches, policy, lowest, limit, now_ms)
        if cut is not None and cut > compacted_limit:
            topic_log.compacted.is_waited_for = True
            cut = trim_before(measured.stretches, policy, lowest, compacted_limit, now_ms)
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
    """Go on measuring, out of the tail in memory where it reaches back far enough.

    Reads about SWEEP_BYTES_MAX from the store at most; call it again for the rest.
    """
    topic_log = measured.topic_log
    read_bytes = 0
    while measured.reaches < topic_log.committed:
        tail = topic_log.tail
        if tail and tail[0].position <= (measured.reaches.ledger, measured.reaches.entry + 1):
            for block in list(tail):
                if measured.reaches < block.position <= topic_log.committed:
                    measured.add(block)
            return
        if read_bytes >= SWEEP_BYTES_MAX:
            return
        count = max(1, min(READ_BLOCKS_MAX, READ_BYTES // measured.largest))
        start = Position(measured.reaches.ledger, measured.reaches.entry + 1)
        blocks = await topic_log.read_blocks(start, topic_log.committed, count=count)
        if not blocks:
            return
        for block in blocks:
            measured.add(block)
            read_bytes += stored_bytes(block)
        measured.largest = max(stored_bytes(block) for block in blocks)


async def trim_to(measured: Measured, cut_now: Callable[[], Position]) -> Dropped:
    """Trim a log that is open here, as often as it takes, within TRIMS_MAX.

    ``cut_now`` is asked right before each call: what has to stay may become more meanwhile. Raises
    Undecided, and what ``cut_now`` raises.
    """
    topic_log = measured.topic_log
    blocks = 0
    for _ in range(TRIMS_MAX):
        begins, cut = measured.begins, cut_now()
        # A compaction that has begun meanwhile reads it twice, and must find the same.
        if begins >= cut or topic_log.compacted_limit(cut) < cut:
            break
        if topic_log.binding is None:
            return Dropped(blocks, was_refused=True)
        async with topic_log.trimming:
            fields = await noted(topic_log, cut)
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
    """One trim call up to ``cut``, under the token that the log's state has now.

    ``fields`` are what was ``noted`` of the cut. Nobody else trims the log meanwhile.

    From here on the log counts as cut there, until the store refuses it: what this call drops, or a late
    copy of one that nobody answered, is no reader's hole to pass over, and in no durable subscription's
    backlog. The store drops whole nodes of a stream, the rest goes with the next calls. Raises Undecided.
    """
    topic_log, state = measured.topic_log, measured.topic_log.state
    given_up_before = topic_log.given_up_before
    former = {name: state[name] for name in fields if name in state}
    topic_log.give_up_before(max(given_up_before, cut))
    topic_log.note_state(fields)
    outcome = await topic_log.store.trim(binding, topic_log.name, token, cut, fields)
    if outcome is not Outcome.DONE:
        topic_log.give_up_before(given_up_before)
        topic_log.note_state(former, fields.keys() - former.keys())
        log.info("retention.refused", topic=str(topic_log.name), outcome=outcome.value)
        return Dropped(was_refused=True)
    first = await topic_log.read_blocks(EARLIEST, count=1)
    if not first:
        return Dropped(0)
    before = sum(each.weight for each in measured.stretches)
    dropped = measured.forget_before(first[0].position)
    if topic_log.is_measured:
        topic_log.dropped(before - sum(each.weight for each in measured.stretches))
    return Dropped(dropped)


async def noted(topic_log: TopicLog, cut: Position) -> dict[str, str]:
    """What the state is to say of a cut: where, and the last entry in front of the ledger there.

    By that a reader that had read it is told apart from one that has missed something. Raises Undecided.
    """
    if cut <= trimmed_of(topic_log):
        # All of it: where the store has not executed a call that nobody answered, it lacks both.
        return {name: topic_log.state[name] for name in _CUT_FIELDS if name in topic_log.state}
    fields, ends = {TRIMMED: str(cut)}, noted_ends(topic_log)
    if cut.ledger not in ends:
        end = await _end_before(topic_log, cut.ledger, ends)
        if end is not None:
            newest = [*ends.items(), (cut.ledger, end)][-LEDGER_ENDS_MAX:]
            fields[LEDGER_ENDS] = ",".join(f"{ledger} {last}" for ledger, last in newest)
    return fields


async def _end_before(
    topic_log: TopicLog, ledger: int, ends: Mapping[int, Position]
) -> Position | None:
    """The last entry in front of a ledger, out of the log; None where that is not found out."""
    at = Position(ledger, 0)
    for _ in range(MARKERS_MAX):
        found = await topic_log.read_blocks(EARLIEST, at.previous, count=1, reverse=True)
        if not found:
            return None  # perhaps it went with a call that nobody answered
        if isinstance(found[0], Block):
            return found[0].last
        at = found[0].position
        if at.ledger in ends:
            return ends[at.ledger]
    return None


def _joined(one: Stretch, other: Stretch) -> Stretch:
    return Stretch(
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
