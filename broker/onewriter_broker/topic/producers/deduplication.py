"""Deduplication between lineages: a policy, off by default as in Pulsar.

While it is on, a log has one number for each producer name: the highest sequence id stored under that name,
over any connection and by any broker. PRODUCER_SUCCESS reports it. A SEND with a number that is not higher is
answered without a position (POSITION_UNKNOWN) and is not stored. A batch counts by its highest id, a chunked
message by its last chunk.

Three details are safer than in Pulsar 4.0.7. A client that counts upwards sees no difference:

* A batch that reaches above the number is stored whole. Pulsar drops it and answers it, and so loses its upper
  part.
* A possible copy of an entry in progress is answered after that entry's receipt (producer.py). Pulsar answers
  with an error, which costs C++ and Go clients their connection.
* The first chunks of a message that is stored already are not stored again.

Atomic publishes do not count, because their app and version identify them. A producer that has the name of an
app is independent of the app.

Resends within one lineage are handled before deduplication: see resends.py.

**Where the numbers are stored.** They are in memory, and in a snapshot in the log's state. A broker that begins
to serve the log reads the entries after the snapshot. A snapshot is written by every fence and after
``snapshot_entries`` entries, so that there is little to read. Entries after the snapshot are not trimmed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import NamedTuple

import structlog

from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.log import TopicLog, last_position, payloads
from onewriter_broker.log.topic_log.pending_blocks import PendingEntry
from onewriter_broker.log.topic_log.read_sizes import FIRST_BLOCKS, next_count
from onewriter_broker.topic.limits import DeduplicationLimits
from onewriter_broker.topic.producers.resends import POSITION_UNKNOWN
from onewriter_core.errors import ProtocolError, Unavailable, Undecided
from onewriter_core.ids import Position
from onewriter_core.wire.encoding import encode_send_receipt, encode_send_receipts
from onewriter_core.wire.messages import EntrySummary, summarize
from onewriter_core.wire.values import Send

FIELD = "deduplication"
"""The state field with the snapshot: a position, a space, and JSON that maps each producer name to its highest
sequence id, the latest publisher last. Absent or empty: the log is not deduplicated."""

INVENTED_PREFIX = "onewriter-"
"""Prefix of the names that the broker generates. A producer that gets such a name never had a number before."""

SUMMARIES_PER_TICK = 256
"""Entries summarized between two yields to the event loop."""

NOTHING_STORED = -1
"""The sequence id of a name that has stored nothing, as PRODUCER_SUCCESS reports it."""

_SIGNED_MAX = 2**63 - 1

log = structlog.get_logger(__name__)


class Deduplication:
    """The numbers of one log.

    They cover all entries up to its watermark, because each stored entry is noted at once.
    """

    def __init__(
        self,
        topic_log: TopicLog,
        stored: Mapping[str, int],
        since: Position,
        limits: DeduplicationLimits = DeduplicationLimits(),
    ) -> None:
        self._limits = limits
        self._log = topic_log
        self._stored = dict(stored)
        self._since = since

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest sequence id stored under that name, or NOTHING_STORED."""
        return self._stored.get(producer_name, NOTHING_STORED)

    def note(self, producer_name: str, entries: Sequence[PendingEntry]) -> None:
        """Note stored entries of one producer."""
        numbers = [highest_of(send) for _, send, payload in entries if completes(send, payload)]
        if numbers:
            self.raise_to(producer_name, max(numbers))

    def raise_to(self, producer_name: str, number: int) -> None:
        """Note that the name has stored that sequence id, and perhaps higher ones before."""
        number = max(number, self._stored.pop(producer_name, NOTHING_STORED))
        self._stored[producer_name] = number  # the latest last
        if len(self._stored) > self._limits.producers_max:
            oldest = next(iter(self._stored))
            invented = (name for name in self._stored if name.startswith(INVENTED_PREFIX))
            del self._stored[next(invented, oldest)]

    def snapshot(self) -> dict[str, str]:
        """The state field with the present numbers."""
        end = max(self._log.committed, self._since)
        return {FIELD: f"{end} {json.dumps(self._stored)}"}

    @property
    def is_due(self) -> bool:
        """Whether a snapshot must be written: there is none, or there are too many entries after it.

        It is also due if entries after the snapshot were still in progress when a fence wrote it, because
        retention must not wait for them.
        """
        saved = saved_to(self._log)
        if saved is None:
            return True
        committed, ends = self._log.committed, self._log.ends
        if saved.ledger < committed.ledger:
            return bool(ends) and ends[-1] > saved
        return committed.entry - saved.entry >= self._limits.snapshot_entries

    async def save(self) -> None:
        """Write a snapshot now. Raises Undecided and Unavailable; the former snapshot then stays valid."""
        await self._log.save_state(self.snapshot())


