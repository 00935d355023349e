"""Runs the machine of one topic: the only caller of ``step``, which also performs the effects.

A mailbox orders the events. The runner handles them one by one, without an await between a decision and its
record. Slow work (a fence) runs as a task of the broker's group and returns as an event. Publishing does not use
the runner: see producers/producer.py and log/appender.py.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

import structlog

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.fencing import Fencing, LogBefore
from onewriter_broker.topic.history.presence import FormerClock, ending_of, note
from onewriter_broker.topic.history.tenures import PRESENT
from onewriter_broker.topic.history.topic_history import TopicHistory
from onewriter_broker.topic.producers.deduplication import Deduplications
from onewriter_broker.topic.producers.leader_loads import may_promote
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.producers.queue_notices import QueueNotices
from onewriter_broker.topic.producers.topic_producers import TopicProducers
from onewriter_core.errors import OnewriterError, ServerError, Unavailable
from onewriter_core.ids import TopicName
from onewriter_core.topic.effects import (
    Answer,
    Close,
    Effect,
    Fence,
    Grant,
    Probe,
    Queue,
    Record,
    Reject,
    Suspect,
)
from onewriter_core.topic.events import (
    ClockTicked,
    DatasetChanged,
    Event,
    FenceRefused,
    FenceStored,
    LedgerFull,
    LoadsChanged,
    PolicyChanged,
    ProducerGone,
    ProducerRequested,
    Unloaded,
)
from onewriter_core.topic.lookups import tenure_of, with_ending
from onewriter_core.topic.machine import next_deadline, step
from onewriter_core.topic.model import (
    Ending,
    Partition,
    Purpose,
    Reserved,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
)

LEDGER_WAIT_SECONDS = 5.0
"""How long a fence waits for a ledger while the anchor is unavailable, before the broker refuses it."""

TAKEOVER_WAIT_SECONDS = 2.0
"""The same limit if the topic has a holder, which continues to write meanwhile."""

LEDGER_RETRY_SECONDS = 0.2

log = structlog.get_logger(__name__)


class TopicRunner:
    """Runs one topic's machine. ``logs`` has a log for every partition."""

    __slots__ = (
        "_answers",
        "_assured_at",
        "_dependencies",
        "_fences",
        "_fencing",
        "_is_stepping",
        "_mailbox",
        "_queue_notices",
        "_timer",
        "_topic_producers",
        "bucket",
        "history",
        "logs",
        "name",
        "topic",
    )

    def __init__(
        self,
        name: TopicName,
        bucket: int,
        topic: Topic,
        logs: dict[int, TopicLog],
        dependencies: TopicDependencies,
        *,
        is_deduplicated: bool = False,
    ) -> None:
        self.name = name
        self.bucket = bucket
        self.topic = topic
        self.logs = logs
        spawn = self.spawn
        self._topic_producers = TopicProducers(
            logs,
            spawn,
            self._activated,
            is_deduplicated=is_deduplicated,
            limits=dependencies.limits.deduplication,
        )
        # Lists and plain dicts: an empty deque takes 0.6 KiB, and most topics are idle.
        self.history = TopicHistory(name, bucket, logs, dependencies, spawn)
        self._dependencies = dependencies
        self._fencing = Fencing(
            name, bucket, logs, dependencies, self.history.report, self._sequences
        )
        self._mailbox: list[Event] = []
        self._is_stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._queue_notices: QueueNotices | None = None  # created when the first holder needs it
        self._assured_at: dict[
            int, float
        ] = {}  # by partition; a missing partition has no assured holder
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._fences: list[asyncio.Task[None]] = []

    @property
    def producers(self) -> dict[str, Producer]:
        """Holders and waiters, by registration."""
        return self._topic_producers.producers

    @property
    def deduplications(self) -> Deduplications:
        """The deduplication of each log, if a policy enables it."""
        return self._topic_producers.deduplications

    def deduplicate(self, *, is_on: bool) -> None:
        """Begin or end the deduplication of later entries."""
        self._topic_producers.deduplicate(is_on=is_on)

    def assure(self, partition: int, epoch: int) -> bool:
        """Whether the epoch is still the current one of a partition, so that its holder may be assured.

        After an assurance the holder may act as the leader for the time that it requested
        (``serve_seconds``). The broker grants the topic to no other producer before that time has passed.
        """
        found = self.topic.partition(partition)
        tenure = None if found is None else tenure_of(found)
        if found is None or tenure is None or tenure.epoch != epoch:
            return False
        if found.serve_seconds:
            self._assured_at[partition] = self._dependencies.now()
        return True

    def _activated(self, producer: Producer) -> None:
        if producer.is_exclusive and producer.channel.receives_queue_notices:
            self._queue_notices = self._queue_notices or QueueNotices(self)
            self._queue_notices.schedule()

    def _sequences(self, partition: int) -> dict[str, str]:
        fenced = self.topic.partition(partition)
        return self._topic_producers.state(partition, 0 if fenced is None else fenced.epoch)

    @property
    def is_at_rest(self) -> bool:
        """Whether the topic has no producers, and nothing of it waits, is under way or has a deadline.

        False if its last holder may act as the leader for some time after an assurance (``serve_seconds``): only
        this runner knows whether that time has passed.
        """
        is_busy = (
            self.producers
            or self._mailbox
            or self._answers
            or self._fences
            or self._timer is not None
            or self.topic.is_closed
            or self.topic.pending_fence is not None
            or self.topic.queue
        )
        return not is_busy and all(map(self._is_partition_at_rest, self.topic.partitions))

    def _is_partition_at_rest(self, partition: Partition) -> bool:
        """Whether a partition is vacant, and the store has the record that its holder has left."""
        topic_log = self.logs[partition.number]
        return (
            isinstance(partition.ownership, Vacant)
            and partition.is_open
            and not partition.serve_seconds
            and topic_log.is_at_rest
            and topic_log.state.get(PRESENT, "0") == "0"
            and not self._dependencies.presence.is_waiting(self.bucket, topic_log)
        )

    # ------------------------------------------------------------ events

    async def open(self, partitions: tuple[Partition, ...]) -> tuple[Partition, ...] | None:
        """Fence the logs of partitions that this broker begins to serve. None: the bucket is lost.

        The audit has the range at risk of each log that may lack acknowledged entries. Raises Unavailable if no
        ledger can be reserved or that record is refused, BrokenKey if a key is unusable, Undecided if the
        log cannot be read.
        """
        tenures = tuple((partition.number, _tenure(partition)) for partition in partitions)
        numbers = tuple(partition.number for partition in partitions)
        effect = Fence(
            0, Purpose.REFENCE, numbers, None, TransitionCause.MOVED, (), tenures, (), None
        )
        ledger = await self._dependencies.ownership.reserve_ledger(self.bucket)
        known = {partition.number: partition for partition in partitions}
        stored = [number for number in numbers if self.logs[number].exists]
        before = {number: LogBefore.of(self.logs[number]) for number in stored}
        endings: dict[int, Ending | None] = {}
        opened = await self._fencing.write_markers(effect, known, ledger, flush=False)
        if opened is None:
            return None
        fenced_at = self._dependencies.now()
        holding = self._dependencies.ownership.holding(self.bucket)
        clock = FormerClock.of(holding, self._dependencies.wall_ms())
        await self._fencing.record_use(opened)
        for number in stored:
            await self._fencing.read_state(self.logs[number])
        for number in numbers:
            end = None
            if number in before:  # a new log has no entry
                end = await self._fencing.remember_end(self.logs[number])
                await self._fencing.report_risk(self.logs[number], before[number], end)
            absence = known[number].absence
            endings[number] = ending_of(
                self.logs[number].state,
                None if absence is None else absence.since,
                None if end is None else end.time_ms,
                fenced_at,
                clock,
            )
            await self.deduplications.open(number)
            if known[
                number
            ].serve_seconds:  # the former broker may have assured the holder just before
                self._assured_at[number] = self._dependencies.now()
        return tuple(
            with_ending(replace(partition, ledger=opened, is_open=True), endings[partition.number])
            for partition in partitions
        )

    def start(self, partitions: tuple[Partition, ...]) -> None:
        """Serve partitions that were opened."""
        self.topic = replace(self.topic, partitions=partitions)
        self._set_timer()
        # Without an epoch, the topic never had a holder.
        self.history.is_whole = not any(partition.epoch for partition in partitions)

    def refence_where_refused(self) -> None:
        """Open the next ledger if writes were rejected although this broker still owns bucket and dataset."""
        if any(topic_log.needs_comparison for topic_log in self.logs.values()):
            self.dataset_changed()

    def post(self, event: Event) -> None:
        """Handle the event after all events that were posted before it."""
        self._mailbox.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        has_failed = False
        try:
            while self._mailbox:
                self._step(self._mailbox.pop(0))
        except Exception:
            log.exception("topic.failed", topic=str(self.name), topic_event=event)
            self._mailbox.clear()
            has_failed = True
        finally:
            self._is_stepping = False
        if has_failed:
            self._dependencies.failed(self.name)  # unloads the topic, which needs a step, too
            self._leave_unanswered("the topic failed; the broker's log says why")
            return
        self._set_timer()
        self._dependencies.loads.note(str(self.name), self.topic)
        if self._queue_notices is not None:
            self._queue_notices.schedule()
        if self.topic.pending_fence is None:
            note(self.topic, self.logs, self._dependencies, self.guarded, self.bucket)
        self._dependencies.changed(self.name)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run work of this topic as a task. An unexpected error closes the topic, not the broker.

        Work for one request handles unexpected errors itself until it changes the topic. From then on it
        runs in ``changing``.
        """
        task = self._dependencies.spawn(self.guarded(work))
        task.add_done_callback(lambda _task: work.close())  # cancelled before its first step
        return task

    async def guarded(self, work: Coroutine[object, object, None]) -> None:
        """Run work of this topic. An unexpected error closes the topic, and is not raised."""
        try:
            await work
        except BrokenKey as broken:
            self._dependencies.broken(self.name, broken)
        except Exception:
            log.exception("topic.failed", topic=str(self.name))
            self._dependencies.failed(self.name)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Guard a change of the topic's state in memory.

        An unexpected error may leave the state inconsistent, so it closes the topic and is raised.
        """
        try:
            yield
        except OnewriterError:
            raise
        except Exception:
            log.exception("topic.failed", topic=str(self.name))
            self._dependencies.failed(self.name)
            raise

    def _step(self, event: Event) -> None:
        if isinstance(event, FenceStored | FenceRefused) and (
            self.topic.pending_fence is None or self.topic.pending_fence.number != event.number
        ):
            log.info("fence.stale", topic=str(self.name), answer=event)  # unloaded meanwhile
            return
        if may_promote(self.topic, event):
            self._report_loads()
        self._do(event)
        if isinstance(event, PolicyChanged) and may_promote(self.topic, event):
            self._report_loads()

    def _report_loads(self) -> None:
        """Give the machine the number of other topics that each waiter's host leads."""
        hosts = (waiter.host for waiter in self.topic.queue)
        loads = self._dependencies.loads.elsewhere(str(self.name), hosts)
        if loads != self.topic.loads:
            self._do(LoadsChanged(loads, self._dependencies.now()))

    def _do(self, event: Event) -> None:
        self.topic, effects = step(self.topic, event)
        for effect in effects:
            self._perform(effect)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = next_deadline(self.topic)
        if deadline is not None:
            delay = max(0.0, deadline - self._dependencies.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        resumable_until = self._dependencies.resumable_until(self.bucket) or 0.0
        self.post(ClockTicked(self._dependencies.now(), resumable_until))

    def request(self, producer: Producer) -> None:
        """Handle a producer's request for the topic. The answer goes through its channel."""
        self.producers[producer.request.registration] = producer
        producer.since_ms = self._dependencies.wall_ms()
        self.post(ProducerRequested(producer.request, self._dependencies.now()))

    def gone(
        self, producer: Producer, cause: TransitionCause, heard_at: float | None = None
    ) -> None:
        """Handle the departure of a producer or waiter, or the loss of its connection.

        ``heard_at``: its last sign of life. None: the last byte of its connection, or for a producer that was
        closed by its client, now.
        """
        registration, now = producer.request.registration, self._dependencies.now()
        if heard_at is None:
            heard_at = now if cause is TransitionCause.CLOSED else producer.channel.last_inbound
        if self._topic_producers.stop(registration) is not None:
            self.post(ProducerGone(registration, cause, now, heard_at))

    async def administer(self, event: Event, identifier: str) -> Answer:
        """Post an administrator's request and wait for its answer.

        Raises Unavailable if the topic fails or is unloaded before the machine answers. The request may or
        may not have been performed.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[identifier] = future
        try:
            self.post(event)
            return await future
        finally:
            del self._answers[identifier]

    def _leave_unanswered(self, reason: str) -> None:
        """Fail the administrators' requests that the machine can no longer answer."""
        for future in self._answers.values():
            if not future.done():
                future.set_exception(Unavailable(reason))

    def dataset_changed(self) -> None:
        """Handle a failover of the store: nothing is appended until every log is fenced again."""
        for topic_log in self.logs.values():
            topic_log.stop_writes(compare=True)
        # This broker made or read every grant since it acquired the bucket, so it knows all of them.
        self.post(DatasetChanged(grants_known=True, now=self._dependencies.now()))

    def unload(self, reason: str) -> None:
        """Stop serving the topic. All clients have to look it up again."""
        self.post(Unloaded(reason, self._dependencies.now()))
        self._leave_unanswered(reason)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queue_notices is not None:
            self._queue_notices.close()
            self._queue_notices = None
        for topic_log in self.logs.values():
            topic_log.close()

    async def settled(self) -> None:
        """Wait for the fences that are under way, also after the topic was unloaded.

        The next load of the topic must not read its state while a fence may still be stored.
        """
        if self._fences:
            await asyncio.wait(self._fences)

    def roll_if_full(self, bytes_max: int, age_seconds_max: float) -> None:
        """Request the next ledger for each partition whose ledger exceeds its size or age."""
        now = self._dependencies.now()
        for partition in self.topic.partitions:
            topic_log = self.logs[partition.number]
            is_old = topic_log.ledger_entries > 0 and now - topic_log.opened_at > age_seconds_max
            may_roll = topic_log.is_writable and not topic_log.is_publishing
            if may_roll and (is_old or topic_log.ledger_bytes > bytes_max):
                self.post(LedgerFull(partition.number, now))

    # ------------------------------------------------------------ effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Fence():
                task = self.spawn(self._fence(effect))
                self._fences.append(task)
                task.add_done_callback(self._fences.remove)
            case Grant():
                self._topic_producers.grant(effect)
            case Queue(registration, name):
                producer = self.producers[registration]
                producer.name = name
                producer.channel.producer_waits(producer)
            case Reject(registration, code, message):
                refused = self._topic_producers.stop(registration)
                if refused is not None:
                    refused.channel.producer_refused(refused, code, message)
            case Close(registration, cause):
                closed = self._topic_producers.stop(registration)
                if closed is not None:
                    log.info(
                        "producer.closed",
                        topic=str(self.name),
                        producer=closed.name,
                        address=closed.request.address,
                        cause=cause.value,
                    )
                    if closed.is_answered:
                        closed.channel.producer_closed(closed)
                    else:  # a client that waits for an answer does not understand CLOSE_PRODUCER
                        text = "the holder of the topic changed before this producer was ready"
                        code = ServerError.SERVICE_NOT_READY
                        closed.channel.producer_refused(closed, code, text)
            case Probe(registration):
                if registration in self.producers:
                    self.producers[registration].channel.probe()
            case Suspect():
                self.history.suspect(effect)
            case Record():
                self.history.record(effect)
            case Answer(identifier, _, _):
                future = self._answers.get(identifier)
                if future is not None and not future.done():
                    future.set_result(effect)
            case _:
                assert_never(effect)

    # ------------------------------------------------------------ fences

    async def _reserved_ledger(self, effect: Fence) -> int | None:
        """The ledger to open. None: no ledger is available, and the machine knows it.

        The method retries for some time, because a refusal disconnects waiters that could simply wait, and
        because the machine requests a mandatory fence again at once.
        """
        patience = TAKEOVER_WAIT_SECONDS if effect.stops else LEDGER_WAIT_SECONDS
        deadline = self._dependencies.now() + patience
        while True:
            try:
                if effect.stops:  # the holders continue if the anchor cannot record the change
                    await self._dependencies.ownership.confirm_record(self.bucket)
                return await self._dependencies.ownership.reserve_ledger(self.bucket)
            except Unavailable as unavailable:
                if self._dependencies.ownership.holding(self.bucket) is None:
                    return None  # the topic is being unloaded
                if self._dependencies.now() < deadline:
                    await asyncio.sleep(LEDGER_RETRY_SECONDS)
                    continue
                reason = f"the topic cannot change hands now: {unavailable}"
                log.warning("fence.given_up", topic=str(self.name), reason=reason)
                self.post(FenceRefused(effect.number, reason, self._dependencies.now()))
                return None

    async def _fence(self, effect: Fence) -> None:
        """Perform a Fence effect: reserve a ledger, stop the writers, write the markers."""
        ledger = await self._reserved_ledger(effect)
        if ledger is None:
            return
        stopped = [producer for each in effect.stops if (producer := self.producers.get(each))]
        for producer in stopped:
            producer.is_active = False
            producer.is_stopped = True
        stopped_at = self._dependencies.now()
        heard_at = max((each.channel.last_inbound for each in stopped), default=None)
        begins_epoch = effect.purpose in {Purpose.GRANT, Purpose.DEPOSE}
        if begins_epoch:
            for partition in effect.partitions:
                self.logs[partition].refuse_waiting()
        partitions = {partition.number: partition for partition in self.topic.partitions}
        opened = await self._fencing.write_markers(
            effect, partitions, ledger, flush=not begins_epoch
        )
        if opened is None:
            return  # the bucket is lost: the topic is being unloaded
        assured_at = max(
            self._assured_at.get(partition, -math.inf) for partition in effect.partitions
        )
        self.post(
            FenceStored(
                effect.number, opened, self._dependencies.now(), assured_at, stopped_at, heard_at
            )
        )


def _tenure(partition: Partition) -> Tenure | None:
    """The tenure that the marker of a partition keeps during a load."""
    return (
        partition.ownership.tenure if isinstance(partition.ownership, Vacant | Reserved) else None
    )
