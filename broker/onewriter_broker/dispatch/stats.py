"""Counting what is delivered and acknowledged, and showing it in Pulsar's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it is shown here, and counts with what is here
    from onewriter_broker.dispatch.subscription import Subscription


@dataclass(slots=True)
class Rate:
    """A running total and how fast it grew in the last full window, per second."""

    total: int = 0
    _window_start: float = 0.0
    _window_total: int = 0
    _per_second: float = 0.0

    def per_second(self, now: float, window_seconds: float) -> float:
        """The rate over the last window that ended; over the running one before that."""
        elapsed = now - self._window_start
        if elapsed >= window_seconds:
            self._per_second = (self.total - self._window_total) / elapsed
            self._window_start, self._window_total = now, self.total
        return self._per_second


@dataclass(slots=True)
class Counters:
    """What one consumer, or one subscription over all of its consumers, has had."""

    messages: Rate
    bytes: Rate
    redelivered: Rate
    acknowledged: Rate

    @classmethod
    def starting(cls, now: float) -> Counters:
        """All zero, with windows that begin now."""
        return cls(
            Rate(_window_start=now),
            Rate(_window_start=now),
            Rate(_window_start=now),
            Rate(_window_start=now),
        )


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """One consumer, as CONSUMER_STATS_RESPONSE and the admin API show it.

    ``connected_since`` is a time of day in ISO 8601; ``backlog`` counts entries of its subscription.
    """

    messages_per_second: float
    bytes_per_second: float
    redelivered_per_second: float
    acknowledged_per_second: float
    messages_total: int
    bytes_total: int
    name: str
    kind: str
    permits: int
    unacknowledged: int
    is_blocked: bool
    address: str
    connected_since: str
    backlog: int

    def as_pulsar(self) -> dict[str, object]:
        """The JSON object of Pulsar's admin API, as far as there are facts for it."""
        return {
            "msgRateOut": self.messages_per_second,
            "msgThroughputOut": self.bytes_per_second,
            "bytesOutCounter": self.bytes_total,
            "msgOutCounter": self.messages_total,
            "msgRateRedeliver": self.redelivered_per_second,
            "messageAckRate": self.acknowledged_per_second,
            "consumerName": self.name,
            "availablePermits": self.permits,
            "unackedMessages": self.unacknowledged,
            "blockedConsumerOnUnackedMsgs": self.is_blocked,
            "address": self.address,
            "connectedSince": self.connected_since,
        }


def subscription_stats(subscription: Subscription, now: float) -> dict[str, object]:
    """The JSON object of Pulsar's admin API, as far as there are facts for it."""
    totals = subscription.counters
    consumers = [(consumer, consumer.stats(now)) for consumer in subscription.consumers]
    active = subscription.active_consumer
    return {
        "msgRateOut": sum(stats.messages_per_second for _, stats in consumers),
        "msgThroughputOut": sum(stats.bytes_per_second for _, stats in consumers),
        "msgOutCounter": totals.messages.total + sum(s.messages_total for _, s in consumers),
        "bytesOutCounter": totals.bytes.total + sum(s.bytes_total for _, s in consumers),
        "msgRateRedeliver": sum(stats.redelivered_per_second for _, stats in consumers),
        "messageAckRate": sum(stats.acknowledged_per_second for _, stats in consumers),
        "msgBacklog": subscription.backlog()[0],
        "unackedMessages": subscription.unacknowledged,
        "blockedSubscriptionOnUnackedMsgs": subscription.is_blocked,
        "type": subscription.kind.value if consumers else "",
        "activeConsumerName": active.name if active is not None else "",
        "lastAckedTimestamp": subscription.last_acknowledged_ms,
        "consumers": [
            stats.as_pulsar() | {"metadata": dict(consumer.metadata)}
            for consumer, stats in consumers
        ],
        "isDurable": subscription.is_durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "nonContiguousDeletedMessagesRanges": subscription.cursor.range_count,
        "subscriptionProperties": dict(subscription.properties),
        "markDeletePosition": str(subscription.cursor.mark_delete),
    }
