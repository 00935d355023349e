"""A span of a log into record batches, with proof that every entry of it came."""

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
"""How far in front of a span the first chunks of a large message are looked for."""

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Reading:
    """How spans are read. ``fail_on_loss``: entries that are gone are an error, else a warning."""

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
    """The chunks of a span, each with its messages: take all of these before the next one.

    ``divide`` may cut each chunk to smaller ones. Raises PipelineError.
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
    """The entries that are there; what lacks at either end shows when they are counted."""
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
    """So many entries in front of a position, or as many as may be looked through."""
    start, left, room = position, entries, LOOK_BACK_BYTES
    for run in reversed(runs_between(broker.segments(name).segments, end=position)):
        size = max(1, run.bytes // run.entries)
        taken = min(run.entries, left, room // size)
        if taken:
            start = Position(run.ledger, run.end - taken)
        if taken < run.entries:
            break
        left, room = left - taken, room - taken * size
    return broker.read(name, start, position) if start < position else ()


def trimmable_before(broker: Broker, name: str, position: Position) -> Position:
    """Up to where a log may be trimmed whose messages in front of a position were read.

    A message that was sent in chunks counts as read with its last one: while it goes on behind the
    position, its first ones are needed still. It does not go on where its holder's epoch is over.
    """
    held = broker.segments(name)
    over = {
        each.ledger for each in held.segments if each.epoch is not None and each.epoch < held.epoch
    }
    cut = position
    for entries in LOOK_BACK_ENTRIES[1:]:  # far back only where something goes on
        before = _earlier(broker, name, position, entries)
        cut = whole_before(before, position, over.__contains__)
        if cut == position:
            break
    return cut


def _report(name: str, missing: Run, how: Reading) -> None:
    text = (
        f"{name}: entries {missing.ledger}:{missing.first} to {missing.ledger}:{missing.end - 1}"
        " are not in the log any more"
    )
    if how.fail_on_loss:
        raise EntriesLost(f"{text} (failOnDataLoss=false reads what is there)")
    log.warning("%s", text)


class Seen:
    """Counts off the entries of a span, chunk by chunk."""

    def __init__(self, span: Span) -> None:
        self._left = list(reversed(span.runs))

    def missing_before(self, chunk: Chunk) -> Run | None:
        """The first entries that should have come up to the end of this chunk, and did not."""
        breaks = np.flatnonzero((np.diff(chunk.ledger) != 0) | (np.diff(chunk.entry) != 1)) + 1
        starts = [0, *breaks.tolist()]
        missing: Run | None = None
        for start, stop in zip(starts, [*starts[1:], len(chunk)], strict=True):
            ledger, first = int(chunk.ledger[start]), int(chunk.entry[start])
            missing = self._came(ledger, first, first + stop - start) or missing
        return missing

    def missing_at_end(self) -> Run | None:
        """The first entries that have not come at all."""
        return self._left.pop() if self._left else None

    def _came(self, ledger: int, first: int, end: int) -> Run | None:
        """Entries [first, end) of a ledger came; what was expected in front of them."""
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
