"""Deduplication between lineages: a policy, off by default as in Pulsar.

While it is on for a log, each producer name has one number there: the highest sequence id stored
under that name, by whatever connection and through whatever broker. PRODUCER_SUCCESS tells it, and
a SEND that is not above it is answered without a position (POSITION_UNKNOWN) and not stored. A batch
counts by its highest id, a chunked message by its last chunk.

Three things are safer than in Pulsar 4.0.7, and look the same to a client that counts upwards:

* A batch that reaches above the number is stored whole. Pulsar drops it, answers it, and so loses
  its upper part.
* What may be a copy of an entry still on its way is answered behind that entry's receipt (producer.py).
  Pulsar answers an error, which costs C++ and Go clients their connection.
* The first chunks of a message that is stored already are not stored again.

What is published as a whole does not count: it is known by its app and version, and a producer that has
an app's name is another one.

What happens within one lineage, resends, comes before all this: see resends.py.

**Where the numbers live.** In memory, and as a snapshot in the log's state; the entries behind the
snapshot are read when a broker begins to serve the log. Every fence and every SNAPSHOT_ENTRIES
entries leave one, so that this is little to read. Nothing behind the snapshot is trimmed.
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
from onewriter_broker.topic.producers.resends import POSITION_UNKNOWN
from onewriter_core.errors import ProtocolError, Unavailable, Undecided
from onewriter_core.ids import Position
from onewriter_core.wire.encoding import encode_send_receipt, encode_send_receipts
from onewriter_core.wire.messages import EntrySummary, summarize
from onewriter_core.wire.values import Send

FIELD = "deduplication"
"""The state field that holds the snapshot: a position, a space, and producer name to highest
sequence id as JSON, those that published latest last. Absent or empty: not deduplicated."""

PRODUCERS_MAX = 1_000
"""Producer names that one log remembers; of more, those that published latest, and before all the
invented ones those that somebody chose. The others begin anew, as in Pulsar behind its own limit."""

INVENTED_PREFIX = "onewriter-"
"""How the names begin that the broker invents: whoever gets one never had a number before."""

SNAPSHOT_ENTRIES = 10_000
"""Entries after which a snapshot is written: about what the next broker has to read."""

BLOCKS_PER_READ = 16
"""Blocks of one read of what lies behind the snapshot: 4 MiB where they are full."""

SUMMARIES_PER_TICK = 256
"""Entries summarized before others get a turn of the event loop."""

NOTHING_STORED = -1
"""The sequence id of a name that has stored nothing, as PRODUCER_SUCCESS tells it."""

_SIGNED_MAX = 2**63 - 1

log = structlog.get_logger(__name__)


class Deduplication:
    """The numbers of one log, up to its watermark; whose entry is stored is noted at once."""

    def __init__(self, topic_log: TopicLog, stored: Mapping[str, int], since: Position) -> None:
        self._log = topic_log
        self._stored = dict(stored)
        self._since = since

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest sequence id stored under that name, or NOTHING_STORED."""
        return self._stored.get(producer_name, NOTHING_STORED)

    def note(self, producer_name: str, entries: Sequence[PendingEntry]) -> None:
        """These entries of one producer are stored."""
        numbers = [highest_of(send) for _, send, payload in entries if completes(send, payload)]
        if numbers:
            self.raise_to(producer_name, max(numbers))

    def raise_to(self, producer_name: str, number: int) -> None:
        """The name has stored that sequence id, and perhaps higher ones before."""
        number = max(number, self._stored.pop(producer_name, NOTHING_STORED))
        self._stored[producer_name] = number  # the latest last
        if len(self._stored) > PRODUCERS_MAX:
            oldest = next(iter(self._stored))
            invented = (name for name in self._stored if name.startswith(INVENTED_PREFIX))
            del self._stored[next(invented, oldest)]

    def snapshot(self) -> dict[str, str]:
        """The state field as of now."""
        end = max(self._log.committed, self._since)
        return {FIELD: f"{end} {json.dumps(self._stored)}"}

    @property
    def is_due(self) -> bool:
        """A snapshot is to be written: there is none, or too much lies behind it.

        So does what was still on its way when a fence wrote one: retention must not wait for it.
        """
        saved = saved_to(self._log)
        if saved is None:
            return True
        committed, ends = self._log.committed, self._log.ends
        if saved.ledger < committed.ledger:
            return bool(ends) and ends[-1] > saved
        return committed.entry - saved.entry >= SNAPSHOT_ENTRIES

    async def save(self) -> None:
        """Write a snapshot now. Raises Undecided and Unavailable; the one before then counts on."""
        await self._log.save_state(self.snapshot())


