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
from onewriter._signal import tell
from onewriter._transport.checks import Check, Checks
from onewriter._transport.lookup import Directory
from onewriter_core.ids import InvalidTopicName, TopicName

_COMPACTED = ReaderOptions(read_compacted=True)
"""Of a compacted topic, who leads is found without reading what was written since."""


class Client:
    """Connections to the brokers of one service URL. ``async with`` it, in one task.

    ``service_url`` is ``pulsar://HOST:PORT,...`` or ``pulsar+ssl://...``. ``token`` is the text of a
    token, a path (a file that is read anew at each connection and whenever a broker asks), or a
    coroutine function that gives one. Raises ConfigurationError for a wrong URL.
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
        # The group would wrap what the application raised; only its own cancellation concerns it.
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, traceback)
        else:
            await self._tasks.__aexit__(None, None, None)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run something that ends with the client at the latest; its failure ends the client.

        Raises Closed.
        """
        try:
            task = self._tasks.create_task(work)
        except RuntimeError:
            work.close()
            raise Closed("the client is not open") from None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if not self._is_open:  # it is ending, has cancelled all others, and waits for them
            task.cancel()
        return task

    def start_producer(
        self,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_change: Callable[[Producer], None] = lambda _producer: None,
    ) -> Producer:
        """A producer that begins to ask for its topic; ``ready`` waits until it may write.

        ``on_change`` is called at once whenever its state or its trouble changes; it must not
        block or raise. Raises ConfigurationError for a wrong name, Closed.
        """
        if not self._is_open:
            raise Closed("the client is not open: use it in an async with statement")
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ConfigurationError(str(error)) from error
        producer = Producer(
            name,
            options or ProducerOptions(),
            next(self._producer_ids),
            directory=self._directory,
            limits=self._options.limits,
            spawn=self.spawn,
            on_change=lambda changed: tell(on_change, changed),
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
        """A producer that may write; with WaitForExclusive as long as it takes, without any limit.

        Other modes are given up after ``timeout_seconds`` (``Limits.operation_timeout_seconds``).
        Raises Fenced or Refused when the broker says no, Unavailable when there was no answer in
        time, and what ``start_producer`` raises. Whoever stops waiting (a time-out, a cancellation)
        leaves no registration behind.
        """
        producer = self.start_producer(topic, options, on_change=on_change)
        seconds = timeout_seconds
        if seconds is None and producer.options.access_mode is not AccessMode.WAIT_FOR_EXCLUSIVE:
            seconds = self._options.limits.operation_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await producer.ready()
        except TimeoutError as error:
            trouble = producer.trouble or "it is not its turn"
            producer.abandon()
            raise Unavailable(f"no producer for {topic} within {seconds:g} s: {trouble}") from error
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
        """A consumer that is connected; the subscription is made where there is none.

        Raises Refused when the broker says no (Exclusive, and there is a consumer; a partitioned
        topic: name one partition), Unavailable when there was no answer in ``timeout_seconds``
        (``Limits.operation_timeout_seconds``), ConfigurationError for a wrong name, Closed.
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
        """A reader that is connected, and begins behind ``start``: an id, EARLIEST or LATEST.

        ``is_inclusive``: it begins with that message. Raises as ``subscribe`` does.
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
        """Have the broker that serves ``topic`` prove it; which epoch is current, where it ends.

        True at one moment after the call: a linearizable read. Raises Refused for a topic that does
        not exist and for brokers other than onewriter's, Unavailable when none answered within
        ``Limits.operation_timeout_seconds``, ConfigurationError for a wrong name, Closed.
        """
        if not self._is_open:
            raise Closed("the client is not open: use it in an async with statement")
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ConfigurationError(str(error)) from error
        return await self._checks.check(name, epoch)

    async def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; 0: it has none.

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
        """``async with client.lead(topic) as leadership``: wait for one's turn, lead, hand over.

        Waits as long as it takes, or ``timeout_seconds``: then Unavailable. Higher ``priority`` is
        earlier in the line (PIP-440; brokers without it take waiters as they come). Before the block
        begins, the new leader publishes who it is: ``identity`` (the host's name unless given), its
        priority and epoch, and ``metadata``, what a successor needs: any JSON value, or bytes.
        ``leader`` reads it. With ``announce=False`` nothing is published.

        Of a partitioned topic it leads all partitions under one epoch (``Leadership.partitions``), and
        announces nothing. ``access_mode`` Exclusive does not wait, and raises Fenced if another producer
        holds the topic; ExclusiveWithFencing deposes that one.

        With ``read_predecessor`` it first reads who was announced last, for ``Leadership.predecessor``;
        without ``metadata`` it announces that one's again, so that nothing is lost if it ends before
        it has said more. Nobody leads while it reads, and that takes as long as what was written
        since is long: leaders keep it short by announcing now and then.

        ``on_lost`` is called at once when the leadership is over; see ``Leadership.lost``. Leaving
        the block hands over: messages that were taken are seen through first, for as long as
        ``handover_timeout_seconds`` (``Limits.operation_timeout_seconds``).

        Entering raises Refused when the broker says no (there is no claim; or no right to read the
        predecessor), Unavailable, ConfigurationError for a wrong name or metadata that is no JSON,
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
        """Own resources as the only one of ``group`` (None: no group): await it, or enter it.

        A resource is a full topic or partition name (``persistent://...``) or any other text; with a
        generation, ``(resource, generation)``, else 1. Nobody owns it: it is ours, whatever was
        named. Somebody does: a higher generation takes it over; an equal one does for a later life
        of the same ``identity``; generation 0 always does, where that is permitted.

        Gives an Ownership per resource, in order; one that was denied is over at once, and its
        ``generation`` raises why. Leaving the block, or ``release``, gives everything back.
        ``serve_seconds`` (at most 3): so long after each proof we may act without asking
        (``Ownership.may_serve``), and successors wait for it. Raises ConfigurationError for no
        resources or one named twice, Closed.
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
        """Wait until it is connected; whoever stops waiting leaves nothing behind."""
        self._consumers[consumer] = None
        self.spawn(self._forget_consumer(consumer))
        limit = self._options.limits.operation_timeout_seconds
        seconds = limit if timeout_seconds is None else timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await consumer.ready()
        except TimeoutError as error:
            trouble = consumer.trouble
            consumer.abandon()
            raise Unavailable(
                f"no consumer of {consumer.topic} within {seconds:g} s: {trouble}"
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
        """Who leads, as it said itself when it began to, or with ``Leadership.announce`` since.

        None: nobody ever said so, or it was trimmed. Reads the topic from its end backwards, so it
        costs what was written since; for at most ``timeout_seconds``
        (``Limits.operation_timeout_seconds``), then Unavailable. A leader that announces nothing is not known this way, so the
        epoch may be behind; ``check`` knows the present one. Raises as ``create_reader`` does.
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
            raise Unavailable(f"{topic} was not read back within {seconds:g} s") from error

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
