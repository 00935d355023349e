"""What a log holds and what its store remembers, as brokers tell it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.names import behind, position_of


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive blocks of a segment: ``newest_ms`` is the time of the newest."""

    first: Position
    entries: int
    messages: int
    bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A ledger, as far as it is kept and committed.

    ``epoch``, ``producer``, ``subject``: whose it is, None where nobody had it alone, or its marker was
    trimmed and the audit does not tell any more. ``is_open``: it may still grow. ``is_whole``:
    nothing of it was trimmed. ``first``, ``last``: entries, None while it has none. ``chain``: the
    hash of its last block, in hex. Times are the broker's, milliseconds since 1970.
    """

    ledger: int
    epoch: int | None
    producer: str | None
    subject: str | None
    cause: str | None
    mode: str | None
    is_open: bool
    is_whole: bool
    first: Position | None
    last: Position | None
    entries: int
    messages: int
    bytes: int
    blocks: int
    oldest_ms: int | None
    newest_ms: int | None
    chain: str | None
    stretches: tuple[Stretch, ...]

    @property
    def end(self) -> Position:
        """The position behind its last entry."""
        return Position(self.ledger, 1) if self.last is None else behind(self.last)


@dataclass(frozen=True, slots=True)
class Segments:
    """What a log holds. ``first``: where its first block stands; ``end``: behind what is committed.

    ``epoch`` is the newest that was granted, ``ledger`` the current one: what ``trim`` may be told.
    """

    log: str
    epoch: int
    ledger: int
    first: Position
    end: Position
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class LogState:
    """What the store remembers beside a log's blocks; all zero where that is gone.

    ``epoch``, ``ledger``: the highest of the log; ``bucket_ledger``: the highest of its bucket;
    ``published``: the newest version of each app that published atomically; ``trimmed``: the log was cut
    below this on purpose, and nowhere else; None: never.
    """

    epoch: int
    ledger: int
    bucket_ledger: int
    published: Mapping[str, int]
    trimmed: Position | None = None


@dataclass(frozen=True, slots=True)
class Trim:
    """What a request to trim did.

    ``before``: the position below which the log was cut, or may be; ``first``: its first block now;
    ``limited_by``: what kept more from going (``ledger``, ``subscription``, ``deduplication``,
    ``compaction``), None: all that was asked for may go; ``name``: which subscription.
    """

    asked: Position
    before: Position
    first: Position
    limited_by: str | None
    name: str | None


def segment_of(said: Mapping[str, Any]) -> Segment:
    """A segment out of a broker's answer (docs/http.md, "Reading whole logs"); raises as reading a dict does."""
    return Segment(
        ledger=int(said["ledger"]),
        epoch=said["epoch"],
        producer=said["producer"],
        subject=said["subject"],
        cause=said["cause"],
        mode=said["mode"],
        is_open=bool(said["open"]),
        is_whole=bool(said["whole"]),
        first=None if said["first"] is None else position_of(said["first"]),
        last=None if said["last"] is None else position_of(said["last"]),
        entries=int(said["entries"]),
        messages=int(said["messages"]),
        bytes=int(said["bytes"]),
        blocks=int(said["blocks"]),
        oldest_ms=said["oldestMs"],
        newest_ms=said["newestMs"],
        chain=said["chain"],
        stretches=tuple(
            Stretch(
                position_of(each["first"]),
                int(each["entries"]),
                int(each["messages"]),
                int(each["bytes"]),
                int(each["newestMs"]),
            )
            for each in said["stretches"]
        ),
    )
