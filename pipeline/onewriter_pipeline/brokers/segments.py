"""The segments and the state of a log, as brokers return them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onewriter_core.ids import Position
from onewriter_core.witnesses import Witness
from onewriter_pipeline.brokers.names import position_of


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
        return Position(self.ledger, 1) if self.last is None else self.last.next


@dataclass(frozen=True, slots=True)
class Segments:
    """The contents of a log. ``first``: position of its first block; ``end``: position after the last committed
    entry.

    ``epoch`` is the newest granted epoch, ``ledger`` the current ledger: the values that ``trim`` expects.
    ``stored_blocks``: the broker reads blocks from the store if it is asked to. Earlier releases do not.
    ``witnesses``: of the tables to which the log was copied; None: they were not requested, or the broker has an
    earlier release.
    """

    log: str
    epoch: int
    ledger: int
    first: Position
    end: Position
    segments: tuple[Segment, ...]
    stored_blocks: bool = False
    witnesses: tuple[Witness, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trim:
    """The result of a trim request.

    ``before``: the log was trimmed, or may be trimmed, below this position; ``first``: its first block now;
    ``limited_by``: what prevented more (``ledger``, ``subscription``, ``deduplication``, ``compaction``), None:
    nothing did; ``name``: the subscription.
    """

    requested: Position
    before: Position
    first: Position
    limited_by: str | None
    name: str | None


def segment_of(answer: Mapping[str, Any]) -> Segment:
    """A segment from a broker's answer (docs/http.md, "Reading whole logs"). Raises what reading a dict raises."""
    return Segment(
        ledger=int(answer["ledger"]),
        epoch=answer["epoch"],
        producer=answer["producer"],
        subject=answer["subject"],
        cause=answer["cause"],
        mode=answer["mode"],
        is_open=bool(answer["open"]),
        is_whole=bool(answer["whole"]),
        first=None if answer["first"] is None else position_of(answer["first"]),
        last=None if answer["last"] is None else position_of(answer["last"]),
        entries=int(answer["entries"]),
        messages=int(answer["messages"]),
        bytes=int(answer["bytes"]),
        blocks=int(answer["blocks"]),
        oldest_ms=answer["oldestMs"],
        newest_ms=answer["newestMs"],
        chain=answer["chain"],
        block_runs=tuple(
            BlockRun(
                position_of(each["first"]),
                int(each["entries"]),
                int(each["messages"]),
                int(each["bytes"]),
                int(each["newestMs"]),
            )
            for each in answer["stretches"]
        ),
    )
