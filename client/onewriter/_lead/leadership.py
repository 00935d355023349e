"""Leading a topic for one term: its epoch, sending under it, hearing of its loss, handing over.

What lives here: one term, from the grant to its end. What does not: how it was won (_lead/lead.py waits
for one, _lead/candidacy.py for one after the other), and getting and keeping the topic (_produce/tenure.py).
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Protocol

from onewriter._errors import (
    Closed,
    ConfigurationError,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._lead.announcement import Announcement, LeaderInfo, host_name, iso_time
from onewriter._lead.deadline import ServingDeadline
from onewriter._lead.transaction import COMMIT_SECONDS, Transaction
from onewriter._produce.guarded import Guarded, GuardedBy, GuardedTopics, judge, over
from onewriter._produce.outbox import MessageId
from onewriter._produce.producer import Producer, SubmitArguments, Submitter
from onewriter._produce.tenure import ProducerOptions
from onewriter._signal import Signal, tell
from onewriter._transport.checks import Check
from onewriter_core.publish_rights import APP_LENGTH_MAX, capability_of

NONCE_BYTES = 8

KEEP = object()
"""Metadata that stays as it was announced last."""

CAPABILITY_SECONDS = 3600.0
"""For how long a capability counts unless the caller says otherwise."""

CAPABILITY_SECONDS_MAX = 7 * 24 * 3600.0
"""For how long a capability may count."""

ANNOUNCE_SECONDS = 10.0
"""A new leader that cannot publish who it is in that time gives the topic back."""


class LeaderHost(Protocol):
    """The client, as what is made from it knows it."""

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run something that ends with the client at the latest."""
        ...

    def start_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """A producer that begins to ask for its topic."""
        ...

    async def create_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        timeout_seconds: float | None = None,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """A producer that may write."""
        ...

    async def check(self, topic: str, epoch: int | None = None) -> Check:
        """Have the topic's broker prove which epoch is current."""
        ...

    async def leader(
        self, topic: str, *, timeout_seconds: float | None = None
    ) -> LeaderInfo | None:
        """Who was announced last."""
        ...


class Ending(Protocol):
    """What ends once: a producer, an ownership."""

    def when_ended(self, callback: Callable[[OnewriterError], None]) -> None:
        """Call it when it is over."""
        ...


class Loss:
    """The end of a leadership: ``await`` it, ask ``is_set()``, or let it ``call`` somebody.

    Set in the very turn of the loop that brought the news, and never reset. ``reason`` is Fenced
    after a takeover, Closed after the leader's own handover, or what the broker refused with.
    """

    def __init__(self, *endings: Ending) -> None:
        self.reason: OnewriterError | None = None
        self._callbacks: list[Callable[[OnewriterError], object]] = []
        self._news = Signal()
        for each in endings:
            each.when_ended(self._set)

    def is_set(self) -> bool:
        """Whether it is over."""
        return self.reason is not None

    async def wait(self) -> OnewriterError:
        """Wait until it is over; why."""
        while (reason := self.reason) is None:
            await self._news.wait()
        return reason

    def __await__(self) -> Generator[Any, None, OnewriterError]:
        return self.wait().__await__()

    def call(self, callback: Callable[[OnewriterError], object]) -> None:
        """Call it once it is over, at once if it is; it must not block.

        What it raises goes to the loop's exception handler.
        """
        if self.reason is not None:
            tell(callback, self.reason)
        else:
            self._callbacks.append(callback)

    def _set(self, reason: OnewriterError) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        self._news.tell()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            tell(callback, reason)


