"""A message as an application receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from onewriter._ids import MessageId

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


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
