"""A topic as the log of a shared state: Log and Grant by the SDK's producer, reader and check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from onewriter._client import Client
from onewriter._consume.consumer import ConsumerOptions, SubscriptionType
from onewriter._consume.reader import Reader
from onewriter._errors import (
    Closed,
    ConfigurationError,
    EndOfTopic,
    Fenced,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
    Unreadable,
)
from onewriter._message import EARLIEST, Message, MessageId
from onewriter._produce.packer import Batching
from onewriter._produce.producer import Producer
from onewriter._produce.tenure import AccessMode, ProducerOptions
from onewriter.state.errors import UnreadableEntry
from onewriter.state.log import BEGINNING, BarrierUnsupported, LogEntry, LogMessage
from onewriter_core.ids import InvalidTopicName, Position, TopicName
from onewriter_core.wire.commands import MESSAGE_LENGTH_MAX

CHECKPOINT_SUBSCRIPTION = "onewriter.checkpoint"
"""Name of the subscription that holds back the retention of a log and its checkpoints; see docs/shared-state.md."""

PENDING_MESSAGES_MAX = 100_000
"""Largest number of messages in one entry; the writer bounds the number of entries in flight."""

PENDING_BYTES_MAX = 64 * 1024 * 1024

HAND_OVER_SECONDS = 5.0

_ONE_ENTRY = Batching(
    messages_max=PENDING_MESSAGES_MAX, bytes_max=MESSAGE_LENGTH_MAX, delay_seconds=60.0
)
"""Only a flush ends a batch; the framing ensures that an entry fits."""


def checkpoint_topic_of(topic: str) -> str:
    """Return the name of a topic's companion; its hash tag puts it into the topic's bucket."""
    name = _topic_name(topic)
    local = name.local if "{" in name.local else "{" + name.local + "}"
    return f"{name.domain}://{name.tenant}/{name.namespace}/{local}-checkpoints"


class TopicLog:
    """Implements Log for one topic, which must be neither partitioned nor a partition.

    ``is_batched``: its entries may have several messages. ``creates=False``: reading the end does not create a
    missing topic. Raises ConfigurationError for an invalid name.
    """

    def __init__(
        self, client: Client, topic: str, *, is_batched: bool = False, creates: bool = True
    ) -> None:
        self.name = str(_topic_name(topic))
        self.entry_bytes_max = MESSAGE_LENGTH_MAX
        self._client = client
        self._is_batched = is_batched
        self._creates = creates
        self._reader: Reader | None = None
        self._proves_end: bool | None = None
        """Whether the broker supports CHECK; None: not known yet."""

    async def acquire(self, on_change: Callable[[], None]) -> TopicGrant:
        if self._proves_end is None:
            await self.end()
        options = ProducerOptions(
            access_mode=AccessMode.WAIT_FOR_EXCLUSIVE,
            pending_messages_max=PENDING_MESSAGES_MAX,
            pending_bytes_max=PENDING_BYTES_MAX,
            batching=_ONE_ENTRY if self._is_batched else None,
        )
        try:
            producer = await self._client.create_producer(
                self.name, options, on_change=lambda _producer: on_change()
            )
        except Fenced as error:  # a takeover has rejected all waiters: queue again
            raise Unavailable(str(error)) from error
        return TopicGrant(
            producer, knows_waiting=bool(self._proves_end), is_batched=self._is_batched
        )

    async def follow(self, after: Position | None) -> AsyncGenerator[LogEntry, None]:
        start = EARLIEST if after is None or after == BEGINNING else MessageId(*after)
        reader = await self._client.create_reader(self.name, start)
        self._reader = reader
        try:
            messages: list[LogMessage] = []
            while True:
                message = await self._next(reader)
                messages.append(LogMessage(message.content, message.properties))
                if message.ends_entry:
                    yield LogEntry(Position(message.id.ledger, message.id.entry), tuple(messages))
                    messages = []
        finally:
            if self._reader is reader:
                self._reader = None
            reader.abandon()

    async def _next(self, reader: Reader) -> Message:
        try:
            while True:
                try:
                    message = reader.next_nowait()
                    return message if message is not None else await reader.next()
                except EndOfTopic:  # the entries so far stay readable
                    await reader.changed()
        except Unreadable as error:
            at = Position(error.message_id.ledger, error.message_id.entry)
            raise UnreadableEntry(str(error), position=at) from error
        except Closed as error:
            raise Unavailable(f"the reader has ended: {error}") from error

    async def end(self) -> Position:
        if self._proves_end is not False:
            try:
                return await self.barrier()
            except BarrierUnsupported:
                self._proves_end = False
        return await self._last_read()

    async def _last_read(self) -> Position:
        """Return the end as the broker reports it to a reader. Raises Refused for a partitioned topic."""
        reader = self._reader
        if reader is not None and reader.end is None:
            return _position(await reader.last_message_id())
        async with await self._client.create_reader(self.name, EARLIEST) as reader:
            return _position(await reader.last_message_id())

    async def barrier(self) -> Position:
        if self._proves_end is False:
            raise BarrierUnsupported("the broker cannot prove where the log ends")
        try:
            check = await self._client.check(self.name)
        except Refused as error:
            if error.code is ServerError.TOPIC_NOT_FOUND:
                return await self._last_read() if self._creates else BEGINNING
            if error.code is ServerError.UNSUPPORTED_VERSION_ERROR:
                raise BarrierUnsupported(str(error)) from error
            raise
        self._proves_end = True
        return _position(check.last_message_id)

    def retention(self) -> TopicRetention:
        """Return the retention hold of this topic."""
        return TopicRetention(self._client, self.name)


class TopicGrant:
    """Implements Grant over a WaitForExclusive producer."""

    def __init__(self, producer: Producer, *, knows_waiting: bool, is_batched: bool) -> None:
        self._producer = producer
        self._is_batched = is_batched
        self._knows_waiting = knows_waiting

    @property
    def end(self) -> OnewriterError | None:
        return self._producer.end

    @property
    def waiting(self) -> int | None:
        return self._producer.waiting if self._knows_waiting else None

    async def append(self, messages: Sequence[LogMessage]) -> asyncio.Future[object]:
        receipts = [
            await self._producer.submit(message.content, properties=message.properties)
            for message in messages
        ]
        if self._is_batched:
            await self._producer.flush()  # the next message begins another entry
        receipt: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        receipts[-1].add_done_callback(lambda done: _pass_on(done, receipt))
        return receipt

    async def hand_over(self) -> None:
        await self._producer.close(timeout_seconds=HAND_OVER_SECONDS)


class TopicRetention:
    """Implements KeepBehind by a durable subscription: the broker removes no entry after its position."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic

    async def begin(self) -> None:
        await self._acknowledge(None)

    async def advance(self, position: Position) -> None:
        await self._acknowledge(MessageId(*position))

    async def _acknowledge(self, up_to: MessageId | None) -> None:
        options = ConsumerOptions(
            kind=SubscriptionType.FAILOVER, start=EARLIEST, queue_messages_max=1
        )
        async with await self._client.subscribe(
            self._topic, CHECKPOINT_SUBSCRIPTION, options
        ) as consumer:
            if up_to is not None:
                await consumer.acknowledge_cumulative(up_to)


def _topic_name(topic: str) -> TopicName:
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName as error:
        raise ConfigurationError(str(error)) from error
    if name.partition is not None:
        raise ConfigurationError(f"{name} is a partition: shared state is on whole topics")
    return name


def _position(message_id: MessageId | None) -> Position:
    return BEGINNING if message_id is None else Position(message_id.ledger, message_id.entry)


def _pass_on(done: asyncio.Future[MessageId], to: asyncio.Future[object]) -> None:
    if to.done():
        return
    if done.cancelled():
        to.cancel()
    elif (error := done.exception()) is not None:
        to.set_exception(error)
        to.exception()  # mark it as retrieved: the writer may have ended
    else:
        to.set_result(_position(done.result()))
