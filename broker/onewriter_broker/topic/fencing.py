"""Fencing a topic's logs: the markers, the grant's record, and what survived a failover.

The runner decides nothing here: it hands over a Fence effect of the topic machine and gets the
ledger that was opened, however many failovers of the store lie between.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

import structlog

from onewriter_broker.log.store.api import (
    FLOOR_PREFIX,
    OPEN_PUBLISH,
    Binding,
    Block,
    FencedLog,
    Marker,
    Outcome,
)
from onewriter_broker.log.store.api import Fence as StoreFence
from onewriter_broker.log.store.blocks import STATE_FIELDS_RESERVED
from onewriter_broker.log.topic_log.log import LedgerSummary, TopicLog, last_position
from onewriter_broker.log.topic_log.losses import Loss, losses
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.tenures import audit_fields, marker_fields, state_fields
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.topic.effects import Fence
from onewriter_core.topic.model import (
    Departure,
    Held,
    Partition,
    Purpose,
    Reserved,
    Shared,
    Vacant,
)

END_BLOCKS_MAX = 4
"""Blocks in front of a marker that are looked through for the last entry: the rest are markers."""

ALIKE_MAX = 8
"""State values up to this length are kept once for all topics: most topics are idle and alike."""

NO_FIELDS: Mapping[str, str] = MappingProxyType({})
"""Of the newest marker in memory: who wants its fields reads it from the store."""

RETRY_SECONDS = 0.2
"""Between attempts at what must succeed before a grant is answered."""

log = structlog.get_logger(__name__)


class Fencing:
    """The fences of one topic. ``logs`` has a log for every partition, and may grow."""

    __slots__ = ("_audit", "_bucket", "_dependencies", "_logs", "_name", "_sequences")

    def __init__(
        self,
        name: TopicName,
        bucket: int,
        logs: Mapping[int, TopicLog],
        dependencies: TopicDependencies,
        audit: Callable[[dict[str, str]], None],
        sequences: Callable[[int], dict[str, str]],
    ) -> None:
        self._name = name
        self._bucket = bucket
        self._logs = logs
        self._dependencies = dependencies
        self._audit = audit
        self._sequences = sequences

    async def write_markers(
        self, effect: Fence, partitions: Mapping[int, Partition], ledger: int, *, flush: bool
    ) -> int | None:
        """The ledger that was opened, after as many attempts as the store's failovers take.

        What begins anew (not ``flush``) is noted in the anchor, too: before this returns, where it
        ends the right of somebody who may come back. None: the topic is served here no longer.

        Raises BrokenKey when a key that it touches cannot be used.

        Only the marker of the binding that counts when this returns counts: what an earlier one
        answered stands in a dataset, or in an ownership, that was left.
        """
        create = False
        logs = [self._logs[partition] for partition in effect.partitions]
        previous = {partition: self._logs[partition].summary() for partition in effect.partitions}
        changes_hands = effect.purpose in {Purpose.GRANT, Purpose.DEPOSE}
        must_be_recorded = changes_hands and any(
            _may_return(partitions[partition]) for partition in effect.partitions
        )
        while not any(topic_log.is_closed for topic_log in logs):
            holding = self._dependencies.ownership.holding(self._bucket)
            if holding is None:
                return None
            binding = holding.binding
            fence = self._store_fence(effect, partitions, binding, ledger, previous, create=create)
            recording = None
            if not flush:
                # Beside the fence, not behind it: a grant that is noted but then fails only makes
                # the anchor expect more than there is.
                recording = self._dependencies.spawn(self._record_grant(ledger))
            outcome = await self._dependencies.appender.fence(fence, logs, flush=flush)
            if recording is not None and must_be_recorded:
                await recording
            if outcome is Outcome.DONE:
                # What a departed holder left must not enter behind the end of its right to resume.
                ends_tenure = not flush or effect.purpose is Purpose.SHARE
                if await self._settled(fence, logs, changes_hands=ends_tenure):
                    return ledger
                if self._counts(binding):
                    return None  # closed meanwhile
            log.warning(
                "fence.refused", topic=str(self._name), ledger=ledger, outcome=outcome.value
            )
            if outcome is Outcome.LOST:
                for topic_log in logs:
                    topic_log.expect_comparison()  # what is missing is counted behind the marker
            create = create or outcome is Outcome.LOST
            following = await self._next_ledger(binding, outcome, logs)
            if following is None:
                return None
            ledger = following
        return None

    async def _next_ledger(
        self, failed: Binding, outcome: Outcome, logs: Sequence[TopicLog]
    ) -> int | None:
        """Another ledger, for whatever binding holds now; the refused one is never used again."""
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
        self, fence: StoreFence, logs: Sequence[TopicLog], *, changes_hands: bool
    ) -> bool:
        """Compare the tails behind the markers and open the logs for writing.

        False: the logs were closed, or the binding was replaced meanwhile.
        """
        for topic_log in logs:
            if not await self._reconcile(topic_log, fence, changes_hands=changes_hands):
                return False
        if any(topic_log.is_closed for topic_log in logs) or not self._counts(fence.binding):
            return False
        for part, topic_log in zip(fence.logs, logs, strict=True):
            for name, value in part.state.items():
                if name.startswith(FLOOR_PREFIX) and int(value) < int(topic_log.state.get(name, 0)):
                    continue  # raised while the fence was under way
                topic_log.note_state({name: _alike(value)})
            topic_log.note_state({}, [OPEN_PUBLISH])  # the fence dropped it
            topic_log.marker_committed(Marker(Position(fence.ledger, 0), NO_FIELDS))
            if changes_hands:  # whatever slipped in was sent by a writer whose turn ends here
                topic_log.refuse_waiting()
            topic_log.allow_writes()
            if topic_log.has_more:
                self._dependencies.appender.gathered(topic_log)
        return True

    def _counts(self, binding: Binding) -> bool:
        """Whether the bucket is held by this very binding."""
        holding = self._dependencies.ownership.holding(self._bucket)
        return holding is not None and holding.binding == binding

    def _store_fence(
        self,
        effect: Fence,
        partitions: Mapping[int, Partition],
        binding: Binding,
        ledger: int,
        previous: dict[int, LedgerSummary],
        *,
        create: bool,
    ) -> StoreFence:
        time_ms = self._dependencies.wall_ms()
        parts: list[FencedLog] = []
        for number in effect.partitions:
            topic_log = self._logs[number]
            state = state_fields(effect, partitions[number], ledger, time_ms)
            state["generation"] = str(binding.generation)
            # A dataset that lost its tail may have lost floors, too.
            state |= {
                name: value
                for name, value in topic_log.state.items()
                if name.startswith(FLOOR_PREFIX)
            }
            state |= self._sequences(number)
            if create:  # the log was lost: what it kept besides is written anew
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
        """Have the log know what its state says behind the first fence here.

        When it was read before, a trim or a cursor's save may have been on its way that nobody waits for
        any more; from the fence on none is. Raises Undecided.
        """
        binding = topic_log.binding
        if binding is None:
            return
        found = await topic_log.store.read_state(topic_log.name, replid=binding.replid)
        known = topic_log.state
        changed = {name: _alike(value) for name, value in found.items() if known.get(name) != value}
        topic_log.note_state(changed, known.keys() - found.keys())

    async def remember_end(self, topic_log: TopicLog) -> None:
        """Note what is before the first marker here: it counts as acknowledged.

        Should the store lose it later, this broker can tell. Raises Undecided.
        """
        binding = topic_log.binding
        if binding is None or len(topic_log.state) == 0 or topic_log.ends:
            return
        blocks = await topic_log.store.read_blocks(
            topic_log.name,
            EARLIEST,
            Position(topic_log.ledger, 0).previous,
            count=END_BLOCKS_MAX,
            reverse=True,
            replid=binding.replid,
        )
        ends = [block.last for block in blocks if isinstance(block, Block)]
        for end in ends[:1]:
            topic_log.note_end(end)

    async def record_use(self, ledger: int) -> None:
        """Have the anchor know that the bucket holds something, before anything is acknowledged.

        Raises Unavailable.
        """
        await self._dependencies.ownership.record_use(self._bucket, ledger)

    async def _record_grant(self, ledger: int) -> None:
        """Have the anchor know of a change of hands, however long that takes."""
        is_told = False
        while True:
            try:
                await self._dependencies.ownership.record_grant(self._bucket, ledger)
            except Unavailable as unavailable:
                is_closed = any(topic_log.is_closed for topic_log in self._logs.values())
                if is_closed or self._dependencies.ownership.holding(self._bucket) is None:
                    return
                if not is_told:
                    log.warning("grant.unrecorded", topic=str(self._name), reason=str(unavailable))
                    is_told = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _reconcile(
        self, topic_log: TopicLog, fence: StoreFence, *, changes_hands: bool
    ) -> bool:
        """After a fence that followed a refused write: see what of the former tail survived.

        Undecided blocks that are there are confirmed. The others are certainly not in the log that
        counts: refused when the topic changed hands, else appended again under the new ledger in
        the same order. Acknowledged entries that are not there are a loss: counted, logged with
        their positions, audited. False: the binding was replaced before this could be seen.
        """
        if not topic_log.was_refused:
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
        topic_log.tails_compared()
        for loss in losses(topic_log.name, topic_log.kept_ends, survived):
            self._report(loss)
        topic_log.forget_after(survived)
        absent: list[PendingBlock] = []
        for pending in undecided:
            if pending not in topic_log.undecided:
                continue  # confirmed on its way meanwhile
            block = stored.get(pending.block.position)
            if block is not None and block.chain == pending.block.chain:
                topic_log.block_committed(pending)
            elif changes_hands or pending.joint_append is not None or pending.publish is not None:
                topic_log.give_up(pending, is_definite=True)
            else:
                absent.append(pending)
        for pending in reversed(absent):
            topic_log.put_back(pending)
        return True

    async def _survived(self, topic_log: TopicLog, replid: str) -> Position:
        """The newest position that is there of what was acknowledged: nothing behind it is.

        A store loses tails only, so what is in front of it is there, or was dropped on purpose.
        """
        newest = await topic_log.store.read_blocks(
            topic_log.name, EARLIEST, topic_log.committed, count=1, reverse=True, replid=replid
        )
        return min(last_position(newest[0]), topic_log.committed) if newest else EARLIEST

    def _report(self, loss: Loss) -> None:
        self._dependencies.lost(loss)
        self._audit(
            {
                "kind": "loss",
                "log": str(loss.topic),
                "after": str(loss.after),
                "last": str(loss.last),
                "entries": str(loss.entries),
            }
        )


def _alike(value: str) -> str:
    """A value that the states of many logs share is stored in memory once."""
    return sys.intern(value) if len(value) <= ALIKE_MAX else value


def _may_return(partition: Partition) -> bool:
    """Whether somebody may come back with a right that a change of hands ends.

    Should the store lose the marker of that change, only the anchor's note keeps him out. Who has
    closed his producer, or never had any, does not come.
    """
    match partition.ownership:
        case Vacant(tenure):
            return tenure is not None and partition.departure is not Departure.CLOSED
        case Held() | Reserved() | Shared():
            return True
        case _:
            assert_never(partition.ownership)


async def _stored(
    topic_log: TopicLog, undecided: Sequence[PendingBlock], replid: str
) -> dict[Position, Block]:
    """The blocks that stand where the undecided ones would."""
    found: dict[Position, Block] = {}
    for pending in undecided:
        position = pending.block.position
        blocks = await topic_log.store.read_blocks(
            topic_log.name, position, position, count=1, replid=replid
        )
        found |= {block.position: block for block in blocks if isinstance(block, Block)}
    return found