class _Held(NamedTuple):
    """A SEND that is not stored again. Its receipt waits for the receipts of earlier SENDs."""

    behind: int
    """Number of receipts that are sent before it."""
    sequence_id: int
    highest_sequence_id: int
    size: int


class Filter:
    """Decides which entries of a producer's connection are new.

    When it is created, no entry of that name may be on its way to the log.
    """

    __slots__ = ("_deduplication", "_handed_in", "_held", "_name", "_receipts")

    def __init__(self, deduplication: Deduplication, producer_name: str) -> None:
        self._deduplication = deduplication
        self._name = producer_name
        self._handed_in = self.last_sequence_id
        self._held: list[_Held] = []
        self._receipts = 0

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id stored under the name."""
        return self._deduplication.last_sequence_id(self._name)

    def takes(self, send: Send, payload: memoryview) -> bool:
        """Whether the entry's number is above all that the name has stored or this connection has sent."""
        number = highest_of(send)
        if NOTHING_STORED < number <= self._handed_in:
            return False
        if completes(send, payload):
            self._handed_in = max(number, self._handed_in)
        return True

    def note(self, entries: Sequence[PendingEntry]) -> None:
        """Note that these entries are stored."""
        self._deduplication.note(self._name, entries)

    def hold(self, send: Send, size: int, behind: int) -> None:
        """Answer a duplicate after ``behind`` entries that the connection sent before it are answered."""
        number = self._receipts + behind
        self._held.append(_Held(number, send.sequence_id, send.highest_sequence_id, size))

    @property
    def held_bytes(self) -> int:
        """Bytes of the duplicates that have no receipt yet."""
        return sum(held.size for held in self._held)

    def forget_held(self) -> None:
        """Drop the duplicates without a receipt. Their client has to send them again, or is gone."""
        self._held.clear()

    def receipts(
        self, producer_id: int, first: Position, numbers: Sequence[tuple[int, int]]
    ) -> tuple[bytes, int]:
        """The receipts of entries from ``first`` on and of duplicates between them, and the duplicates' bytes.

        ``numbers`` are the entries' (sequence id, highest sequence id).
        """
        ledger, entry = first
        frames: list[bytes] = []
        start = due = size = 0
        for held in self._held:
            stop = held.behind - self._receipts
            if stop > len(numbers):
                break
            frames += (
                encode_send_receipts(producer_id, ledger, entry + start, numbers[start:stop]),
                encode_send_receipt(
                    producer_id, held.sequence_id, *POSITION_UNKNOWN, held.highest_sequence_id
                ),
            )
            size += held.size
            start, due = stop, due + 1
        frames.append(encode_send_receipts(producer_id, ledger, entry + start, numbers[start:]))
        self._receipts += len(numbers)
        del self._held[:due]
        return b"".join(frames), size


class Deduplications:
    """Deduplication of one topic: on or off, for all of its logs. ``logs`` may grow."""

    __slots__ = ("_by_partition", "_limits", "_logs", "_spawn", "is_on")

    def __init__(
        self,
        logs: Mapping[int, TopicLog],
        spawn: Callable[[Coroutine[object, object, None]], object],
        *,
        is_on: bool,
        limits: DeduplicationLimits = DeduplicationLimits(),
    ) -> None:
        self._limits = limits
        self.is_on = is_on
        self._logs = logs
        self._spawn = spawn
        self._by_partition: dict[int, Deduplication] = {}

    def of(self, partition: int) -> Deduplication | None:
        """The numbers of a partition. None while deduplication is off."""
        return self._by_partition.get(partition)

    async def open(self, partition: int) -> None:
        """Resume the deduplication of a log after it was fenced for this broker. Raises Undecided and Unavailable."""
        if self.is_on:
            self._by_partition[partition] = await resume(self._logs[partition], self._limits)

    def switch(self, *, is_on: bool) -> None:
        """Begin or end deduplication. Logs that are deduplicated already keep their numbers."""
        self.is_on = is_on
        if not is_on:
            self._by_partition.clear()
        for partition, topic_log in self._logs.items():
            if is_on and partition not in self._by_partition:
                self._by_partition[partition] = begin(topic_log, self._limits)
            self._spawn(self._save(partition))

    def save_due(self) -> None:
        """Request snapshots for the logs that have too many entries after the last one."""
        for partition, deduplication in self._by_partition.items():
            if self._logs[partition].is_writable and deduplication.is_due:
                self._spawn(self._save(partition))

    async def _save(self, partition: int) -> None:
        """Save a snapshot as best effort. ``save_due`` requests it again, and the next fence writes it, too."""
        topic_log, fields = self._logs[partition], self.state(partition)
        try:
            await topic_log.save_state(fields)
        except (Unavailable, Undecided) as error:
            log.info("deduplication.unsaved", topic=str(topic_log.name), reason=str(error))

    def state(self, partition: int) -> dict[str, str]:
        """The log's state fields with which another broker continues deduplication, or which end it."""
        deduplication = self._by_partition.get(partition)
        if deduplication is not None:
            return deduplication.snapshot()
        if self.is_on:
            return {}  # not open yet: the state of the former broker stays unchanged
        return {FIELD: ""} if self._logs[partition].state.get(FIELD) else {}