class Leadership(Submitter):
    """One time at the head of a topic. ``epoch`` is above that of every earlier one of anybody.

    It ends for good: by a takeover, by ``handover``, or because the broker refuses it. Whatever is
    sent afterwards fails, also if the same process leads again by then.

    ``partitions`` holds a producer for each partition of a partitioned topic, all under one epoch;
    losing one of them ends the leadership of all. It is empty for a topic without partitions.
    """

    def __init__(
        self,
        producer: Producer,
        host: LeaderHost,
        *,
        identity: str = "",
        partitions: Sequence[Producer] = (),
    ) -> None:
        if producer.epoch is None:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR, "the broker granted the topic without an epoch"
            )
        self.epoch = producer.epoch
        self.nonce = secrets.token_hex(NONCE_BYTES)
        """Tells this term from every other, also from those of another process."""
        self.producer = producer
        """The topic's producer; of a partitioned topic the one of partition 0."""
        self.partitions = tuple(partitions)
        self.identity = identity or host_name()
        """Who leads, as it is announced."""
        self.lost = Loss(*(self.partitions or (producer,)))
        """Told at once when it is over, for whatever reason."""
        self.lost.call(self._abandon_partitions)
        self.metadata: Any = None
        """What was announced last for a successor; by the predecessor, if that was read."""
        self._predecessor: LeaderInfo | None = None
        self._knows_predecessor = False
        self._host = host
        self._guarded = GuardedTopics(self, host)
        self.lost.call(self._guarded.over)
        self._deadline: ServingDeadline | None = None
        if producer.options.serve_seconds is not None:
            self._deadline = ServingDeadline(
                producer.options.serve_seconds, self.check, lambda: producer.is_ready
            )
            renewal = host.spawn(self._deadline.run())
            self.lost.call(lambda _reason: renewal.cancel())
        self._since = iso_time(time.time_ns() / 1e9)

    @property
    def topic(self) -> str:
        """The topic's full name."""
        topic = self.producer.topic
        return str(topic.base if self.partitions else topic)

    @property
    def session(self) -> str:
        """Epoch and nonce in one word, for those who act on the leader's behalf."""
        return f"{self.epoch}-{self.nonce}"

    @property
    def is_over(self) -> bool:
        """Whether it is known to be lost or given up."""
        return self.lost.is_set()

    @property
    def predecessor(self) -> LeaderInfo | None:
        """Who was announced last before this term, with what it left; None: nobody ever was.

        Raises ConfigurationError unless ``Client.lead`` was told ``read_predecessor=True``.
        """
        if not self._knows_predecessor:
            raise ConfigurationError(
                "it was not read: client.lead(..., read_predecessor=True) reads it"
            )
        return self._predecessor

    def follow(self, predecessor: LeaderInfo | None) -> None:
        """It was read who led before; what that one left stays until other metadata is announced."""
        self._predecessor = predecessor
        self._knows_predecessor = True
        if predecessor is not None:
            self.metadata = predecessor.metadata

    @property
    def waiting(self) -> int:
        """How many wait for this term to end; see Producer.waiting."""
        return self.producer.waiting

    async def over(self) -> OnewriterError:
        """Wait until it is over; why: Fenced, Closed, or another refusal."""
        return await self.lost.wait()

    async def send(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
        timeout_seconds: float | None = None,
    ) -> MessageId:
        """Append one message under this term's epoch; see Producer.send for what it raises.

        Of a partitioned topic ``partitions[number].send`` appends to one partition.
        """
        self._check_not_partitioned()
        return await self.producer.send(
            content,
            key=key,
            properties=properties,
            ordering_key=ordering_key,
            event_time_ms=event_time_ms,
            timeout_seconds=timeout_seconds,
        )

    def take(self, *message: *SubmitArguments) -> Awaitable[asyncio.Future[MessageId]]:
        self._check_not_partitioned()
        return self.producer.take(*message)

    def info(self, metadata: Any = None) -> LeaderInfo:
        """Who leads, with what a successor needs: any JSON value, or bytes."""
        return LeaderInfo(
            topic=self.topic,
            epoch=self.epoch,
            identity=self.identity,
            host=host_name(),
            priority=self.producer.queue_priority,
            producer_name=self.producer.name,
            at=self._since,
            metadata=metadata,
        )

    def announcement(self, metadata: Any = None) -> Announcement:
        """The message that says who leads, as ``announce`` publishes it."""
        return self.info(metadata).announcement()

    async def announce(
        self, metadata: Any = None, *, timeout_seconds: float = ANNOUNCE_SECONDS
    ) -> MessageId:
        """Publish who leads; ``Client.leader`` reads the newest of these. Raises as ``send`` does.

        Call it again whenever ``metadata``, what a successor needs, has changed.
        """
        self._check_not_partitioned()
        message = self.announcement(metadata)
        self.metadata = metadata
        return await self.producer.send(
            message.content,
            key=message.key,
            properties=message.properties,
            timeout_seconds=timeout_seconds,
        )

    # ------------------------------------------------------------ publishing under the epoch

    @property
    def registration(self) -> str | None:
        """Secret that proves this leader to the brokers' HTTP API, for as long as the term lasts.

        It goes into the header ``Onewriter-Registration`` and counts only together with this
        client's own identity. None where the broker gives none: it is of an earlier release.
        Do not log it.
        """
        return self.producer.registration

    def capability(self, app: str, *, expires_seconds: float = CAPABILITY_SECONDS) -> str:
        """Pass the right to publish as ``app`` under this epoch on, for so many seconds.

        The text goes into the header ``Onewriter-Capability``; whoever bears it may stage, publish
        and discard what belongs to that app until it expires or the term ends. Raises
        ConfigurationError for an app or a time that is not allowed, Unavailable where the broker
        gave no registration.
        """
        registration = self.registration
        if registration is None:
            raise Unavailable(f"the broker gave no registration for {self.topic}")
        if not 0 < expires_seconds <= CAPABILITY_SECONDS_MAX:
            raise ConfigurationError(
                f"expires_seconds is above 0 and at most {CAPABILITY_SECONDS_MAX:g},"
                f" not {expires_seconds!r}"
            )
        try:
            return capability_of(
                registration, app, math.ceil(time.time_ns() / 1e9 + expires_seconds)
            )
        except ValueError as error:
            raise ConfigurationError(
                f"{app[:200]!r} is not an app: an app is 1 to {APP_LENGTH_MAX} letters, digits,"
                " or characters of . _ : -"
            ) from error

    def spark_options(
        self, app: str, *, expires_seconds: float = CAPABILITY_SECONDS
    ) -> dict[str, str]:
        """Options with which a Spark program writes to this topic under this epoch, as ``app``.

        ``df.write.format("onewriter").options(**leadership.spark_options("nightly-load"))``. Raises as
        ``capability``. Do not log them; Spark hides the value of ``capabilityToken`` in its plans and event logs.
        """
        return {
            "topic": self.topic,
            "txnAppId": app,
            "epoch": str(self.epoch),
            "capabilityToken": self.capability(app, expires_seconds=expires_seconds),
        }

    # ------------------------------------------------------------ proving it

    @property
    def guard(self) -> GuardedBy:
        """What writes elsewhere name to depend on this leadership; see GuardedBy.properties."""
        return GuardedBy(str(self.producer.topic), self.epoch)

    def check_held(self) -> None:
        """Raise Fenced or Closed when it is known to be over; asks nobody, so it proves nothing."""
        over(self.lost.reason, self.epoch)

    async def check(self) -> Check:
        """Have the topic's broker prove, by the store, that this epoch is current.

        It was at one moment between the call and its answer. For whoever acts, or answers reads, in
        the leader's name. Raises Fenced, Closed, Unavailable (nobody could be asked in time).
        """
        self.check_held()
        answer = await self._host.check(str(self.producer.topic), self.epoch)
        judge(self.topic, self.epoch, answer)
        return answer

    @property
    def serve_until(self) -> float:
        """Until when ``may_serve`` says yes, by ``time.monotonic``; minus infinity: it says no."""
        return -math.inf if self._deadline is None else self._deadline.until

    def may_serve(self) -> bool:
        """Whether one may act, or answer reads, in the leader's name at this moment.

        Asks nobody. Needs ``ProducerOptions.serve_seconds``; without, it is always False and
        ``check`` says it. No successor is granted the topic before the answer turned to False.
        """
        return self._deadline is not None and self._deadline.may()

    def guarded(self, topic: str, options: ProducerOptions | None = None) -> Guarded:
        """Writes to another topic that succeed only while this epoch is current; see Guarded.

        ``options`` describe the producer and count for the first call for that topic.
        """
        return self._guarded.to(topic, options)

    async def seal(self, topic: str, *, timeout_seconds: float | None = None) -> None:
        """Keep the guarded writes of all earlier leaders out of ``topic``; see Guarded.seal."""
        await self.guarded(topic).seal(timeout_seconds=timeout_seconds)

    def transaction(
        self,
        metadata: Any = KEEP,
        *,
        announce: bool = True,
        timeout_seconds: float = COMMIT_SECONDS,
    ) -> Transaction:
        """``async with leadership.transaction() as transaction``: messages stored all or none.

        For this topic and others of its bucket (``{orders}-audit`` lies with ``orders``). With them
        the leader publishes anew who it is, and ``metadata``: what was announced last, unless given.
        """
        announcement = None
        if announce:
            announcement = self.announcement(self.metadata if metadata is KEEP else metadata)
        return Transaction(
            self, announcement, spawn=self._host.spawn, timeout_seconds=timeout_seconds
        )

    async def handover(self, *, timeout_seconds: float | None = None) -> None:
        """See through what was sent, leave, and let the next in line lead; returns when it may.

        What has no receipt when the time (``Limits.operation_timeout_seconds``) is over fails as
        ``Producer.send`` describes.
        """
        async with asyncio.TaskGroup() as tasks:
            for producer in self.partitions or (self.producer,):
                tasks.create_task(producer.close(timeout_seconds=timeout_seconds))

    def _abandon_partitions(self, reason: OnewriterError) -> None:
        """One partition is lost, so the epoch does not lead the topic any more: leave the others."""
        if not isinstance(reason, Closed):  # else ``handover`` is closing all of them
            for producer in self.partitions:
                producer.abandon()

    def _check_not_partitioned(self) -> None:
        if self.partitions:
            raise ConfigurationError(
                f"{self.topic} has {len(self.partitions)} partitions: send with"
                " leadership.partitions[number].send"
            )
