"""Fences the logs of a topic: writes the markers, records the grant, and compares the tails after a failover.

The runner passes a Fence effect of the topic machine and gets the opened ledger, even if the store fails over
several times meanwhile. This module makes no decisions.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import assert_never

import structlog

from onewriter_broker.log.store.api import (
    Binding,
    Block,
    FencedLog,
    Marker,
    Outcome,
)
from onewriter_broker.log.store.api import Fence as StoreFence
from onewriter_broker.log.topic_log.log import LedgerSummary, TopicLog, last_position
from onewriter_broker.log.topic_log.losses import (
    RangeAtRisk,
    Report,
    keeps_acknowledged,
    losses,
)
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.tenures import audit_fields, marker_fields, state_fields
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName, whole_number
from onewriter_core.log_format.field_names import (
    FLOOR_PREFIX,
    OPEN_PUBLISH,
    SETTLED,
    STATE_FIELDS_RESERVED,
)
from onewriter_core.topic.effects import Fence
from onewriter_core.topic.model import (
    Held,
    Partition,
    Purpose,
    Reserved,
    Shared,
    TransitionCause,
    Vacant,
)

END_BLOCKS_MAX = 4
"""Blocks before a marker that the broker reads to find the last entry. The others are markers."""

LAST_ENTRY_BLOCKS = 16
"""Blocks of one read that looks for the last entry of a log before more markers than END_BLOCKS_MAX."""

ALIKE_MAX = 8
"""State values up to this length are interned, because most topics are idle and have equal values."""

NO_FIELDS: Mapping[str, str] = MappingProxyType({})
"""Fields of the newest marker in memory. Code that needs the fields reads them from the store."""

RETRY_SECONDS = 0.2
"""Time between attempts of a step that must succeed before the broker answers a grant."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogBefore:
    """What a broker knew of a log before its first fence there.

    ``ledger`` and ``generation``: of the newest marker. ``settled``: the registration of the dataset in which the
    log's losses were determined. ``is_known``: this broker acknowledged the entries of the log.
    """

    ledger: int
    generation: int
    settled: int
    is_known: bool

    @classmethod
    def of(cls, topic_log: TopicLog) -> LogBefore:
        """Read the state of a log that is not open yet."""
        state = topic_log.state
        return cls(
            int(state.get("ledger", "0")),
            int(state.get("generation", "0")),
            int(state.get(SETTLED, "0")),
            is_known=bool(topic_log.ends),
        )


