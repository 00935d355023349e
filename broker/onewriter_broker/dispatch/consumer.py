"""One consumer of a subscription: its permits, its unacknowledged messages, its counters.

Deliveries leave through it. It does not know its subscription: the client's commands arrive at the handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from onewriter_broker.dispatch.api import Channel, SubscribeOptions, SubscriptionType
from onewriter_broker.dispatch.rates import Counters
from onewriter_broker.log.topic_log.entries import Entry, EntryRun
from onewriter_core.ids import Position


class Consumer:
    """One consumer (see the module). Nothing is sent to a closed consumer, because its subscription has
    removed it.
    """

    def __init__(
        self,
        options: SubscribeOptions,
        channel: Channel,
        *,
        now: float,
        wall_clock_ms: int,
    ) -> None:
        self.channel = channel
        self.id = options.consumer_id
        self.name = options.consumer_name
        self.priority_level = options.priority_level
        self.metadata = options.metadata
        self.epoch = options.consumer_epoch
        """The consumer epoch of PIP-84; None if the client never named one."""
        self._sends_epoch = (
            options.consumer_epoch is not None
            and options.kind is not SubscriptionType.SHARED
            and not options.read_compacted
        )
        self.reads_compacted = options.read_compacted
        self.permits = 0
        self.is_started = False
        self.is_listening = False
        """Whether it has asked for messages yet. Before that, Go's client does not know the consumer and
        drops what it gets."""
        self.is_at_end = False
        """It was notified of the end of the topic."""
        self.is_closed = False
        self.pending: dict[Position, int] = {}
        """Shared: the entries that it holds, with the number of unacknowledged messages in each."""
        self.unacknowledged = 0
        """Shared: the sum of these."""
        self.is_blocked = False
        self.counters = Counters.starting(now)
        self.connected_since = datetime.fromtimestamp(wall_clock_ms / 1000, UTC).isoformat()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r}>"

    @property
    def sent_epoch(self) -> int | None:
        """The consumer epoch in deliveries; None for clients that do not know it."""
        return self.epoch if self._sends_epoch else None

    @property
    def can_receive(self) -> bool:
        """Whether an entry may be sent to it now."""
        return (
            self.permits > 0 and self.is_started and not self.is_blocked and self.channel.has_space
        )

    def raise_epoch(self, epoch: int | None) -> None:
        """Take a higher consumer epoch. Entries that were read under a lower one are not sent any more."""
        if epoch is not None and (self.epoch is None or epoch > self.epoch):
            self.epoch = epoch

    def send_many(self, runs: Sequence[EntryRun], messages: int, size: int) -> None:
        """Deliver entries for the first time; no message of them is acknowledged."""
        self.permits -= messages
        self.counters.messages.total += messages
        self.counters.bytes.total += size
        self.channel.deliver_many(self.id, runs, self.sent_epoch)

    def send(
        self, entry: Entry, messages: int, redelivery_count: int, ack_set: tuple[int, ...]
    ) -> None:
        """Deliver one entry, of which ``messages`` are not acknowledged."""
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
