"""The outbox of a producer: entries without a receipt, in order, bounded, and resent byte for byte.

It does no I/O. It decides what is certain about a message that will get no receipt: ``fail`` distinguishes
definite from unknown results.
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

    The chunks of a message have the same sequence id and receipt. The last chunk decides the result, because
    no client reads a message without it.
    """

    sequence_id: int
    header: bytes
    entry: bytes
    receipts: Sequence[Receipt]
    messages: list[Outgoing] | None = None
    """The messages of a batch, until it is written for the first time."""
    connection: Connection | None = None
    """The connection of the latest write; None: not written yet."""
    written_at: float = 0.0
    was_rewritten: bool = False
    """The entry was also written on an earlier connection, which ended without an answer."""
    is_part: bool = False
    """The entry is a chunk, and not the last one of its message."""
    is_batch: bool = False
    """The messages have batch indexes, even a single one."""

    @property
    def message_count(self) -> int:
        """Number of messages that are stored with the entry."""
        return 0 if self.is_part else len(self.receipts)

    def is_definite_on(self, connection: Connection | None) -> bool:
        """Whether a refusal on this connection means that the entry is not in the log.

        A onewriter broker answers all entries of a connection before it closes one of its producers.
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
        """Complete each receipt with the message's id; for a chunked message, that of its last chunk."""
        receipts = () if self.is_part else self.receipts
        ledger, entry, partition, _ = position
        for index, receipt in enumerate(receipts):
            if not receipt.done():
                place = index if self.is_batch else -1
                receipt.set_result(MessageId(ledger, entry, partition, place))

    def refuse(self, error: Callable[[], OnewriterError]) -> None:
        """Fail each receipt, each with an exception object of its own."""
        for receipt in self.receipts:
            if not receipt.done():
                receipt.set_exception(error())
                receipt.exception()  # mark it as retrieved: the caller may have been cancelled


class Outbox:
    """Holds at most ``messages_max`` messages and ``bytes_max`` bytes, or a single larger message."""

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
        """Size of all messages without a receipt."""
        return self._bytes

    @property
    def is_written(self) -> bool:
        """Whether all entries were written to the current connection."""
        return not self._unwritten

    def has_space(self, size: int, beside_messages: int = 0, beside_bytes: int = 0) -> bool:
        """Whether a message of ``size`` bytes fits, in addition to messages that are collected already."""
        messages = self._messages + beside_messages
        if not messages:
            return True
        return (
            messages < self._messages_max and self._bytes + beside_bytes + size <= self._bytes_max
        )

    def add(self, pending: Pending) -> None:
        """Append an entry."""
        self._all.append(pending)
        self._unwritten.append(pending)
        self._messages += pending.message_count
        self._bytes += len(pending.entry)

    def has_before(self, sequence_id: int) -> bool:
        """Whether an entry with a lower sequence id has no answer yet."""
        return bool(self._all) and self._all[0].sequence_id < sequence_id

    def next_unwritten(self) -> Pending | None:
        """Return the first entry that was not written to the current connection."""
        return self._unwritten[0] if self._unwritten else None

    def wrote(self, connection: Connection, at: float) -> None:
        """Record that the first unwritten entry was written to ``connection``."""
        pending = self._unwritten.popleft()
        pending.connection = connection
        pending.written_at = at
        pending.messages = None

    def rewind(self) -> None:
        """Write all entries again, because the producer has resumed on another connection."""
        for pending in self._all:
            pending.was_rewritten = pending.was_rewritten or pending.connection is not None
        self._unwritten = deque(self._all)

    def answered(self, sequence_id: int) -> Pending | None:
        """Remove the oldest entry, for which the broker has sent a receipt or a refusal.

        Returns None if the entry was answered before. Raises LookupError if the broker skipped an entry.
        """
        if not self._all or sequence_id < self._all[0].sequence_id:
            return None
        if self._all[0].sequence_id != sequence_id or self._all[0].connection is None:
            raise LookupError(f"an answer to {sequence_id}, not to {self._all[0].sequence_id}")
        return self._remove_first()

    def withdraw(self, receipt: Receipt, repack: Repack) -> bool:
        """Withdraw a message that was never written to a connection. False: it was written.

        The other messages of its batch stay: ``repack`` packs the batch again. Chunks that were written stay,
        too; no client reads them without the last one.
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
        """Fail all messages: with ``refusal`` if they are certainly not in the log, else with ``unknown``.

        ``connection`` is the one on which the broker rejected the producer; None if no broker did.
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
