"""What dispatch and the session know of each other: options, channels, targets of a seek.

The session speaks the protocol and owns the socket; dispatch decides what goes to which consumer
and when. Commands are taken apart here, nothing is decided.
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
    """A task that somebody else's TaskGroup owns; dispatch may only cancel it."""

    def cancel(self) -> bool:
        """Ask it to end."""
        ...


Spawn = Callable[[Coroutine[Any, Any, None]], TaskHandle]
"""Starts a task in the caller's TaskGroup: its ``create_task``."""

Receipt = Callable[[OnewriterError | None], None]
"""Called exactly once: None when what was acknowledged is durably saved, else why it is not."""


class SubscriptionType(enum.Enum):
    """How consumers of one subscription share its messages; the values are Pulsar's names."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"


class Channel(Protocol):
    """Where a consumer's deliveries go: one client's connection.

    All methods are called from within other people's callbacks (the watermark moved, a command
    came in): they encode and hand to the transport, never wait and never raise.
    """

    @property
    def has_room(self) -> bool:
        """False while the socket takes no more; ``Consumer.room_made`` says when it does again."""
        ...

    @property
    def peer_address(self) -> str:
        """The client's address, for statistics."""
        ...

    @property
    def identity(self) -> Identity:
        """Who the client proved to be."""
        ...

    def deliver_many(
        self, consumer_id: int, runs: Sequence[EntryRun], consumer_epoch: int | None
    ) -> None:
        """Send entries that were never redelivered and are wholly unacknowledged."""
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
        """Send one entry; ``ack_set`` (signed words) names its messages still unacknowledged."""
        ...

    def active_consumer_changed(self, consumer_id: int, *, is_active: bool) -> None:
        """Failover: this consumer now is, or is not, the one that receives."""
        ...

    def reached_end(self, consumer_id: int) -> None:
        """The topic is terminated, and the subscription has acknowledged everything in it."""
        ...

    def consumer_closed(self, consumer_id: int) -> None:
        """The broker closed the consumer: CLOSE_CONSUMER, and forget it."""
        ...


@dataclass(frozen=True, slots=True)
class SeekToId:
    """Begin with this message; in a batch, with the messages that its ack set leaves."""

    message_id: MessageId


@dataclass(frozen=True, slots=True)
class SeekToTime:
    """Begin with the first entry published at this wall-clock time or later."""

    publish_time_ms: int


SeekTarget = SeekToId | SeekToTime


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """What a SUBSCRIBE asks for.

    ``start`` is for non-durable subscriptions (readers), ``from_earliest`` and
    ``rollback_seconds`` for a subscription that does not exist yet. ``read_compacted``: the
    compacted view first, where it stands for the log.
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
        """Take a SUBSCRIBE apart; raises Refused for a type that is not served.

        A consumer without a name gets one that nobody else has.
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
    """Where a SEEK wants to go; raises Refused when it does not say."""
    if command.HasField("message_id"):
        return SeekToId(message_id_from_proto(command.message_id))
    if command.HasField("message_publish_time"):
        return SeekToTime(max(0, _signed(command.message_publish_time)))
    raise Refused(ServerError.NOT_ALLOWED_ERROR, "a seek needs a message id or a publish time")


def _signed(unsigned: int) -> int:
    """The signed 64-bit number that a client sent in an unsigned field: Java's client has no unsigned numbers."""
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def check_properties(properties: Mapping[str, str], bytes_max: int) -> None:
    """Raise Refused when the properties of a client's object take more than so many bytes."""
    check_pairs(properties.items(), bytes_max)


def check_pairs(pairs: Iterable[tuple[str, str]], bytes_max: int) -> None:
    """The same for properties as a command carries them, the same key perhaps many times."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in pairs)
    if size > bytes_max:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"properties take more than {bytes_max} bytes")


def check_printable(what: str, name: str) -> None:
    """Raise Refused for a new name with control characters."""
    if not is_printable(name):
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} has control characters: {name!a}")
