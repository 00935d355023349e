"""One producer of one connection: the shell's side of a registration, and its log's Sender.

The topic machine decides whether it may write; here that decision is one flag, ``is_active``,
looked at before each entry is buffered. What happened to an entry comes back through ``stored``,
``refused`` and ``unknown`` and is passed on to the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from onewriter_broker.log.topic_log import PendingEntry, TopicLog
from onewriter_broker.resends import Key, Resends, Seen
from onewriter_core.errors import ServerError
from onewriter_core.ids import Position
from onewriter_core.topic.model import AccessMode, Request
from onewriter_core.wire.hot import Send, encode_send_receipt, encode_send_receipts
from onewriter_core.wire.messages import summarize

RECENT_MAX = 1_024
"""Stored positions remembered per producer, to answer a resend with the original position."""


class ProducerChannel(Protocol):
    """The connection as a producer sees it. Nothing here waits."""

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        """Answer the PRODUCER command: it may write."""
        ...

    def producer_waits(self, producer: Producer) -> None:
        """Answer the PRODUCER command: it waits for its turn."""
        ...

    def producer_refused(self, producer: Producer, code: ServerError, message: str) -> None:
        """Answer the PRODUCER command with an error."""
        ...

    def producer_closed(self, producer: Producer) -> None:
        """Tell a producer that had been granted that it is closed."""
        ...

    def send_answered(self, frames: bytes, size: int) -> None:
        """Write receipts; the ``size`` bytes that they answer are no longer pending."""
        ...

    def send_dropped(self, size: int) -> None:
        """So many bytes are no longer pending and get no receipt."""
        ...

    def drop(self, reason: str) -> None:
        """Close the connection: its clients reconnect and resend what they have no receipt for."""
        ...

    def probe(self) -> None:
        """Send a PING now and expect an answer soon."""
        ...


Recent = tuple[int, int, int, int]
"""A stored entry of a producer: sequence id, highest sequence id, ledger, entry."""


class Producer:
    """A registered producer, waiting or writing."""

    __slots__ = (
        "_has_published",
        "_last_progress_at",
        "_on_idle",
        "asked_priority",
        "channel",
        "epoch",
        "gathered",
        "is_active",
        "is_granted",
        "name",
        "pending",
        "producer_id",
        "recent",
        "request",
        "request_id",
        "resends",
        "since_ms",
        "successor",
        "topic_log",
    )

    def __init__(
        self,
        channel: ProducerChannel,
        producer_id: int,
        request_id: int,
        request: Request,
        topic_log: TopicLog,
        gathered: Callable[[TopicLog], None],
        *,
        asked_priority: int = 0,
    ) -> None:
        self.channel = channel
        self.producer_id = producer_id
        self.request_id = request_id
        self.request = request
        self.name = request.producer_name
        self.topic_log = topic_log
        self.gathered = gathered
        self.is_active = False
        self.is_granted = False
        self.epoch: int | None = None
        self.asked_priority = asked_priority
        self.since_ms = 0  # when the topic was asked for, by the wall clock
        self.pending = 0
        self._on_idle: Callable[[], None] | None = None
        self._has_published = False
        self._last_progress_at = 0.0
        self.recent: deque[Recent] = deque(maxlen=RECENT_MAX)
        self.resends: Resends | None = None
        self.successor: Producer | None = None

    @property
    def is_exclusive(self) -> bool:
        return self.request.mode is not AccessMode.SHARED

    def publish(self, send: Send, payload: memoryview) -> None:
        """Buffer one entry, or answer it when it is a resend of one that is known."""
        if self.resends is not None:
            known = self.resends.seen(send, payload)
            if known is Seen.NEW:
                self.resends = None
            else:
                if isinstance(known, Position):
                    self._receipt(send.sequence_id, send.highest_sequence_id, known, len(payload))
                return
        self.pending += 1
        self._has_published = True
        self.topic_log.accept((self, send, payload))
        self.gathered(self.topic_log)

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None:
        ledger, number = first
        numbers = [(send.sequence_id, send.highest_sequence_id) for _, send, _ in entries]
        for sequence_id, highest_sequence_id in numbers:
            self.recent.append((sequence_id, highest_sequence_id, ledger, number))
            number += 1
        self.channel.send_answered(
            encode_send_receipts(self.producer_id, ledger, first.entry, numbers), size
        )
        successor = self.successor
        if successor is not None:
            for number, (sequence_id, highest_sequence_id) in enumerate(numbers, first.entry):
                position = Position(ledger, number)
                successor.predecessor_stored(sequence_id, highest_sequence_id, position)
        self._answered(len(entries))

    def refused(self, size: int) -> None:
        self.channel.send_dropped(size)
        self._answered(1)

    def unknown(self, size: int) -> None:
        self.channel.send_dropped(size)
        self.channel.drop("the fate of a message is unknown")
        self._answered(1)

    def _answered(self, entries: int) -> None:
        self.pending -= entries
        if self.pending == 0 and self._on_idle is not None:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` once everything handed in is answered; at once if it is."""
        if self.pending == 0:
            then()
        else:
            self._on_idle = then

    def idle_seconds(self, now: float) -> float:
        """How long it has not published, as seen by whoever asks regularly."""
        if self._has_published or self.pending > 0 or self._last_progress_at == 0.0:
            self._has_published = False
            self._last_progress_at = now
        return now - self._last_progress_at

    def predecessor_stored(
        self, sequence_id: int, highest_sequence_id: int, position: Position
    ) -> None:
        """An entry of the connection before this one is stored: answer its resend, if it came."""
        if self.resends is None:
            return
        size = self.resends.now_stored(sequence_id, position)
        if size is not None:
            self._receipt(sequence_id, highest_sequence_id, position, size)

    def _receipt(
        self, sequence_id: int, highest_sequence_id: int, position: Position, size: int
    ) -> None:
        self.channel.send_answered(
            encode_send_receipt(
                self.producer_id,
                sequence_id,
                position.ledger,
                position.entry,
                highest_sequence_id,
            ),
            size,
        )


def lineage(producer: Producer) -> Resends:
    """What the producer's successor may send again: stored entries, then those still pending."""
    stored: list[tuple[Key, Position]] = []
    chunk = 0
    for index, (sequence_id, _, ledger, entry) in enumerate(producer.recent):
        # The chunks of one message share its sequence id and are stored in their order.
        follows = index > 0 and producer.recent[index - 1][0] == sequence_id
        chunk = chunk + 1 if follows else 0
        stored.append(((sequence_id, chunk), Position(ledger, entry)))
    topic_log = producer.topic_log
    pending = [e for block in topic_log.undecided for e in block.entries if e[0] is producer]
    pending += [e for e in topic_log.waiting if e[0] is producer]
    return Resends.of(stored, [_key(entry) for entry in pending])


def _key(entry: PendingEntry) -> Key:
    _, send, payload = entry
    return (send.sequence_id, summarize(payload).chunk_id or 0)
