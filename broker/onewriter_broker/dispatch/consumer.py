"""One consumer of a subscription: its permits, what it holds unacknowledged, what it has had.

The session holds one per consumer id and hands it the client's commands; what they mean for the
other consumers is the subscription's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onewriter_broker.dispatch.api import (
    Channel,
    Receipt,
    SeekTarget,
    SubscribeOptions,
    SubscriptionType,
)
from onewriter_broker.dispatch.stats import ConsumerStats, Counters
from onewriter_broker.log.topic_log import Entry
from onewriter_core.errors import Unavailable
from onewriter_core.ids import Position
from onewriter_core.wire.hot import Ack, MessageId

if TYPE_CHECKING:  # a consumer and its subscription know each other
    from onewriter_broker.dispatch.subscription import Subscription


@dataclass(frozen=True, slots=True)
class LastMessageId:
    """Answers GET_LAST_MESSAGE_ID. ``mark_delete`` never lies behind the last message."""

    message_id: MessageId
    mark_delete: MessageId


class Consumer:
    """See the module. All methods are harmless after ``close``."""

    def __init__(
        self,
        subscription: Subscription,
        options: SubscribeOptions,
        channel: Channel,
        *,
        now: float,
        wall_clock_ms: int,
    ) -> None:
        self.subscription = subscription
        self.channel = channel
        self.id = options.consumer_id
        self.name = options.consumer_name
        self.priority_level = options.priority_level
        self.metadata = options.metadata
        self.epoch = options.consumer_epoch
        """PIP-84's consumer epoch; None when the client never named one."""
        self._sends_epoch = (
            options.consumer_epoch is not None
            and options.kind is not SubscriptionType.SHARED
            and not options.read_compacted
        )
        self.permits = 0
        self.is_started = False
        self.is_listening = False
        """Whether it has asked for messages yet. Before, Go's client knows of no consumer and drops
        what it is told."""
        self.is_closed = False
        self.pending: dict[Position, int] = {}
        """Shared: entries it holds, with the number of messages still unacknowledged in each."""
        self.unacknowledged = 0
        """Shared: the sum of these."""
        self.is_blocked = False
        self.counters = Counters.starting(now)
        self.connected_since = datetime.fromtimestamp(wall_clock_ms / 1000, UTC).isoformat()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self.subscription.name!r}>"

    @property
    def sent_epoch(self) -> int | None:
        """The consumer epoch that goes with deliveries; None for clients that know of none."""
        return self.epoch if self._sends_epoch else None

    @property
    def can_receive(self) -> bool:
        """Whether an entry may be sent to it now."""
        return (
            self.permits > 0 and self.is_started and not self.is_blocked and self.channel.has_room
        )

    # ------------------------------------------------------------ the client's commands

    def start(self) -> None:
        """SUCCESS is written: deliver from now on. Call once."""
        if not self.is_closed and not self.is_started:
            self.is_started = True
            self._listen()
            self.subscription.wake()

    def flow(self, permits: int) -> None:
        """The client takes so many more messages (not entries).

        The first time, it is told whether it is active.
        """
        if permits > 0 and not self.is_closed:
            limits = self.subscription.limits
            self.permits = min(self.permits + permits, limits.permits_max)
            self._listen()
            self.subscription.wake()

    def _listen(self) -> None:
        if self.is_started and self.permits > 0 and not self.is_listening:
            self.is_listening = True
            self.subscription.consumer_listens(self)

    def acknowledge(self, ack: Ack, receipt: Receipt | None = None) -> None:
        """Take an ACK. ``receipt`` is called exactly once, perhaps before this returns."""
        if not self.is_closed:
            self.subscription.acknowledge(self, ack, receipt)
        elif receipt is not None:
            receipt(Unavailable("the consumer is closed"))

    def redeliver(
        self, message_ids: Sequence[MessageId] = (), consumer_epoch: int | None = None
    ) -> None:
        """Send again: these (Shared) or all that is unacknowledged.

        A higher ``consumer_epoch`` is stored in any case: nothing read under a lower one is
        written from here on.
        """
        if self.is_closed:
            return
        if consumer_epoch is not None and (self.epoch is None or consumer_epoch > self.epoch):
            self.epoch = consumer_epoch
        self.subscription.redeliver(self, message_ids)

    def room_made(self) -> None:
        """Its channel takes more again."""
        if not self.is_closed:
            self.subscription.wake()

    async def seek(self, target: SeekTarget, answer: Callable[[], None]) -> None:
        """Move the subscription; see ``Subscription.seek``."""
        await self.subscription.seek(target, answer)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription; raises Refused while others are connected, unless forced.

        From its return on this consumer is closed; the others are told, this one is not.
        """
        await self.subscription.unsubscribe(self, force=force)

    async def last_message_id(self) -> LastMessageId:
        """The last message of the topic, and how far the subscription is."""
        message_id, last = await self.subscription.find_last()
        mark = min(self.subscription.cursor.mark_delete, last)
        return LastMessageId(
            message_id, MessageId(mark.ledger, mark.entry, partition=message_id.partition)
        )

    def close(self) -> None:
        """The client closed it, or its connection is gone. Idempotent."""
        if not self.is_closed:
            self.subscription.consumer_left(self)

    # ------------------------------------------------------------ deliveries

    def send_many(self, entries: Sequence[Entry], messages: int, size: int) -> None:
        """Deliver entries for the first time, none of them acknowledged in part."""
        self.permits -= messages
        self.counters.messages.total += messages
        self.counters.bytes.total += size
        self.channel.deliver_many(self.id, entries, self.sent_epoch)

    def send(
        self, entry: Entry, messages: int, redelivery_count: int, ack_set: tuple[int, ...]
    ) -> None:
        """Deliver one entry of which ``messages`` are not acknowledged."""
        self.permits -= messages
        self.counters.messages.total += messages
        self.counters.bytes.total += len(entry.payload)
        if redelivery_count:
            self.counters.redelivered.total += messages
        self.channel.deliver(
            self.id,
            entry,
            redelivery_count=redelivery_count,
            ack_set=ack_set,
            consumer_epoch=self.sent_epoch,
        )

    def stats(self, now: float) -> ConsumerStats:
        """Its figures, rates over the window of Limits.rate_seconds."""
        counters, window = self.counters, self.subscription.limits.rate_seconds
        return ConsumerStats(
            messages_per_second=counters.messages.per_second(now, window),
            bytes_per_second=counters.bytes.per_second(now, window),
            redelivered_per_second=counters.redelivered.per_second(now, window),
            acknowledged_per_second=counters.acknowledged.per_second(now, window),
            messages_total=counters.messages.total,
            bytes_total=counters.bytes.total,
            name=self.name,
            kind=self.subscription.kind.value,
            permits=self.permits,
            unacknowledged=self.unacknowledged,
            is_blocked=self.is_blocked,
            address=self.channel.peer_address,
            connected_since=self.connected_since,
            backlog=self.subscription.backlog()[0],
        )
