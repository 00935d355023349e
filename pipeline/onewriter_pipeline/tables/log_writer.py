"""The tasks of an offload: write messages of logs to files, and report what the files contain.

A task reads spans, decodes them and writes files. For each ledger it reports the range of entries and the digest of
the written rows. A trim compares both with the files and with the log.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa

from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.frames import Chunk, PublishPart
from onewriter_pipeline.errors import PipelineError
from onewriter_pipeline.read.offsets import Span
from onewriter_pipeline.read.spans import Reading, read_chunks
from onewriter_pipeline.schema import ENTRY, LEDGER
from onewriter_pipeline.tables.digest import DIGESTS, row_hashes, runs_of, total
from onewriter_pipeline.tables.files import FileWriter, Place, discard, line
from onewriter_pipeline.tables.layout import (
    DATE_PARTITION,
    MESSAGES,
    RUN_DIGITS,
    TOPIC_PARTITION,
    Coverage,
    TableFile,
    folder_of,
)
from onewriter_pipeline.tables.publishes import joined, publish_runs_of

FILE_BYTES: Final = 512 * 1024 * 1024
"""A file of this size is closed, and the next one begins."""

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """What tasks need to write messages; can be pickled.

    ``place``: the place of the messages. ``run``: the prefix of the names of all files.
    """

    access: Access
    place: Place
    reading: Reading
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:RUN_DIGITS])


@dataclass(frozen=True, slots=True)
class Stored:
    """What a task wrote. If ``error`` is not empty, the task failed and wrote nothing."""

    files: tuple[TableFile, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    error: str = ""


def store(spans: Sequence[Span], how: WriteSettings) -> Stored:
    """Write the messages of spans to files. Errors are returned, not raised, because a retry would not help."""
    writers = _Writers(how.place, how.run)
    coverage: list[Coverage] = []
    try:
        with Broker(how.access) as broker:
            for span in spans:
                _store_span(broker, span, how, writers, coverage)
        return Stored(tuple(writers.close()), tuple(coverage))
    except PipelineError as error:
        writers.discard()
        return Stored(error=str(error))
    except (OSError, pa.ArrowException) as error:
        writers.discard()
        return Stored(error=f"{how.place.location}: {line(error)}")


def _store_span(
    broker: Broker, span: Span, how: WriteSettings, writers: _Writers, coverage: list[Coverage]
) -> None:
    folder = folder_of(span.log)
    for chunk, batches in read_chunks(broker, span, how.reading, by_day):
        day = datetime.fromtimestamp(int(chunk.time_ms[0]) / 1000, UTC).date().isoformat()
        writer = writers.writer({TOPIC_PARTITION: folder, DATE_PARTITION: day})
        tally = Tally(chunk)
        for batch in batches:
            writer.write(batch)
            tally.add(batch)
        for part in tally.coverage(span.log, day):
            join(coverage, part)


def by_day(chunk: Chunk) -> Iterator[Chunk]:
    """Divide a chunk where a broker's clock passed midnight (UTC)."""
    breaks = np.flatnonzero(np.diff(chunk.time_ms // _DAY_MS)) + 1
    if not len(breaks):
        yield chunk
        return
    edges = [0, *breaks.tolist(), len(chunk)]
    for low, high in itertools.pairwise(edges):
        begin, end = int(chunk.offsets[low]), int(chunk.offsets[high])
        yield Chunk(
            chunk.payload[begin:end],
            chunk.offsets[low : high + 1] - begin,
            chunk.ledger[low:high],
            chunk.entry[low:high],
            chunk.messages[low:high],
            chunk.time_ms[low:high],
            tuple(_shifted(chunk.publishes, low, high)),
            chunk.chains,
        )


def _shifted(parts: Iterable[PublishPart], low: int, high: int) -> Iterator[PublishPart]:
    """The parts among the entries [low, high); days end between blocks."""
    for part in parts:
        if low <= part.start < high:
            yield part._replace(start=part.start - low, stop=part.stop - low)


class Tally:
    """Counts what a chunk covers. Add all rows of the chunk, in its order."""

    def __init__(self, chunk: Chunk) -> None:
        breaks = np.flatnonzero((np.diff(chunk.ledger) != 0) | (np.diff(chunk.entry) != 1)) + 1
        self._chunk = chunk
        self._edges = [0, *breaks.tolist(), len(chunk)]
        self._rows = [0] * (len(self._edges) - 1)
        self._digests = [0] * (len(self._edges) - 1)
        starts = np.array(self._edges[:-1])
        self._firsts = {
            ledger: (low, chunk.entry[starts[low:high]])
            for ledger, low, high in runs_of(chunk.ledger[starts])
        }

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of this chunk, with all columns."""
        hashes = row_hashes(batch, MESSAGES.columns)
        entries = batch.column(ENTRY).to_numpy()
        for ledger, low, high in runs_of(batch.column(LEDGER).to_numpy()):
            number, firsts = self._firsts[ledger]
            which = number + np.searchsorted(firsts, entries[low:high], "right") - 1
            for part, begin, end in runs_of(which):
                self._rows[part] += end - begin
                self._digests[part] += total(hashes[low + begin : low + end])

    def coverage(self, log: str, day: str) -> Iterator[Coverage]:
        """One part for each range of consecutive entries."""
        chunk = self._chunk
        parts = zip(itertools.pairwise(self._edges), self._rows, self._digests, strict=True)
        for (low, high), rows, digest in parts:
            ledger, end = int(chunk.ledger[low]), int(chunk.entry[high - 1]) + 1
            behind, chain = chunk.chains.get(ledger, (0, ""))
            yield Coverage(
                log,
                ledger,
                int(chunk.entry[low]),
                end,
                int(chunk.messages[low:high].sum(dtype=np.int64)),
                rows,
                int(chunk.offsets[high] - chunk.offsets[low]),
                publish_runs_of(chunk, low, high),
                digest % DIGESTS,
                chain if behind == end else "",
                day,
            )


def join(coverage: list[Coverage], part: Coverage) -> None:
    """Append a part. If it continues the last part on the same day, the two are merged."""
    last = coverage[-1] if coverage else None
    follows = (part.log, part.ledger, part.first, part.day)
    if last is None or (last.log, last.ledger, last.end, last.day) != follows:
        coverage.append(part)
        return
    coverage[-1] = replace(
        last,
        end=part.end,
        messages=last.messages + part.messages,
        rows=last.rows + part.rows,
        bytes=last.bytes + part.bytes,
        publishes=joined(last.publishes, part.publishes),
        digest=(last.digest + part.digest) % DIGESTS,
        chain=part.chain,
    )


class _Writers:
    """The files of a task, one at a time, because the days of a log follow each other."""

    def __init__(self, place: Place, run: str) -> None:
        self._place = place
        self._run = run
        self._current: FileWriter | None = None
        self._partition: dict[str, str] = {}
        self._done: list[TableFile] = []

    def writer(self, partition: dict[str, str]) -> FileWriter:
        """The writer for the rows of a folder."""
        current = self._current
        if current is None or partition != self._partition or current.bytes >= FILE_BYTES:
            self.close()
            current = FileWriter(self._place, partition, MESSAGES.columns, self._run)
            self._current, self._partition = current, partition
        return current

    def close(self) -> list[TableFile]:
        """All written files; files without rows are removed."""
        if self._current is not None:
            file = self._current.close()
            self._current = None
            if file.rows:
                self._done.append(file)
            else:
                discard(self._place, [file])
        return self._done

    def discard(self) -> None:
        """Remove all files."""
        if self._current is not None:
            self._current.discard()
            self._current = None
        discard(self._place, self._done)
