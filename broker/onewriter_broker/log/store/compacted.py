"""The compacted view of a log: the newest entries of each key up to a horizon, at their positions.

A view has its own key beside the log, a hash of numbered blocks. A compaction writes the whole view and then
switches to it in the log's state: readers see the old view or the new one, never a part. The views of a log alternate
between two keys, the *slots*; the slot that the state does not name is scratch. topic/compaction/passes.py decides
when a view is made and what it contains; topic_log/compacted_log.py reads it. docs/log-format.md describes keys and
fields.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

import google_crc32c

from onewriter_broker.log.store.api import Binding, Block, Outcome
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.chain import CHAIN_BYTES
from onewriter_core.log_format.field_names import COMPACTED
from onewriter_core.log_format.integers import pack_u32, unpack_u32

SLOTS: Final = 2
"""Number of keys between which views alternate."""

DROP_BLOCKS_MAX: Final = 200
"""Largest number of blocks that one call drops: the store serves no other client while it frees the memory."""

_HEAD = struct.Struct("<QQ16sII")
_HAS_COUNTS = 1
_MASK_BITS = 32
_PLACE = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Piece(Block):
    """Consecutive entries of a view, in the form of a block for dispatch; ``masks`` as below."""

    masks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CompactedBlock:
    """Entries of one ledger that survived, at least one, in the order of their positions.

    ``position`` is that of the first entry; ``offsets`` contains each entry's distance from it.
    ``lengths``, ``payload`` and ``counts`` are as in a Block. ``masks`` has an element for each batch that
    lacks some of its messages, by its index in the block, with a bit for each message that is left.
    ``chain`` is the hash over this block and all previous blocks of the view.
    """

    position: Position
    offsets: Sequence[int]
    lengths: Sequence[int]
    payload: bytes
    counts: Sequence[int] | None
    masks: Mapping[int, int]
    chain: bytes

    @property
    def last(self) -> Position:
        """The position of the block's last entry."""
        return Position(self.position.ledger, self.position.entry + self.offsets[-1])

    def pieces(self) -> Iterator[Piece]:
        """The same entries as blocks of consecutive entries, the form in which they are delivered."""
        start, offset = 0, 0
        for _, group in groupby(enumerate(self.offsets), lambda item: item[1] - item[0]):
            stop = start + sum(1 for _ in group)
            size = sum(self.lengths[start:stop])
            yield Piece(
                position=Position(self.position.ledger, self.position.entry + self.offsets[start]),
                lengths=self.lengths[start:stop],
                payload=self.payload[offset : offset + size],
                counts=None if self.counts is None else self.counts[start:stop],
                time_ms=0,
                chain=b"",
                masks={
                    index - start: self.masks[index]
                    for index in range(start, stop)
                    if index in self.masks
                },
            )
            start, offset = stop, offset + size


