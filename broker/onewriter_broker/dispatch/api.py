"""The interface between dispatch and the session: options, channels, targets of a seek.

The session speaks the protocol and owns the socket. Dispatch decides which consumer gets what, and when. This
module parses commands and decides nothing.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from onewriter_broker.log.topic_log.entries import Entry, EntryRun
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import Identity, is_printable
from onewriter_core.wire.commands import message_id_from_proto
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId


class TaskHandle(Protocol):
    """A task in another component's TaskGroup; dispatch may only cancel it."""

    def cancel(self) -> bool:
        """Ask it to end."""
        ...


Spawn = Callable[[Coroutine[Any, Any, None]], TaskHandle]
"""Starts a task in the caller's TaskGroup: its ``create_task``."""

Receipt = Callable[[OnewriterError | None], None]
"""Called exactly once: with None when the acknowledgement is durably saved, otherwise with the reason why it
is not."""


class SubscriptionType(enum.Enum):
    """How consumers of one subscription share its messages; the values are Pulsar's names."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"


class Channel(Protocol):
    """The deliveries of a consumer leave here: one client's connection.

    All methods are called from callbacks of other components (the watermark moved, a command arrived). They
    encode and pass the data to the transport, and never wait or raise.
    """

    @property
    def has_space(self) -> bool:
        """False while the socket accepts no more; ``Consumer.space_freed`` reports when it does again."""
        ...

    @property
    def peer_address(self) -> str:
        """The client's address, for statistics."""
        ...

    @property
    def identity(self) -> Identity:
        """The proven identity of the client."""
        ...

    def deliver_many(
        self, consumer_id: int, runs: Sequence[EntryRun], consumer_epoch: int | None
    ) -> None:
        """Send entries that were never redelivered and of which no message is acknowledged."""
        ...

    def deliver(
        self,
        consumer_id: int,
        entry: Entry,
        *,
        redelivery_count: int,
        ack_set: tuple[int, ...],
        consumer_epoch: int | None,
    ) -> None:
        """Send one entry; ``ack_set`` (signed words) marks its messages that are still unacknowledged."""
        ...

    def active_consumer_changed(self, consumer_id: int, *, is_active: bool) -> None:
        """Failover: report whether this consumer is the active one."""
        ...

    def reached_end(self, consumer_id: int) -> None:
        """Report that the topic is terminated and the subscription has acknowledged everything."""
        ...

    def consumer_closed(self, consumer_id: int) -> None:
        """Send CLOSE_CONSUMER, and forget the consumer, because the broker closed it."""
        ...


@dataclass(frozen=True, slots=True)
class SeekToId:
    """Begin with this message; in a batch, with the messages that its ack set contains."""

    message_id: MessageId


@dataclass(frozen=True, slots=True)
class SeekToTime:
    """Begin with the first entry published at this wall-clock time or later."""

    publish_time_ms: int


SeekTarget = SeekToId | SeekToTime


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """The options of a SUBSCRIBE.

    ``start`` is for non-durable subscriptions (readers), ``from_earliest`` and ``rollback_seconds`` for a
    subscription that does not exist yet. ``read_compacted``: read the compacted view first, as far as it
    replaces the log.
    """

    subscription: str
    kind: SubscriptionType
    consumer_id: int
    consumer_name: str
    priority_level: int = 0
    durable: bool = True
    start: MessageId | None = None
    from_earliest: bool = False
    rollback_seconds: int = 0
    consumer_epoch: int | None = None
    read_compacted: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_command(cls, command: pb.CommandSubscribe) -> SubscribeOptions:
        """Parse a SUBSCRIBE; raises Refused for an unknown type.

        A consumer without a name gets a unique one.
        """
        kind = _KINDS.get(command.sub_type)
        if kind is None:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                "Key_Shared subscriptions are not served: "
                "use Shared, or Failover to keep the order",
            )
        if command.read_compacted and kind is SubscriptionType.SHARED:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                "readCompacted only allowed on failover or exclusive subscriptions",
            )
        return cls(
            subscription=command.subscription,
            kind=kind,
            consumer_id=command.consumer_id,
            consumer_name=command.consumer_name or secrets.token_hex(5),
            priority_level=command.priority_level,
            durable=command.durable,
            start=(
                message_id_from_proto(command.start_message_id)
                if command.HasField("start_message_id")
                else None
            ),
            from_earliest=command.initial_position == pb.CommandSubscribe.EARLIEST,
            rollback_seconds=command.start_message_rollback_duration_sec,
            consumer_epoch=(command.consumer_epoch if command.HasField("consumer_epoch") else None),
            read_compacted=command.read_compacted,
            metadata={pair.key: pair.value for pair in command.metadata},
            properties={pair.key: pair.value for pair in command.subscription_properties},
        )


_KINDS = {
    pb.CommandSubscribe.EXCLUSIVE: SubscriptionType.EXCLUSIVE,
    pb.CommandSubscribe.FAILOVER: SubscriptionType.FAILOVER,
    pb.CommandSubscribe.SHARED: SubscriptionType.SHARED,
}


def seek_target(command: pb.CommandSeek) -> SeekTarget:
    """The target of a SEEK; raises Refused if the command does not name one."""
    if command.HasField("message_id"):
        return SeekToId(message_id_from_proto(command.message_id))
    if command.HasField("message_publish_time"):
        return SeekToTime(max(0, _signed(command.message_publish_time)))
    raise Refused(ServerError.NOT_ALLOWED_ERROR, "a seek needs a message id or a publish time")


def _signed(unsigned: int) -> int:
    """The signed 64-bit number that a client sent in an unsigned field: Java's client has no unsigned numbers."""
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def check_properties(properties: Mapping[str, str], bytes_max: int) -> None:
    """Raise Refused if the properties of a client's object have more bytes than this."""
    check_pairs(properties.items(), bytes_max)


def check_pairs(pairs: Iterable[tuple[str, str]], bytes_max: int) -> None:
    """The same for properties in the form of a command, which may repeat a key."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in pairs)
    if size > bytes_max:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"properties take more than {bytes_max} bytes")


def check_printable(what: str, name: str) -> None:
    """Raise Refused for a new name with control characters."""
    if not is_printable(name):
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} has control characters: {name!a}")
