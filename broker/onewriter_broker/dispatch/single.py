"""Exclusive and Failover subscriptions: one active consumer gets everything, in order.

What it leaves unacknowledged is delivered again, from the mark-delete position on, to the next active
consumer, or when it requests redelivery. As in Pulsar, these subscriptions do not count redeliveries and
ignore the ids in a request for redelivery, because the order would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from onewriter_broker.dispatch.api import SubscriptionType
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.dispatch.cursor import Cursor, ack_set_of
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.readers import ReadAhead
from onewriter_broker.log.store.compacted import Piece
from onewriter_broker.log.topic_log.entries import EntryRun, entries_of
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Position
from onewriter_core.wire.values import MessageId


class SingleActiveDispatcher:
    """Delivers to one of the consumers, which is chosen whenever a consumer joins or leaves.

    As in Pulsar, the lowest ``priority_level`` wins, then the order of names. A partition chooses the
    consumer at its own index among equals, so that partitions spread over the consumers. A better consumer
    that joins becomes active at once.
    """

    def __init__(
        self,
        kind: SubscriptionType,
        cursor: Cursor,
        reader: ReadAhead,
        *,
        partition: int | None,
        limits: Limits,
    ) -> None:
        self.kind = kind
        self.consumers: list[Consumer] = []
        self.active: Consumer | None = None
        self._cursor = cursor
        self._reader = reader
        self._partition = partition
        self._limits = limits
        reader.read_compacted(is_on=False)
        reader.rewind(cursor.mark_delete)

    @property
    def delayed(self) -> int:
        """Nothing is delayed if the order is preserved, as in Pulsar."""
        return 0

    @property
    def unacknowledged(self) -> int:
        """Not counted here, as in Pulsar."""
        return 0

    @property
    def is_blocked(self) -> bool:
        """One ordered consumer has no limit, because the broker keeps no state for what it holds."""
        return False

    def add(self, consumer: Consumer) -> None:
        """Add a consumer; raises Refused (ConsumerBusy) if there must not be another one."""
        if self.kind is SubscriptionType.EXCLUSIVE and self.consumers:
            raise Refused(
                ServerError.CONSUMER_BUSY,
                f"Exclusive consumer is already connected: {self.consumers[0].name}",
            )
        self.consumers.append(consumer)
        self._choose()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self.consumers.remove(consumer)
        self._choose()

    def listens(self, consumer: Consumer) -> None:
        """Notify a client that is ready whether its consumer is active."""
        if self.kind is SubscriptionType.FAILOVER:
            consumer.channel.active_consumer_changed(consumer.id, is_active=consumer is self.active)

    def redeliver(self, consumer: Consumer, _message_ids: Sequence[MessageId]) -> None:
        """Begin again after the mark-delete position, if the active consumer requests it."""
        if consumer is self.active:
            self._reader.rewind(self._cursor.mark_delete)

    def acknowledged(self, consumer: Consumer, _position: Position, _remaining: int) -> None:
        """Count an acknowledgement."""
        consumer.counters.acknowledged.total += 1

    def deliver_some(self) -> bool:
        """Deliver the amount of one round; True if more could follow at once."""
        consumer, reader = self.active, self._reader
        if consumer is None or not consumer.can_receive:
            return False
        if not reader.fill():
            if (end := reader.left_out) is not None:
                self._cursor.pass_over(reader.position, Position(end.ledger, end.entry + 1))
            return False
        last = reader.position
        runs, messages, size = reader.take(consumer.permits, self._limits.delivery_bytes)
        is_view = last < reader.horizon
        if is_view:
            self._leave_out(runs)
        if runs[0].position > self._cursor.reach:
            consumer.send_many(runs, messages, size)
        else:
            self._send_unacknowledged(consumer, runs)
        if is_view:
            self._pass_over(last, runs)
        return reader.has_more and consumer.can_receive

    def _send_unacknowledged(self, consumer: Consumer, runs: list[EntryRun]) -> None:
        """Deliver what is not acknowledged, also of batches that are acknowledged in part."""
        cursor = self._cursor
        for entry in entries_of(runs):
            if cursor.is_acknowledged(entry.position):
                continue
            mask = cursor.remaining(entry.position)
            if mask is None:
                consumer.send(entry, entry.messages, 0, ())
            else:
                consumer.send(entry, min(mask.bit_count(), entry.messages), 0, ack_set_of(mask))
        until = cursor.acknowledged_until(runs[-1].last)
        if until is not None:
            self._reader.skip_to(until)

    def _leave_out(self, runs: Sequence[EntryRun]) -> None:
        """Acknowledge what compaction removed from batches, because some clients would show it.

        At the cursor's bound this is skipped, and these clients show it.
        """
        for run in runs:
            if isinstance(run.block, Piece):
                ledger, first = run.block.position
                for index, mask in run.block.masks.items():
                    if run.start <= index < run.stop:
                        self._cursor.acknowledge_messages(Position(ledger, first + index), mask)

    def _pass_over(self, last: Position, runs: Sequence[EntryRun]) -> None:
        """Acknowledge the entries that the compacted view leaves out between these entries."""
        horizon = self._reader.horizon
        for run in runs:
            if last >= horizon:
                return
            self._cursor.pass_over(
                last, min(run.position, Position(horizon.ledger, horizon.entry + 1))
            )
            last = run.last

    def _choose(self) -> None:
        """Choose the active consumer; a change begins again after the mark-delete position."""
        chosen: Consumer | None = None
        if self.consumers:
            level = min(consumer.priority_level for consumer in self.consumers)
            equals = sorted(
                (consumer for consumer in self.consumers if consumer.priority_level == level),
                key=lambda consumer: consumer.name,
            )
            chosen = equals[(self._partition or 0) % len(equals)]
        if chosen is self.active:
            return
        self.active = chosen
        self._reader.read_compacted(is_on=chosen is not None and chosen.reads_compacted)
        self._reader.rewind(self._cursor.mark_delete)
        for consumer in self.consumers:
            if consumer.is_listening:
                self.listens(consumer)
