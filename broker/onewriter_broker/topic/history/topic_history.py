"""Records the transitions of a topic in memory, in the broker's log and in the audit stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace

import structlog

from onewriter_broker.log.store.api import Binding, BrokenKey, Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.background import Guarded
from onewriter_broker.topic.history.first_message import FirstMessage
from onewriter_broker.topic.history.tenures import SINCE, group_fields
from onewriter_broker.topic.history.transitions import (
    READY,
    UNANSWERED,
    Transition,
    forced,
    latest,
    milliseconds,
    transition_of,
)
from onewriter_core.errors import OnewriterError, Unavailable, Undecided
from onewriter_core.ids import TopicName
from onewriter_core.topic.effects import Record, Suspect
from onewriter_core.topic.lookups import overlap
from onewriter_core.topic.model import WHOLE, Purpose

RECALL_SECONDS = 1.0
"""Time between attempts to read the transitions of former brokers."""

RECALL_ATTEMPTS_MAX = 30

SUSPECT_SECONDS = 10.0
"""Time between two audit records of a topic about a claimed epoch that was never granted."""

FIRST_MESSAGE_SECONDS_MAX = 60.0
"""A first message that follows its grant later is not reported: the holder had nothing to write."""

log = structlog.get_logger(__name__)


class TopicHistory:
    """The history of one topic. ``transitions`` has the latest transitions, oldest first.

    A transition is visible after its fence is stored, because the machine emits the Record effect then. The transitions
    of former brokers are read from the audit when they are to be shown (``recall``, ``recall_soon``): after a takeover of
    thousands of topics, clients wait for the store and for this broker.
    """

    __slots__ = (
        "_bucket",
        "_dependencies",
        "_first_messages",
        "_is_recalling",
        "_logs",
        "_name",
        "_since_ms",
        "_spawn",
        "_suspected_at",
        "is_whole",
        "transitions",
    )

    def __init__(
        self,
        name: TopicName,
        bucket: int,
        logs: Mapping[int, TopicLog],
        dependencies: TopicDependencies,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        self.transitions: list[Transition] = []
        self.is_whole = True
        """Whether the transitions of former brokers were read, or there are none."""
        self._is_recalling = False
        self._logs = logs
        self._first_messages: tuple[FirstMessage, ...] = ()
        self._name = name
        self._bucket = bucket
        self._dependencies = dependencies
        self._spawn = spawn
        self._since_ms = dependencies.wall_ms()
        self._suspected_at: float | None = None

    def record(self, record: Record) -> None:
        """Add a transition, log it, and audit it unless a fence did."""
        transition = transition_of(record, self._time_ms(record))
        self.transitions = latest([*self.transitions, transition])
        self._dependencies.moved(self._name, record)
        holder, former = record.holder, record.former
        log.info(
            "topic.transition",
            topic=str(self._name),
            partitions=[partition for partition in record.partitions if partition != WHOLE],
            kind=record.purpose.value,
            cause=record.cause.value,
            old_epoch=record.old_epoch,
            epoch=record.epoch,
            ledger=record.ledger,
            old_holder=None if former is None else former.producer_name,
            old_identity=None if former is None else str(former.identity),
            holder=None if holder is None else holder.producer_name,
            identity=None if holder is None else str(holder.identity),
            address=None if holder is None else holder.address,
            leaderless_ms=transition.leaderless_ms,
            detection_ms=transition.detection_ms,
            handover_ms=transition.handover_ms,
            outage_ms=transition.outage_ms,
        )
        if record.purpose is Purpose.RESUME and holder is not None:
            fields = {"kind": record.purpose.value, "cause": record.cause.value}
            fields["t"] = str(transition.at_ms)
            self.audit(fields | _times(transition) | group_fields(holder))
        elif record.purpose is Purpose.GRANT and (record.outage or record.leaderless_seconds):
            # The record of the fence was written before the outage ended.
            self.audit({"kind": READY} | _times(transition))
        self._await_first_message(record, transition)

    def _time_ms(self, record: Record) -> int:
        """The time of a transition: that of its fence, which the audit and the log's state have too."""
        if record.purpose is not Purpose.RESUME and record.partitions:
            fenced = self._logs[record.partitions[0]].state.get(SINCE)
            if fenced:
                return int(fenced)
        return self._dependencies.wall_ms()

    def _await_first_message(self, record: Record, transition: Transition) -> None:
        """Measure until the holder's first message is acknowledged. A later transition ends the measurement."""
        for each in self._first_messages:
            if overlap(each.partitions, record.partitions):
                self._forget(each)
                each.cancel()
        if record.holder is not None:
            now = self._dependencies.now()
            message = FirstMessage(self, self._logs, record.partitions, transition, now)
            self._first_messages += (message,)

    def first_message_stored(self, message: FirstMessage) -> None:
        """Report how long after its grant the holder's first message was acknowledged."""
        self._forget(message)
        seconds = self._dependencies.now() - message.granted_at
        if seconds <= FIRST_MESSAGE_SECONDS_MAX:
            self._wrote(message.transition, seconds)

    def _forget(self, message: FirstMessage) -> None:
        self._first_messages = tuple(each for each in self._first_messages if each is not message)

    def _wrote(self, transition: Transition, seconds: float) -> None:
        """Add the time of the first message to the transition, and to the audit of a change of the holder."""
        measured = replace(transition, first_message_ms=milliseconds(seconds))
        same = (transition.kind, transition.ledger, transition.at_ms)
        for place, each in enumerate(self.transitions):
            if (each.kind, each.ledger, each.at_ms) == same:
                measured = replace(each, first_message_ms=milliseconds(seconds))
                self.transitions[place] = measured
        log.info(
            "topic.first_message",
            topic=str(self._name),
            epoch=measured.epoch,
            outage_ms=measured.outage_ms,
            first_message_ms=measured.first_message_ms,
        )
        if measured.kind == Purpose.GRANT.value:
            self.audit({"kind": READY} | _times(measured))
        self._dependencies.first_message(measured.cause, seconds)
        self._dependencies.changed(self._name)

    def suspect(self, suspect: Suspect) -> None:
        """Record a suspicious epoch at a limited rate, because the audit stream is limited."""
        now = self._dependencies.now()
        if self._suspected_at is not None and now - self._suspected_at < SUSPECT_SECONDS:
            return
        self._suspected_at = now
        log.warning(
            "epoch.ahead",
            topic=str(self._name),
            registration=suspect.registration,
            claimed_epoch=suspect.claimed_epoch,
            stored_epoch=suspect.stored_epoch,
        )
        epoch, claimed = str(suspect.stored_epoch), str(suspect.claimed_epoch)
        self.audit({"kind": "suspect", "epoch": epoch, "claimed": claimed})

    def recall_soon(self, guarded: Guarded) -> None:
        """Prepend the transitions of former brokers soon, and report the change of the topic's status."""
        if not self.is_whole and not self._is_recalling:
            self._is_recalling = True
            self._dependencies.recalls.add(self._bucket, lambda: guarded(self._recall()))

    async def _recall(self) -> None:
        """Retry slowly, because it is not urgent."""
        for _ in range(RECALL_ATTEMPTS_MAX):
            await self.recall()
            if self.is_whole:
                break
            await asyncio.sleep(RECALL_SECONDS)
        self._is_recalling = False

    async def recall(self) -> None:
        """Prepend the transitions of former brokers, if the store answers."""
        audit_tail = self._dependencies.audit_tail
        if self.is_whole or audit_tail is None:
            return
        try:
            before = await audit_tail.before(
                self._bucket, self._name, self._dependencies.incarnation, self._since_ms
            )
        except OnewriterError as error:
            log.info("story.unread", topic=str(self._name), reason=str(error))
            return
        if not self.is_whole:  # no other call was faster
            self.is_whole = True
            self.transitions = latest([*before, *self.transitions])
            self._dependencies.changed(self._name)

    def unanswered(self, epoch: int) -> None:
        """Record that the holder of ``epoch`` did not react to its end."""
        for place, each in enumerate(self.transitions):
            if each.previous is not None and each.previous.epoch == epoch:
                changed = forced(each, each.epoch)
                if changed is not each:
                    self.transitions[place] = changed
                    self.audit({"kind": UNANSWERED, "epoch": str(each.epoch)})
                    log.warning("writer.unanswered", topic=str(self._name), epoch=epoch)
                    self._dependencies.changed(self._name)

    def audit(self, fields: dict[str, str]) -> None:
        """Write an audit record outside of a fence. A fence writes its own record."""
        record = self._record(fields)

        async def write() -> None:
            holding = self._dependencies.ownership.holding(self._bucket)
            if holding is None:
                return
            try:
                outcome = await self._dependencies.store.write_audit(holding.binding, record)
            except Undecided as undecided:
                log.warning("audit.undecided", record=record, reason=str(undecided))
            except BrokenKey as broken:  # the topic itself is not affected
                log.warning("audit.broken", record=record, reason=str(broken))
            else:
                if outcome is not Outcome.DONE:
                    log.warning("audit.refused", record=record, outcome=outcome.value)

        self._spawn(write())

    async def attest(self, binding: Binding, fields: dict[str, str]) -> None:
        """Write an audit record that must be stored before the caller continues.

        Raises Unavailable if the store did not confirm the record. A record may be stored twice.
        """
        record = self._record(fields)
        try:
            outcome = await self._dependencies.store.write_audit(binding, record)
        except Undecided as undecided:
            raise Unavailable(f"the audit record was not confirmed: {undecided}") from undecided
        if outcome is not Outcome.DONE:
            log.info("audit.refused", record=record, outcome=outcome.value)
            raise Unavailable(f"the store refused the audit record: {outcome.value}")

    async def report(self, binding: Binding, fields: dict[str, str]) -> Outcome:
        """Write an audit record under this binding. Raises Undecided: the record may be stored."""
        return await self._dependencies.store.write_audit(binding, self._record(fields))

    def _record(self, fields: dict[str, str]) -> dict[str, str]:
        return {
            "topic": str(self._name),
            "broker": self._dependencies.incarnation,
            "t": str(self._dependencies.wall_ms()),
        } | fields


def _times(transition: Transition) -> dict[str, str]:
    """What the audit records that follow a grant have in common."""
    numbers = {"epoch": str(transition.epoch), "ledger": str(transition.ledger)}
    return numbers | transition.times()
