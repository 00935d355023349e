"""The client: one service URL, its connections, and the tasks of everything made from it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from onewriter._config import ClientOptions, Limits, Tls, TokenSource, fixed_token, token_file
from onewriter._consume.consumer import Consumer, ConsumerOptions
from onewriter._consume.reader import Reader, ReaderOptions
from onewriter._errors import Closed, ConfigurationError, OnewriterError, Unavailable
from onewriter._lead.announcement import LeaderInfo
from onewriter._lead.lead import Lead, LeadOptions
from onewriter._lead.search import newest_leader
from onewriter._message import EARLIEST, LATEST, MessageId
from onewriter._own.own import Own, Ownerships, Resources, new_nonce, wanted_of
from onewriter._own.requests import OwnershipRequests, Requester
from onewriter._produce.producer import Producer
from onewriter._produce.tenure import AccessMode, ProducerOptions
from onewriter._signal import notify
from onewriter._transport.checks import Check, Checks
from onewriter._transport.lookup import Directory
from onewriter_core.ids import InvalidTopicName, TopicName

_COMPACTED = ReaderOptions(read_compacted=True)
"""In a compacted topic, the leader's announcement is found without reading what was written since."""


class Client:
    """Connections to the brokers of one service URL. Enter and leave it (``async with``) in one task.

    ``service_url`` is ``pulsar://HOST:PORT,...`` or ``pulsar+ssl://...``. ``token`` is the text of a
    token, the path of a token file, or a coroutine function that returns a token. The client reads the file
    or calls the function for each connection and whenever a broker requests the token again. Raises
    ConfigurationError for an invalid URL.
    """

    def __init__(
        self,
        service_url: str,
        *,
        token: str | Path | TokenSource | None = None,
        tls: Tls | None = None,
        limits: Limits | None = None,
        version: str = "onewriter-python",
    ) -> None:
        self._options = ClientOptions(
            token=_token_source(token),
            tls=tls or Tls(),
            limits=limits or Limits(),
            version=version,
        )
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._directory = Directory(service_url, self._options, self.spawn)
        self._checks = Checks(self._directory, self._options.limits, self.spawn)
        self._owners = OwnershipRequests(self._directory, self._options.limits, self.spawn)
        self._producers: dict[Producer, None] = {}
        self._owned: dict[Ownerships, None] = {}
        self._consumers: dict[Consumer | Reader, None] = {}
        self._producer_ids = itertools.count(1)
        self._consumer_ids = itertools.count(1)
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        for member in (*self._producers, *self._consumers, *self._owned):
            member.abandon()
        await self._directory.close()
        for task in list(self._running):
            task.cancel()
        # The task group would wrap the application's error; pass on its own cancellation only.
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, traceback)
        else:
            await self._tasks.__aexit__(None, None, None)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run ``work`` in a task. The client cancels it when it closes; if it fails, the client ends.

        Raises Closed.
        """
        try:
            task = self._tasks.create_task(work)
        except RuntimeError:
            work.close()
            raise Closed("the client is not open") from None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if not self._is_open:
            # The client is ending: it has cancelled all other tasks and waits for them.
            task.cancel()
        return task

    def start_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """Start a producer without waiting; ``Producer.ready`` waits until it may write.

        The client calls ``on_change`` immediately whenever the producer's state or trouble changes; it must
        not block or raise. Raises ConfigurationError for an invalid topic name, Closed.
        """
        producer = Producer(
            self._topic_name(topic),
            options or ProducerOptions(),
            next(self._producer_ids),
            directory=self._directory,
            limits=self._options.limits,
            spawn=self.spawn,
            on_change=lambda changed: notify(on_change, changed),
        )
        self._producers[producer] = None
        self.spawn(self._forget_when_ended(producer))
        return producer

    async def create_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        timeout_seconds: float | None = None,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """Create a producer and wait until it may write.

        The access mode WaitForExclusive waits without a limit. Other modes wait for ``timeout_seconds``
        (default: ``Limits.operation_timeout_seconds``). Raises Fenced or Refused if the broker rejects the
        producer, Unavailable if no broker answered in time, and what ``start_producer`` raises. A time-out
        or a cancellation removes the registration from the broker.
        """
        producer = self.start_producer(topic, options, on_change=on_change)
        seconds = timeout_seconds
        if seconds is None and producer.options.access_mode is not AccessMode.WAIT_FOR_EXCLUSIVE:
            seconds = self._options.limits.operation_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await producer.ready()
        except TimeoutError as error:
            reason = producer.trouble or "it is still queued"
            producer.abandon()
            raise Unavailable(f"no producer for {topic} within {seconds:g} s: {reason}") from error
        except BaseException:
            producer.abandon()
            raise
        return producer

    async def subscribe(
        self,
        topic: str,
        subscription: str,
        options: ConsumerOptions | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Consumer:
        """Create a connected consumer, and the subscription if it does not exist.

        Raises Refused if the broker rejects it (an Exclusive subscription that has a consumer; a
        partitioned topic: name one partition), Unavailable if no broker answered within
        ``timeout_seconds`` (default: ``Limits.operation_timeout_seconds``), ConfigurationError for an
        invalid name, Closed.
        """
        name = self._topic_name(topic)
        if not subscription:
            raise ConfigurationError("the subscription has no name")
        consumer = Consumer(
            name,
            subscription,
            options or ConsumerOptions(),
            directory=self._directory,
            limits=self._options.limits,
            spawn=self.spawn,
            consumer_ids=self._consumer_ids.__next__,
        )
        await self._until_ready(consumer, timeout_seconds)
        return consumer

    async def create_reader(
        self,
        topic: str,
        start: MessageId = EARLIEST,
        options: ReaderOptions | None = None,
        *,
        is_inclusive: bool = False,
        timeout_seconds: float | None = None,
    ) -> Reader:
        """Create a connected reader that begins after ``start``: a message id, EARLIEST or LATEST.

        With ``is_inclusive`` it begins with that message. Raises as ``subscribe`` does.
        """
        reader = Reader(
            self._topic_name(topic),
            start,
            options or ReaderOptions(),
            is_inclusive=is_inclusive,
            directory=self._directory,
            limits=self._options.limits,
            spawn=self.spawn,
            consumer_ids=self._consumer_ids.__next__,
        )
        await self._until_ready(reader, timeout_seconds)
        return reader

    async def check(self, topic: str, epoch: int | None = None) -> Check:
        """Return the current epoch and the end of ``topic``, which the broker proves against the store.

        The answer is a linearizable read: it was true at one moment between call and return. Raises Refused
        for a topic that does not exist and for brokers other than onewriter's, Unavailable if no broker
        answered within ``Limits.operation_timeout_seconds``, ConfigurationError for an invalid name, Closed.
        """
        return await self._checks.check(self._topic_name(topic), epoch)

    async def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 for a topic without partitions.

        Raises Refused (no such topic, no right), Unavailable, ConfigurationError, Closed.
        """
        name = self._topic_name(topic)
        if name.partition is not None:
            return 0
        return await self._directory.partitions_of(await self._directory.owner_of(name), name)

    def lead(
        self,
        topic: str,
        *,
        priority: int | None = None,
        identity: str = "",
        metadata: Any = None,
        announce: bool = True,
        read_predecessor: bool = False,
        timeout_seconds: float | None = None,
        handover_timeout_seconds: float | None = None,
        on_lost: Callable[[OnewriterError], None] | None = None,
        options: ProducerOptions | None = None,
        access_mode: AccessMode = AccessMode.WAIT_FOR_EXCLUSIVE,
    ) -> Lead:
        """Lead a topic: ``async with client.lead(topic) as leadership``.

        Entering waits in the topic's queue until the broker grants the topic, without a limit unless
        ``timeout_seconds`` is given; after that it raises Unavailable. A higher ``priority`` is earlier in
        the queue (PIP-440; brokers without it grant in the order of arrival). Before the block begins, the
        new leader publishes an announcement: ``identity`` (default: the host name), priority, epoch, and
        ``metadata`` for its successor (any JSON value, or bytes). ``Client.leader`` reads it. With
        ``announce=False`` the leader publishes nothing.

        On a partitioned topic the leader leads all partitions under one epoch (``Leadership.partitions``)
        and publishes no announcement. The ``access_mode`` Exclusive does not wait: it raises Fenced if
        another producer holds the topic. ExclusiveWithFencing deposes that producer.

        With ``read_predecessor`` the new leader first reads the latest announcement, for
        ``Leadership.predecessor``. Without ``metadata`` it announces the predecessor's metadata again, so
        that the metadata is not lost if this leader ends before it announces its own. The topic has no
        active leader during this read, and the read takes as long as the log since that announcement is:
        leaders keep it short by announcing from time to time.

        The client calls ``on_lost`` immediately when the leadership is over; see ``Leadership.lost``. Leaving
        the block hands the topic over. Before that, accepted messages get their receipts, for at most
        ``handover_timeout_seconds`` (default: ``Limits.operation_timeout_seconds``).

        Entering raises Refused if the broker rejects the leader (no ProducerClaim, or no right to read the
        predecessor), Unavailable, ConfigurationError for an invalid name or metadata that is not JSON,
        Closed.
        """
        producer = options or ProducerOptions()
        if priority is not None:
            producer = replace(producer, queue_priority=priority)
        return Lead(
            self,
            topic,
            LeadOptions(
                producer=producer,
                access_mode=access_mode,
                identity=identity,
                announce=announce,
                read_predecessor=read_predecessor,
                metadata=metadata,
                timeout_seconds=timeout_seconds,
                handover_timeout_seconds=handover_timeout_seconds,
                on_lost=on_lost,
            ),
        )

    def own(
        self,
        group: str | None,
        resources: Resources,
        *,
        identity: str = "",
        serve_seconds: float | None = None,
        timeout_seconds: float | None = None,
    ) -> Own:
        """Own resources as the only owner in ``group`` (None: no group). Await the result, or enter it.

        A resource is a full topic or partition name (``persistent://...``) or any other text, with a
        generation as ``(resource, generation)``; the default generation is 1. A resource without an owner
        is granted whatever the generation is. A resource with an owner is granted to a higher generation, to
        an equal generation of a later process with the same ``identity``, and to generation 0 if the
        requester has the permission for it.

        Returns one Ownership per resource, in the order of the call. A denied ownership is over immediately, and
        reading its ``generation`` raises the reason. Leaving the block, or ``release``, releases all
        resources. For ``serve_seconds`` (at most 3) after each proof the owner may act without asking
        (``Ownership.may_serve``), and a successor is granted only after that time. Raises
        ConfigurationError if no resource is given or one is named twice, Closed.
        """
        if not self._is_open:
            raise Closed("the client is not open: use it in an async with statement")
        requester = Requester(group or "", identity, new_nonce(), serve_seconds or 0.0)
        owned = Ownerships(self._owners, self, requester, wanted_of(resources))
        return Own(owned, self._keep, timeout_seconds)

    def _keep(self, owned: Ownerships) -> None:
        if not self._is_open:
            owned.abandon()
            return
        self._owned[owned] = None
        self.spawn(self._keep_until_over(owned))

    async def _keep_until_over(self, owned: Ownerships) -> None:
        renewal = self.spawn(owned.serve())
        await owned.keep()
        renewal.cancel()
        del self._owned[owned]

    def _topic_name(self, topic: str) -> TopicName:
        if not self._is_open:
            raise Closed("the client is not open: use it in an async with statement")
        try:
            return TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ConfigurationError(str(error)) from error

    async def _until_ready(
        self, consumer: Consumer | Reader, timeout_seconds: float | None
    ) -> None:
        """Wait until ``consumer`` is connected. A time-out or a cancellation closes it."""
        self._consumers[consumer] = None
        self.spawn(self._forget_consumer(consumer))
        limit = self._options.limits.operation_timeout_seconds
        seconds = limit if timeout_seconds is None else timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await consumer.ready()
        except TimeoutError as error:
            reason = consumer.trouble or "no broker answered"
            consumer.abandon()
            raise Unavailable(
                f"no consumer of {consumer.topic} within {seconds:g} s: {reason}"
            ) from error
        except BaseException:
            consumer.abandon()
            raise

    async def _forget_consumer(self, consumer: Consumer | Reader) -> None:
        await consumer.ended()
        del self._consumers[consumer]

    async def leader(
        self, topic: str, *, timeout_seconds: float | None = None
    ) -> LeaderInfo | None:
        """Return the latest announcement of a leader of ``topic``; None if the log contains none.

        The client reads the topic backwards from its end, so the time depends on what was written since the
        announcement. After ``timeout_seconds`` (default: ``Limits.operation_timeout_seconds``) it raises
        Unavailable. A leader that announces nothing does not appear, so the epoch may be outdated; ``check``
        returns the current one. Raises as ``create_reader`` does.
        """
        limit = self._options.limits.operation_timeout_seconds
        seconds = limit if timeout_seconds is None else timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds),
                await self.create_reader(topic, LATEST, _COMPACTED) as reader,
            ):
                return await newest_leader(reader)
        except TimeoutError as error:
            raise Unavailable(
                f"no announcement of a leader was found in {topic} within {seconds:g} s"
            ) from error

    async def _forget_when_ended(self, producer: Producer) -> None:
        await producer.ended()
        del self._producers[producer]


def _token_source(token: str | Path | TokenSource | None) -> TokenSource | None:
    match token:
        case None:
            return None
        case str():
            return fixed_token(token)
        case Path():
            return token_file(token)
        case _:
            return token
