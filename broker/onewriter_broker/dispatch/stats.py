"""The statistics of a subscription in Pulsar's format."""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.subscription import Subscription


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
        """The JSON object of Pulsar's admin API, as far as the broker knows the values."""
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


def consumer_stats(subscription: Subscription, consumer: Consumer, now: float) -> ConsumerStats:
    """The statistics of one consumer; rates are over the window of Limits.rate_seconds."""
    counters, window = consumer.counters, subscription.limits.rate_seconds
    return ConsumerStats(
        messages_per_second=counters.messages.per_second(now, window),
        bytes_per_second=counters.bytes.per_second(now, window),
        redelivered_per_second=counters.redelivered.per_second(now, window),
        acknowledged_per_second=counters.acknowledged.per_second(now, window),
        messages_total=counters.messages.total,
        bytes_total=counters.bytes.total,
        name=consumer.name,
        kind=subscription.kind.value,
        permits=consumer.permits,
        unacknowledged=consumer.unacknowledged,
        is_blocked=consumer.is_blocked,
        address=consumer.channel.peer_address,
        connected_since=consumer.connected_since,
        backlog=subscription.backlog()[0],
    )


def subscription_stats(subscription: Subscription, now: float) -> dict[str, object]:
    """The JSON object of Pulsar's admin API, as far as the broker knows the values."""
    totals = subscription.counters
    consumers = [
        (consumer, consumer_stats(subscription, consumer, now))
        for consumer in subscription.consumers
    ]
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
        "msgDelayed": subscription.delayed,
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
