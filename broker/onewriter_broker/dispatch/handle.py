"""What a session holds for each of its consumers: the client's commands go in here.

From here they go one way: the topic's registry or the subscription, its dispatcher, the consumer,
its channel.
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
    """Answers GET_LAST_MESSAGE_ID. ``mark_delete`` never lies behind the last message."""

    message_id: MessageId
    mark_delete: MessageId


class ConsumerHandle:
    """One connected consumer. All methods are harmless after it was closed."""

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
        """Whether it was disconnected, by whomever."""
        return self.consumer.is_closed

    def start(self) -> None:
        """SUCCESS is written: deliver from now on. Call once."""
        self.subscription.start(self.consumer)

    def flow(self, permits: int) -> None:
        """The client takes so many more messages (not entries).

        The first time, it is told whether it is active.
        """
        self.subscription.flow(self.consumer, permits)

    def acknowledge(self, ack: Ack, receipt: Receipt | None = None) -> Iterator[None] | None:
        """Take an ACK, or return the steps in which a large one is taken.

        ``receipt`` is called exactly once, perhaps before this returns.
        """
        if not self.consumer.is_closed:
            return self.subscription.acknowledge(self.consumer, ack, receipt)
        if receipt is not None:
            receipt(Unavailable("the consumer is closed"))
        return None

    def redeliver(
        self, message_ids: Sequence[MessageId] = (), consumer_epoch: int | None = None
    ) -> Iterator[None] | None:
        """Send again: these (Shared) or all that is unacknowledged.

        A higher ``consumer_epoch`` is stored in any case: nothing read under a lower one is
        written from here on. Returns the steps that are left when there are many ids.
        """
        return self.subscription.redeliver(self.consumer, message_ids, consumer_epoch)

    def follow_epoch(self, consumer_epoch: int | None) -> None:
        """The client says which epoch it is in; a higher one asks for redelivery as well."""
        present = self.consumer.epoch
        if consumer_epoch is not None and (present is None or consumer_epoch > present):
            self.subscription.redeliver(self.consumer, (), consumer_epoch)

    def room_made(self) -> None:
        """Its channel takes more again."""
        if not self.consumer.is_closed:
            self.subscription.wake()

    async def seek(self, target: SeekTarget, answer: Callable[[], None]) -> None:
        """Move the subscription; see ``Registry.seek``."""
        await self._registry.seek(self.subscription, target, answer)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription; raises Refused while others are connected, unless forced.

        From its return on this consumer is closed; the others are told, this one is not.
        """
        if not force and any(other is not self.consumer for other in self.subscription.consumers):
            raise Refused(
                ServerError.METADATA_ERROR,
                "other consumers are connected: unsubscribe with force, or close them first",
            )
        await self._registry.remove(self.subscription, spare=self.consumer)

    async def last_message_id(self) -> LastMessageId:
        """The last message of the topic, and how far the subscription is."""
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
        """The client closed it, or its connection is gone. Idempotent."""
        if not self.consumer.is_closed:
            self._registry.leave(self.subscription, self.consumer)
