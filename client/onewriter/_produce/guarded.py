"""Guarded producers: writes to another topic that succeed only under a current leadership or ownership.

A guarded producer is an ordinary producer whose properties name what its writes depend on (``GuardedBy``). If
both topics are in one bucket (``{orders}-audit`` is in the bucket of ``orders``), the store compares the guard
in the call that appends. Otherwise there are two steps. The broker of the guarding topic proves, after the
send has begun, that the epoch is current. The target topic keeps the highest number that it has seen as a
floor and rejects lower ones; ``seal`` raises the floor without a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from onewriter._config import Backoff
from onewriter._errors import (
    Closed,
    ConfigurationError,
    Fenced,
    NotSent,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._message import MessageId
from onewriter._produce.producer import Producer, SubmitArguments, Submitter
from onewriter._produce.tenure import ProducerOptions
from onewriter._transport.checks import Check
from onewriter_core.ids import InvalidTopicName, TopicName
from onewriter_core.property_names import (
    GUARD_GROUP_PROPERTY,
    GUARD_NUMBER_PROPERTY,
    GUARD_PROPERTY,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


@dataclass(frozen=True, slots=True)
class GuardedBy:
    """The guard of writes: a topic and its epoch, or a resource, its generation and its group."""

    name: str
    number: int
    group: str | None = None

    def properties(self) -> dict[str, str]:
        """Return the producer properties of the guard. Any Pulsar client can set them."""
        found = {GUARD_PROPERTY: self.name, GUARD_NUMBER_PROPERTY: str(self.number)}
        return found if self.group is None else {**found, GUARD_GROUP_PROPERTY: self.group}


class Authority(Protocol):
    """A leadership or an ownership, as guarded writes use it."""

    @property
    def guard(self) -> GuardedBy:
        """The guard that the producer's properties name."""
        ...

    def check_held(self) -> None:
        """Raise Fenced or Closed if it is known to be over. Sends no request."""
        ...

    async def check(self) -> object:
        """Let the broker prove that it is not over. Raises Fenced, Unavailable."""
        ...