class _Held(NamedTuple):
    """A SEND that is not stored again, and whose receipt waits for those in front of it."""

    behind: int
    """How many receipts leave before."""
    sequence_id: int
    highest_sequence_id: int
    size: int


class Filter:
    """What one connection of a producer handed in, and which of it is new.

    Nothing else of that name may be on its way into the log when it is made.
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
        """Whether it is above all that the name has stored or this connection handed in."""
        number = highest_of(send)
        if NOTHING_STORED < number <= self._handed_in:
            return False
        if completes(send, payload):
            self._handed_in = max(number, self._handed_in)
        return True

    def note(self, entries: Sequence[PendingEntry]) -> None:
        """These entries are stored."""
        self._deduplication.note(self._name, entries)

    def hold(self, send: Send, size: int, behind: int) -> None:
        """Answer a duplicate once so many entries were answered that were handed in before it."""
        number = self._receipts + behind
        self._held.append(_Held(number, send.sequence_id, send.highest_sequence_id, size))

    @property
    def held_bytes(self) -> int:
        """Bytes of the duplicates that have no receipt yet."""
        return sum(held.size for held in self._held)

    def forget_held(self) -> None:
        """They get no receipt: their client has to send them again, or is gone."""
        self._held.clear()

    def receipts(
        self, producer_id: int, first: Position, numbers: Sequence[tuple[int, int]]
    ) -> tuple[bytes, int]:
        """The receipts of entries from ``first`` on, with those of duplicates where they belong.

        ``numbers`` are the entries' (sequence id, highest one). With them, the duplicates' bytes.
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

    __slots__ = ("_by_partition", "_logs", "_spawn", "is_on")

    def __init__(
        self,
        logs: Mapping[int, TopicLog],
        spawn: Callable[[Coroutine[object, object, None]], object],
        *,
        is_on: bool,
    ) -> None:
        self.is_on = is_on
        self._logs = logs
        self._spawn = spawn
        self._by_partition: dict[int, Deduplication] = {}

    def of(self, partition: int) -> Deduplication | None:
        """The partition's numbers; None while deduplication is off."""
        return self._by_partition.get(partition)

    async def open(self, partition: int) -> None:
        """A log was fenced for this broker. Raises Undecided and Unavailable."""
        if self.is_on:
            self._by_partition[partition] = await resume(self._logs[partition])

    def switch(self, *, is_on: bool) -> None:
        """Begin or end; what is on stays as it is."""
        self.is_on = is_on
        if not is_on:
            self._by_partition.clear()
        for partition, topic_log in self._logs.items():
            if is_on and partition not in self._by_partition:
                self._by_partition[partition] = begin(topic_log)
            self._spawn(self._save(partition))

    def save_due(self) -> None:
        """Have snapshots written where too much lies behind the last one."""
        for partition, deduplication in self._by_partition.items():
            if self._logs[partition].is_writable and deduplication.is_due:
                self._spawn(self._save(partition))

    async def _save(self, partition: int) -> None:
        """Best effort: asked for again by ``save_due``, and written by the next fence, too."""
        topic_log, fields = self._logs[partition], self.state(partition)
        try:
            await topic_log.save_state(fields)
        except (Unavailable, Undecided) as error:
            log.info("deduplication.unsaved", topic=str(topic_log.name), reason=str(error))

    def state(self, partition: int) -> dict[str, str]:
        """The log's state fields that let another broker go on, or that end deduplication."""
        deduplication = self._by_partition.get(partition)
        if deduplication is not None:
            return deduplication.snapshot()
        if self.is_on:
            return {}  # not open yet: what the broker before left stays as it is
        return {FIELD: ""} if self._logs[partition].state.get(FIELD) else {}


