"""What a producer has been given and has no receipt for: in order, bounded, resent byte for byte.

No I/O. The one question that it answers with care is what may be said about a message that gets no
receipt any more: ``fail`` tells the definite from the unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from onewriter._connection import Connection
from onewriter._errors import OnewriterError
from onewriter_core.wire import hot


class MessageId(NamedTuple):
    """Where a message stands in its topic's log; ids of one topic order as its messages do.

    ``ledger`` rises at each change of hands. Both are -1 for a message that is certainly stored, at
    a position that the broker no longer remembers (a resend, after a change of broker).
    """

    ledger: int
    entry: int
    partition: int = -1

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.partition}"

    @classmethod
    def of(cls, received: hot.MessageId) -> MessageId:
        """From the wire, where both numbers are unsigned."""
        return cls(_signed(received.ledger), _signed(received.entry), received.partition)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@dataclass(slots=True, eq=False)
class Pending:
    """A message without a receipt."""

    sequence_id: int
    header: bytes
    entry: bytes
    receipt: asyncio.Future[MessageId]
    connection: Connection | None = None
    """Where it was written last; None: nowhere yet."""
    written_at: float = 0.0
    was_rewritten: bool = False
    """It was written before, on a connection that ended without saying what became of it."""

    def is_definite_on(self, connection: Connection | None) -> bool:
        """Whether this broker's refusal, on this connection, means that it is not in the log.

        Our brokers answer for all that a connection brought before they close a producer of it.
        """
        if self.connection is None:
            return True
        return (
            not self.was_rewritten
            and connection is not None
            and connection is self.connection
            and not connection.is_closed
            and connection.is_onewriter
        )


class Outbox:
    """At most ``messages_max`` messages and ``bytes_max`` bytes; one larger message goes alone."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._all: deque[Pending] = deque()
        self._unwritten: deque[Pending] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bytes(self) -> int:
        """Of all messages without a receipt."""
        return self._bytes

    @property
    def is_written(self) -> bool:
        """Whether everything was handed to the present connection."""
        return not self._unwritten

    def has_room(self, size: int) -> bool:
        """Whether a message of so many bytes may be added."""
        if not self._all:
            return True
        return len(self._all) < self._messages_max and self._bytes + size <= self._bytes_max

    def add(self, pending: Pending) -> None:
        """Behind all others."""
        self._all.append(pending)
        self._unwritten.append(pending)
        self._bytes += len(pending.entry)

    def next_unwritten(self) -> Pending | None:
        """The first one that the present connection has not got."""
        return self._unwritten[0] if self._unwritten else None

    def wrote(self, connection: Connection, at: float) -> None:
        """The first unwritten one was handed to the connection."""
        pending = self._unwritten.popleft()
        pending.connection = connection
        pending.written_at = at

    def rewind(self) -> None:
        """The producer was resumed: all that has no receipt is to be written again."""
        for pending in self._all:
            pending.was_rewritten = pending.was_rewritten or pending.connection is not None
        self._unwritten = deque(self._all)

    def answered(self, sequence_id: int) -> Pending | None:
        """Take out the oldest message, whose receipt or refusal came.

        None when it was answered before. Raises LookupError when the broker skipped one.
        """
        if not self._all or sequence_id < self._all[0].sequence_id:
            return None
        if self._all[0].sequence_id != sequence_id or self._all[0].connection is None:
            raise LookupError(f"an answer to {sequence_id}, not to {self._all[0].sequence_id}")
        return self._remove_first()

    def withdraw(self, pending: Pending) -> bool:
        """Take back a message that was never written to any connection; False: too late."""
        if pending.connection is not None or pending not in self._unwritten:
            return False
        self._unwritten.remove(pending)
        self._all.remove(pending)
        self._bytes -= len(pending.entry)
        return True

    def fail(
        self,
        connection: Connection | None,
        refusal: Callable[[], OnewriterError],
        unknown: Callable[[], OnewriterError],
    ) -> None:
        """No receipt will come: each message gets a ``refusal`` if that is certain, else ``unknown``.

        ``connection``: on which the broker said so; None when it was not a broker that did.
        """
        while self._all:
            pending = self._remove_first()
            if not pending.receipt.done():
                is_definite = pending.is_definite_on(connection)
                pending.receipt.set_exception(refusal() if is_definite else unknown())
                pending.receipt.exception()  # whoever handed it in may have gone
        self._unwritten.clear()

    def _remove_first(self) -> Pending:
        pending = self._all.popleft()
        self._bytes -= len(pending.entry)
        if self._unwritten and self._unwritten[0] is pending:
            self._unwritten.popleft()
        return pending
