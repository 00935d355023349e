"""One term of leading a topic, from the grant to its end: its epoch, its writes, its loss, its handover.

Waiting for a term is in _lead/lead.py, leading term after term in _lead/candidacy.py, acquiring and keeping the
topic in _produce/tenure.py.
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
from onewriter._signal import Signal, notify
from onewriter._transport.checks import Check
from onewriter_core.publish_rights import APP_LENGTH_MAX, capability_of

NONCE_BYTES = 8

KEEP = object()
"""Default of ``transaction``: keep the metadata of the last announcement."""

CAPABILITY_SECONDS = 3600.0
"""Default validity of a capability."""

CAPABILITY_SECONDS_MAX = 7 * 24 * 3600.0
"""Longest validity of a capability."""

ANNOUNCE_SECONDS = 10.0
"""A new leader that cannot publish its announcement within this time releases the topic."""


class LeaderHost(Protocol):
    """The client's methods that leaderships use."""

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run ``work`` in a task that the client cancels when it closes."""
        ...

    def start_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """Start a producer without waiting."""
        ...

    async def create_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        timeout_seconds: float | None = None,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """Create a producer that may write."""
        ...

    async def check(self, topic: str, epoch: int | None = None) -> Check:
        """Let the topic's broker prove which epoch is current."""
        ...

    async def leader(
        self, topic: str, *, timeout_seconds: float | None = None
    ) -> LeaderInfo | None:
        """Return the latest announcement."""
        ...


class Ending(Protocol):
    """A producer or an ownership, which ends once."""

    def when_ended(self, callback: Callable[[OnewriterError], None]) -> None:
        """Call ``callback`` with the reason of the end."""
        ...


class Loss:
    """The end of a leadership or an ownership: await it, check ``is_set()``, or register a callback.

    It is set in the event-loop tick in which the loss becomes known, and never reset. ``reason`` is Fenced after
    a takeover, Closed after this program's own handover, or the broker's refusal.
    """

    def __init__(self, *endings: Ending) -> None:
        self.reason: OnewriterError | None = None
        self._callbacks: list[Callable[[OnewriterError], object]] = []
        self._news = Signal()
        for each in endings:
            each.when_ended(self._set)

    def is_set(self) -> bool:
        """Whether the leadership or ownership is over."""
        return self.reason is not None

    async def wait(self) -> OnewriterError:
        """Wait until it is over, and return the reason."""
        while (reason := self.reason) is None:
            await self._news.wait()
        return reason

    def __await__(self) -> Generator[Any, None, OnewriterError]:
        return self.wait().__await__()

    def call(self, callback: Callable[[OnewriterError], object]) -> None:
        """Call ``callback`` with the reason when it is over, at once if it is over already.

        The callback must not block; its exceptions go to the loop's exception handler.
        """
        if self.reason is not None:
            notify(callback, self.reason)
        else:
            self._callbacks.append(callback)

    def _set(self, reason: OnewriterError) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        self._news.notify()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            notify(callback, reason)


