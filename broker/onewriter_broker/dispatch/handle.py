"""The handle of each consumer, which the session holds: the client's commands enter dispatch here.

From here they pass to the topic's registry or the subscription, its dispatcher, the consumer, and its
channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from onewriter_broker.dispatch.api import Receipt, SeekTarget
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.registry import Registry
from onewriter_broker.dispatch.stats import ConsumerStats, consumer_stats
from onewriter_broker.dispatch.subscription import Subscription
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import TopicName
from onewriter_core.wire.values import Ack, MessageId


@dataclass(frozen=True, slots=True)
class LastMessageId:
    """The answer to GET_LAST_MESSAGE_ID. ``mark_delete`` is never after the last message."""

    message_id: MessageId
    mark_delete: MessageId


class ConsumerHandle:
    """One connected consumer. All methods do nothing after it was closed."""

    __slots__ = ("_registry", "consumer", "subscription")

    def __init__(self, registry: Registry, subscription: Subscription, consumer: Consumer) -> None:
        self.subscription = subscription
        self.consumer = consumer
        self._registry = registry

    def __repr__(self) -> str:
        return f"<ConsumerHandle {self.consumer!r} of {self.subscription!r}>"

    @property
    def topic(self) -> TopicName:
        """The log that it reads."""
        return self._registry.topic

    @property
    def is_closed(self) -> bool:
        """Whether it was disconnected, by either side."""
        return self.consumer.is_closed

    def start(self) -> None:
        """Deliver from now on, because SUCCESS is written. Call once."""
        self.subscription.start(self.consumer)

    def flow(self, permits: int) -> None:
        """Add permits for messages (not entries).

        The first call also notifies the client whether the consumer is active.
        """
        self.subscription.flow(self.consumer, permits)

    def acknowledge(self, ack: Ack, receipt: Receipt | None = None) -> Iterator[None] | None:
        """Handle an ACK, or return the steps of a large one.

        ``receipt`` is called exactly once, possibly before this returns.
        """
        if not self.consumer.is_closed:
            return self.subscription.acknowledge(self.consumer, ack, receipt)
        if receipt is not None:
            receipt(Unavailable("the consumer is closed"))
        return None

    def redeliver(
        self, message_ids: Sequence[MessageId] = (), consumer_epoch: int | None = None
    ) -> Iterator[None] | None:
        """Send again: these messages (Shared) or all that are unacknowledged.

        A higher ``consumer_epoch`` is stored in any case: entries that were read under a lower one are not
        sent any more. Returns the remaining steps if there are many ids.
        """
        return self.subscription.redeliver(self.consumer, message_ids, consumer_epoch)

    def follow_epoch(self, consumer_epoch: int | None) -> None:
        """Take the epoch that the client is in; a higher one requests redelivery too."""
        present = self.consumer.epoch
        if consumer_epoch is not None and (present is None or consumer_epoch > present):
            self.subscription.redeliver(self.consumer, (), consumer_epoch)

    def space_freed(self) -> None:
        """Continue to deliver, because its channel accepts data again."""
        if not self.consumer.is_closed:
            self.subscription.wake()

    async def seek(self, target: SeekTarget, answer: Callable[[], None]) -> None:
        """Move the subscription; see ``Registry.seek``."""
        await self._registry.seek(self.subscription, target, answer)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription; raises Refused while other consumers are connected, unless forced.

        When it returns, this consumer is closed. The other consumers are notified, this one is not.
        """
        if not force and any(other is not self.consumer for other in self.subscription.consumers):
            raise Refused(
                ServerError.METADATA_ERROR,
                "other consumers are connected: unsubscribe with force, or close them first",
            )
        await self._registry.remove(self.subscription, spare=self.consumer)

    async def last_message_id(self) -> LastMessageId:
        """The last message of the topic, and the position of the subscription."""
        message_id, last = await self._registry.find_last(
            is_compacted=self.consumer.reads_compacted
        )
        mark = min(self.subscription.cursor.mark_delete, last)
        return LastMessageId(
            message_id, MessageId(mark.ledger, mark.entry, partition=message_id.partition)
        )

    def stats(self, now: float) -> ConsumerStats:
        """Its figures; see ``consumer_stats``."""
        return consumer_stats(self.subscription, self.consumer, now)

    def close(self) -> None:
        """Remove the consumer, because the client or its connection closed it. Idempotent."""
        if not self.consumer.is_closed:
            self._registry.leave(self.subscription, self.consumer)
