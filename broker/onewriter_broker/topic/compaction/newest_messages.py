"""What the first pass of a compaction finds: the newest message of each key, and what they weigh."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from onewriter_broker.log.topic_log.batches import BATCH_MESSAGES_MAX, Chunk, Closed, Content
from onewriter_core.errors import OnewriterError

OPEN_CHUNKS_MAX: Final = 1_000
"""Messages in chunks that may be under way at once; of more, the oldest count as given up."""

_BATCH_BITS: Final = BATCH_MESSAGES_MAX.bit_length()
"""A message's number is its entry's ordinal and its index in the batch; none that is opened has more."""


class CompactionRefused(OnewriterError):
    """The log cannot be compacted now; the message says why, and what would help."""


class NoRoom(CompactionRefused):
    """The view would need more of the store's memory than it may have."""

    def __init__(self, needed_bytes: int, room_bytes: float) -> None:
        super().__init__(
            f"the compacted view needs about {needed_bytes} bytes of the store, which has room for "
            f"{int(room_bytes)}: give it more memory"
        )
        self.needed_bytes = needed_bytes


def footprint(size: int, entries: int) -> int:
    """About what a view of so many bytes takes of the store's memory, rather more than less.

    A quarter more, as allocators round up; and what is kept of each entry beside its bytes.
    """
    return size + size // 4 + 64 * entries


@dataclass(slots=True)
class Newest:
    """What the first pass finds: by key the number of its newest message."""

    keys_max: int
    numbers: dict[bytes, int] = field(default_factory=dict)
    removed: int = 0
    """Messages that a later one of their key made superfluous, or that have no key."""
    parts: dict[int, array[int]] = field(default_factory=dict)
    """By the number of a message in chunks the ordinals of its entries."""
    size: int = 0
    """About how many bytes stay; of a batch each message counts as much as another."""
    closed: int = 0
    _open: dict[str, array[int]] = field(default_factory=dict)
    _open_bytes: dict[str, int] = field(default_factory=dict)
    _bytes: dict[bytes, int] = field(default_factory=dict)

    @property
    def footprint(self) -> int:
        """About what the view will take of the store's memory."""
        return footprint(self.size, len(self.numbers) + self.closed)

    def add(self, ordinal: int, content: Content, size: int = 0) -> None:
        """The next entry, of so many bytes. Raises CompactionRefused at the bound."""
        if isinstance(content, Closed):
            self.size += size
            self.closed += 1
            return
        if isinstance(content, Chunk):
            self._add_chunk(ordinal, content, size)
            return
        share = size // max(1, len(content))
        for message in content:
            if message.key is None:
                self.removed += 1
            elif message.is_empty:
                self.removed += 1 + (message.key in self.numbers)
                self._forget(message.key)
            else:
                self._set(message.key, (ordinal << _BATCH_BITS) + max(message.index, 0), share)

    def _add_chunk(self, ordinal: int, chunk: Chunk, size: int) -> None:
        size += self._open_bytes.pop(chunk.uuid, 0)
        parts = self._open.setdefault(chunk.uuid, array("Q"))
        parts.append(ordinal)
        if chunk.is_last:
            del self._open[chunk.uuid]
            if chunk.key is not None:
                self._set(chunk.key, ordinal << _BATCH_BITS, size)
                self.parts[ordinal << _BATCH_BITS] = parts
            return
        self._open_bytes[chunk.uuid] = size
        if len(self._open) > OPEN_CHUNKS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest], self._open_bytes[oldest]

    def _set(self, key: bytes, number: int, size: int) -> None:
        self._forget(key, is_replaced=True)
        self.numbers[key] = number
        self._bytes[key] = size
        self.size += size
        if len(self.numbers) > self.keys_max:
            raise CompactionRefused(
                f"the log has more than {self.keys_max} keys: raise compaction_keys_max"
            )

    def _forget(self, key: bytes, *, is_replaced: bool = False) -> None:
        number = self.numbers.pop(key, None)
        if number is not None:
            self.parts.pop(number, None)
            self.size -= self._bytes.pop(key)
            self.removed += is_replaced

    def chunks(self, since: int) -> set[int]:
        """The ordinals of all chunks that stay: of newest messages, and of those still under way.

        What was under way already in the view before, whose entries end at ``since``, was given up.
        """
        kept = {part for parts in self.parts.values() for part in parts}
        for parts in self._open.values():
            if parts[-1] >= since:
                kept.update(parts)
        return kept

    def kept(self, ordinal: int, content: Content, chunks: set[int]) -> set[int] | None:
        """The indexes of the entry's messages that stay, -1 for its only one; None: all of them."""
        if isinstance(content, Closed):
            return None
        if isinstance(content, Chunk):
            return None if ordinal in chunks else set()
        numbers = self.numbers
        found = {
            message.index
            for message in content
            if message.key is not None
            and numbers.get(message.key) == (ordinal << _BATCH_BITS) + max(message.index, 0)
        }
        return found if len(found) < len(content) or not content else None
