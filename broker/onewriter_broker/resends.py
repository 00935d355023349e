"""What a resumed producer sends again, and what became of it the first time.

After a lost connection every client resends all that it has no receipt for, in order. Within one
lineage (the same topic epoch; for Shared the same name) an entry is known by its sequence ids and
chunk: stored, it is answered with its original position; pending, the resend is attached to that
append; the first unknown one ends the resending, and all that follow are new. Deduplication
between lineages is a different thing and off, as in Pulsar.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from onewriter_core.ids import Position
from onewriter_core.wire.hot import Send
from onewriter_core.wire.messages import summarize

Key = tuple[int, int, int]
"""(sequence id, highest sequence id, chunk id or 0)."""

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
    pending: dict[tuple[int, int], deque[_Awaited]] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: Iterable[tuple[Key, Position]], pending: Iterable[Key]) -> Resends:
        """Stored entries with their positions, oldest first, and keys of pending ones, in order."""
        resends = cls(dict(stored))
        for key in pending:
            resends.pending.setdefault(key[:2], deque()).append(_Awaited(key))
        return resends

    def seen(self, send: Send, payload: memoryview) -> Position | Seen:
        """What became of this entry before: its position, ATTACHED to its append, or NEW."""
        chunk = (summarize(payload).chunk_id or 0) if send.is_chunk else 0
        key = (send.sequence_id, send.highest_sequence_id, chunk)
        position = self.stored.get(key)
        if position is not None:
            return position
        for awaited in self.pending.get(key[:2], ()):
            if awaited.key == key and awaited.resent_bytes is None:
                awaited.resent_bytes = len(payload)
                return Seen.ATTACHED
        if self.stored and self._is_before_all(send.sequence_id):
            return POSITION_UNKNOWN
        return Seen.NEW

    def now_stored(self, sequence: tuple[int, int], position: Position) -> int | None:
        """The oldest pending entry of these sequence ids is stored; the size of its resend."""
        awaited = self.pending.get(sequence)
        if not awaited:
            return None
        first = awaited.popleft()
        self.stored[first.key] = position
        return first.resent_bytes

    def _is_before_all(self, sequence_id: int) -> bool:
        """Older than all that is remembered; meaningful only where sequence ids ascend."""
        ids = [key[0] for key in self.stored]
        return sequence_id < ids[0] and all(a <= b for a, b in itertools.pairwise(ids))
