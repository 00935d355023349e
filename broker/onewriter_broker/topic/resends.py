"""What a resumed producer sends again, and what became of it the first time.

After a lost connection every client resends all that it has no receipt for, in order. Within one
lineage (the same topic epoch; for Shared the same name) an entry is known by its sequence id and
chunk: stored, it is answered with its original position; pending, the resend is attached to that
append; the first unknown one ends the resending, and all that follow are new. Deduplication
between lineages is a different thing and off, as in Pulsar.

On the same broker the lineage is in memory (producer.Lineage). After a change of broker it is read
from the log's tail, and, where that was trimmed, from the snapshot that rolls leave in the state.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onewriter_broker.log.api import Block
from onewriter_broker.log.topic_log import ENTRY_BYTES, TopicLog, payloads
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.wire.hot import Send
from onewriter_core.wire.messages import EntrySummary, summarize

Key = tuple[int, int]
"""(sequence id, chunk id or 0). A batch has its first message's sequence id, resent or not."""

TAIL_ENTRIES_MAX = 10_000
TAIL_BYTES_MAX = 16 * 1024 * 1024
"""How much of a log's tail is looked through; clients keep about a thousand entries unanswered."""

TAIL_BLOCKS_PER_READ = 16
"""Blocks of one read: 4 MiB where they are full."""

SUMMARIES_PER_TURN = 256
"""Entries summarized before others get a turn of the event loop."""

SNAPSHOT_PRODUCERS_MAX = 1_000
"""Producers whose last sequence id a snapshot keeps, latest first."""

SNAPSHOT_FIELD = "sequences"
"""The state field that holds the snapshot: JSON, producer name to topic epoch and last sequence id."""

POSITION_UNKNOWN = Position(2**64 - 1, 2**64 - 1)
"""What a receipt says of an entry that is stored beyond what is remembered (as Pulsar does)."""


class Seen(enum.Enum):
    """Answers that are not a position."""

    NEW = "new"
    ATTACHED = "attached"


@dataclass(slots=True)
class _Awaited:
    """A pending entry, and the size of its resend once that has come."""

    key: Key
    resent_bytes: int | None = None


@dataclass(slots=True)
class Resends:
    """What is known of one lineage's latest entries."""

    stored: dict[Key, Position] = field(default_factory=dict)
    pending: dict[int, deque[_Awaited]] = field(default_factory=dict)
    floor: int | None = None
    """Sequence ids up to here are stored, where nobody remembers; None: nothing is known."""
    published_ms: dict[Key, int] = field(default_factory=dict)
    """When stored entries were published, where only their producer's name is known: a namesake
    that began again at sequence id 0 sends other entries under the same ids. Else empty."""
    is_over: bool = False
    """Something new has come: nothing more is sent again, but attached resends await receipts."""

    @classmethod
    def of(cls, stored: Iterable[tuple[Key, Position]], pending: Iterable[Key]) -> Resends:
        """Stored entries with their positions, oldest first, and keys of pending ones, in order."""
        resends = cls(dict(stored))
        for key in pending:
            resends.pending.setdefault(key[0], deque()).append(_Awaited(key))
        return resends

    def seen(self, send: Send, payload: memoryview) -> Position | Seen:
        """What became of this entry before: its position, ATTACHED to its append, or NEW."""
        key = key_of(send, payload)
        if self.published_ms:
            return self._seen_of_name(key, payload)
        position = self.stored.get(key)
        if position is not None:
            return position
        for awaited in self.pending.get(send.sequence_id, ()):
            if awaited.key == key and awaited.resent_bytes is None:
                awaited.resent_bytes = len(payload) + ENTRY_BYTES
                return Seen.ATTACHED
        if self._is_before_all(send.sequence_id):
            return POSITION_UNKNOWN
        return Seen.NEW

    def _seen_of_name(self, key: Key, payload: memoryview) -> Position | Seen:
        """As ``seen``, told from a namesake's entries by the time at which it was published."""
        try:
            published_ms = summarize(payload).publish_time_ms
        except ProtocolError:
            return Seen.NEW
        if self.published_ms.get(key) == published_ms:
            return self.stored[key]
        is_older = published_ms <= next(iter(self.published_ms.values()))
        return POSITION_UNKNOWN if is_older and self._is_before_all(key[0]) else Seen.NEW

    def now_stored(self, sequence_id: int, position: Position) -> int | None:
        """The oldest pending entry of this sequence id is stored; the size of its resend."""
        awaited = self.pending.get(sequence_id)
        if not awaited:
            return None
        first = awaited.popleft()
        if not awaited:
            del self.pending[sequence_id]
        self.stored[first.key] = position
        return first.resent_bytes

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of the resends that were attached and have no receipt yet."""
        return sum(one.resent_bytes or 0 for line in self.pending.values() for one in line)

    def _is_before_all(self, sequence_id: int) -> bool:
        """Older than all that is remembered; meaningful only where sequence ids ascend."""
        if self.floor is not None and sequence_id <= self.floor and not self.stored:
            return True
        ids = [key[0] for key in self.stored]
        return (
            bool(ids) and sequence_id < ids[0] and all(a <= b for a, b in itertools.pairwise(ids))
        )


def key_of(send: Send, payload: memoryview) -> Key:
    """What an entry is known by. Damaged metadata is the client's business and never ours to raise."""
    if not send.is_chunk:
        return (send.sequence_id, 0)
    try:
        return (send.sequence_id, summarize(payload).chunk_id or 0)
    except ProtocolError:
        return (send.sequence_id, 0)


