"""One consumer of a subscription: its permits, what it holds unacknowledged, what it has had.

Deliveries go out through it. It knows nothing of its subscription: the client's commands come in
at the handle, which takes them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from onewriter_broker.dispatch.api import Channel, SubscribeOptions, SubscriptionType
from onewriter_broker.dispatch.rates import Counters
from onewriter_broker.log.topic_log.entries import Entry, EntryRun
from onewriter_core.ids import Position


class Consumer:
    """See the module. Nothing is sent to one that is closed: its subscription let it go."""

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
        """PIP-84's consumer epoch; None when the client never named one."""
        self._sends_epoch = (
            options.consumer_epoch is not None
            and options.kind is not SubscriptionType.SHARED
            and not options.read_compacted
        )
        self.reads_compacted = options.read_compacted
        self.permits = 0
        self.is_started = False
        self.is_listening = False
        """Whether it has asked for messages yet. Before, Go's client knows of no consumer and drops
        what it is told."""
        self.is_at_end = False
        """It was told that nothing more will come."""
        self.is_closed = False
        self.pending: dict[Position, int] = {}
        """Shared: entries it holds, with the number of messages still unacknowledged in each."""
        self.unacknowledged = 0
        """Shared: the sum of these."""
        self.is_blocked = False
        self.counters = Counters.starting(now)
        self.connected_since = datetime.fromtimestamp(wall_clock_ms / 1000, UTC).isoformat()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r}>"

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

    def raise_epoch(self, epoch: int | None) -> None:
        """Take a higher consumer epoch: nothing read under a lower one is sent from here on."""
        if epoch is not None and (self.epoch is None or epoch > self.epoch):
            self.epoch = epoch

    def send_many(self, runs: Sequence[EntryRun], messages: int, size: int) -> None:
        """Deliver entries for the first time, none of them acknowledged in part."""
        self.permits -= messages
        self.counters.messages.total += messages
        self.counters.bytes.total += size
        self.channel.deliver_many(self.id, runs, self.sent_epoch)

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
