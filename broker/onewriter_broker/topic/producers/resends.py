"""Recognizes the entries that a resumed producer sends again, and what happened to them the first time.

After a lost connection, every client resends all entries without a receipt, in order and byte for byte. Within
one lineage (the same topic epoch; for Shared the same name) the sequence id and the checksum identify an entry.
A stored entry is answered with its original position. The resend of a pending entry is attached to that append.
The first unknown entry ends the resends, and all later entries are new. Deduplication between lineages is
independent of this and off by default, as in Pulsar.

**The sequence id alone does not identify an entry.** The C++ client, and so Python's, counts from 0 again when
it reconnects before its first receipt: it resends 0 to 299 and continues with another 0.

On the same broker the lineage is in memory (producer.Lineage). Another broker reads it from the log's tail or,
if that was trimmed, from the snapshot that rolls write to the state.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from onewriter_broker.log.store.api import Block
from onewriter_broker.log.topic_log.log import ENTRY_BYTES, TopicLog, payloads
from onewriter_broker.log.topic_log.read_sizes import FIRST_BLOCKS, next_count
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.log_format.field_names import TRIMMED
from onewriter_core.wire.messages import (
    EntrySummary,
    content_checksum,
    entry_checksum,
    summarize,
)
from onewriter_core.wire.values import Send

Mark = tuple[int, int]
"""The identification of an entry: its sequence id (of a batch, that of the first message) and its checksum."""

TAIL_ENTRIES_MAX = 10_000
TAIL_BYTES_MAX = 16 * 1024 * 1024
"""Limits on the part of a log's tail that is searched. Clients keep about a thousand entries without a receipt."""

SUMMARIES_PER_TICK = 256
"""Entries summarized between two yields to the event loop."""

SNAPSHOT_PRODUCERS_MAX = 1_000
"""Producers whose newest entry a snapshot keeps. The latest publishers are kept."""

SNAPSHOT_FIELD = "sequences"
"""The state field with the snapshot: JSON that maps each producer name to the topic epoch, the last sequence id
and the time at which it was published."""

NO_SNAPSHOT = "{}"
"""The value of SNAPSHOT_FIELD without producers, as of most topics."""

POSITION_UNKNOWN = Position(2**64 - 1, 2**64 - 1)
"""The position in the receipt of a stored entry that is older than what the broker remembers (as in Pulsar)."""


class Seen(enum.Enum):
    """Answers that are not a position."""

    NEW = "new"
    ATTACHED = "attached"


class Floor(NamedTuple):
    """All entries up to a sequence id and a publish time, in milliseconds of the producer's clock, are stored.

    An entry must satisfy both conditions: ids decrease when a client starts to count from 0, and several
    entries share a millisecond. The chunks of a message share both, so only the chunks up to ``chunk`` are
    stored.
    """

    sequence_id: int
    published_ms: int
    chunk: int | None = None
    """None: the message is not chunked."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one lineage in the log, from ``first`` on."""

    first: Position
    marks: Sequence[Mark]
    published_ms: int
    """Publish time of the last entry. 0: it cannot be read."""
    chunk: int | None = None
    """Number of the last entry's chunk, if it is one."""

    @property
    def floor(self) -> Floor:
        """The floor that is certain for all entries up to the end of this run."""
        return Floor(self.marks[-1][0], self.published_ms, self.chunk)


@dataclass(slots=True, eq=False)
class Known:
    """An entry that reached a broker before. ``position`` is None while it is pending."""

    mark: Mark
    position: Position | None = None
    content: int | None = None
    """Checksum of its content. None: it can be read from the log."""
    resent_bytes: int | None = None
    """Size of its resend after the resend has arrived. Each entry is resent once."""