class Opener(Protocol):
    """The client's methods that open producers."""

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run ``work`` in a task that the client cancels when it closes."""
        ...

    async def create_producer(self, topic: str, options: ProducerOptions | None = None) -> Producer:
        """Create a producer that may write."""
        ...


Open = Callable[[ProducerOptions], Awaitable[Producer]]


class Guarded(Submitter):
    """Writes to one topic that depend on a leadership or an ownership. Created by its ``guarded`` method.

    The first call opens the producer, which lasts until ``close``, the end of the client, or the first refusal.
    A message that is sent after the leadership or ownership is over is definitely not in the log; the call raises
    Fenced, or Closed after this program's own handover.
    """

    def __init__(
        self,
        topic: str,
        authority: Authority,
        open_producer: Open,
        options: ProducerOptions | None = None,
    ) -> None:
        options = options or ProducerOptions()
        self.topic = topic
        self._authority = authority
        self._open = open_producer
        self._options = replace(
            options, properties={**options.properties, **authority.guard.properties()}
        )
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def is_atomic(self) -> bool | None:
        """Whether the store compares the guard in the call that appends; None: not open yet."""
        return None if self._producer is None else self._producer.guard_is_atomic

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
        """Append one message under the guard, and return its id.

        The guard was current at one moment between the call and its return. Raises Fenced, Closed, Refused
        or NotSent if the message is definitely not in the log, and OutcomeUnknown if it may be.
        """
        seconds = self._options.send_timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = asyncio.get_running_loop().time() + seconds
        producer = await self._proved(seconds)
        return await producer.send(
            content,
            key=key,
            properties=properties,
            ordering_key=ordering_key,
            event_time_ms=event_time_ms,
            timeout_seconds=max(0.0, deadline - asyncio.get_running_loop().time()),
        )

    async def take(self, *message: *SubmitArguments) -> asyncio.Future[MessageId]:
        producer = await self._proved(self._options.send_timeout_seconds)
        return await producer.take(*message)

    async def seal(self, *, timeout_seconds: float | None = None) -> None:
        """Exclude guarded writes of all earlier leaders or owners from the topic, without a message.

        After the return, no write under a lower number enters the topic. A new leader calls it for topics in
        other buckets before it reads them. Raises Fenced, Closed, Refused; Unavailable if no broker answered
        in time: the topic may be sealed, so call it again.
        """
        seconds = self._options.send_timeout_seconds if timeout_seconds is None else timeout_seconds
        backoff = Backoff()
        trouble: Unavailable | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        await self._seal_once()
                    except Unavailable as error:
                        trouble = error
                    else:
                        return
                    await asyncio.sleep(backoff.seconds())
        except TimeoutError as error:
            raise Unavailable(f"{self.topic} was not sealed in {seconds:g} s: {trouble}") from error

    async def _seal_once(self) -> None:
        await self._proof()
        producer = await self.producer()
        link = await producer.linked()
        connection = link.connection
        await connection.request(
            pb.CommandSeal(request_id=connection.next_request_id(), producer_id=link.producer_id)
        )

    async def close(self, *, timeout_seconds: float | None = None) -> None:
        """Wait for the receipts of sent messages, and close the producer."""
        self._is_closed = True
        if self._producer is not None:
            await self._producer.close(timeout_seconds=timeout_seconds)

    async def producer(self) -> Producer:
        """Return the producer, opened if necessary. Raises as ``send`` does."""
        async with self._opening:  # in the order of the calls
            self._authority.check_held()
            if self._is_closed:
                raise Closed(f"the guarded producer of {self.topic} was closed")
            if self._producer is None:
                producer = await self._open(self._options)
                if producer.guard_is_atomic is None:
                    producer.abandon()
                    raise Refused(
                        ServerError.UNSUPPORTED_VERSION_ERROR,
                        f"the broker of {self.topic} is not a onewriter broker: it does not support guards",
                    )
                self._producer = producer
            return self._producer

    async def _proved(self, seconds: float) -> Producer:
        """Return the producer, after a check of the guard if the append itself does not compare it."""
        try:
            async with asyncio.timeout(seconds):
                producer = await self.producer()
                if not producer.guard_is_atomic:
                    await self._proof()
                    self._authority.check_held()
                return producer
        except TimeoutError as error:
            raise NotSent(f"{self.topic} could not be written within {seconds:g} s") from error

    async def _proof(self) -> None:
        """Check the guard, with a request that begins now or that a simultaneous call shares."""
        try:
            await self._authority.check()
        except Fenced as fenced:
            raise Fenced(
                f"not appended: {fenced.message}",
                epoch=self._authority.guard.number,
                current_epoch=fenced.current_epoch,
            ) from fenced


class GuardedTopics:
    """The guarded producers of one leadership or ownership by topic; closed when it is over."""

    def __init__(self, authority: Authority, host: Opener) -> None:
        self._authority = authority
        self._host = host
        self._topics: dict[TopicName, Guarded] = {}

    def to(self, topic: str, options: ProducerOptions | None = None) -> Guarded:
        """Return the guarded producer of a topic. The ``options`` of the first call apply.

        Raises ConfigurationError.
        """
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ConfigurationError(str(error)) from error
        found = self._topics.get(name)
        if found is None or found.is_closed:

            async def open_producer(requested: ProducerOptions) -> Producer:
                return await self._host.create_producer(str(name), requested)

            found = Guarded(str(name), self._authority, open_producer, options)
            self._topics[name] = found
        return found

    def over(self, _reason: OnewriterError) -> None:
        """Close all producers after the receipts of accepted messages."""
        topics, self._topics = self._topics, {}
        for guarded in topics.values():
            self._host.spawn(guarded.close())


def over(reason: OnewriterError | None, epoch: int) -> None:
    """Raise Fenced with the epoch, or Closed if this program ended the leadership or ownership itself."""
    if reason is None:
        return
    if isinstance(reason, Fenced):
        raise Fenced(reason.message, epoch=epoch, current_epoch=reason.current_epoch) from reason
    raise Closed(f"it is over: {reason}") from reason


def judge(topic: str, epoch: int, answer: Check) -> None:
    """Raise Fenced if the check shows that the epoch is not current."""
    if not answer.is_current:
        raise Fenced(
            f"epoch {epoch} of {topic} is over. Current epoch: {answer.epoch}",
            epoch=epoch,
            current_epoch=answer.epoch,
        )
