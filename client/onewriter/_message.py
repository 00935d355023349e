"""A message as an application receives it, and its position in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from onewriter_core.errors import ConfigurationError
from onewriter_core.wire.values import MessageId as WireId

CONTENT_BYTES_MAX = 256 * 1024 * 1024
"""Largest content in bytes of a message or a batch, uncompressed and with all its chunks."""

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class MessageId(NamedTuple):
    """The position of a message in its topic's log. Ids of one topic sort in the order of its messages.

    ``ledger`` increases whenever the topic's holder changes. ``batch_index`` is the message's index in its
    entry, -1 for a message that is an entry of its own. Ledger and entry are -1 for a message that is
    stored at a position that the broker no longer knows (a resend after the topic moved to another broker).
    """

    ledger: int
    entry: int
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        text = f"{self.ledger}:{self.entry}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    @property
    def position(self) -> tuple[int, int]:
        """Ledger and entry; all messages of one entry have the same position."""
        return self.ledger, self.entry

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse the text of ``str(id)``, or ``LEDGER:ENTRY``. Raises ConfigurationError."""
        try:
            numbers = [int(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if not 2 <= len(numbers) <= 4:
            raise ConfigurationError(
                f"{text!r} is not a message id: write LEDGER:ENTRY[:PARTITION[:BATCH_INDEX]]"
            )
        return cls(*numbers)

    @classmethod
    def of(cls, received: WireId) -> MessageId:
        """Convert an id of the wire protocol, where ledger and entry are unsigned."""
        return cls(
            _signed(received.ledger),
            _signed(received.entry),
            received.partition,
            received.batch_index,
        )


EARLIEST = MessageId(-1, -1)
"""The position before the first message of any topic."""

LATEST = MessageId(2**63 - 1, 2**63 - 1)
"""The position after the message that is the last one when the request arrives at the broker."""


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


class Batch:
    """The messages of one delivered entry that are not acknowledged yet; shared by its messages."""

    __slots__ = ("remaining", "size")

    def __init__(self, size: int, remaining: int) -> None:
        self.size = size
        self.remaining = remaining
        """One bit per message; the first message is the lowest bit."""


@dataclass(slots=True, eq=False)
class Message:
    """A received message. Times are milliseconds since 1970 by the producer's clock; 0 means none.

    The messages of a batch have the same ``id.position``. ``batch_size`` is their number (1: no batch), and
    ``ends_entry`` is true for the last message of an entry that is delivered.
    """

    id: MessageId
    content: bytes
    topic: str
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    publish_time_ms: int = 0
    event_time_ms: int = 0
    producer_name: str = ""
    sequence_id: int = 0
    ordering_key: bytes = b""
    schema_version: bytes = b""
    redelivery_count: int = 0
    """Number of earlier deliveries; counted for Shared subscriptions only."""
    batch_size: int = 1
    ends_entry: bool = True
    is_null: bool = False
    """The message has no content: in a compacted topic it removes its key."""
    chunk_ids: tuple[MessageId, ...] = ()
    """The entries of a message that arrived in chunks, in order; the last one is ``id``."""
    batch: Batch | None = field(default=None, repr=False)
    """State of the entry's acknowledgement, used by the consumer that delivered the message."""
