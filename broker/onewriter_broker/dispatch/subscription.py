"""One subscription: a cursor, its consumers, and the dispatcher that serves them.

Ties together what the other files decide: acknowledgements move the cursor and are saved, seeks
move it back, consumers come and go. Which subscriptions a topic has is subscriptions.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from onewriter_broker.dispatch.api import (
    Channel,
    Receipt,
    SeekTarget,
    SubscribeOptions,
    SubscriptionType,
)
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.cursor import Cursor, before, mask_of
from onewriter_broker.dispatch.reading import ReadAhead
from onewriter_broker.dispatch.shared import SharedDispatcher
from onewriter_broker.dispatch.single import SingleActiveDispatcher
from onewriter_broker.dispatch.stats import Counters
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import Position
from onewriter_core.wire.hot import Ack, MessageId

if TYPE_CHECKING:  # a topic's subscriptions and each of them know each other
    from collections.abc import Sequence

    from onewriter_broker.dispatch.subscriptions import Subscriptions

CUMULATIVE = 1
"""CommandAck.ack_type."""


class Subscription:
    """See the module. Created and deleted by Subscriptions only."""

    def __init__(
        self,
        topic: Subscriptions,
        name: str,
        cursor: Cursor,
        *,
        is_durable: bool,
        properties: Mapping[str, str],
    ) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.is_durable = is_durable
        self.properties = dict(properties)
        self.limits = topic.limits
        self.expires_at: float | None = None
        """Non-durable, after a seek: when it goes if nobody has come back."""
        self.counters = Counters.starting(topic.clock())
        self.last_acknowledged_ms = 0
        self._reader = ReadAhead(
            topic.log,
            topic.gaps,
            cursor.mark_delete,
            tail=topic.tail,
            budget=topic.budget,
            spawn=topic.spawn,
            limits=topic.limits,
            ready=self.wake,
            learned=topic.learned,
        )
        self._dispatcher: SingleActiveDispatcher | SharedDispatcher = self._dispatcher_for(
            SubscriptionType.EXCLUSIVE
        )

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.topic.log.name}>"

    @property
    def kind(self) -> SubscriptionType:
        """The type of its consumers; of the last ones when there are none."""
        return self._dispatcher.kind

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Those connected, in no particular order."""
        return self._dispatcher.consumers

    @property
    def active_consumer(self) -> Consumer | None:
        """Exclusive and Failover: the one that receives."""
        return self._dispatcher.active

    @property
    def unacknowledged(self) -> int:
        """Shared: messages that its consumers hold."""
        return self._dispatcher.unacknowledged

    @property
    def is_blocked(self) -> bool:
        """Shared: too much is unacknowledged to deliver more."""
        return self._dispatcher.is_blocked

    def backlog(self) -> tuple[int, bool]:
        """Entries not acknowledged, and whether the number is exact; never more than there are."""
        cursor = self.cursor
        entries, is_exact = self.topic.gaps.count(cursor.mark_delete, self.topic.log.committed)
        if cursor.range_count:
            entries = max(0, entries - cursor.acknowledged_count())
        return entries, is_exact

    # ------------------------------------------------------------ consumers

    def add_consumer(self, options: SubscribeOptions, channel: Channel) -> Consumer:
        """Connect a consumer; raises Refused (ConsumerBusy) when the type does not allow it."""
        if self.consumers and options.kind is not self.kind:
            raise Refused(
                ServerError.CONSUMER_BUSY,
                f"Subscription is of different type: {self.kind.value}",
            )
        if len(self.consumers) >= self.limits.consumers_max:
            raise Refused(
                ServerError.CONSUMER_BUSY,
                f"the subscription has {self.limits.consumers_max} consumers already",
            )
        if options.kind is not self.kind:
            self._replace_dispatcher(options.kind)
        consumer = Consumer(
            self,
            options,
            channel,
            now=self.topic.clock(),
            wall_clock_ms=self.topic.wall_clock_ms(),
        )
        self._dispatcher.add(consumer)
        self.expires_at = None
        return consumer

    def consumer_listens(self, consumer: Consumer) -> None:
        """Its client is ready for whatever there is to say."""
        self._dispatcher.listens(consumer)

    def consumer_left(self, consumer: Consumer) -> None:
        """A consumer closed, or its connection did. A reader's subscription goes with it."""
        consumer.is_closed = True
        self._dispatcher.remove(consumer)
        self._count_leaving(consumer)
        if not self.is_durable and not self.consumers:
            self.topic.discard(self)
        else:
            self.wake()

    def detach_all(self) -> list[Consumer]:
        """Disconnect everybody without a word; the caller tells them."""
        leaving = list(self.consumers)
        for consumer in leaving:
            consumer.is_closed = True
            self._count_leaving(consumer)
        self._replace_dispatcher(self.kind)
        return leaving

    def close(self) -> None:
        """Stop all work. Consumers were detached before."""
        self._replace_dispatcher(self.kind)
        self._reader.close()

    def _replace_dispatcher(self, kind: SubscriptionType) -> None:
        if isinstance(self._dispatcher, SharedDispatcher):
            self._dispatcher.close()
        self._dispatcher = self._dispatcher_for(kind)

    def _dispatcher_for(self, kind: SubscriptionType) -> SingleActiveDispatcher | SharedDispatcher:
        """A dispatcher without consumers that begins behind the mark-delete position."""
        if kind is SubscriptionType.SHARED:
            return SharedDispatcher(
                self.topic.log,
                self.cursor,
                self._reader,
                spawn=self.topic.spawn,
                limits=self.limits,
                wake=self.wake,
            )
        return SingleActiveDispatcher(
            kind,
            self.cursor,
            self._reader,
            partition=self.topic.log.name.partition,
            limits=self.limits,
        )

    def _count_leaving(self, consumer: Consumer) -> None:
        mine, theirs = self.counters, consumer.counters
        mine.messages.total += theirs.messages.total
        mine.bytes.total += theirs.bytes.total
        mine.redelivered.total += theirs.redelivered.total
        mine.acknowledged.total += theirs.acknowledged.total

    # ------------------------------------------------------------ delivering

    def wake(self) -> None:
        """Something changed: deliver what can be delivered now."""
        self.topic.wake(self)

    def deliver_some(self) -> bool:
        """Deliver one turn's worth; True when more could follow at once."""
        return self._dispatcher.deliver_some()

    def redeliver(self, consumer: Consumer, message_ids: Sequence[MessageId]) -> None:
        """A consumer wants messages again."""
        self._dispatcher.redeliver(consumer, message_ids)
        self.wake()

    # ------------------------------------------------------------ acknowledging

    def acknowledge(self, consumer: Consumer, ack: Ack, receipt: Receipt | None) -> None:
        """Take an ACK of one of its consumers."""
        error: OnewriterError | None = None
        if ack.txnid_least or ack.txnid_most:
            error = Refused(ServerError.NOT_ALLOWED_ERROR, "there are no transactions here")
        elif ack.ack_type == CUMULATIVE:
            error = self._acknowledge_until(consumer, ack)
        else:
            for message_id in ack.message_ids:
                error = self._acknowledge_one(consumer, message_id) or error
        self.last_acknowledged_ms = self.topic.wall_clock_ms()
        if self.is_durable:
            self.topic.saver.changed(self)
        if receipt is None:
            return
        if error is None and self.is_durable:
            self.topic.saver.when_saved(self, receipt)
        else:
            receipt(error)

    def _acknowledge_one(self, consumer: Consumer, message_id: MessageId) -> OnewriterError | None:
        position = message_id.position
        if position > self.topic.log.committed:
            return Refused(ServerError.NOT_ALLOWED_ERROR, f"{position} is not in the log")
        if message_id.ack_set:
            mask = mask_of(message_id.ack_set)
            taken = mask is not None and self.cursor.acknowledge_messages(position, mask)
        else:
            taken = self.cursor.acknowledge(position)
        if not taken:
            return Refused(
                ServerError.TOO_MANY_REQUESTS,
                "too many acknowledgements out of order: acknowledge the oldest messages first",
            )
        remaining = self.cursor.remaining(position)
        self._dispatcher.acknowledged(
            consumer, position, 0 if remaining is None else remaining.bit_count()
        )
        return None

    def _acknowledge_until(self, consumer: Consumer, ack: Ack) -> OnewriterError | None:
        if self.kind is SubscriptionType.SHARED:
            return Refused(
                ServerError.NOT_ALLOWED_ERROR,
                "a shared subscription cannot acknowledge cumulatively",
            )
        for message_id in ack.message_ids[:1]:
            position = message_id.position
            if position > self.topic.log.committed:
                return Refused(ServerError.NOT_ALLOWED_ERROR, f"{position} is not in the log")
            entries, _ = self.topic.gaps.count(self.cursor.mark_delete, position)
            consumer.counters.acknowledged.total += entries
            mask = mask_of(message_id.ack_set)
            if message_id.ack_set and mask != 0:
                self.cursor.acknowledge_until(before(position))
                if mask is not None:
                    self.cursor.acknowledge_messages(position, mask)
            else:
                self.cursor.acknowledge_until(position)
        return None

    # ------------------------------------------------------------ moving

    async def seek(self, target: SeekTarget, answer: Callable[[], None] | None = None) -> None:
        """Begin again elsewhere, with everybody disconnected, as in Pulsar.

        Acknowledgements on their way belong to the old position, and clients empty their queues:
        so they have to subscribe again. They are told first; ``answer`` is called when the new
        position is saved. In this order: the C++ client takes a seek that is answered before its
        consumer is closed for one that needs no new start, and leaves out what it has had.
        Raises Undecided and Unavailable, without ``answer``, when it is not saved; the
        subscription stands at the new position all the same.
        """
        mark_delete, mask = await self.topic.resolve(target)
        if self.topic.get(self.name) is not self:
            raise Refused(ServerError.SUBSCRIPTION_NOT_FOUND, f"{self.name} was deleted meanwhile")
        for consumer in self.detach_all():
            consumer.channel.consumer_closed(consumer.id)
        self.move(mark_delete, mask)
        if self.is_durable:
            await self.topic.saver.saved(self)
        else:
            self.expires_at = self.topic.clock() + self.limits.seek_linger_seconds
        if answer is not None:
            answer()

    def move(self, mark_delete: Position, mask: int | None = None) -> None:
        """Stand at ``mark_delete``; ``mask``: what is unacknowledged of the entry behind it."""
        self.cursor.reset(mark_delete)
        if mask:
            self.cursor.acknowledge_messages(
                Position(mark_delete.ledger, mark_delete.entry + 1), mask
            )
        self._reader.rewind(mark_delete)
        if self.is_durable:
            self.topic.saver.changed(self)

    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None:
        """Delete it at the wish of one of its consumers."""
        if not force and any(other is not consumer for other in self.consumers):
            raise Refused(
                ServerError.METADATA_ERROR,
                "other consumers are connected: unsubscribe with force, or close them first",
            )
        await self.topic.remove(self, spare=consumer)

    async def find_last(self) -> tuple[MessageId, Position]:
        """The topic's last message id, and the position of its entry."""
        return await self.topic.find_last()