def snapshot(last: Mapping[str, tuple[int, int]]) -> str:
    """Topic epoch and last sequence id by producer, those that published latest last."""
    return json.dumps(dict(list(last.items())[-SNAPSHOT_PRODUCERS_MAX:]))


def read_snapshot(state: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """What ``snapshot`` left in a log's state."""
    kept = json.loads(state.get(SNAPSHOT_FIELD, "{}"))
    return {name: (last[0], last[1]) for name, last in kept.items() if isinstance(last, list)}


async def lineage_from_log(topic_log: TopicLog, producer_name: str, epoch: int | None) -> Resends:
    """A producer's newest entries as another broker left them. Raises Undecided.

    ``epoch``: the topic epoch that it holds, so that the name means one lineage; None for a Shared
    producer, whose entries may lie in front of others' epochs and may be a namesake's.
    """
    stored: list[tuple[Key, Position]] = []
    published_ms: dict[Key, int] = {}
    summarized = 0
    for block in await _tail(topic_log, Position(epoch or 0, 0)):
        ledger, entry = block.position
        for payload in payloads(block):
            summary = _summary_of(payload, producer_name)
            if summary is not None:
                key = (summary.sequence_id, summary.chunk_id or 0)
                if epoch is None and stored and key <= stored[-1][0]:
                    stored.clear()  # a namesake began anew
                    published_ms.clear()
                stored.append((key, Position(ledger, entry)))
                if epoch is None:
                    published_ms[key] = summary.publish_time_ms
            entry += 1
            summarized += 1
            if summarized % SUMMARIES_PER_TURN == 0:
                await asyncio.sleep(0)
    resends = Resends.of(stored, ())
    resends.published_ms = published_ms
    kept_epoch, last = read_snapshot(topic_log.state).get(producer_name, (None, 0))
    if epoch is not None and kept_epoch == epoch:
        resends.floor = last
    return resends


def _summary_of(payload: memoryview, producer_name: str) -> EntrySummary | None:
    """A stored entry's summary; None when it is somebody else's, or too damaged to tell."""
    try:
        summary = summarize(payload)
    except ProtocolError:
        return None
    return summary if summary.producer_name == producer_name else None


async def _tail(topic_log: TopicLog, start: Position) -> list[Block]:
    """The log's newest blocks behind ``start``, oldest first, within the bounds."""
    found: list[Block] = []
    entries = size = 0
    end = topic_log.committed
    while entries < TAIL_ENTRIES_MAX and size < TAIL_BYTES_MAX:
        blocks = await topic_log.read_blocks(start, end, count=TAIL_BLOCKS_PER_READ, reverse=True)
        for block in blocks:
            if isinstance(block, Block):
                found.append(block)
                entries += len(block.lengths)
                size += len(block.payload)
        if len(blocks) < TAIL_BLOCKS_PER_READ:
            break
        end = blocks[-1].position.previous
    found.reverse()
    return found
