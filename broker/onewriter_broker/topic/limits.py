"""The limits that all topics of a broker share: one value that the composition root passes to them."""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_broker.log.limits import LogLimits

DEDUPLICATED_PRODUCERS_MAX = 1_000
"""Producer names that one log remembers. Beyond it, the log forgets the least recent publisher, and prefers
names that the broker generated. A forgotten producer starts without a number, as in Pulsar beyond its limit."""

SNAPSHOT_ENTRIES = 10_000
"""Entries after which a snapshot is written: approximately the number that the next broker has to read."""


@dataclass(frozen=True, slots=True)
class DeduplicationLimits:
    """Limits of the deduplication of one log: see the constants."""

    producers_max: int = DEDUPLICATED_PRODUCERS_MAX
    snapshot_entries: int = SNAPSHOT_ENTRIES


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits of one topic. Tests pass smaller ones."""

    log: LogLimits = LogLimits()
    deduplication: DeduplicationLimits = DeduplicationLimits()
