"""What a producer has been given and has no receipt for: in order, bounded, resent byte for byte.

No I/O. The one question that it answers with care is what may be said about a message that gets no
receipt any more: ``fail`` tells the definite from the unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onewriter._errors import OnewriterError
from onewriter._message import MessageId
from onewriter._produce.packer import Outgoing, Packed
from onewriter._transport.connection import Connection

__all__ = ["MessageId", "Outbox", "Pending", "Receipt", "Repack"]

Receipt = asyncio.Future[MessageId]

Repack = Callable[[Sequence[Outgoing]], Packed]


@dataclass(slots=True, eq=False)
class Pending:
    """An entry without a receipt: one message, a batch of them, or a chunk of one.

    The chunks of a message share its sequence id and its receipt; the last one decides what becomes
    of it, for without that nobody reads it.
    """

    sequence_id: int
    header: bytes
    entry: bytes
    receipts: Sequence[Receipt]
    messages: list[Outgoing] | None = None
    """A batch's, until it is written for the first time."""
    connection: Connection | None = None
    """Where it was written last; None: nowhere yet."""
    written_at: float = 0.0
    was_rewritten: bool = False
    """It was written before, on a connection that ended without saying what became of it."""
    is_part: bool = False
    """It is a chunk, and not the last one."""
    is_batch: bool = False
    """Its messages have places in it, even if it is one alone."""

    @property
    def message_count(self) -> int:
        """Messages that are stored when it is."""
        return 0 if self.is_part else len(self.receipts)

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

    def stored_at(self, position: MessageId) -> None:
        """Tell each message where it stands: one in chunks where its last one does."""
        receipts = () if self.is_part else self.receipts
        ledger, entry, partition, _ = position
        for index, receipt in enumerate(receipts):
            if not receipt.done():
                place = index if self.is_batch else -1
                receipt.set_result(MessageId(ledger, entry, partition, place))

    def refuse(self, error: Callable[[], OnewriterError]) -> None:
        """Tell each message what became of it; each gets an exception of its own."""
        for receipt in self.receipts:
            if not receipt.done():
                receipt.set_exception(error())
                receipt.exception()  # whoever handed it in may have gone


class Outbox:
    """At most ``messages_max`` messages and ``bytes_max`` bytes; one larger message goes alone."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._all: deque[Pending] = deque()
        self._unwritten: deque[Pending] = deque()
        self._messages = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._messages

    @property
    def bytes(self) -> int:
        """Of all messages without a receipt."""
        return self._bytes

    @property
    def is_written(self) -> bool:
        """Whether everything was handed to the present connection."""
        return not self._unwritten

    def has_room(self, size: int, beside_messages: int = 0, beside_bytes: int = 0) -> bool:
        """Whether a message of so many bytes may be added, ``beside`` others that are to come."""
        messages = self._messages + beside_messages
        if not messages:
            return True
        return (
            messages < self._messages_max and self._bytes + beside_bytes + size <= self._bytes_max
        )

    def add(self, pending: Pending) -> None:
        """Behind all others."""
        self._all.append(pending)
        self._unwritten.append(pending)
        self._messages += pending.message_count
        self._bytes += len(pending.entry)

    def has_before(self, sequence_id: int) -> bool:
        """Whether an entry that was numbered earlier has no answer yet."""
        return bool(self._all) and self._all[0].sequence_id < sequence_id

    def next_unwritten(self) -> Pending | None:
        """The first one that the present connection has not got."""
        return self._unwritten[0] if self._unwritten else None

    def wrote(self, connection: Connection, at: float) -> None:
        """The first unwritten one was handed to the connection."""
        pending = self._unwritten.popleft()
        pending.connection = connection
        pending.written_at = at
        pending.messages = None

    def rewind(self) -> None:
        """The producer was resumed: all that has no receipt is to be written again."""
        for pending in self._all:
            pending.was_rewritten = pending.was_rewritten or pending.connection is not None
        self._unwritten = deque(self._all)

    def answered(self, sequence_id: int) -> Pending | None:
        """Take out the oldest entry, whose receipt or refusal came.

        None when it was answered before. Raises LookupError when the broker skipped one.
        """
        if not self._all or sequence_id < self._all[0].sequence_id:
            return None
        if self._all[0].sequence_id != sequence_id or self._all[0].connection is None:
            raise LookupError(f"an answer to {sequence_id}, not to {self._all[0].sequence_id}")
        return self._remove_first()

    def withdraw(self, receipt: Receipt, repack: Repack) -> bool:
        """Take back a message that was never written to any connection; False: too late.

        Another message of its batch stays: ``repack`` makes the batch anew. Of chunks those that
        were written stay, and nobody reads them without the last one.
        """
        found = next(
            (each for each in self._unwritten if receipt in each.receipts and not each.is_part),
            None,
        )
        if found is None or found.connection is not None:
            return False
        rest = [each for each in found.messages or () if each.receipt is not receipt]
        if not rest:
            for each in [each for each in self._unwritten if each.sequence_id == found.sequence_id]:
                if each.connection is None:
                    self._take_out(each)
            return True
        self._messages -= 1
        self._bytes -= len(found.entry)
        found.messages = rest
        found.receipts = [each.receipt for each in rest]
        found.sequence_id = rest[0].sequence_id
        found.header, found.entry = repack(rest)
        self._bytes += len(found.entry)
        return True

    def _take_out(self, pending: Pending) -> None:
        self._unwritten.remove(pending)
        self._all.remove(pending)
        self._messages -= pending.message_count
        self._bytes -= len(pending.entry)

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
            if not pending.is_part:
                pending.refuse(refusal if pending.is_definite_on(connection) else unknown)
        self._unwritten.clear()

    def _remove_first(self) -> Pending:
        pending = self._all.popleft()
        self._messages -= pending.message_count
        self._bytes -= len(pending.entry)
        if self._unwritten and self._unwritten[0] is pending:
            self._unwritten.popleft()
        return pending