@dataclass(slots=True)
class Resends:
    """The remembered entries that one lineage has sent, oldest first.

    ``contents`` returns the checksum of a stored entry's content, or None if it is not available. Without
    ``contents``, as for Shared producers, whose name another producer may have, only an exact copy counts.
    """

    known: list[Known]
    floor: Floor | None = None
    contents: Callable[[Position], int | None] | None = None
    is_over: bool = False
    """Whether a new entry has arrived: no resends follow, but attached resends wait for receipts."""
    _by_mark: dict[Mark, list[Known]] = field(init=False)
    _by_sequence: dict[int, Known] | None = None

    def __post_init__(self) -> None:
        self._by_mark = {}
        for known in self.known:
            self._by_mark.setdefault(known.mark, []).append(known)

    def seen(self, send: Send, payload: memoryview) -> Position | Seen:
        """The result of the entry's first SEND: its position, ATTACHED to its append, or NEW."""
        mark = mark_of(send, payload)
        line = self._by_mark.get(mark)
        if line is not None:
            self.contents = None  # this client resends byte for byte
        for known in line or self._rewritten(send, payload):
            if known.resent_bytes is None:
                known.resent_bytes = len(payload) + ENTRY_BYTES
                return known.position or Seen.ATTACHED
        return POSITION_UNKNOWN if self._is_below_floor(send, payload) else Seen.NEW

    def now_stored(self, mark: Mark, position: Position) -> int | None:
        """Note that the oldest pending entry with this mark is stored. Returns the size of its resend."""
        for known in self._by_mark.get(mark, ()):
            if known.position is None:
                known.position = position
                return known.resent_bytes
        return None

    @property
    def is_awaiting(self) -> bool:
        """Whether an entry is still pending."""
        return any(known.position is None for known in reversed(self.known))

    @property
    def has_unanswered(self) -> bool:
        """Whether an attached resend has no receipt yet."""
        return any(k.resent_bytes is not None for k in reversed(self.known) if k.position is None)

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of the attached resends without a receipt."""
        return sum(known.resent_bytes or 0 for known in self.known if known.position is None)

    def _rewritten(self, send: Send, payload: memoryview) -> list[Known]:
        """The entry with the same number and content, for a client that rewrites its metadata before a resend.

        No stock client does that. If ids ever decreased, or an entry was resent byte for byte, an equal number
        proves nothing.
        """
        contents = self.contents
        if contents is None:
            return []
        if self._by_sequence is None:
            ids = [known.mark[0] for known in self.known]
            if any(later <= earlier for earlier, later in pairwise(ids)):
                self.contents = None
                return []
            self._by_sequence = dict(zip(ids, self.known, strict=True))
        known = self._by_sequence.get(send.sequence_id)
        if known is None:
            return []
        if known.content is None and known.position is not None:
            known.content = contents(known.position)
        is_same = known.content is not None and known.content == _content_of(payload)
        return [known] if is_same else []

    def _is_below_floor(self, send: Send, payload: memoryview) -> bool:
        if self.floor is None or send.sequence_id > self.floor.sequence_id:
            return False
        published_ms, chunk = end_of(payload)
        if (
            send.sequence_id == self.floor.sequence_id
            and self.floor.chunk is not None
            and (chunk is None or chunk > self.floor.chunk)
        ):
            return False
        return 0 < published_ms <= self.floor.published_ms


def mark_of(send: Send, payload: memoryview) -> Mark:
    """The mark of an entry."""
    return (send.sequence_id, entry_checksum(payload))


def end_of(payload: memoryview) -> tuple[int, int | None]:
    """The publish time of an entry, and the number of its chunk if it is one.

    (0, None) if the metadata is damaged, which is the client's error.
    """
    try:
        summary = summarize(payload)
    except ProtocolError:
        return 0, None
    return summary.publish_time_ms, summary.chunk_id


def pending_entry(send: Send, payload: memoryview) -> Known:
    """An entry that is on its way to the log."""
    return Known(mark_of(send, payload), content=_content_of(payload))


def stored_entries(run: Run) -> Iterator[Known]:
    """The entries of a run."""
    ledger, first = run.first
    for number, mark in enumerate(run.marks, first):
        yield Known(mark, Position(ledger, number))


def _content_of(payload: memoryview) -> int | None:
    try:
        return content_checksum(payload)
    except ProtocolError:
        return None


# ---------------------------------------------------------------- from the log


def snapshot(last: Mapping[str, tuple[int, Floor]]) -> str:
    """The topic epoch and newest entry of each producer, the latest publisher last.

    Of a chunked message, the snapshot says that the earlier messages are stored, and nothing about that
    message.
    """
    if not last:
        return NO_SNAPSHOT
    newest = list(last.items())[-SNAPSHOT_PRODUCERS_MAX:]
    return json.dumps({name: (epoch, *_whole(floor)) for name, (epoch, floor) in newest})


def _whole(floor: Floor) -> tuple[int, int]:
    return floor.sequence_id - (floor.chunk is not None), floor.published_ms


def read_snapshot(state: Mapping[str, str]) -> dict[str, tuple[int, Floor]]:
    """The inverse of ``snapshot``, from a log's state."""
    text = state.get(SNAPSHOT_FIELD, NO_SNAPSHOT)
    if text == NO_SNAPSHOT:
        return {}
    kept = json.loads(text)
    return {
        name: (epoch, Floor(last, published_ms))
        for name, (epoch, last, published_ms) in kept.items()
    }


