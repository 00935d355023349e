"""What a connection tells the producers and consumers that live on it. No method blocks or raises."""

from __future__ import annotations

from typing import Protocol

from onewriter._errors import OnewriterError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, SendReceipt


class ProducerEnd(Protocol):
    """A producer, as its connection sees it."""

    def on_success(self, answer: pb.CommandProducerSuccess) -> None:
        """It waits for its turn, or it may write."""
        ...

    def on_error(self, error: OnewriterError) -> None:
        """The broker refuses it."""
        ...

    def on_receipt(self, receipt: SendReceipt) -> None:
        """A message is stored."""
        ...

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """A message is refused."""
        ...

    def on_queue_changed(self, waiting: int) -> None:
        """So many wait behind it."""
        ...

    def on_closed(self) -> None:
        """The broker closed it: fenced, or the topic moves. Receipts may still come."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection is gone."""
        ...

    def on_writable(self) -> None:
        """The socket takes data again, or the broker was proved to be there."""
        ...


class OwnerEnd(Protocol):
    """An ownership, as its connection sees it."""

    def on_ownership_lost(self, command: pb.CommandOwnershipLost) -> None:
        """It is over, or goes on at another broker."""
        ...

    def on_owner_detached(self) -> None:
        """The connection is gone."""
        ...


class ConsumerEnd(Protocol):
    """A consumer, as its connection sees it."""

    def on_delivery(self, delivery: Delivery, payload: memoryview) -> None:
        """An entry; ``payload`` is only good until this returns."""
        ...

    def on_active(self, *, is_active: bool) -> None:
        """Failover: it is, or is not, the one that receives."""
        ...

    def on_answered(self, error: OnewriterError | None) -> None:
        """The answer that it expects, before anything that came behind it; None: success."""
        ...

    def on_end_of_topic(self) -> None:
        """The topic is terminated, and its subscription has acknowledged all of it."""
        ...

    def on_closed(self) -> None:
        """The broker closed it: the subscription was moved, or the topic moves."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection is gone."""
        ...


EARLY_LOSSES_MAX = 10_000
"""Ownerships that were lost before anybody here had taken them, and are remembered for that."""

OwnerKey = tuple[str, str, int]
"""An ownership: its group, its resource, its generation."""


class OwnerEnds:
    """One connection's."""

    def __init__(self) -> None:
        self._ends: dict[OwnerKey, OwnerEnd] = {}
        self._early: dict[OwnerKey, pb.CommandOwnershipLost] = {}
        """Of grants that nobody has taken from their answers yet."""
        self._is_lost = False

    def attach(self, key: OwnerKey, end: OwnerEnd) -> None:
        """From now on ``end`` hears what becomes of it, at once if that is known already."""
        self._ends[key] = end
        if (early := self._early.pop(key, None)) is not None:
            end.on_ownership_lost(early)
        elif self._is_lost:
            end.on_owner_detached()

    def detach(self, key: OwnerKey) -> None:
        """Nobody is interested any more."""
        self._ends.pop(key, None)

    def take(self, command: pb.CommandOwnershipLost) -> None:
        """The broker says what became of one."""
        resource = command.resource
        key = (command.group, resource.name, resource.generation)
        if (end := self._ends.get(key)) is not None:
            end.on_ownership_lost(command)
            return
        self._early[key] = command
        if len(self._early) > EARLY_LOSSES_MAX:
            del self._early[next(iter(self._early))]

    def lost(self) -> None:
        """The connection is gone."""
        self._is_lost = True
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end.on_owner_detached()