class Leadership(Submitter):
    """One term of leading a topic. ``epoch`` is above the epochs of all earlier terms of all leaders.

    The term ends once and for all: by a takeover, by ``handover``, or because the broker rejects the leader.
    Every later send fails, even if the same process leads again by then.

    ``partitions`` contains a producer for each partition of a partitioned topic, all under one epoch. The loss
    of one partition ends the whole leadership. It is empty for a topic without partitions.
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
        """Random text that identifies this term among all terms of all processes."""
        self.producer = producer
        """The topic's producer; for a partitioned topic, that of partition 0."""
        self.partitions = tuple(partitions)
        self.identity = identity or host_name()
        """The leader's identity in its announcement."""
        self.lost = Loss(*(self.partitions or (producer,)))
        """Set at once when the term is over, for whatever reason."""
        self.lost.call(self._abandon_partitions)
        self.metadata: Any = None
        """The metadata of the last announcement; at first the predecessor's, if it was read."""
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
        """Epoch and nonce as one word, for programs that act on the leader's behalf."""
        return f"{self.epoch}-{self.nonce}"

    @property
    def is_over(self) -> bool:
        """Whether the term is known to be lost or handed over."""
        return self.lost.is_set()

    @property
    def predecessor(self) -> LeaderInfo | None:
        """The latest announcement before this term, with its metadata; None: the log contains none.

        Raises ConfigurationError unless ``Client.lead`` was called with ``read_predecessor=True``.
        """
        if not self._knows_predecessor:
            raise ConfigurationError(
                "it was not read: client.lead(..., read_predecessor=True) reads it"
            )
        return self._predecessor

    def follow(self, predecessor: LeaderInfo | None) -> None:
        """Record the predecessor. Its metadata stays until this leader announces other metadata."""
        self._predecessor = predecessor
        self._knows_predecessor = True
        if predecessor is not None:
            self.metadata = predecessor.metadata

    @property
    def waiting(self) -> int:
        """Number of producers in the topic's queue; see Producer.waiting."""
        return self.producer.waiting

    async def over(self) -> OnewriterError:
        """Wait until the term is over, and return the reason: Fenced, Closed, or another refusal."""
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
        """Append one message under this term's epoch, and return its id. Raises as ``Producer.send``.

        For a partitioned topic use ``partitions[number].send``.
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
        """Return this leader's announcement with ``metadata``: any JSON value, or bytes."""
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
        """Return the announcement as the message that ``announce`` publishes."""
        return self.info(metadata).announcement()

    async def announce(
        self, metadata: Any = None, *, timeout_seconds: float = ANNOUNCE_SECONDS
    ) -> MessageId:
        """Publish this leader's announcement, and return its id. Raises as ``send`` does.

        ``Client.leader`` reads the latest announcement. Call this again whenever ``metadata``, the data for a
        successor, has changed.
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
        """Secret that authorizes this leader at the brokers' HTTP API during this term.

        Send it in the header ``Onewriter-Registration``; it is valid only together with this client's own
        identity. None for a broker of an earlier release, which issues none. Do not log it.
        """
        return self.producer.registration

    def capability(self, app: str, *, expires_seconds: float = CAPABILITY_SECONDS) -> str:
        """Return a capability: the right to publish as ``app`` under this epoch, for ``expires_seconds``.

        Send the text in the header ``Onewriter-Capability``. Its bearer may stage, publish and discard the
        data of that app until the capability expires or the term ends. Raises ConfigurationError for an
        invalid app or time, Unavailable if the broker issued no registration.
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
        """Return the options with which a Spark program writes to this topic as ``app`` under this epoch.

        ``df.write.format("onewriter").options(**leadership.spark_options("nightly-load"))``. Raises as
        ``capability``. Do not log the options; Spark hides the value of ``capabilityToken`` in its plans and
        event logs.
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
        """The guard for writes to other topics that depend on this leadership; see GuardedBy.properties."""
        return GuardedBy(str(self.producer.topic), self.epoch)

    def check_held(self) -> None:
        """Raise Fenced or Closed if the term is known to be over. It sends no request, so it proves nothing."""
        over(self.lost.reason, self.epoch)

    async def check(self) -> Check:
        """Let the topic's broker prove against the store that this epoch is current.

        The epoch was current at one moment between call and return. Call it before acting or answering reads
        in the leader's name. Raises Fenced, Closed, Unavailable (no broker answered in time).
        """
        self.check_held()
        answer = await self._host.check(str(self.producer.topic), self.epoch)
        judge(self.topic, self.epoch, answer)
        return answer

    @property
    def serve_until(self) -> float:
        """The time until which ``may_serve`` is True, by ``time.monotonic``; minus infinity: it is False."""
        return -math.inf if self._deadline is None else self._deadline.until

    def may_serve(self) -> bool:
        """Whether the application may act, or answer reads, in the leader's name now. Sends no request.

        It requires ``ProducerOptions.serve_seconds``; without that option it is always False, and ``check``
        has to be used. No successor is granted the topic before the value has become False.
        """
        return self._deadline is not None and self._deadline.may()

    def guarded(self, topic: str, options: ProducerOptions | None = None) -> Guarded:
        """Return a producer of another topic whose writes succeed only while this epoch is current.

        See Guarded. The ``options`` of the first call for a topic apply.
        """
        return self._guarded.to(topic, options)

    async def seal(self, topic: str, *, timeout_seconds: float | None = None) -> None:
        """Exclude the guarded writes of all earlier leaders from ``topic``; see Guarded.seal."""
        await self.guarded(topic).seal(timeout_seconds=timeout_seconds)

    def transaction(
        self,
        metadata: Any = KEEP,
        *,
        announce: bool = True,
        timeout_seconds: float = COMMIT_SECONDS,
    ) -> Transaction:
        """Begin a transaction, whose messages are stored together or not at all: use it in ``async with``.

        It may contain messages for this topic and for topics in the same bucket (``{orders}-audit`` is in the
        bucket of ``orders``). The leader's announcement is published with them, with ``metadata`` (default:
        that of the last announcement).
        """
        announcement = None
        if announce:
            announcement = self.announcement(self.metadata if metadata is KEEP else metadata)
        return Transaction(
            self, announcement, spawn=self._host.spawn, timeout_seconds=timeout_seconds
        )

    async def handover(self, *, timeout_seconds: float | None = None) -> None:
        """Wait for the receipts of sent messages, and release the topic; return when the next one may lead.

        Messages without a receipt after ``timeout_seconds`` (default: ``Limits.operation_timeout_seconds``)
        fail as ``Producer.send`` describes.
        """
        async with asyncio.TaskGroup() as tasks:
            for producer in self.partitions or (self.producer,):
                tasks.create_task(producer.close(timeout_seconds=timeout_seconds))

    def _abandon_partitions(self, reason: OnewriterError) -> None:
        """Release the other partitions after the loss of one, which ends the leadership of the topic."""
        if not isinstance(reason, Closed):  # otherwise ``handover`` is closing all of them
            for producer in self.partitions:
                producer.abandon()

    def _check_not_partitioned(self) -> None:
        if self.partitions:
            raise ConfigurationError(
                f"{self.topic} has {len(self.partitions)} partitions: send with"
                " leadership.partitions[number].send"
            )