class Fencing:
    """The fences of one topic. ``logs`` has a log for every partition, and may grow."""

    __slots__ = ("_bucket", "_dependencies", "_logs", "_name", "_sequences", "_write_audit")

    def __init__(
        self,
        name: TopicName,
        bucket: int,
        logs: Mapping[int, TopicLog],
        dependencies: TopicDependencies,
        write_audit: Callable[[Binding, dict[str, str]], Awaitable[Outcome]],
        sequences: Callable[[int], dict[str, str]],
    ) -> None:
        self._name = name
        self._bucket = bucket
        self._logs = logs
        self._dependencies = dependencies
        self._write_audit = write_audit
        self._sequences = sequences

    async def write_markers(
        self, effect: Fence, partitions: Mapping[int, Partition], ledger: int, *, flush: bool
    ) -> int | None:
        """Write the markers of a fence, and return the ledger that it opened.

        Failovers of the store may require several attempts. Each attempt uses another ledger. Only a
        marker under the binding that is current at the return counts: an earlier marker is in a dataset
        or bucket ownership that no longer applies.

        The anchor records the ledger of a new epoch, too. The method waits for that record if the fence
        ends the right of a producer that may return. None: this broker no longer serves the topic.

        Raises BrokenKey if a key of the topic is unusable.
        """
        create = False
        logs = [self._logs[partition] for partition in effect.partitions]
        previous = {partition: self._logs[partition].summary() for partition in effect.partitions}
        begins_epoch = effect.purpose in {Purpose.GRANT, Purpose.DEPOSE}
        must_be_recorded = begins_epoch and any(
            _may_return(partitions[partition]) for partition in effect.partitions
        )
        # Saved after the fence, under the new token, a waiting record would replace what the fence writes.
        waiting = {
            partition: self._dependencies.presence.take(self._bucket, self._logs[partition])
            for partition in effect.partitions
        }
        while not any(topic_log.is_closed for topic_log in logs):
            holding = self._dependencies.ownership.holding(self._bucket)
            if holding is None:
                return None
            binding = holding.binding
            fence = self._store_fence(
                effect, partitions, binding, ledger, previous, waiting, create=create
            )
            # In parallel with the fence. If the grant then fails, the anchor only expects a higher
            # ledger than the store has.
            recording = None
            if must_be_recorded:
                recording = self._dependencies.spawn(self._record_grant(ledger))
            elif begins_epoch:
                self._dependencies.ownership.note_grant(self._bucket, ledger)
            outcome = await self._dependencies.appender.fence(fence, logs, flush=flush)
            if recording is not None:
                await recording
            if outcome is Outcome.DONE:
                # Entries of a departed holder must not be stored after its right to resume has ended.
                ends_tenure = not flush or effect.purpose is Purpose.SHARE
                settled = await self._settled(fence, logs, ends_tenure=ends_tenure)
                if settled is Outcome.DONE:
                    return ledger
                if settled is None and self._counts(binding):
                    return None  # closed meanwhile
                outcome = settled or outcome
            log.warning(
                "fence.refused", topic=str(self._name), ledger=ledger, outcome=outcome.value
            )
            if outcome is Outcome.LOST:
                for topic_log in logs:
                    topic_log.request_comparison()  # lost entries are counted after the marker
            create = create or outcome is Outcome.LOST
            following = await self._next_ledger(binding, outcome, logs)
            if following is None:
                return None
            ledger = following
        return None

    async def _next_ledger(
        self, failed: Binding, outcome: Outcome, logs: Sequence[TopicLog]
    ) -> int | None:
        """Reserve another ledger under the current binding. The refused ledger is never used again."""
        while not any(topic_log.is_closed for topic_log in logs):
            try:
                answer = await self._dependencies.ownership.refence(self._bucket, failed, outcome)
                if answer is Refenced.LOST:
                    return None
                return await self._dependencies.ownership.reserve_ledger(self._bucket)
            except (Unavailable, Undecided) as error:
                log.warning("fence.waits", topic=str(self._name), reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return None

    async def _settled(
        self, fence: StoreFence, logs: Sequence[TopicLog], *, ends_tenure: bool
    ) -> Outcome | None:
        """Compare the logs' tails after the fence, report what was lost, and open the logs for writing.

        None: the logs were closed or the binding was replaced meanwhile. Another outcome than DONE: the store
        refused a report.
        """
        compared = [topic_log for topic_log in logs if topic_log.needs_comparison]
        for topic_log in logs:
            if not await self._reconcile(topic_log, fence, ends_tenure=ends_tenure):
                return None
        for topic_log in logs:
            outcome = await self._write_reports(topic_log, fence.binding)
            if outcome is not Outcome.DONE:
                return outcome
        if any(topic_log.is_closed for topic_log in logs) or not self._counts(fence.binding):
            return None
        for part, topic_log in zip(fence.logs, logs, strict=True):
            changed = {
                name: _alike(value)
                for name, value in part.state.items()
                if not (
                    name.startswith(FLOOR_PREFIX) and int(value) < int(topic_log.state.get(name, 0))
                )  # else the floor was raised during the fence
            }
            topic_log.note_state(changed, [OPEN_PUBLISH])  # the fence removed the open publish
            topic_log.marker_committed(Marker(Position(fence.ledger, 0), NO_FIELDS))
            if ends_tenure:  # waiting entries are from a writer whose tenure has ended
                topic_log.refuse_waiting()
            topic_log.allow_writes()
            if topic_log.has_more:
                self._dependencies.appender.append_soon(topic_log)
            elif topic_log in compared:
                self._note_settled(topic_log, fence.binding, fence.ledger)
        return Outcome.DONE

    def _counts(self, binding: Binding) -> bool:
        """Whether this broker holds the bucket under exactly this binding."""
        holding = self._dependencies.ownership.holding(self._bucket)
        return holding is not None and holding.binding == binding

    def _store_fence(
        self,
        effect: Fence,
        partitions: Mapping[int, Partition],
        binding: Binding,
        ledger: int,
        previous: Mapping[int, LedgerSummary],
        waiting: Mapping[int, Mapping[str, str]],
        *,
        create: bool,
    ) -> StoreFence:
        time_ms = self._dependencies.wall_ms()
        parts: list[FencedLog] = []
        for number in effect.partitions:
            topic_log = self._logs[number]
            state = dict(waiting[number])
            state |= state_fields(effect, partitions[number], ledger, time_ms)
            state["generation"] = str(binding.generation)
            # A failover that loses a tail may lose floors, too.
            state |= {
                name: value
                for name, value in topic_log.state.items()
                if name.startswith(FLOOR_PREFIX)
            }
            state |= self._sequences(number)
            if not topic_log.exists and binding.generation > 1:
                state[SETTLED] = str(binding.generation)  # it has nothing that could be lost
            if create:  # the log was lost: write its other state again
                state = {
                    name: value
                    for name, value in topic_log.state.items()
                    if name not in STATE_FIELDS_RESERVED
                } | state
            parts.append(
                FencedLog(
                    topic_log.name,
                    create or not topic_log.exists,
                    marker_fields(effect, number, ledger, time_ms),
                    state,
                )
            )
        audit = audit_fields(
            effect,
            str(self._name),
            ledger,
            partitions[effect.partitions[0]],
            self._dependencies.incarnation,
            previous,
            time_ms,
        )
        return StoreFence(binding, ledger, tuple(parts), audit)

    async def read_state(self, topic_log: TopicLog) -> None:
        """Read the log's state again after the first fence by this broker.

        During an earlier read, a trim or a save of a cursor may still have been under way. After the
        fence none can be. Raises Undecided.
        """
        binding = topic_log.binding
        if binding is None:
            return
        found = await topic_log.store.read_state(topic_log.name, replid=binding.replid)
        known = topic_log.state
        changed = {name: _alike(value) for name, value in found.items() if known.get(name) != value}
        topic_log.note_state(changed, known.keys() - found.keys())

    async def remember_end(self, topic_log: TopicLog) -> Block | None:
        """Note the last entry before the first marker of this broker. It counts as acknowledged.

        If the store loses it later, the broker can report the loss. Returns the block of that entry; None: unknown.
        Raises Undecided.
        """
        binding = topic_log.binding
        if binding is None or len(topic_log.state) == 0 or topic_log.ends:
            return None
        blocks = await topic_log.store.read_blocks(
            topic_log.name,
            EARLIEST,
            Position(topic_log.ledger, 0).previous,
            count=END_BLOCKS_MAX,
            reverse=True,
            replid=binding.replid,
        )
        newest = next((block for block in blocks if isinstance(block, Block)), None)
        if newest is None:
            return None
        topic_log.note_end(newest.last)
        return newest

    async def report_risk(
        self, topic_log: TopicLog, before: LogBefore, newest: Block | None
    ) -> None:
        """State the range at risk of a log that this broker has just opened, before the first append to it.

        No component knows what a former owner acknowledged in a dataset that was replaced. Entries may be missing
        unless an entry or a report shows that a broker has compared the log since that registration. If the last entry is
        too far back to be found, the range covers the whole log.
        ``newest``: the block of the log's last entry; None: not known yet. Raises Undecided, and Unavailable if the
        store refuses the record.
        """
        binding = topic_log.binding
        holding = self._dependencies.ownership.holding(self._bucket)
        since = 0 if holding is None else self._incomplete_since(topic_log, holding)
        if binding is None or holding is None or since == 0:
            return
        generation, durability = binding.generation, topic_log.wanted_durability
        if before.is_known or before.settled >= since:
            return
        newest = newest or await self._newest_entry(topic_log, binding)
        if newest is not None and await self._is_settled_by(
            newest, topic_log, before, binding, since
        ):
            return
        after = max(EARLIEST if newest is None else newest.last, topic_log.trimmed_up_to)
        at_risk = RangeAtRisk(topic_log.name, after, holding.ledgers_before, generation, durability)
        topic_log.report(at_risk)
        outcome = await self._write_reports(topic_log, binding)
        if outcome is not Outcome.DONE:
            reason = "its bucket moved" if outcome is None else outcome.value
            raise Unavailable(
                f"the range at risk of {topic_log.name} could not be recorded ({reason}); retry"
            )
        self._dependencies.at_risk(at_risk)
        self._note_settled(topic_log, binding, topic_log.ledger)

    def _incomplete_since(self, topic_log: TopicLog, holding: Holding) -> int:
        """The newest registration of a dataset that may lack acknowledged entries of the log; 0: there is none.

        A promotion loses nothing of a log whose entries all replicas have. A restored copy and a forced dataset do.
        """
        if keeps_acknowledged(topic_log.wanted_durability, self._dependencies.replicas):
            return holding.lacking_since
        return holding.incomplete_since

    async def _newest_entry(self, topic_log: TopicLog, binding: Binding) -> Block | None:
        """The block of the last entry before the present ledger; None: there is none in the newest blocks.

        Raises Undecided.
        """
        end = Position(topic_log.ledger, 0).previous
        for _ in range(0, self._dependencies.limits.last_entry_blocks_max, LAST_ENTRY_BLOCKS):
            blocks = await topic_log.store.read_blocks(
                topic_log.name,
                EARLIEST,
                end,
                count=LAST_ENTRY_BLOCKS,
                reverse=True,
                replid=binding.replid,
            )
            newest = next((block for block in blocks if isinstance(block, Block)), None)
            if newest is not None or len(blocks) < LAST_ENTRY_BLOCKS:
                return newest
            end = blocks[-1].position.previous
        log.warning("log.end_not_found", topic=str(topic_log.name), after=str(end))
        return None

    async def _is_settled_by(
        self, newest: Block, topic_log: TopicLog, before: LogBefore, binding: Binding, since: int
    ) -> bool:
        """Whether the last entry was appended in registration ``since`` or later: reports precede it. Raises Undecided."""
        if newest.position.ledger == before.ledger:
            return before.generation >= since
        start = Position(newest.position.ledger, 0)
        found = await topic_log.store.read_blocks(
            topic_log.name, start, start, count=1, replid=binding.replid
        )
        marker = found[0] if found and isinstance(found[0], Marker) else None
        generation = None if marker is None else whole_number(marker.fields.get("gen", "0"))
        return generation is not None and generation >= since

    async def record_use(self, ledger: int) -> None:
        """Record in the anchor that the bucket has data, before the first acknowledgement.

        Raises Unavailable.
        """
        await self._dependencies.ownership.record_use(self._bucket, ledger)

    async def _record_grant(self, ledger: int) -> None:
        """Record a change of the holder in the anchor. Retries until it succeeds or the topic is closed."""
        is_logged = False
        while True:
            try:
                await self._dependencies.ownership.record_grant(self._bucket, ledger)
            except Unavailable as unavailable:
                is_closed = any(topic_log.is_closed for topic_log in self._logs.values())
                if is_closed or self._dependencies.ownership.holding(self._bucket) is None:
                    return
                if not is_logged:
                    log.warning("grant.unrecorded", topic=str(self._name), reason=str(unavailable))
                    is_logged = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _reconcile(
        self, topic_log: TopicLog, fence: StoreFence, *, ends_tenure: bool
    ) -> bool:
        """Determine which blocks of the former tail survived, after a fence that followed a rejected write.

        Undecided blocks that the store has are confirmed. The others are certainly not in the log. If the
        holder changed, they are rejected. Otherwise they are appended again in the same order under the new
        ledger. Missing acknowledged entries are a loss, which is counted, logged with positions, and
        reported. False: the binding was replaced before the check finished.
        """
        if not topic_log.needs_comparison:
            return True
        while self._counts(fence.binding) and not topic_log.is_closed:
            undecided = list(topic_log.undecided)
            try:
                survived = await self._survived(topic_log, fence.binding.replid)
                stored = await _stored(topic_log, undecided, fence.binding.replid)
            except Undecided as error:
                log.warning("reconcile.waits", topic=str(topic_log.name), reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        else:
            return False
        if not self._counts(fence.binding) or topic_log.is_closed:
            return False
        topic_log.note_compared()
        for loss in losses(topic_log.name, topic_log.kept_ends, survived):
            self._dependencies.lost(loss)
            topic_log.report(loss)
        topic_log.forget_after(survived)
        absent: list[PendingBlock] = []
        for pending in undecided:
            if pending not in topic_log.undecided:
                continue  # confirmed meanwhile
            block = stored.get(pending.block.position)
            if block is not None and block.chain == pending.block.chain:
                topic_log.block_committed(pending)
            elif ends_tenure or pending.joint_append is not None or pending.publish is not None:
                topic_log.give_up(pending, is_definite=True)
            else:
                absent.append(pending)
        for pending in reversed(absent):
            topic_log.put_back(pending)
        return True

    async def _survived(self, topic_log: TopicLog, replid: str) -> Position:
        """The newest acknowledged position that the store still has.

        A store loses only tails. All earlier entries are therefore stored, unless they were trimmed.
        """
        newest = await topic_log.store.read_blocks(
            topic_log.name, EARLIEST, topic_log.committed, count=1, reverse=True, replid=replid
        )
        return min(last_position(newest[0]), topic_log.committed) if newest else EARLIEST

    async def _write_reports(self, topic_log: TopicLog, binding: Binding) -> Outcome | None:
        """Write the log's reports to the audit, also those of an earlier dataset. None: closed, or bound again."""
        reports = topic_log.reports
        if reports is None:
            return Outcome.DONE
        reports.bind(binding.generation)
        while reports.pending:
            if topic_log.is_closed or not self._counts(binding):
                return None
            report: Report = reports.pending[0]
            try:
                outcome = await self._write_audit(binding, report.audit_fields(binding.generation))
            except Undecided as error:
                log.warning("report.waits", topic=str(topic_log.name), reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if outcome is not Outcome.DONE:
                return outcome
            reports.wrote(report)
        return Outcome.DONE

    def _note_settled(self, topic_log: TopicLog, binding: Binding, ledger: int) -> None:
        """Note in the log's state that its losses are known in this registration of the dataset.

        Without the note, and without an entry, the next owner states a range at risk. So a failure does no harm.
        """
        holding = self._dependencies.ownership.holding(self._bucket)
        if holding is None or self._incomplete_since(topic_log, holding) == 0:
            return

        async def note() -> None:
            fields = {SETTLED: str(binding.generation)}
            try:
                await topic_log.store.set_state(
                    binding, topic_log.name, binding.token(ledger), fields
                )
            except (Undecided, Unavailable) as error:
                log.info("log.not_settled", topic=str(topic_log.name), reason=str(error))

        self._dependencies.spawn(note())


def _alike(value: str) -> str:
    """Intern a short value, because the states of many logs share it."""
    return sys.intern(value) if len(value) <= ALIKE_MAX else value


def _may_return(partition: Partition) -> bool:
    """Whether a producer may return with a right that a change of the holder ends.

    If the store loses the marker of that change, only the anchor's record keeps the producer out. A holder
    that closed its producer does not return.
    """
    match partition.ownership:
        case Vacant(tenure, absence):
            has_closed = absence.cause is TransitionCause.CLOSED and not absence.is_recalled
            return tenure is not None and not has_closed
        case Held() | Reserved() | Shared():
            return True
        case _:
            assert_never(partition.ownership)


async def _stored(
    topic_log: TopicLog, undecided: Sequence[PendingBlock], replid: str
) -> dict[Position, Block]:
    """The stored blocks at the positions of the undecided blocks."""
    found: dict[Position, Block] = {}
    for pending in undecided:
        position = pending.block.position
        blocks = await topic_log.store.read_blocks(
            topic_log.name, position, position, count=1, replid=replid
        )
        found |= {block.position: block for block in blocks if isinstance(block, Block)}
    return found
