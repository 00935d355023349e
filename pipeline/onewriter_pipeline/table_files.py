"""Files of tables: where they lie, and how messages get into them, on whatever machine a task runs.

A task writes Parquet files under names that nobody else uses and tells what it wrote; none of it counts
before it is committed. On local disks files are on the disk itself before they are told of.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onewriter_pipeline.broker import Broker
from onewriter_pipeline.connection import Access
from onewriter_pipeline.errors import PipelineError, TableError
from onewriter_pipeline.frames import Chunk
from onewriter_pipeline.offsets import Span
from onewriter_pipeline.reading import Reading, read_chunks
from onewriter_pipeline.schema import (
    BATCH_INDEX,
    ENTRY,
    EPOCH,
    LEDGER,
    PRODUCER,
    PUBLISH_TIME,
    SEQUENCE,
    TOPIC,
)
from onewriter_pipeline.table_layout import (
    DATE_PARTITION,
    MESSAGES,
    TOPIC_PARTITION,
    Coverage,
    TableFile,
    folder_of,
    new_path,
)

GROUP_ROWS: Final = 256 * 1024
GROUP_BYTES: Final = 32 * 1024 * 1024
"""Rows of a Parquet row group, or bytes, whichever comes first: what a writer keeps in memory."""

FILE_BYTES: Final = 512 * 1024 * 1024
"""A file that has so much is closed, and another one begun."""

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1

_BOUNDED: Final = (LEDGER, ENTRY, EPOCH, PUBLISH_TIME)
"""Columns whose least and greatest value the table's log knows."""

