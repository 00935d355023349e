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
    """Where a message stands in its topic's log; ids of one topic order as its messages do.

    ``ledger`` rises at each change of hands. ``batch_index`` is the message's place in its entry, -1
    for one that is an entry of its own. Ledger and entry are -1 for a message that is certainly
    stored, at a position that the broker no longer remembers (a resend, after a change of broker).
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
        """Ledger and entry: the messages of one entry share it."""
        return self.ledger, self.entry

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """What ``str`` gives, or just ``LEDGER:ENTRY``. Raises ConfigurationError."""
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
        """From the wire, where ledger and entry are unsigned."""
        return cls(
            _signed(received.ledger),
            _signed(received.entry),
            received.partition,
            received.batch_index,
        )


EARLIEST = MessageId(-1, -1)
"""Before the first message of any topic."""

LATEST = MessageId(2**63 - 1, 2**63 - 1)
"""Behind the last message of any topic, whatever that is at the moment."""


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


class Batch:
    """Which messages of one delivered entry are not acknowledged yet; its messages share it."""

    __slots__ = ("remaining", "size")

    def __init__(self, size: int, remaining: int) -> None:
        self.size = size
        self.remaining = remaining
        """One bit per message, the first one lowest."""


@dataclass(slots=True, eq=False)
class Message:
    """One message. Times are milliseconds since 1970 by the producer's clock, 0 for none.

    Messages of a batch share ``id.position``; ``batch_size`` counts them (1: no batch), and
    ``ends_entry`` is true for the last one of an entry that is delivered.
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
    """How often it was delivered before; only Shared subscriptions count."""
    batch_size: int = 1
    ends_entry: bool = True
    is_null: bool = False
    """It has no content at all: in a compacted topic it removes its key."""
    chunk_ids: tuple[MessageId, ...] = ()
    """The entries that it was put together from, where it came in chunks; the last one is ``id``."""
    batch: Batch | None = field(default=None, repr=False)
    """What acknowledging needs to know of its entry; for the consumer it came from."""
