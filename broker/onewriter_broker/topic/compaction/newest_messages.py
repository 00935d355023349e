"""The result of a compaction's first pass: the newest message of each key, and the size of these messages."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from onewriter_broker.log.topic_log.batches import BATCH_MESSAGES_MAX, Chunk, Closed, Content
from onewriter_core.errors import OnewriterError

OPEN_CHUNKS_MAX: Final = 1_000
"""Chunked messages that may be incomplete at the same time. Beyond it, the oldest one counts as abandoned."""

_BATCH_BITS: Final = BATCH_MESSAGES_MAX.bit_length()
"""A message's number consists of the ordinal of its entry and its index in the batch. No opened batch has more
messages."""


class CompactionRefused(OnewriterError):
    """The log cannot be compacted now. The message states the reason and what would help."""


class InsufficientSpace(CompactionRefused):
    """The view would need more of the store's memory than it may use."""

    def __init__(self, needed_bytes: int, free_bytes: float) -> None:
        super().__init__(
            f"the compacted view needs about {needed_bytes} bytes of the store, which has room for "
            f"{int(free_bytes)}: give it more memory"
        )
        self.needed_bytes = needed_bytes


def footprint(size: int, entries: int) -> int:
    """Estimate how much of the store's memory a view of ``size`` bytes takes. The estimate is rather too high.

    It adds a quarter, because allocators round up, and the overhead of each entry.
    """
    return size + size // 4 + 64 * entries


@dataclass(slots=True)
class Newest:
    """The result of the first pass: for each key, the number of its newest message."""

    keys_max: int
    numbers: dict[bytes, int] = field(default_factory=dict)
    removed: int = 0
    """Messages that a later message of their key replaced, or that have no key."""
    parts: dict[int, array[int]] = field(default_factory=dict)
    """For each chunked message, by its number: the ordinals of its entries."""
    size: int = 0
    """Approximate number of bytes that stay. All messages of a batch count as equally large."""
    closed: int = 0
    _open: dict[str, array[int]] = field(default_factory=dict)
    _open_bytes: dict[str, int] = field(default_factory=dict)
    _bytes: dict[bytes, int] = field(default_factory=dict)

    @property
    def footprint(self) -> int:
        """Estimated use of the store's memory by the view."""
        return footprint(self.size, len(self.numbers) + self.closed)

    def add(self, ordinal: int, content: Content, size: int = 0) -> None:
        """Add the next entry, of ``size`` bytes. Raises CompactionRefused at the bound."""
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
        """The ordinals of all chunks that stay: those of newest messages, and those of incomplete messages.

        A message that was incomplete already in the former view, whose entries end at ``since``, was abandoned.
        """
        kept = {part for parts in self.parts.values() for part in parts}
        for parts in self._open.values():
            if parts[-1] >= since:
                kept.update(parts)
        return kept

    def kept(self, ordinal: int, content: Content, chunks: set[int]) -> set[int] | None:
        """The indexes of the entry's messages that stay; -1 stands for its only message. None: all stay."""
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