def saved_to(topic_log: TopicLog) -> Position | None:
    """The position at which the snapshot in the log's state ends. None: there is no snapshot."""
    text = topic_log.state.get(FIELD)
    return Position.parse(text[: text.index(" ")]) if text else None


def trim_limit(topic_log: TopicLog, marker: Position) -> Position:
    """The position below which a log may be trimmed at most: its newest marker, or the end of its snapshot."""
    saved = saved_to(topic_log)
    return marker if saved is None else min(marker, Position(saved.ledger, saved.entry + 1))


def begin(
    topic_log: TopicLog, limits: DeduplicationLimits = DeduplicationLimits()
) -> Deduplication:
    """Begin deduplication. Entries that were sent before do not count, as in Pulsar.

    A name may have been used repeatedly, each time with sequence ids from 0.
    """
    handed_in = topic_log.next_entry - 1 + len(topic_log.waiting)
    since = max(topic_log.committed, Position(topic_log.ledger, handed_in))
    return Deduplication(topic_log, {}, since, limits)


async def resume(
    topic_log: TopicLog, limits: DeduplicationLimits = DeduplicationLimits()
) -> Deduplication:
    """Continue the deduplication of another broker. Raises Undecided and Unavailable.

    Call it after the log was fenced for this broker and before any producer writes to it.
    """
    start = saved_to(topic_log)
    if start is None:
        deduplication = begin(topic_log, limits)
        await deduplication.save()
        return deduplication
    stored = json.loads(topic_log.state[FIELD].partition(" ")[2])
    deduplication = Deduplication(topic_log, stored, start, limits)
    end, count = topic_log.committed, FIRST_BLOCKS
    while start < end:
        following = Position(start.ledger, start.entry + 1)
        blocks = await topic_log.read_blocks(following, end, count=count)
        for block in blocks:
            if isinstance(block, Block) and not block.publish:
                await _note_block(deduplication, block)
        if len(blocks) < count:
            break
        start, count = last_position(blocks[-1]), next_count(count, blocks)
    return deduplication


async def _note_block(deduplication: Deduplication, block: Block) -> None:
    for index, payload in enumerate(payloads(block)):
        try:
            summary = summarize(payload)
        except ProtocolError:
            continue  # its producer got a receipt, but its name cannot be read
        if _completes(summary):
            number = _highest(summary.sequence_id, summary.highest_sequence_id)
            deduplication.raise_to(summary.producer_name, number)
        if index % SUMMARIES_PER_TICK == 0:
            await asyncio.sleep(0)


def highest_of(send: Send) -> int:
    """The sequence id that counts for an entry. NOTHING_STORED if the entry has no valid number."""
    return _highest(send.sequence_id, send.highest_sequence_id)


def _highest(sequence_id: int, highest_sequence_id: int) -> int:
    # A negative number arrives as a large unsigned one. Clients send it to mean "none".
    if sequence_id > _SIGNED_MAX:
        return NOTHING_STORED
    return (
        sequence_id if highest_sequence_id > _SIGNED_MAX else max(sequence_id, highest_sequence_id)
    )


def completes(send: Send, payload: memoryview) -> bool:
    """Whether the message is complete with this entry. A chunk that is not the last one does not complete it."""
    if not send.is_chunk:
        return True
    try:
        return _completes(summarize(payload))
    except ProtocolError:
        return True


def _completes(summary: EntrySummary) -> bool:
    return summary.chunk_id is None or summary.chunk_id + 1 == summary.num_chunks
