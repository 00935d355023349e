"""The commands of the data path as values: SEND, ACK, FLOW, SEND_RECEIPT, MESSAGE, and message ids.

decoding.py decodes them, encoding.py encodes the same values. All other commands are protobuf messages (commands.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onewriter_core.ids import Position

UINT64_MAX = 2**64 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(slots=True)
class MessageId:
    """Pulsar's MessageIdData. Treat as immutable, like all values of this module.

    ``ledger`` and ``entry`` are unsigned as in the protocol. ``partition`` and ``batch_index``: -1 for none.
    ``ack_set``: 64-bit words, a set bit is a message of the batch that is not acknowledged.
    """

    ledger: int
    entry: int
    partition: int = -1
    batch_index: int = -1
    ack_set: tuple[int, ...] = ()
    batch_size: int | None = None
    first_chunk: MessageId | None = None

    @property
    def position(self) -> Position:
        """The position of the entry."""
        return Position(self.ledger, self.entry)


EARLIEST_ID = MessageId(UINT64_MAX, UINT64_MAX)
"""The id (-1, -1), with which clients mean "before all messages"; also the last message id of an empty topic."""
LATEST_ID = MessageId(INT64_MAX, INT64_MAX)
"""The id with which clients mean "after all messages"."""


@dataclass(slots=True)
class Send:
    """An entry of a producer. Its bytes are the payload of the frame."""

    producer_id: int
    sequence_id: int
    num_messages: int = 1
    highest_sequence_id: int = 0
    is_chunk: bool = False
    marker: bool = False
    txnid_least: int = 0
    txnid_most: int = 0
    message_id: MessageId | None = None


@dataclass(slots=True)
class Ack:
    """An acknowledgement of a consumer. ``ack_type`` is 0 for individual, 1 for cumulative.

    With a ``request_id`` the client waits for an ACK_RESPONSE.
    """

    consumer_id: int
    ack_type: int
    message_ids: Sequence[MessageId] = ()
    request_id: int | None = None
    validation_error: int | None = None
    properties: tuple[tuple[str, int], ...] = ()
    txnid_least: int = 0
    txnid_most: int = 0


@dataclass(slots=True)
class Flow:
    """A consumer permits ``permits`` more messages (not entries)."""

    consumer_id: int
    permits: int


@dataclass(slots=True)
class SendReceipt:
    """The broker stored an entry at ``message_id``."""

    producer_id: int
    sequence_id: int
    message_id: MessageId | None = None
    highest_sequence_id: int = 0


@dataclass(slots=True)
class Delivery:
    """Pulsar's MESSAGE: an entry for a consumer. Its bytes are the payload of the frame."""

    consumer_id: int
    message_id: MessageId
    redelivery_count: int = 0
    ack_set: tuple[int, ...] = ()
    consumer_epoch: int | None = None
