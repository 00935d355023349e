"""One subscription: a cursor, its consumers, and the dispatcher that serves them.

It connects the parts: acknowledgements move the cursor and are saved, seeks move it elsewhere, consumers join
and leave. registry.py keeps the subscriptions of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from onewriter_broker.dispatch.api import Channel, Receipt, SubscribeOptions, SubscriptionType
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.context import TopicContext
from onewriter_broker.dispatch.cursor import Cursor, before, mask_of
from onewriter_broker.dispatch.rates import Counters
from onewriter_broker.dispatch.readers import ReadAhead
from onewriter_broker.dispatch.shared import SharedDispatcher
from onewriter_broker.dispatch.single import SingleActiveDispatcher
from onewriter_broker.log.topic_log.termination import terminated_at
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter_core.ids import Position
from onewriter_core.wire.values import Ack, MessageId

CUMULATIVE = 1
"""The value of CommandAck.ack_type for cumulative acknowledgements."""


IDS_PER_STEP = 100
"""Ids of an ACK or a REDELIVER that are handled in one step. Other tasks can run between steps."""


def _parts(message_ids: Sequence[MessageId]) -> Iterator[Sequence[MessageId]]:
    for start in range(0, len(message_ids), IDS_PER_STEP):
        yield message_ids[start : start + IDS_PER_STEP]


def _too_many() -> Refused:
    return Refused(
        ServerError.TOO_MANY_REQUESTS,
        "too many acknowledgements out of order: acknowledge the oldest messages first",
    )


class Subscription:
    """One subscription. Only the Registry creates and deletes it.

    ``learned`` is called when reading has shown where ledgers end, because cursors may move over these
    borders.
    """

    def __init__(
        self,
        context: TopicContext,
        name: str,
        cursor: Cursor,
        *,
        is_durable: bool,
        properties: Mapping[str, str],
        learned: Callable[[], None],
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.is_durable = is_durable
        self.properties = dict(properties)
        self.limits = context.limits
        self.expires_at: float | None = None
        """Non-durable, after a seek: when it expires if its client does not return."""
        self.counters = Counters.starting(context.clock())
        self.last_acknowledged_ms = 0
        self._context = context
        self._end = terminated_at(context.log.state)
        self._reader = ReadAhead(
            context.log,
            context.gaps,
            cursor.mark_delete,
            tail=context.tail,
            budget=context.budget,
            spawn=context.spawn,
            limits=context.limits,
            ready=self.wake,
            learned=learned,
        )
        self._dispatcher: SingleActiveDispatcher | SharedDispatcher = self._dispatcher_for(
            SubscriptionType.EXCLUSIVE
        )

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self._context.log.name}>"

    @property
    def kind(self) -> SubscriptionType:
        """The type of its consumers; that of the last ones if there are none."""
        return self._dispatcher.kind

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected consumers, in no particular order."""
        return self._dispatcher.consumers

    @property
    def active_consumer(self) -> Consumer | None:
        """Exclusive and Failover: the consumer that receives."""
        return self._dispatcher.active

    @property
    def unacknowledged(self) -> int:
        """Shared: messages that its consumers hold."""
        return self._dispatcher.unacknowledged

    @property
    def delayed(self) -> int:
        """Shared: entries that wait for their time of delivery."""
        return self._dispatcher.delayed

    @property
    def is_blocked(self) -> bool:
        """Shared: too many messages are unacknowledged to deliver more."""
        return self._dispatcher.is_blocked

    def backlog(self) -> tuple[int, bool]:
        """The number of unacknowledged entries, and whether it is exact; it is never too high."""
        cursor, context = self.cursor, self._context
        entries, is_exact = context.gaps.count(cursor.mark_delete, context.log.committed)
        if cursor.range_count:
            entries = max(0, entries - cursor.acknowledged_count())
        return entries, is_exact

    # ------------------------------------------------------------ consumers

    def add_consumer(self, options: SubscribeOptions, channel: Channel) -> Consumer:
        """Connect a consumer; raises Refused (ConsumerBusy) if the type does not allow it."""
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
            options,
            channel,
            now=self._context.clock(),
            wall_clock_ms=self._context.wall_clock_ms(),
        )
        self._dispatcher.add(consumer)
        self.expires_at = None
        return consumer

    def start(self, consumer: Consumer) -> None:
        """Deliver to it from now on, because SUCCESS is written to the client. Call once."""
        if not consumer.is_closed and not consumer.is_started:
            consumer.is_started = True
            self._listen(consumer)
            self._report_end()
            self.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits for messages (not entries).

        The first call also notifies the client whether the consumer is active.
        """
        if permits > 0 and not consumer.is_closed:
            consumer.permits = min(consumer.permits + permits, self.limits.permits_max)
            self._listen(consumer)
            self.wake()

    def _listen(self, consumer: Consumer) -> None:
        if consumer.is_started and consumer.permits > 0 and not consumer.is_listening:
            consumer.is_listening = True
            self._dispatcher.listens(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer that was closed or disconnected. The others are not woken yet."""
        consumer.is_closed = True
        self._dispatcher.remove(consumer)
        self.counters.take_over(consumer.counters)

    def detach_all(self) -> list[Consumer]:
        """Disconnect all consumers silently; the caller notifies them."""
        leaving = list(self.consumers)
        for consumer in leaving:
            consumer.is_closed = True
            self.counters.take_over(consumer.counters)
        self._replace_dispatcher(self.kind)
        return leaving

    def close(self) -> None:
        """Stop all work. The consumers were detached before."""
        self._context.rounds.drop(self.deliver_some)
        self._replace_dispatcher(self.kind)
        self._reader.close()

    def _replace_dispatcher(self, kind: SubscriptionType) -> None:
        if isinstance(self._dispatcher, SharedDispatcher):
            self._dispatcher.close()
        self._dispatcher = self._dispatcher_for(kind)

    def _dispatcher_for(self, kind: SubscriptionType) -> SingleActiveDispatcher | SharedDispatcher:
        """A dispatcher without consumers that begins after the mark-delete position."""
        if kind is SubscriptionType.SHARED:
            return SharedDispatcher(
                self._context.log,
                self.cursor,
                self._reader,
                spawn=self._context.spawn,
                limits=self.limits,
                wake=self.wake,
                wall_clock_ms=self._context.wall_clock_ms,
            )
        return SingleActiveDispatcher(
            kind,
            self.cursor,
            self._reader,
            partition=self._context.log.name.partition,
            limits=self.limits,
        )

    # ------------------------------------------------------------ delivering

    def wake(self) -> None:
        """Deliver what can be delivered now, because something changed."""
        self._context.rounds.wake(self.deliver_some)

    def deliver_some(self) -> bool:
        """Deliver the amount of one round; True if more could follow at once."""
        mark_delete = self.cursor.mark_delete
        has_more = self._dispatcher.deliver_some()
        if self.cursor.mark_delete > mark_delete:  # over entries that a compacted view leaves out
            self.changed()
        return has_more

    def redeliver(
        self, consumer: Consumer, message_ids: Sequence[MessageId], consumer_epoch: int | None
    ) -> Iterator[None] | None:
        """Send again: these messages (Shared) or all that are unacknowledged.

        A higher ``consumer_epoch`` is stored in any case. Returns the remaining steps if there are many ids.
        """
        if consumer.is_closed:
            return None
        consumer.raise_epoch(consumer_epoch)
        if len(message_ids) > IDS_PER_STEP and self.kind is SubscriptionType.SHARED:
            return self._redeliver_in_steps(consumer, message_ids)
        # The other types ignore the ids.
        self._dispatcher.redeliver(consumer, message_ids[:IDS_PER_STEP])
        self.wake()
        return None

    def _redeliver_in_steps(
        self, consumer: Consumer, message_ids: Sequence[MessageId]
    ) -> Iterator[None]:
        for part in _parts(message_ids):
            if consumer.is_closed:
                return
            self._dispatcher.redeliver(consumer, part)
            self.wake()
            yield

    # ------------------------------------------------------------ acknowledging

    def acknowledge(
        self, consumer: Consumer, ack: Ack, receipt: Receipt | None
    ) -> Iterator[None] | None:
        """Handle an ACK of one of its consumers; ``receipt`` may be called before this returns.

        Returns the steps of an ACK with many ids.
        """
        error: OnewriterError | None = None
        if ack.txnid_least or ack.txnid_most:
            error = Refused(ServerError.NOT_ALLOWED_ERROR, "there are no transactions here")
        elif ack.ack_type == CUMULATIVE:
            error = self._acknowledge_until(consumer, ack)
        elif len(ack.message_ids) > IDS_PER_STEP:
            return self._acknowledge_in_steps(consumer, ack.message_ids, receipt)
        else:
            error = self._acknowledge_some(consumer, ack.message_ids)
        self._acknowledged(error, receipt)
        return None

    def _acknowledge_in_steps(
        self, consumer: Consumer, message_ids: Sequence[MessageId], receipt: Receipt | None
    ) -> Iterator[None]:
        error: OnewriterError | None = None
        for part in _parts(message_ids):
            if consumer.is_closed:
                error = Unavailable("the consumer is closed")
                break
            error = self._acknowledge_some(consumer, part) or error
            yield
        self._acknowledged(error, receipt)

    def _acknowledged(self, error: OnewriterError | None, receipt: Receipt | None) -> None:
        self.last_acknowledged_ms = self._context.wall_clock_ms()
        self.changed()
        if receipt is None:
            return
        if error is None and self.is_durable:
            self._context.saver.when_saved(self.name, receipt)
        else:
            receipt(error)

    def _acknowledge_some(
        self, consumer: Consumer, message_ids: Sequence[MessageId]
    ) -> OnewriterError | None:
        """Acknowledge these messages, in the order of the log. The last error counts."""
        error: OnewriterError | None = None
        committed = self._context.log.committed
        whole: list[Position] = []
        for message_id in message_ids:
            position = message_id.position
            if position > committed:
                error = Refused(ServerError.NOT_ALLOWED_ERROR, f"{position} is not in the log")
            elif not message_id.ack_set:
                whole.append(position)
            else:
                mask = mask_of(message_id.ack_set)
                if mask is None or not self.cursor.acknowledge_messages(position, mask):
                    error = _too_many()
                else:
                    remaining = self.cursor.remaining(position)
                    self._dispatcher.acknowledged(
                        consumer, position, 0 if remaining is None else remaining.bit_count()
                    )
        if len(whole) > 1:
            whole.sort()
        for position in self.cursor.acknowledge_all(whole):
            error = _too_many()
            whole.remove(position)
        for position in whole:
            self._dispatcher.acknowledged(consumer, position, 0)
        return error

    def _acknowledge_until(self, consumer: Consumer, ack: Ack) -> OnewriterError | None:
        if self.kind is SubscriptionType.SHARED:
            return Refused(
                ServerError.NOT_ALLOWED_ERROR,
                "a shared subscription cannot acknowledge cumulatively",
            )
        for message_id in ack.message_ids[:1]:
            position = message_id.position
            if position > self._context.log.committed:
                return Refused(ServerError.NOT_ALLOWED_ERROR, f"{position} is not in the log")
            entries, _ = self._context.gaps.count(self.cursor.mark_delete, position)
            consumer.counters.acknowledged.total += entries
            mask = mask_of(message_id.ack_set)
            if message_id.ack_set and mask != 0:
                self.cursor.acknowledge_until(before(position))
                if mask is not None:
                    self.cursor.acknowledge_messages(position, mask)
            else:
                self.cursor.acknowledge_until(position)
        return None

    # ------------------------------------------------------------ moving and saving

    def move(self, mark_delete: Position, mask: int | None = None) -> None:
        """Move to ``mark_delete``; ``mask``: the unacknowledged messages of the entry after it.

        A durable subscription moves to after what is being trimmed.
        """
        kept = self._context.log.skip_trimmed(mark_delete) if self.is_durable else mark_delete
        if kept > mark_delete:
            mark_delete, mask = kept, None
        self.cursor.reset(mark_delete)
        if mask:
            self.cursor.acknowledge_messages(
                Position(mark_delete.ledger, mark_delete.entry + 1), mask
            )
        self._reader.rewind(mark_delete)
        self.changed()

    def changed(self) -> None:
        """Save a durable subscription soon, because its cursor or properties changed."""
        self._report_end()
        if self.is_durable:
            self._context.saver.changed(self.name, self.cursor, self.properties)

    def _report_end(self) -> None:
        """Notify the consumers, once, when everything in a terminated topic is acknowledged."""
        if self._end is None or self.cursor.mark_delete < self._end:
            return
        for consumer in self.consumers:
            if consumer.is_started and not consumer.is_at_end:
                consumer.is_at_end = True
                consumer.channel.reached_end(consumer.id)

    async def saved(self) -> None:
        """Wait until the present state of a durable subscription is saved; raises Undecided and Unavailable."""
        if self.is_durable:
            await self._context.saver.saved(self.name)