async def lineage_from_log(
    topic_log: TopicLog, producer_name: str, epoch: int | None
) -> tuple[list[Run], Floor | None]:
    """A producer's newest entries as another broker left them, and the floor before them. Raises Undecided.

    ``epoch`` is the topic epoch that the producer holds. None: a Shared producer, whose entries may precede the
    epochs of others.
    """
    runs: list[Run] = []
    oldest: Floor | None = None
    summarized = 0
    start = Position(epoch or 0, 0)
    blocks, is_whole = await _tail(topic_log, start)
    for block in blocks:
        ledger, first = block.position
        marks: list[Mark] = []
        published_ms, chunk = 0, None
        for number, payload in enumerate(payloads(block), first):
            summary = _summary_of(payload, producer_name)
            if summary is not None:
                published_ms, chunk = summary.publish_time_ms, summary.chunk_id
                oldest = oldest or Floor(summary.sequence_id, published_ms, chunk)
                marks.append((summary.sequence_id, entry_checksum(payload)))
            elif marks:
                first_of_run = Position(ledger, number - len(marks))
                runs.append(Run(first_of_run, marks, published_ms, chunk))
                marks = []
            summarized += 1
            if summarized % SUMMARIES_PER_TICK == 0:
                await asyncio.sleep(0)
        if marks:
            stop = first + len(block.lengths)
            runs.append(Run(Position(ledger, stop - len(marks)), marks, published_ms, chunk))
    if is_whole:
        return runs, None
    kept_epoch, kept = read_snapshot(topic_log.state).get(producer_name, (None, None))
    return runs, oldest or (kept if epoch is not None and kept_epoch == epoch else None)


def _summary_of(payload: memoryview, producer_name: str) -> EntrySummary | None:
    """The summary of a stored entry. None: the entry is of another producer, or too damaged to read."""
    try:
        summary = summarize(payload)
    except ProtocolError:
        return None
    return summary if summary.producer_name == producer_name else None


async def _tail(topic_log: TopicLog, start: Position) -> tuple[list[Block], bool]:
    """The log's newest blocks after ``start`` within the bounds, oldest first, and whether they are all."""
    found: list[Block] = []
    entries = size = 0
    trimmed = topic_log.state.get(TRIMMED)
    is_trimmed = trimmed is not None and Position.parse(trimmed) > start
    is_whole = False
    end, count = topic_log.committed, FIRST_BLOCKS
    while entries < TAIL_ENTRIES_MAX and size < TAIL_BYTES_MAX:
        blocks = await topic_log.read_blocks(start, end, count=count, reverse=True)
        for block in blocks:
            if isinstance(block, Block):
                found.append(block)
                entries += len(block.lengths)
                size += len(block.payload)
        if len(blocks) < count:
            begins = not start.ledger or any(block.position == start for block in blocks)
            is_whole = begins and not is_trimmed
            break
        end, count = blocks[-1].position.previous, next_count(count, blocks)
    found.reverse()
    return found, is_whole
