"""The segments and the state of a log, as brokers return them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.names import behind, position_of


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Consecutive blocks of a segment; ``newest_ms`` is the time of the newest block."""

    first: Position
    entries: int
    messages: int
    bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The committed part of a ledger that the log still has.

    ``epoch``, ``producer``, ``subject``: its holder; None if the ledger was shared, or if neither the marker nor
    the audit record exists any more. ``is_open``: it may still grow. ``is_whole``: nothing of it was trimmed.
    ``first``, ``last``: entries; None while there are none. ``chain``: the hash of its last block, in hex. Times
    are those of the broker, in milliseconds since 1970.
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
    block_runs: tuple[BlockRun, ...]

    @property
    def end(self) -> Position:
        """The position after its last entry."""
        return Position(self.ledger, 1) if self.last is None else behind(self.last)


@dataclass(frozen=True, slots=True)
class Segments:
    """The contents of a log. ``first``: position of its first block; ``end``: position after the last committed
    entry.

    ``epoch`` is the newest granted epoch, ``ledger`` the current ledger: the values that ``trim`` expects.
    ``stored_blocks``: the broker reads blocks from the store if it is asked to. Earlier releases do not.
    """

    log: str
    epoch: int
    ledger: int
    first: Position
    end: Position
    segments: tuple[Segment, ...]
    stored_blocks: bool = False


@dataclass(frozen=True, slots=True)
class Trim:
    """The result of a trim request.

    ``before``: the log was trimmed, or may be trimmed, below this position; ``first``: its first block now;
    ``limited_by``: what prevented more (``ledger``, ``subscription``, ``deduplication``, ``compaction``), None:
    nothing did; ``name``: the subscription.
    """

    asked: Position
    before: Position
    first: Position
    limited_by: str | None
    name: str | None


def segment_of(said: Mapping[str, Any]) -> Segment:
    """A segment from a broker's answer (docs/http.md, "Reading whole logs"). Raises what reading a dict raises."""
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
        block_runs=tuple(
            BlockRun(
                position_of(each["first"]),
                int(each["entries"]),
                int(each["messages"]),
                int(each["bytes"]),
                int(each["newestMs"]),
            )
            for each in said["stretches"]
        ),
    )
