"""The limits that all topics of a broker share: one value that the composition root passes to them."""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_broker.log.limits import LogLimits

DEDUPLICATED_PRODUCERS_MAX = 1_000
"""Producer names that one log remembers. Beyond it, the log forgets the least recent publisher, and prefers
names that the broker generated. A forgotten producer starts without a number, as in Pulsar beyond its limit."""

SNAPSHOT_ENTRIES = 10_000
"""Entries after which a snapshot is written: approximately the number that the next broker has to read."""


LOADS_MAX = 2_048
"""Topics that are loaded at the same time. Each bucket has the same share, so that a bucket whose store does not answer
delays no other. Each load awaits one reply of the store at a time, and a heartbeat is answered after these replies."""


LAST_ENTRY_BLOCKS_MAX = 1_024
"""Blocks that the broker reads back to find the last entry of a log whose end may be lost, for example a log of which
many holders wrote nothing. Beyond it, the range at risk begins at the first position that was not trimmed."""


@dataclass(frozen=True, slots=True)
class DeduplicationLimits:
    """Limits of the deduplication of one log: see the constants."""

    producers_max: int = DEDUPLICATED_PRODUCERS_MAX
    snapshot_entries: int = SNAPSHOT_ENTRIES


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits of the topics. Tests pass smaller ones."""

    log: LogLimits = LogLimits()
    deduplication: DeduplicationLimits = DeduplicationLimits()
    loads_max: int = LOADS_MAX
    last_entry_blocks_max: int = LAST_ENTRY_BLOCKS_MAX