def saved_to(topic_log: TopicLog) -> Position | None:
    """Where the snapshot in the log's state ends; None: there is none."""
    text = topic_log.state.get(FIELD)
    return Position.parse(text[: text.index(" ")]) if text else None


def trim_limit(topic_log: TopicLog, marker: Position) -> Position:
    """Below what a log may be cut at most: its newest marker, and all that no snapshot has yet."""
    saved = saved_to(topic_log)
    return marker if saved is None else min(marker, Position(saved.ledger, saved.entry + 1))


def begin(topic_log: TopicLog) -> Deduplication:
    """Deduplication begins now: what was handed in already does not count, as in Pulsar.

    A name may have been used again and again, counting from 0 each time.
    """
    handed_in = topic_log.next_entry - 1 + len(topic_log.waiting)
    since = max(topic_log.committed, Position(topic_log.ledger, handed_in))
    return Deduplication(topic_log, {}, since)


async def resume(topic_log: TopicLog) -> Deduplication:
    """Deduplication goes on as another broker left it. Raises Undecided and Unavailable.

    To be called when the log is fenced for this broker and nobody writes to it yet.
    """
    start = saved_to(topic_log)
    if start is None:
        deduplication = begin(topic_log)
        await deduplication.save()
        return deduplication
    stored = json.loads(topic_log.state[FIELD].partition(" ")[2])
    deduplication = Deduplication(topic_log, stored, start)
    end = topic_log.committed
    while start < end:
        following = Position(start.ledger, start.entry + 1)
        blocks = await topic_log.read_blocks(following, end, count=BLOCKS_PER_READ)
        for block in blocks:
            if isinstance(block, Block) and not block.publish:
                await _note_block(deduplication, block)
        if len(blocks) < BLOCKS_PER_READ:
            break
        start = last_position(blocks[-1])
    return deduplication


async def _note_block(deduplication: Deduplication, block: Block) -> None:
    for index, payload in enumerate(payloads(block)):
        try:
            summary = summarize(payload)
        except ProtocolError:
            continue  # its producer was told that it is stored; who that was cannot be read
        if _completes(summary):
            number = _highest(summary.sequence_id, summary.highest_sequence_id)
            deduplication.raise_to(summary.producer_name, number)
        if index % SUMMARIES_PER_TICK == 0:
            await asyncio.sleep(0)


def highest_of(send: Send) -> int:
    """The sequence id that counts for an entry; NOTHING_STORED for one without a proper number."""
    return _highest(send.sequence_id, send.highest_sequence_id)


def _highest(sequence_id: int, highest_sequence_id: int) -> int:
    # Negative numbers stand here as what they are without a sign; clients mean "none" by them.
    if sequence_id > _SIGNED_MAX:
        return NOTHING_STORED
    return (
        sequence_id if highest_sequence_id > _SIGNED_MAX else max(sequence_id, highest_sequence_id)
    )


def completes(send: Send, payload: memoryview) -> bool:
    """Whether the message is whole with this entry: not so with a chunk that is not the last."""
    if not send.is_chunk:
        return True
    try:
        return _completes(summarize(payload))
    except ProtocolError:
        return True


def _completes(summary: EntrySummary) -> bool:
    return summary.chunk_id is None or summary.chunk_id + 1 == summary.num_chunks
