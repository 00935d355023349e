"""Facts: what a log contains, in the few values that the checks compare.

A fact may describe many entries: the pipeline creates one for each producer and chunk, ``onewriter verify`` one for
each entry. Facts are in the stored order of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from onewriter_core.audit.findings import Finding
from onewriter_core.ids import Position


@dataclass(frozen=True, slots=True)
class LedgerBegins:
    """The marker of a ledger.

    ``epoch`` None: no epoch. ``producer`` empty: no single holder. ``owner``: the broker of the ledger, and
    ``time_ms``: the time of the fence; None: tables do not have them.
    """

    position: Position
    epoch: int | None
    producer: str
    subject: str
    owner: str | None
    time_ms: int | None
    next_entry: int = 1
    """The first entry that is expected after it."""


def marker_of(position: Position, fields: Mapping[str, str]) -> LedgerBegins:
    """A stored marker as a fact."""
    return LedgerBegins(
        position,
        number_of(fields.get("epoch", "")),
        fields.get("producer", ""),
        fields.get("subject", ""),
        fields.get("owner", ""),
        number_of(fields.get("t", "")) or 0,
    )


def number_of(text: str) -> int | None:
    """A stored number; None if the text is not a number."""
    return int(text) if text.isascii() and text.isdecimal() else None


class EntryRun(NamedTuple):
    """Consecutive entries of a ledger, from ``first`` to the entry ``last``."""

    first: Position
    last: int


class Gap(NamedTuple):
    """The readable log continues at ``first``: the entries before it were trimmed, or are damaged."""

    first: Position


class Numbers(NamedTuple):
    """The numbers that a producer gave to one entry of a ledger."""

    entry: int
    sequence_id: int
    chunk: int
    published_ms: int
    uuid: str


class WriterRun(NamedTuple):
    """Entries of one producer in one ledger, whose sequence ids rise from ``first`` to ``last``."""

    ledger: int
    producer: str
    first: Numbers
    last: Numbers


class Misplaced(NamedTuple):
    """An entry that should not follow the entry ``before`` of the same producer: its sequence id is lower, or a chunk
    between them is missing.
    """

    ledger: int
    producer: str
    before: Numbers
    after: Numbers
    is_torn: bool
    """Whether a chunk is missing, not only out of order."""


class Fingerprint(NamedTuple):
    """What distinguishes an entry from the other entries of its producer."""

    position: Position
    producer: str
    sequence_id: int
    checksum: int


class PublishRun(NamedTuple):
    """Atomic publishes of an app from ``first`` on, with rising versions."""

    first: Position
    app: str
    version: int
    last_version: int


class NamedPublisher(NamedTuple):
    """The publisher that a block at ``position`` names: the stored text ``by``."""

    position: Position
    publish: str
    by: str


class Unreadable(NamedTuple):
    """Entries whose metadata cannot be read."""

    entries: int


Fact = (
    LedgerBegins
    | EntryRun
    | Gap
    | WriterRun
    | Misplaced
    | Fingerprint
    | PublishRun
    | NamedPublisher
    | Unreadable
    | Finding
)
"""A Finding is a violation that was found while the fact was created."""