_FEW_VALUES: Final = (TOPIC, PRODUCER, EPOCH, LEDGER, BATCH_INDEX)
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table lies: a folder, or a URL of an object store with what it takes to reach it."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a file system."""
        return urlsplit(self.location).scheme in {"", "file"}

    def within(self, name: str) -> Place:
        """A place below it."""
        return replace(self, location=f"{self.location.rstrip('/')}/{name}")

    def files(self) -> Any:
        """Its files, as pyarrow sees them: a file system that begins at this place."""
        if self.is_local:
            folder = self.location.removeprefix("file://")
            return pafs.SubTreeFileSystem(folder, pafs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - local places do without

        handler = DeltaStorageHandler(self.location, dict(self.options))
        return pafs.PyFileSystem(handler)


def place_of(location: str, options: Mapping[str, str] | None = None) -> Place:
    """A place as a person names it; folders become absolute, since tasks run elsewhere."""
    place = Place(location, options or {})
    if not place.is_local:
        return place
    return replace(place, location=str(Path(location.removeprefix("file://")).absolute()))


def synced(place: Place, folder: str) -> None:
    """See to it that a log's newest commit survives a power failure; for local places."""
    if not place.is_local:
        return
    path = Path(place.location) / folder
    newest = max(path.glob("*.json"), default=path)
    for each in (newest, path, path.parent):
        synced_file(each)


def synced_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileWriter:
    """Writes one Parquet file; nobody reads it before it is closed and committed."""

    def __init__(self, place: Place, partition: Mapping[str, str], schema: pa.Schema) -> None:
        self._place = place
        self._partition = dict(partition)
        self._path = new_path(partition)
        self._files = place.files()
        if place.is_local:
            self._files.create_dir(self._path.rpartition("/")[0] or ".", recursive=True)
        self._sink = self._files.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[name for name in _FEW_VALUES if name in schema.names],
            write_statistics=[name for name in (*_BOUNDED, SEQUENCE) if name in schema.names],
            coerce_timestamps="us",
            store_schema=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._bounds: dict[str, tuple[int, int]] = {}

    @property
    def bytes(self) -> int:
        """What the file has up to now."""
        return int(self._sink.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if not batch.num_rows:
            return
        for name in _BOUNDED:
            if name in batch.schema.names:
                self._widen(name, batch.column(name))
        self._rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def _widen(self, name: str, column: pa.Array) -> None:
        if column.null_count == len(column):
            return
        values = column.drop_null() if column.null_count else column
        numbers = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        low, high = int(numbers.min()), int(numbers.max())
        if name in self._bounds:
            low, high = min(low, self._bounds[name][0]), max(high, self._bounds[name][1])
        self._bounds[name] = (low, high)

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    def close(self) -> TableFile:
        """Finish the file, and tell what it has."""
        self._flush()
        self._writer.close()
        self._sink.close()
        found = self._files.get_file_info(self._path)
        if self._place.is_local:
            root = Path(self._place.location)
            path = root / self._path
            while path != root:
                synced_file(path)
                path = path.parent
        modified_ms = int(found.mtime_ns or 0) // 1_000_000
        return TableFile(
            self._path, int(found.size), self._rows, self._partition, self._bounds, modified_ms
        )

    def discard(self) -> None:
        """Remove what was written of it, as far as that can be done."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._sink.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._files.delete_file(self._path)


def check_there(place: Place, files: Sequence[TableFile]) -> None:
    """Raise TableError where what tasks wrote cannot be seen from here, as they wrote it."""
    if not files:
        return
    found = place.files().get_file_info([file.path for file in files])
    for file, info in zip(files, found, strict=True):
        if not info.is_file or info.size != file.size:
            raise TableError(
                f"{place.location}/{file.path} was written by a task and is not here: executors need"
                " the same folder as the driver, or an object store"
            )


def discard(place: Place, files: Iterable[TableFile]) -> None:
    """Remove files that were not committed; what cannot be removed is left to ``vacuum``."""
    for file in files:
        with contextlib.suppress(OSError, pa.ArrowException):
            place.files().delete_file(file.path)


# ------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True)
class Storing:
    """What tasks need to know to write messages; can be pickled. ``place``: that of the messages."""

    access: Access
    place: Place
    reading: Reading


@dataclass(frozen=True, slots=True)
class Stored:
    """What a task wrote, or why it could not: then ``error`` says it, and there is nothing."""

    files: tuple[TableFile, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    error: str = ""


def store(spans: Sequence[Span], how: Storing) -> Stored:
    """Write the messages of spans to files. What is wrong is told, not raised: trying again is no use."""
    writers = _Writers(how.place)
    coverage: list[Coverage] = []
    try:
        with Broker(how.access) as broker:
            for span in spans:
                _store_span(broker, span, how, writers, coverage)
        return Stored(tuple(writers.close()), tuple(coverage))
    except PipelineError as error:
        writers.discard()
        return Stored(error=str(error))
    except OSError as error:
        writers.discard()
        return Stored(error=f"{how.place.location}: {error}")


def _store_span(
    broker: Broker, span: Span, how: Storing, writers: _Writers, coverage: list[Coverage]
) -> None:
    folder = folder_of(span.log)
    for chunk, batches in read_chunks(broker, span, how.reading, by_day):
        day = datetime.fromtimestamp(int(chunk.time_ms[0]) / 1000, UTC).date().isoformat()
        writer = writers.writer({TOPIC_PARTITION: folder, DATE_PARTITION: day})
        rows: dict[int, int] = {}
        for batch in batches:
            writer.write(batch)
            ledgers, counts = np.unique(batch.column(LEDGER).to_numpy(), return_counts=True)
            for ledger, count in zip(ledgers.tolist(), counts.tolist(), strict=True):
                rows[ledger] = rows.get(ledger, 0) + count
        for part in covered(span.log, chunk, rows):
            join(coverage, part)


def by_day(chunk: Chunk) -> Iterator[Chunk]:
    """A chunk, divided where a broker's clock went past midnight (UTC)."""
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
        )


def covered(log: str, chunk: Chunk, rows: Mapping[int, int]) -> Iterator[Coverage]:
    """What a chunk covers; ``rows``: how many were made of each ledger."""
    breaks = np.flatnonzero((np.diff(chunk.ledger) != 0) | (np.diff(chunk.entry) != 1)) + 1
    edges = [0, *breaks.tolist(), len(chunk)]
    left = dict(rows)
    for low, high in itertools.pairwise(edges):
        ledger = int(chunk.ledger[low])
        yield Coverage(
            log,
            ledger,
            int(chunk.entry[low]),
            int(chunk.entry[high - 1]) + 1,
            int(chunk.messages[low:high].sum(dtype=np.int64)),
            left.pop(ledger, 0),
            int(chunk.offsets[high] - chunk.offsets[low]),
        )


def join(coverage: list[Coverage], part: Coverage) -> None:
    """Add a part behind others; one that goes on where the last ends becomes part of that."""
    last = coverage[-1] if coverage else None
    if last is None or (last.log, last.ledger, last.end) != (part.log, part.ledger, part.first):
        coverage.append(part)
        return
    coverage[-1] = replace(
        last,
        end=part.end,
        messages=last.messages + part.messages,
        rows=last.rows + part.rows,
        bytes=last.bytes + part.bytes,
    )


class _Writers:
    """The files of a task, one at a time: a log's days follow each other."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._current: FileWriter | None = None
        self._partition: dict[str, str] = {}
        self._done: list[TableFile] = []

    def writer(self, partition: dict[str, str]) -> FileWriter:
        """Where the rows of a folder go now."""
        current = self._current
        if current is None or partition != self._partition or current.bytes >= FILE_BYTES:
            self.close()
            current = FileWriter(self._place, partition, MESSAGES.columns)
            self._current, self._partition = current, partition
        return current

    def close(self) -> list[TableFile]:
        """All that were written; files without rows are not kept."""
        if self._current is not None:
            file = self._current.close()
            self._current = None
            if file.rows:
                self._done.append(file)
            else:
                discard(self._place, [file])
        return self._done

    def discard(self) -> None:
        """Remove all of them."""
        if self._current is not None:
            self._current.discard()
            self._current = None
        discard(self._place, self._done)


def write_rows(place: Place, schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> TableFile:
    """A file of a small table, written here. Raises TableError."""
    try:
        writer = FileWriter(place, {}, schema)
        writer.write(pa.RecordBatch.from_pylist(list(rows), schema))
        return writer.close()
    except OSError as error:
        raise TableError(f"{place.location}: {error}") from error
