"""The callbacks of a connection to its producers, consumers and ownerships. No method blocks or raises.

An *end* is the object to which a connection passes what it receives: a producer, a consumer or an ownership.
"""

from __future__ import annotations

from typing import Protocol

from onewriter._errors import OnewriterError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, SendReceipt


class ProducerCallbacks(Protocol):
    """The callbacks to a producer."""

    def on_success(self, answer: pb.CommandProducerSuccess) -> None:
        """The broker has queued the producer, or granted it the topic."""
        ...

    def on_error(self, error: OnewriterError) -> None:
        """The broker has rejected the producer."""
        ...

    def on_receipt(self, receipt: SendReceipt) -> None:
        """The broker has stored an entry."""
        ...

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """The broker has rejected an entry."""
        ...

    def on_queue_changed(self, waiting: int) -> None:
        """The number of producers in the topic's queue has changed."""
        ...

    def on_closed(self) -> None:
        """The broker closed the producer: it was fenced, or the topic moves. Receipts may still arrive."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection is lost."""
        ...

    def on_writable(self) -> None:
        """The socket accepts data again, or a round trip has proved the connection."""
        ...


class OwnershipCallback(Protocol):
    """The callbacks to an ownership."""

    def on_ownership_lost(self, command: pb.CommandOwnershipLost) -> None:
        """The ownership is over, or continues at another broker."""
        ...

    def on_owner_detached(self) -> None:
        """The connection is lost."""
        ...


class ConsumerCallbacks(Protocol):
    """The callbacks to a consumer."""

    def on_delivery(self, delivery: Delivery, payload: memoryview) -> None:
        """An entry has arrived. ``payload`` is valid only until this method returns."""
        ...

    def on_active(self, *, is_active: bool) -> None:
        """Failover subscription: the consumer has become active or inactive."""
        ...

    def on_answered(self, error: OnewriterError | None) -> None:
        """The expected answer has arrived, in order with the deliveries; None: success."""
        ...

    def on_end_of_topic(self) -> None:
        """The topic is terminated, and the subscription has acknowledged all its messages."""
        ...

    def on_closed(self) -> None:
        """The broker closed the consumer: its subscription was reset, or the topic moves."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection is lost."""
        ...


EARLY_LOSSES_MAX = 10_000
"""Largest number of remembered losses of ownerships that are not attached yet."""

OwnerKey = tuple[str, str, int]
"""Group, resource and generation of an ownership."""


class OwnershipCallbacks:
    """Passes the loss of each ownership of one connection to its end."""

    def __init__(self) -> None:
        self._ends: dict[OwnerKey, OwnershipCallback] = {}
        self._early: dict[OwnerKey, pb.CommandOwnershipLost] = {}
        """Losses of ownerships that were granted, and whose answer is not processed yet."""
        self._is_lost = False

    def attach(self, key: OwnerKey, end: OwnershipCallback) -> None:
        """Pass the ownership's loss to ``end``, at once if it has arrived already."""
        self._ends[key] = end
        if (early := self._early.pop(key, None)) is not None:
            end.on_ownership_lost(early)
        elif self._is_lost:
            end.on_owner_detached()

    def detach(self, key: OwnerKey) -> None:
        """Ignore the ownership's loss."""
        self._ends.pop(key, None)

    def take(self, command: pb.CommandOwnershipLost) -> None:
        """Dispatch the broker's command about one ownership."""
        resource = command.resource
        key = (command.group, resource.name, resource.generation)
        if (end := self._ends.get(key)) is not None:
            end.on_ownership_lost(command)
            return
        self._early[key] = command
        if len(self._early) > EARLY_LOSSES_MAX:
            del self._early[next(iter(self._early))]

    def lost(self) -> None:
        """Detach all ownerships: the connection is lost."""
        self._is_lost = True
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end.on_owner_detached()