@dataclass(frozen=True, slots=True)
class View:
    """A complete view: its slot, the position up to which it represents the log, its contents."""

    slot: int
    horizon: Position
    blocks: int
    entries: int
    size: int
    last: Position
    chain: bytes
    made_ms: int

    def encode(self) -> str:
        """The state field's text."""
        rest = {
            "blocks": self.blocks,
            "entries": self.entries,
            "bytes": self.size,
            "last": str(self.last),
            "h": self.chain.hex(),
            "t": self.made_ms,
        }
        return f"{self.slot} {self.horizon} {json.dumps(rest)}"

    @classmethod
    def parse(cls, text: str) -> View:
        """The view that a state field names; raises MalformedBlock."""
        try:
            slot, horizon, rest = text.split(" ", 2)
            found = json.loads(rest)
            return cls(
                slot=int(slot),
                horizon=Position.parse(horizon),
                blocks=int(found["blocks"]),
                entries=int(found["entries"]),
                size=int(found["bytes"]),
                last=Position.parse(found["last"]),
                chain=bytes.fromhex(found["h"]),
                made_ms=int(found["t"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedBlock(f"a compacted view cannot be understood: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Attempt:
    """One compaction under way. ``name`` is different for each attempt.

    The store rejects late writes of an attempt that was given up.
    """

    slot: int
    name: str

    def encode(self) -> str:
        """The state field's text."""
        return f"{self.slot} {self.name}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The contents of a slot: the number of blocks, and the end and hash of the last block."""

    blocks: int
    last: Position = EARLIEST
    chain: bytes = b""

    def is_whole(self, view: View) -> bool:
        """Whether the key contains the whole view: the hash at its end covers all blocks."""
        if view.blocks == 0:
            return self.blocks == 0
        return (self.blocks, self.last, self.chain) == (view.blocks, view.last, view.chain)


class CompactedStore(Protocol):
    """Guarded writes and reads of views; a part of LogStore, whose rules apply here.

    Writes are not repeatable: a write that ends with Undecided ends the attempt, and another attempt begins.
    """

    async def begin(
        self, binding: Binding, topic: TopicName, token: str, attempt: Attempt
    ) -> Outcome:
        """Allow only this attempt to write to its slot, which must be empty before the first block.

        FENCED also if the state names that slot as the current view.
        """
        ...

    async def write(
        self,
        binding: Binding,
        topic: TopicName,
        token: str,
        attempt: Attempt,
        number: int,
        block: CompactedBlock,
    ) -> Outcome:
        """Add the next block; FENCED also if the attempt or the number is not the current one."""
        ...

    async def finish(
        self, binding: Binding, topic: TopicName, token: str, attempt: Attempt, view: View
    ) -> Outcome:
        """Switch to this view; LOST if the slot does not contain all of it."""
        ...

    async def drop(
        self, binding: Binding, topic: TopicName, token: str, slot: int
    ) -> Outcome | int:
        """Drop up to DROP_BLOCKS_MAX blocks of a slot that is not current, and return how many are left."""
        ...

    async def read(
        self, topic: TopicName, slot: int, first: int, count: int, *, replid: str = ""
    ) -> list[CompactedBlock]:
        """Consecutive blocks from number ``first`` on, as far as they exist."""
        ...

    async def places(
        self, topic: TopicName, slot: int, numbers: Sequence[int], *, replid: str = ""
    ) -> list[Position]:
        """The positions at which these blocks begin. Raises MalformedBlock for a missing block."""
        ...

    async def named(self, topic: TopicName, *, replid: str = "") -> str:
        """The state field COMPACTED as it is in the store; empty if there is none."""
        ...

    async def extent(self, topic: TopicName, slot: int, *, replid: str = "") -> Extent:
        """The present contents of a slot."""
        ...


def chain(
    previous: bytes,
    position: Position,
    offsets: Sequence[int],
    lengths: Sequence[int],
    payload: bytes,
) -> bytes:
    """The hash of a block that follows the block hashed as ``previous`` in the same view."""
    digest = hashlib.blake2b(previous, digest_size=CHAIN_BYTES)
    digest.update(_PLACE.pack(*position))
    digest.update(pack_u32(offsets))
    digest.update(pack_u32(lengths))
    digest.update(_CHECKSUM.pack(google_crc32c.value(payload)))
    return digest.digest()


def view_of(state: Mapping[str, str]) -> View | None:
    """The view that a log's state names; None if there is none, or an unreadable one."""
    text = state.get(COMPACTED)
    if not text:
        return None
    try:
        return View.parse(text)
    except MalformedBlock:
        return None  # readers get the log as it is, and the next compaction writes another


def head_of(block: CompactedBlock) -> bytes:
    """The stored fields of a block without its payload."""
    numbers = [*block.offsets, *block.lengths, *(block.counts or ())]
    for index, mask in block.masks.items():
        words = max(1, -(-mask.bit_length() // _MASK_BITS))
        numbers += (index, words)
        numbers += ((mask >> (_MASK_BITS * word)) & (2**_MASK_BITS - 1) for word in range(words))
    flags = 0 if block.counts is None else _HAS_COUNTS
    head = _HEAD.pack(*block.position, block.chain, len(block.offsets), flags)
    return head + pack_u32(numbers)


def place_of(key: str, head: bytes) -> Position:
    """The position at which a block begins, from its head. Raises MalformedBlock."""
    if len(head) < _HEAD.size:
        raise MalformedBlock(f"{key}: a block's head is cut short")
    return Position(*_PLACE.unpack_from(head))


def extent_of(key: str, blocks: int, head: bytes) -> Extent:
    """The contents of a slot, from the head of its last block. Raises MalformedBlock."""
    if blocks == 0:
        return Extent(0)
    place = place_of(key, head)
    _, _, digest, entries, _ = _HEAD.unpack_from(head)
    last = head[_HEAD.size + 4 * (entries - 1) : _HEAD.size + 4 * entries]
    if entries < 1 or len(last) != 4:
        raise MalformedBlock(f"{key}: a block's head is cut short")
    return Extent(blocks, Position(place.ledger, place.entry + unpack_u32(last)[0]), digest)


def decode_block(key: str, head: bytes, payload: bytes) -> CompactedBlock:
    """Parse a stored block. Raises MalformedBlock."""
    place = place_of(key, head)
    _, _, digest, entries, flags = _HEAD.unpack_from(head)
    try:
        numbers = unpack_u32(head[_HEAD.size :])
        arrays = 3 if flags & _HAS_COUNTS else 2
        offsets, lengths = numbers[:entries], numbers[entries : 2 * entries]
        counts = numbers[2 * entries : arrays * entries] or None
        masks = _masks(numbers[arrays * entries :])
        if entries < 1 or len(numbers) < arrays * entries or sum(lengths) != len(payload):
            raise ValueError("numbers do not add up")
    except (IndexError, ValueError) as error:
        raise MalformedBlock(f"{key} {place}: {error!r}") from error
    return CompactedBlock(place, offsets, lengths, payload, counts, masks, digest)


def _masks(numbers: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    at = 0
    while at < len(numbers):
        index, words = numbers[at], numbers[at + 1]
        found[index] = sum(numbers[at + 2 + word] << (_MASK_BITS * word) for word in range(words))
        at += 2 + words
    return found
