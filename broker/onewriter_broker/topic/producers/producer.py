"""One producer of one connection: the broker's side of a registration, and the sender of its log.

The topic machine decides whether the producer may write. Here that decision is one flag, ``is_active``, which
is checked before each entry is buffered. The log reports the result of an entry through ``stored``, ``refused``
and ``unknown``, and the producer passes it to the connection.

Receipts are sent in the order of the SENDs. Clients close their connection otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from onewriter_broker.log.store.api import Guard, Outcome
from onewriter_broker.log.topic_log.log import ENTRY_BYTES, TopicLog
from onewriter_broker.log.topic_log.pending_blocks import PendingEntry
from onewriter_broker.topic.producers.deduplication import NOTHING_STORED, Deduplication, Filter
from onewriter_broker.topic.producers.resends import (
    POSITION_UNKNOWN,
    Floor,
    Mark,
    Resends,
    Run,
    Seen,
    end_of,
    mark_of,
    pending_entry,
    stored_entries,
)
from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.ids import Position
from onewriter_core.topic.model import AccessMode, Request
from onewriter_core.wire.encoding import encode_send_receipt, encode_send_receipts
from onewriter_core.wire.messages import content_checksum
from onewriter_core.wire.values import Send

RECENT_MIN = 1_024
"""Stored entries that a lineage remembers, so that a resend is answered with the original position. It may
remember more, because it forgets whole runs."""

IDLE_CALLS_MAX = 16
"""CLOSE_PRODUCER commands that may wait for the receipts of a producer. A client sends one."""

SETTLE_POLL_SECONDS = 0.2
"""Polling interval for rejected entries while a producer waits for earlier ones and nothing is stored."""


class ProducerChannel(Protocol):
    """The interface of a connection for its producers. No method waits."""

    @property
    def client_version(self) -> str:
        """The version that the client reports, for statistics."""
        ...

    @property
    def last_inbound(self) -> float:
        """When the connection's last byte was received, by the broker's monotonic clock."""
        ...

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        """Answer the PRODUCER command: the producer may write."""
        ...

    def producer_waits(self, producer: Producer) -> None:
        """Answer the PRODUCER command: the producer waits in the queue."""
        ...

    def producer_refused(self, producer: Producer, code: ServerError, message: str) -> None:
        """Answer the PRODUCER command with an error."""
        ...

    def producer_closed(self, producer: Producer) -> None:
        """Close a producer that was granted the topic."""
        ...

    def send_answered(self, frames: bytes, size: int) -> None:
        """Write receipts; the ``size`` bytes that they answer are no longer pending."""
        ...

    def send_dropped(self, size: int) -> None:
        """Count ``size`` bytes as no longer pending. They get no receipt."""
        ...

    def guard_refused(self, producer: Producer, outcome: Outcome) -> None:
        """Close a producer whose guard was rejected, after all its entries were answered."""
        ...

    def drop(self, reason: str) -> None:
        """Close the connection, so that the client reconnects and resends entries without a receipt."""
        ...

    def probe(self) -> None:
        """Send a PING now and expect an answer soon."""
        ...

    @property
    def receives_queue_notices(self) -> bool:
        """Whether the client understands notices about the queue."""
        ...

    def queue_changed(self, producer: Producer, waiting: int) -> None:
        """Notify a holder of the number of waiters, if its client understands the notice."""
        ...


@dataclass(slots=True, eq=False)
class Lineage:
    """The state that the successive connections of one producer share.

    ``newest`` is the current connection. ``recent`` has the latest stored entries of all connections, oldest
    first. ``floor`` describes what is stored before them.
    """

    newest: Producer
    recent: list[Run] = field(default_factory=list)
    floor: Floor | None = None
    _remembered: int = 0

    def resends(self, topic_log: TopicLog) -> Resends:
        """Entries that the newest connection may resend: the stored ones, then the pending ones."""
        known = [entry for run in self.recent for entry in stored_entries(run)]
        pending = [entry for block in topic_log.undecided for entry in block.entries]
        pending += topic_log.waiting
        known += [pending_entry(entry[1], entry[2]) for entry in pending if self._has_sent(entry)]

        def contents(position: Position) -> int | None:
            found = topic_log.read_tail(position.previous, 1, 1)
            try:
                return content_checksum(found[0].payload) if found else None
            except ProtocolError:
                return None

        # Another Shared producer may have the same name, so only exact copies count as resends.
        return Resends(known, self.floor, contents if self.newest.is_exclusive else None)

    def note(self, run: Run) -> None:
        """Add stored entries after the known ones."""
        # A list, because an empty deque takes ten times its memory, for each idle producer.
        self.recent.append(run)
        self._remembered += len(run.marks)
        while self._remembered - len(self.recent[0].marks) >= RECENT_MIN:
            forgotten = self.recent.pop(0)
            self._remembered -= len(forgotten.marks)
            self.floor = forgotten.floor

    @property
    def newest_stored(self) -> Floor | None:
        """The latest entry that is certainly stored."""
        return self.recent[-1].floor if self.recent else self.floor

    def _has_sent(self, entry: PendingEntry) -> bool:
        sender = entry[0]
        return isinstance(sender, Producer) and sender.lineage is self


class Producer:
    """A registered producer, waiting or writing."""

    __slots__ = (
        "_atomic_publishes",
        "_has_published",
        "_last_progress_at",
        "_on_idle",
        "append_soon",
        "channel",
        "epoch",
        "filter",
        "guard",
        "is_active",
        "is_answered",
        "is_granted",
        "is_stopped",
        "lineage",
        "name",
        "pending",
        "producer_id",
        "properties",
        "request",
        "request_id",
        "requested_priority",
        "resends",
        "since_ms",
        "topic_log",
    )

    def __init__(
        self,
        channel: ProducerChannel,
        producer_id: int,
        request_id: int,
        request: Request,
        topic_log: TopicLog,
        append_soon: Callable[[TopicLog], None],
        *,
        requested_priority: int = 0,
        properties: Mapping[str, str] = MappingProxyType({}),
        guard: Guard | None = None,
    ) -> None:
        self.channel = channel
        self.producer_id = producer_id
        self.request_id = request_id
        self.request = request
        self.name = request.producer_name
        self.topic_log = topic_log
        self.append_soon = append_soon
        self.is_active = False
        self.is_granted = False
        self.is_stopped = False
        """Whether a fence that ends the producer's right to write is under way."""
        self.is_answered = False
        """Whether the client was notified that it may write. False while the lineage is read from the log."""
        self.epoch: int | None = None
        self.requested_priority = requested_priority
        self.properties = properties
        self.guard = guard
        """The guard on which all writes of the producer depend."""
        self.since_ms = 0  # time of its request for the topic, on the wall clock
        self.pending = 0
        self._on_idle: tuple[Callable[[], None], ...] = ()
        self._has_published = False
        self._atomic_publishes = 0
        self._last_progress_at = 0.0
        self.lineage = Lineage(self)
        self.resends: Resends | None = None
        self.filter: Filter | None = None
        """The filter of new entries; None unless the log is deduplicated."""

    @property
    def is_exclusive(self) -> bool:
        return self.request.mode is not AccessMode.SHARED

    @property
    def last_sequence_id(self) -> int:
        """The sequence id that PRODUCER_SUCCESS reports for the name. NOTHING_STORED without deduplication."""
        return NOTHING_STORED if self.filter is None else self.filter.last_sequence_id

    def deduplicate(self, deduplication: Deduplication | None) -> None:
        """Begin or end deduplication. A client that waits for receipts of resends or duplicates must resend."""
        has_unanswered = self.resends is not None and self.resends.has_unanswered
        if has_unanswered or (self.filter is not None and self.filter.held_bytes):
            self.channel.drop("deduplication of the topic begins or ends")
        self.filter = None if deduplication is None else Filter(deduplication, self.name)

    def continues(self, predecessor: Producer) -> None:
        """Continue the lineage of the previous connection: its entries count as entries of this one."""
        self.lineage = predecessor.lineage
        self.lineage.newest = self
        self.resends = self.lineage.resends(self.topic_log)

    def publish(self, send: Send, payload: memoryview) -> None:
        """Buffer one entry. A resend of a known entry is answered instead."""
        if self.resends is not None and not self.resends.is_over:
            known = self.resends.seen(send, payload)
            if known is not Seen.NEW:
                if isinstance(known, Position):
                    size = len(payload) + ENTRY_BYTES
                    self._receipt(send.sequence_id, send.highest_sequence_id, known, size)
                return
            self.resends.is_over = True
            self._forget_resends_once_answered()
        if self.filter is not None and not self.filter.takes(send, payload):
            self._answer_duplicate(send, len(payload) + ENTRY_BYTES, self.filter)
            return
        self.pending += 1
        self._has_published = True
        if self.guard is not None:
            self.topic_log.add_guarded(self, self)
        self.topic_log.accept((self, send, payload))
        self.append_soon(self.topic_log)

    def begin_work(self) -> None:
        """Count an entry of a joint append, which answers it itself, as pending until ``end_work``."""
        self.pending += 1
        self._has_published = True

    def end_work(self) -> None:
        """Count the entry of ``begin_work`` as answered."""
        self._answered(1)

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Suspend the progress deadline during an atomic publish under its epoch."""
        self._atomic_publishes += 1
        try:
            yield
        finally:
            self._atomic_publishes -= 1
            self._has_published = True

    def stored(self, entries: Sequence[PendingEntry], first: Position, size: int) -> None:
        lineage = self.lineage
        marks = [mark_of(send, payload) for _, send, payload in entries]
        lineage.note(Run(first, marks, *end_of(entries[-1][2])))
        numbers = [(send.sequence_id, send.highest_sequence_id) for _, send, _ in entries]
        size += ENTRY_BYTES * len(entries)
        if self.filter is None:
            frames = encode_send_receipts(self.producer_id, *first, numbers)
        else:
            self.filter.note(entries)
            frames, held_bytes = self.filter.receipts(self.producer_id, first, numbers)
            size += held_bytes
        self.channel.send_answered(frames, size)
        if lineage.newest is not self:
            ledger, entry = first
            for number, (mark, (_, highest)) in enumerate(zip(marks, numbers, strict=True), entry):
                lineage.newest.predecessor_stored(mark, highest, Position(ledger, number))
        self._answered(len(entries))

    def refused(self, size: int) -> None:
        self.channel.send_dropped(size + ENTRY_BYTES)
        newest = self.lineage.newest  # it may be waiting for this entry's receipt
        if newest.is_active:  # it was not deposed: its next entries must not follow a gap
            newest.channel.drop("the store refused a message")
        self._answered(1)

    def guard_refused(self, entries: int, size: int, outcome: Outcome) -> None:
        """See GuardedSender. After all receipts, the broker closes the producer with CLOSE_PRODUCER.

        The client then requests the producer again, and the answer says whether the guard has ended. A
        SEND_ERROR would cost C++ and Go clients their whole connection.
        """
        self.channel.send_dropped(size + ENTRY_BYTES * entries)
        newest = self.lineage.newest
        if newest is not self:  # it may be waiting for these entries' receipts
            newest.channel.drop("the guard of a message was refused")
        if self.is_active:
            self.is_active = False
            # It runs before a close by the client, because the SUCCESS of that close would mean that everything
            # was stored.
            self._on_idle = (lambda: self.channel.guard_refused(self, outcome), *self._on_idle)
        self._answered(entries)

    def unknown(self, size: int) -> None:
        self.channel.send_dropped(size + ENTRY_BYTES)
        self.channel.drop("the result of a message is unknown")
        if self.lineage.newest is not self:  # it may be waiting for this entry's receipt
            self.lineage.newest.channel.drop("the result of a message is unknown")
        self._answered(1)

    def stop(self) -> None:
        """Stop publishing. Resends without an answer get no receipt."""
        self.is_active = False
        if self.filter is not None:
            self.channel.send_dropped(self.filter.held_bytes)
            self.filter.forget_held()
        if self.resends is not None:
            self.channel.send_dropped(self.resends.unanswered_bytes)
            self.resends = None
            self._report_if_idle()

    def _answer_duplicate(self, send: Send, size: int, filter_: Filter) -> None:
        """Answer a duplicate without storing it. Its receipt follows the receipts of earlier entries."""
        if self.pending:
            filter_.hold(send, size, behind=self.pending)
        else:
            self._receipt(send.sequence_id, send.highest_sequence_id, POSITION_UNKNOWN, size)

    def _answered(self, entries: int) -> None:
        self.pending -= entries
        if self.guard is not None and self.pending == 0:
            self.topic_log.remove_guarded(self)
        self._report_if_idle()

    @property
    def is_idle(self) -> bool:
        """Whether all entries are answered, including resends of pending entries."""
        return self.pending == 0 and (self.resends is None or not self.resends.has_unanswered)

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call ``then`` when all entries of the producer are answered, or immediately if they are.

        Raises ProtocolError if IDLE_CALLS_MAX calls wait already.
        """
        if self.is_idle:
            then()
        elif len(self._on_idle) >= IDLE_CALLS_MAX:
            raise ProtocolError(f"more than {IDLE_CALLS_MAX} CLOSE_PRODUCER wait for one producer")
        else:
            self._on_idle += (then,)

    def _report_if_idle(self) -> None:
        if self._on_idle and self.is_idle:
            on_idle, self._on_idle = self._on_idle, ()
            for then in on_idle:
                then()

    def idle_seconds(self, now: float) -> float:
        """Seconds since the producer published last, as observed by regular calls; ``now`` is monotonic."""
        is_publishing = self._has_published or self.pending > 0 or self._atomic_publishes > 0
        if is_publishing or self._last_progress_at == 0.0:
            self._has_published = False
            self._last_progress_at = now
        return now - self._last_progress_at

    def predecessor_stored(self, mark: Mark, highest_sequence_id: int, position: Position) -> None:
        """Answer the resend of an entry that the previous connection sent and that is now stored."""
        if self.resends is None:
            return
        size = self.resends.now_stored(mark, position)
        if size is not None:
            self._receipt(mark[0], highest_sequence_id, position, size)
        self._forget_resends_once_answered()
        self._report_if_idle()

    def _forget_resends_once_answered(self) -> None:
        if self.resends is not None and self.resends.is_over and not self.resends.is_awaiting:
            self.resends = None

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


async def settled(topic_log: TopicLog, producer_name: str) -> None:
    """Wait until no entry of a producer with that name is on its way to the log."""
    pending = [entry for block in topic_log.undecided for entry in block.entries]
    senders = {entry[0] for entry in (*pending, *topic_log.waiting)}
    named = [s for s in senders if isinstance(s, Producer) and s.name == producer_name]
    if not any(sender.pending for sender in named):
        return
    moved = asyncio.Event()
    topic_log.watch(moved.set)
    try:
        while any(sender.pending for sender in named):
            moved.clear()
            # A rejected entry does not call the watcher.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(moved.wait(), SETTLE_POLL_SECONDS)
    finally:
        topic_log.unwatch(moved.set)
