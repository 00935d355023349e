"""Reads a span of a log as record batches, and checks that every entry of it arrived."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.frames import Chunk
from onewriter_pipeline.decode.decoder import LOOK_BACK_ENTRIES, Decoder, whole_before
from onewriter_pipeline.errors import EntriesLost, LogEnds, Trimmed
from onewriter_pipeline.read.offsets import Run, Span, runs_between

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_BACK_BYTES: Final = 1024 * 1024 * 1024
"""How far before a span the reader looks for the first chunks of a large message."""

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read spans. ``fail_on_loss``: missing entries are an error, otherwise a warning."""

    columns: Sequence[str]
    fail_on_loss: bool = True
    skip_corrupt: bool = False
    verify_checksums: bool = True
    json: bool = False


def read_span(broker: Broker, span: Span, how: Reading) -> Iterator[pa.RecordBatch]:
    """The messages of a span. Raises PipelineError."""
    for _, batches in read_chunks(broker, span, how):
        yield from batches


def read_chunks(
    broker: Broker,
    span: Span,
    how: Reading,
    divide: Callable[[Chunk], Iterable[Chunk]] = lambda chunk: (chunk,),
) -> Iterator[tuple[Chunk, Iterator[pa.RecordBatch]]]:
    """The chunks of a span, each with its messages. Take all messages of a chunk before the next chunk.

    ``divide`` may divide each chunk. Raises PipelineError.
    """
    decoder = Decoder(
        span.log,
        how.columns,
        epochs=span.epochs,
        verify_checksums=how.verify_checksums,
        skip_corrupt=how.skip_corrupt,
        json=how.json,
        earlier=functools.partial(_earlier, broker, span.log),
    )
    seen = Seen(span)
    for chunk in _chunks(broker, span, how):
        missing = seen.missing_before(chunk)
        if missing:
            _report(span.log, missing, how)
        for part in divide(chunk):
            yield part, decoder.decode(part)
    missing = seen.missing_at_end()
    if missing:
        _report(span.log, missing, how)
    if decoder.skipped:
        log.warning(
            "%s entries were skipped, the first: %s", decoder.skipped, decoder.first_skipped
        )


def _chunks(broker: Broker, span: Span, how: Reading) -> Iterator[Chunk]:
    """The entries that the log has. The count of entries shows what is missing at either end."""
    start = span.start
    try:
        try:
            yield from broker.read(span.log, start, span.end)
        except Trimmed as error:
            if how.fail_on_loss or error.first is None:
                raise
            if error.first < span.end:
                yield from broker.read(span.log, error.first, span.end)
    except LogEnds:
        if how.fail_on_loss:
            raise


def _earlier(broker: Broker, name: str, position: Position, entries: int) -> Iterable[Chunk]:
    """The last ``entries`` entries before a position, within LOOK_BACK_BYTES."""
    start, left, bytes_max = position, entries, LOOK_BACK_BYTES
    for run in reversed(runs_between(broker.segments(name).segments, end=position)):
        size = max(1, run.bytes // run.entries)
        taken = min(run.entries, left, bytes_max // size)
        if taken:
            start = Position(run.ledger, run.end - taken)
        if taken < run.entries:
            break
        left, bytes_max = left - taken, bytes_max - taken * size
    return broker.read(name, start, position) if start < position else ()


def trimmable_before(broker: Broker, name: str, position: Position) -> Position:
    """The position up to which a log may be trimmed if its messages before a position were read.

    A message that was sent in chunks is read with its last chunk. While chunks follow after the position, the first
    ones are still needed. After the epoch of the holder no chunks follow.
    """
    held = broker.segments(name)
    over = {
        each.ledger for each in held.segments if each.epoch is not None and each.epoch < held.epoch
    }
    cut = position
    for entries in LOOK_BACK_ENTRIES[1:]:  # look far back only if a message continues
        before = _earlier(broker, name, position, entries)
        cut = whole_before(before, position, over.__contains__)
        if cut == position:
            break
    return cut


def _report(name: str, missing: Run, how: Reading) -> None:
    text = (
        f"{name}: entries {missing.ledger}:{missing.first} to {missing.ledger}:{missing.end - 1}"
        " are no longer in the log"
    )
    if how.fail_on_loss:
        raise EntriesLost(f"{text} (failOnDataLoss=false reads what is there)")
    log.warning("%s", text)


class Seen:
    """Compares the entries that arrive with those of a span, chunk by chunk."""

    def __init__(self, span: Span) -> None:
        self._left = list(reversed(span.runs))

    def missing_before(self, chunk: Chunk) -> Run | None:
        """The first expected entries that are missing before the end of this chunk."""
        breaks = np.flatnonzero((np.diff(chunk.ledger) != 0) | (np.diff(chunk.entry) != 1)) + 1
        starts = [0, *breaks.tolist()]
        missing: Run | None = None
        for start, stop in zip(starts, [*starts[1:], len(chunk)], strict=True):
            ledger, first = int(chunk.ledger[start]), int(chunk.entry[start])
            missing = self._came(ledger, first, first + stop - start) or missing
        return missing

    def missing_at_end(self) -> Run | None:
        """The first entries that did not arrive at all."""
        return self._left.pop() if self._left else None

    def _came(self, ledger: int, first: int, end: int) -> Run | None:
        """Register entries [first, end) of a ledger. Returns the first expected entries before them that are
        missing.
        """
        missing: Run | None = None
        while self._left and (self._left[-1].ledger, self._left[-1].first) < (ledger, end):
            run = self._left.pop()
            if run.ledger < ledger or run.end <= first:
                missing = missing or run
                continue
            if run.first < first:
                missing = missing or run.part(run.first, first)
            if end < run.end:
                self._left.append(run.part(end, run.end))
            break
        return missing
