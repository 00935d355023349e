"""A consumer: a topic's messages under a subscription, whose progress the broker stores.

This module contains the SUBSCRIBE command, acknowledgements and seeks. The connection, the queue and redelivery
are in _consume/stream.py.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from onewriter._config import Limits
from onewriter._consume.chunk_expiry import CHUNKS_EXPIRE_SECONDS, ChunkLimits
from onewriter._consume.chunks import CHUNKED_MAX
from onewriter._consume.link import Link
from onewriter._consume.source import MessageSource
from onewriter._consume.stream import Stream, pairs
from onewriter._consume.unpacker import Item, ack_set_of
from onewriter._consume.window import QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, Window
from onewriter._errors import (
    Closed,
    ConfigurationError,
    OnewriterError,
    OutcomeUnknown,
    Unreadable,
)
from onewriter._message import EARLIEST, LATEST, Message, MessageId
from onewriter._transport.connection import Spawn
from onewriter._transport.lookup import Directory
from onewriter_core.ids import TopicName
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId as WireId

NEGATIVE_ACKNOWLEDGEMENTS_MAX = 10_000
"""Largest number of negative acknowledgements that wait; one more requests redelivery of all at once."""


class SubscriptionType(enum.Enum):
    """Distribution of messages among the consumers of one subscription."""

    EXCLUSIVE = pb.CommandSubscribe.EXCLUSIVE
    """There is one consumer; the broker rejects another one."""
    FAILOVER = pb.CommandSubscribe.FAILOVER
    """One consumer receives all messages in order; the others are on standby."""
    SHARED = pb.CommandSubscribe.SHARED
    """Each message goes to one of the consumers, without an order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of a consumer.

    ``name``: the consumer's name; random if empty. ``start`` (EARLIEST or LATEST): where a new subscription
    begins. ``priority_level``: the broker serves consumers with the lowest level first. ``properties`` describe
    the consumer; the broker stores ``subscription_properties`` with a new subscription.

    ``negative_acknowledgement_seconds``: delay before the redelivery of a negatively acknowledged message.

    ``queue_messages_max``, ``queue_bytes_max``: how much the broker may send before the application receives it.

    ``chunked_messages_max``: how many incomplete chunked messages the consumer keeps. If there are more, it drops
    the oldest. ``chunks_expire_seconds``: the consumer drops an incomplete message that gets no new chunk for this
    time, at the latest after twice this time (0: never). If the last chunk of a dropped message arrives,
    ``receive`` raises Unreadable. The next redelivery delivers the message again. With ``acknowledge_given_up``
    the consumer acknowledges the chunks of dropped messages, so that an unfinished message does not block the
    subscription.
    """

    kind: SubscriptionType = SubscriptionType.EXCLUSIVE
    name: str = ""
    start: MessageId = LATEST
    priority_level: int = 0
    read_compacted: bool = False
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    subscription_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    negative_acknowledgement_seconds: float = 1.0
    queue_messages_max: int = QUEUE_MESSAGES_MAX
    queue_bytes_max: int = QUEUE_BYTES_MAX
    chunked_messages_max: int = CHUNKED_MAX
    chunks_expire_seconds: float = CHUNKS_EXPIRE_SECONDS
    acknowledge_given_up: bool = False

    def __post_init__(self) -> None:
        if self.start not in {EARLIEST, LATEST}:
            raise ConfigurationError("a new subscription begins at EARLIEST or LATEST; then seek")


class Consumer(MessageSource):
    """Consumes one topic. Created by ``Client.subscribe``; for one event loop.

    Every message is delivered at least once. Messages that are not acknowledged are delivered again, for example
    after a lost connection. ``async for message in consumer`` ends when the consumer is closed, and when all
    messages of a terminated topic are acknowledged. Closing keeps the subscription; its other consumers receive
    the messages that are not acknowledged.
    """

    def __init__(
        self,
        topic: TopicName,
        subscription: str,
        options: ConsumerOptions,
        *,
        directory: Directory,
        limits: Limits,
        spawn: Spawn,
        consumer_ids: Callable[[], int],
    ) -> None:
        stream = Stream(
            topic,
            self,
            directory=directory,
            limits=limits,
            consumer_ids=consumer_ids,
            window=Window(options.queue_messages_max, options.queue_bytes_max),
            chunks=ChunkLimits(options.chunked_messages_max, options.chunks_expire_seconds),
        )
        super().__init__(topic, stream)
        self.subscription = subscription
        self.options = options
        self.name = options.name or secrets.token_hex(5)
        self._spawn = spawn
        self._handed_out: MessageId | None = None
        self._negative: dict[tuple[int, int], MessageId] = {}
        self._negative_timer: asyncio.TimerHandle | None = None
        spawn(stream.run())

    @property
    def is_active(self) -> bool:
        """Whether the consumer receives messages; in a Failover subscription, one consumer does."""
        link = self._stream.link
        return link is not None and link.is_active is not False

    # ------------------------------------------------------------ receiving

    async def receive(self, *, timeout_seconds: float | None = None) -> Message:
        """Wait for the next message and return it, without a limit by default.

        Raises NoMessage after ``timeout_seconds``, Unreadable for an entry that cannot be decoded (the next
        call continues after it), EndOfTopic, Closed, Refused. A cancellation loses no message.
        """
        return await self._stream.receive(timeout_seconds)

    def receive_nowait(self) -> Message | None:
        """Return the next message if it has arrived already, else None. Raises as ``receive`` does."""
        return self._stream.take_next()

    async def has_message_available(self) -> bool:
        """Whether the topic contains messages after the last received and the acknowledged ones.

        In a Shared subscription another consumer may receive them. Raises as ``last_message_id`` does.
        """
        if self._stream.queued_messages:
            return True
        last, mark = await self._stream.ends()
        if last is None or (self._handed_out is not None and last <= self._handed_out):
            return False
        return last.position > mark.position

    # ------------------------------------------------------------ acknowledging

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge a message, and wait until the broker has stored that.

        An id acknowledges a whole entry; for a message of a batch pass the message. Raises OutcomeUnknown (the
        message may be delivered again), Unavailable and Refused (it will be), Closed, ConfigurationError.
        """
        await self._acknowledge(message, is_cumulative=False)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge this message and all earlier ones; not for Shared subscriptions."""
        await self._acknowledge(message, is_cumulative=True)

    def acknowledge_soon(self, message: Message | MessageId) -> None:
        """Acknowledge without waiting; after a lost connection the message may be delivered again.

        Raises ConfigurationError, Closed.
        """
        self._stream.check_open()
        message_ids, _ = _acknowledged(message, is_cumulative=False)
        self._negative.pop(_id_of(message).position, None)
        if self._stream.link is not None:
            self._stream.link.acknowledge_unanswered(message_ids, is_cumulative=False)

    async def _acknowledge(self, message: Message | MessageId, *, is_cumulative: bool) -> None:
        link = await self._stream.attached()
        message_ids, cleared = _acknowledged(message, is_cumulative=is_cumulative)
        self._negative.pop(_id_of(message).position, None)
        try:
            await link.acknowledge(message_ids, is_cumulative=is_cumulative)
        except OutcomeUnknown:
            raise
        except OnewriterError:
            if isinstance(message, Message) and message.batch is not None:
                message.batch.remaining |= cleared
            raise

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Request redelivery of a message after ``options.negative_acknowledgement_seconds``.

        The broker delivers the unacknowledged messages of the whole entry again; in Exclusive and Failover
        subscriptions, which keep the order, all unacknowledged messages. Raises Closed.
        """
        self._stream.check_open()
        message_id = _id_of(message)
        chunks = message.chunk_ids if isinstance(message, Message) else ()
        for each in chunks or (message_id,):
            self._negative[each.position] = each
        if len(self._negative) > NEGATIVE_ACKNOWLEDGEMENTS_MAX:
            self._send_negative()
        elif self._negative_timer is None:
            loop = asyncio.get_running_loop()
            seconds = self.options.negative_acknowledgement_seconds
            self._negative_timer = loop.call_later(seconds, self._send_negative)

    def _send_negative(self) -> None:
        self._stop_timer()
        wanted, self._negative = self._negative, {}
        link = self._stream.link
        if not wanted or link is None or self._stream.end is not None:
            return  # detached: all unacknowledged messages will be delivered again
        if self.keeps_order:
            self._spawn(self._redeliver_quietly())
            return
        self._stream.drop_queued(lambda item: _id_of(item).position in wanted)
        link.redeliver_messages([_wire_id(each) for each in wanted.values()])

    async def _redeliver_quietly(self) -> None:
        try:
            await self._stream.redeliver()
        except OnewriterError:
            return  # the consumer has ended: its next method call reports that

    async def redeliver_unacknowledged(self) -> None:
        """Request redelivery of all unacknowledged messages, the oldest first.

        Returns when the broker has accepted the request (or when it was sent, if the broker does not answer
        it). From the call on, the consumer returns no message that was sent before the redelivery. In
        Exclusive and Failover subscriptions the next message is the first unacknowledged one; a Shared
        subscription distributes the messages among all consumers. After a lost connection the call returns
        when the consumer is connected again, which includes the redelivery. Raises Closed, Refused.
        """
        self._handed_out = None
        await self._stream.redeliver()

    # ------------------------------------------------------------ moving and ending

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription to a message, or to a time in milliseconds since 1970.

        A time selects the first message that was published then or later. The move applies to all consumers of
        the subscription. Returns when this consumer is connected at the new position. Do not acknowledge
        messages afterwards that were received before. Raises Refused, Unavailable (not moved),
        OutcomeUnknown, Closed.
        """
        if isinstance(target, MessageId):
            command = pb.CommandSeek(message_id=_wire_data(target))
        else:
            command = pb.CommandSeek(message_publish_time=target)
        await self._stream.seek(command)

    async def unsubscribe(self) -> None:
        """Delete the subscription and end. Raises Refused (other consumers are connected), Unavailable."""
        link = await self._stream.attached()
        await link.unsubscribe()
        self._stream.was_closed = True
        link.release()
        self._stream.stop(Closed("unsubscribed by this program"))

    def _stop_timer(self) -> None:
        if self._negative_timer is not None:
            self._negative_timer.cancel()
            self._negative_timer = None

    # ------------------------------------------------------------ Role

    @property
    def keeps_order(self) -> bool:
        """Whether deliveries and redeliveries keep the order."""
        return self.options.kind is not SubscriptionType.SHARED

    def subscribe_command(self) -> pb.CommandSubscribe:
        """Return the SUBSCRIBE command."""
        options = self.options
        begins = pb.CommandSubscribe.EARLIEST if options.start == EARLIEST else None
        return pb.CommandSubscribe(
            topic=str(self.topic),
            subscription=self.subscription,
            sub_type=options.kind.value,
            consumer_name=self.name,
            priority_level=options.priority_level,
            durable=True,
            read_compacted=options.read_compacted,
            initial_position=begins,
            metadata=pairs(options.properties),
            subscription_properties=pairs(options.subscription_properties),
        )

    async def attached(self, _link: Link) -> None:
        """Do nothing: the broker continues with the unacknowledged messages."""
        self._handed_out = None

    def wants(self, _item: Item) -> bool:
        """Return True: the application receives everything that the broker sends."""
        return True

    def chunk_begun(self, _first: MessageId) -> None:
        """Do nothing: the broker keeps the chunk until it is acknowledged."""

    def chunks_given_up(self, chunk_ids: Sequence[MessageId]) -> None:
        """Acknowledge the chunks of a dropped message if the options say so."""
        link = self._stream.link
        if self.options.acknowledge_given_up and link is not None:
            message_ids = [_wire_id(each) for each in chunk_ids]
            link.acknowledge_unanswered(message_ids, is_cumulative=False)

    def handed_out(self, item: Item) -> None:
        """Record the last message that the application received."""
        self._handed_out = max(_id_of(item), self._handed_out or EARLIEST)


def _id_of(item: Item | MessageId) -> MessageId:
    match item:
        case Message():
            return item.id
        case Unreadable():
            return item.message_id
        case _:
            return item


def _wire_id(message_id: MessageId) -> WireId:
    return WireId(message_id.ledger, message_id.entry, message_id.partition)


def _wire_data(message_id: MessageId) -> pb.MessageIdData:
    ledger, entry = message_id.position
    data = pb.MessageIdData(ledger_id=ledger % 2**64, entry_id=entry % 2**64)
    if message_id.batch_index >= 0:
        data.batch_index = message_id.batch_index
    return data


def _acknowledged(message: Message | MessageId, *, is_cumulative: bool) -> tuple[list[WireId], int]:
    """Return the ids of an ACK, and the bits that it clears in the message's batch."""
    if isinstance(message, MessageId):
        if message.batch_index >= 0:
            raise ConfigurationError(f"{message} is one of a batch: acknowledge the message itself")
        return [_wire_id(message)], 0
    batch = message.batch
    if batch is None:
        chunks = () if is_cumulative else message.chunk_ids
        return [_wire_id(each) for each in chunks or (message.id,)], 0
    index = message.id.batch_index
    cleared = batch.remaining & ((2 << index) - 1 if is_cumulative else 1 << index)
    batch.remaining &= ~cleared
    message_id = _wire_id(message.id)
    if batch.remaining:
        message_id.ack_set = ack_set_of(batch.remaining, batch.size)
        message_id.batch_size = batch.size
    return [message_id], cleared
