"""How many blocks one read of a log asks for, if a caller reads many blocks in sequence.

Each read is a round trip, and a busy broker has thousands of other tasks between two of them. A log of small blocks
would need hundreds of reads. But a reply must not be large, and the store cannot limit it in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onewriter_broker.log.store.api import StoredBlock
from onewriter_broker.log.topic_log.log import stored_bytes

FIRST_BLOCKS: Final = 16
"""Blocks of the first read: 4 MiB if they are full."""

BLOCKS_MAX: Final = 64
"""Blocks of a later read: 16 MiB if small blocks are followed by full ones."""

BYTES: Final = 4 * 1024 * 1024
"""Bytes of a reply, if its blocks are not larger than those of the one before."""

GROWTH: Final = 4


def next_count(count: int, blocks: Sequence[StoredBlock]) -> int:
    """The number of blocks of the next read, after one of ``count`` that returned ``blocks``."""
    largest = max((stored_bytes(block) for block in blocks), default=BYTES)
    return max(FIRST_BLOCKS, min(GROWTH * count, BLOCKS_MAX, BYTES // largest))
