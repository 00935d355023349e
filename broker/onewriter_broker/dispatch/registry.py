"""The subscriptions of one topic: restored, found, added, moved and removed.

handle.py and subscriptions.py decide what clients and administrators may ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import structlog

from onewriter_broker.dispatch.api import SeekTarget, check_printable, check_properties
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.context import TopicContext
from onewriter_broker.dispatch.cursor import Cursor, CursorFormatError
from onewriter_broker.dispatch.positions import last_compacted_id, last_message_id, seek_position
from onewriter_broker.dispatch.saved_cursors import STATE_PREFIX, read_cursor
from onewriter_broker.dispatch.subscription import Subscription
from onewriter_broker.quotas.book import Quota, QuotaUnit, namespace_key
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.wire.values import MessageId

_log = structlog.get_logger(__name__)


class Registry:
    """The subscriptions of one topic. Construct it once the log's state is loaded and its watermark is set."""

    __slots__ = ("_by_name", "_context", "_is_closed", "_last", "_unit")

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._by_name: dict[str, Subscription] = {}
        self._is_closed = False
        namespace = namespace_key(context.log.name.namespace_name)
        self._unit = QuotaUnit(Quota.SUBSCRIPTIONS_PER_NAMESPACE, namespace)
        self._last: tuple[Position, MessageId, Position] | None = None
        self._restore()
        context.log.watch(self._advanced)

    @property
    def topic(self) -> TopicName:
        """The log of these subscriptions."""
        return self._context.log.name

    def _restore(self) -> None:
        """Restore durable subscriptions as they were saved, within what the log still has."""
        context = self._context
        log = context.log
        for field, text in log.state.items():
            if not field.startswith(STATE_PREFIX):
                continue
            name = field.removeprefix(STATE_PREFIX)
            try:
                cursor, properties = read_cursor(text, context.gaps, context.limits)
            except CursorFormatError as error:
                # No message may be lost: messages that it has received are delivered again.
                _log.warning(
                    "cursor.unreadable", topic=str(log.name), subscription=name, why=str(error)
                )
                cursor, properties = self._new_cursor(EARLIEST), {}
            if cursor.clamp(log.committed):
                _log.warning(
                    "cursor.behind_end",
                    topic=str(log.name),
                    subscription=name,
                    end=str(log.committed),
                )
            self._put(name, cursor, is_durable=True, properties=properties)

    def _new_cursor(self, mark_delete: Position) -> Cursor:
        limits = self._context.limits
        return Cursor(
            mark_delete,
            self._context.gaps,
            ranges_max=limits.ranges_max,
            partial_bytes_max=limits.partial_bytes_max,
        )

    def _put(
        self, name: str, cursor: Cursor, *, is_durable: bool, properties: Mapping[str, str]
    ) -> Subscription:
        self._context.quotas.count(self._unit)
        subscription = self._by_name[name] = Subscription(
            self._context,
            name,
            cursor,
            is_durable=is_durable,
            properties=properties,
            learned=self.learned,
        )
        return subscription

    # ------------------------------------------------------------ asking

    def __iter__(self) -> Iterator[Subscription]:
        """All subscriptions at this moment."""
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Subscription | None:
        """The subscription of that name."""
        return self._by_name.get(name)

    def check_open(self) -> None:
        """Raise Unavailable if the topic is closing."""
        if self._is_closed:
            raise Unavailable(f"{self._context.log.name} is closing here")

    async def find_last(self, *, is_compacted: bool = False) -> tuple[MessageId, Position]:
        """The last message and the position of its entry; EARLIEST if there is none.

        ``is_compacted``: for a reader that does not get what the compacted view leaves out. Raises Undecided.
        """
        if is_compacted:
            view = await self._context.log.compacted.view()
            message_id, position = await self.find_last()
            if view is None or position > view.horizon:
                return message_id, position
            return await last_compacted_id(self._context.log, view)
        committed = self._context.log.committed
        if self._last is None or self._last[0] != committed:
            self._last = (committed, *await last_message_id(self._context.log))
        return self._last[1], self._last[2]

    # ------------------------------------------------------------ coming and going

    def add(
        self,
        name: str,
        mark_delete: Position,
        *,
        is_durable: bool,
        properties: Mapping[str, str],
    ) -> Subscription:
        """Create a subscription; a durable one is saved soon. Raises Refused at a bound or a quota.

        A durable one begins after the entries that are being trimmed.
        """
        limits = self._context.limits
        check_printable("subscription name", name)
        if len(self._by_name) >= limits.subscriptions_max:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"the topic has {limits.subscriptions_max} subscriptions already",
            )
        check_properties(properties, limits.properties_bytes_max)
        quotas, (quota, namespace) = self._context.quotas, self._unit
        quotas.check(quota, namespace, quotas.used(quota, namespace))
        if is_durable:
            mark_delete = self._context.log.skip_trimmed(mark_delete)
        subscription = self._put(
            name, self._new_cursor(mark_delete), is_durable=is_durable, properties=properties
        )
        subscription.changed()
        return subscription

    def leave(self, subscription: Subscription, consumer: Consumer) -> None:
        """Remove a consumer that was closed or disconnected. A reader's subscription is removed with it."""
        subscription.remove_consumer(consumer)
        if not subscription.is_durable and not subscription.consumers:
            self._discard(subscription)
        else:
            subscription.wake()

    def disconnect(self, subscription: Subscription) -> int:
        """Close a subscription's consumers and notify them; returns their number. Their messages are
        delivered again.
        """
        leaving = list(subscription.consumers)
        for consumer in leaving:
            self.leave(subscription, consumer)
            consumer.channel.consumer_closed(consumer.id)
        return len(leaving)

    async def remove(self, subscription: Subscription, *, spare: Consumer | None = None) -> None:
        """Delete a subscription and disconnect its consumers; ``spare`` is not notified.

        Returns when the deletion is saved; raises Undecided and Unavailable.
        """
        self._disconnect(subscription, spare=spare)
        await subscription.saved()

    def _disconnect(self, subscription: Subscription, *, spare: Consumer | None = None) -> None:
        """Delete it in memory; the saved state follows."""
        if self._by_name.get(subscription.name) is not subscription:
            return  # it is gone already, and another subscription may have the name now
        leaving = subscription.detach_all()
        self._discard(subscription)
        if subscription.is_durable:
            self._context.saver.removed(subscription.name)
        for consumer in leaving:
            if consumer is not spare:
                consumer.channel.consumer_closed(consumer.id)

    def _discard(self, subscription: Subscription) -> None:
        """Forget a subscription that is no longer needed."""
        if self._by_name.get(subscription.name) is subscription:
            del self._by_name[subscription.name]
            if not self._is_closed:
                self._context.quotas.give_back(self._unit)
        subscription.close()

    def sweep(self) -> None:
        """Drop readers' subscriptions whose clients did not return after a seek."""
        now = self._context.clock()
        for subscription in self:
            if (
                subscription.expires_at is not None
                and now >= subscription.expires_at
                and not subscription.consumers
            ):
                self._discard(subscription)

    def close(self) -> int:
        """Close all consumers and stop; returns the number of consumers."""
        if not self._is_closed:
            self._context.quotas.give_back(*[self._unit] * len(self._by_name))
        self._is_closed = True
        self._context.log.unwatch(self._advanced)
        self._context.rounds.close()
        closed = 0
        for subscription in self:
            for consumer in subscription.detach_all():
                consumer.channel.consumer_closed(consumer.id)
                closed += 1
            subscription.close()
        return closed

    # ------------------------------------------------------------ moving

    async def seek(
        self,
        subscription: Subscription,
        target: SeekTarget,
        answer: Callable[[], None] | None = None,
    ) -> None:
        """Move the subscription, and disconnect all consumers, as in Pulsar.

        The consumers have to subscribe again, because acknowledgements on their way belong to the old position
        and clients must empty their queues. The registry first notifies the consumers. Then it saves the new
        position and calls ``answer``. The C++ client needs this order: if the answer comes before its consumer
        is closed, it does not start again and skips the messages that it has received.

        Raises Undecided or Unavailable if the position cannot be saved. Then the subscription has moved, but
        ``answer`` is not called.
        """
        context = self._context
        mark_delete, mask = await seek_position(context.log, target, context.limits)
        self.check_open()
        if self.get(subscription.name) is not subscription:
            raise Refused(
                ServerError.SUBSCRIPTION_NOT_FOUND,
                f"subscription {subscription.name} was deleted during the request",
            )
        for consumer in subscription.detach_all():
            consumer.channel.consumer_closed(consumer.id)
        subscription.move(mark_delete, mask)
        await subscription.saved()
        if not subscription.is_durable:
            subscription.expires_at = context.clock() + context.limits.seek_linger_seconds
        if answer is not None:
            answer()

    def learned(self) -> None:
        """Move cursors over borders between ledgers that have become known."""
        for subscription in self._by_name.values():
            before = subscription.cursor.mark_delete
            subscription.cursor.settle()
            if subscription.cursor.mark_delete != before:
                subscription.changed()

    def _advanced(self) -> None:
        """Wake the subscriptions, because the watermark moved."""
        with self._context.tail.sharing():
            for subscription in self:
                if subscription.consumers:
                    subscription.wake()
