"""Files of tables: their places, and how tasks write messages to them on any machine.

A task writes Parquet files with unique names, and reports them. They count only after a commit. On local disks,
files are synced before they are reported, and have hidden names until the commit, so that readers that know no
commits do not see what a killed job left. An object store shows only complete files.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onewriter_core.ids import NUMBER_MAX
from onewriter_pipeline.errors import TableError
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
from onewriter_pipeline.tables.layout import (
    TOPIC_PARTITION,
    TableFile,
    folder_of,
    hidden_path,
    is_of_run,
    new_path,
)

GROUP_ROWS: Final = 256 * 1024
GROUP_BYTES: Final = 32 * 1024 * 1024
"""Limits of a Parquet row group in rows and bytes; a writer keeps one group in memory."""

BATCH_READ_ROWS: Final = 64 * 1024
BATCH_READ_BYTES: Final = 8 * 1024 * 1024
"""Limits of one read of a file, in rows and bytes."""

READ_AHEAD_BYTES: Final = 1024 * 1024
"""How much of a column is fetched at once when a file is read."""

ERROR_CHARACTERS_MAX: Final = 300
"""Characters of a library's error text that a message shows."""

_LINK: Final = "\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}"
_COLOURS: Final = re.compile(r"\x1b\[\d*m")
_ANSWER: Final = re.compile(r"<Code>(\w+)</Code>\s*<Message>([^<]*)</Message>")

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1

BOUNDED: Final = (LEDGER, ENTRY, PUBLISH_TIME)
"""Columns whose bounds the table's log knows. They must not be nullable (``delta.statistics_of``)."""

_MEASURED: Final = (*BOUNDED, EPOCH, SEQUENCE)
"""Columns whose bounds each row group of a file knows. Row groups also know which columns have nulls."""

_FEW_VALUES: Final = (TOPIC, PRODUCER, EPOCH, LEDGER, BATCH_INDEX)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a table: a folder, or a URL of an object store with its options."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a file system."""
        return urlsplit(self.location).scheme in {"", "file"}

    def within(self, name: str) -> Place:
        """A place within this one."""
        return replace(self, location=f"{self.location.rstrip('/')}/{name}")

    def files(self) -> Any:
        """A pyarrow file system that begins at this place."""
        if self.is_local:
            folder = self.location.removeprefix("file://")
            return pafs.SubTreeFileSystem(folder, pafs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - not needed for local places

        handler = DeltaStorageHandler(self.location, dict(self.options))
        return pafs.PyFileSystem(handler)


def place_of(location: str, options: Mapping[str, str] | None = None) -> Place:
    """A place from a user's text. Folders become absolute, because tasks run in other folders."""
    place = Place(location, options or {})
    if not place.is_local:
        return place
    return replace(place, location=str(Path(location.removeprefix("file://")).absolute()))


def made_folder(place: Place) -> None:
    """Create the folder of a place; object stores have no folders. Raises TableError."""
    if place.is_local:
        with table_errors(place):
            Path(place.location.removeprefix("file://")).mkdir(parents=True, exist_ok=True)


def synced(place: Place, folder: str) -> None:
    """Make the newest commit of a log survive a power failure; for local places."""
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
    """Writes one Parquet file. Readers use it only after it is closed and committed, and do not see it before."""

    def __init__(
        self, place: Place, partition: Mapping[str, str], schema: pa.Schema, run: str = ""
    ) -> None:
        self._place = place
        self._partition = dict(partition)
        self._path = new_path(partition, run)
        self._written_path = hidden_path(self._path) if place.is_local else self._path
        self._files = place.files()
        if place.is_local:
            self._files.create_dir(self._path.rpartition("/")[0] or ".", recursive=True)
        self._sink = self._files.open_output_stream(self._written_path)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[name for name in _FEW_VALUES if name in schema.names],
            write_statistics=[name for name in _MEASURED if name in schema.names],
            coerce_timestamps="us",
            store_schema=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._bounds: dict[str, tuple[int, int]] = {}

    @property
    def bytes(self) -> int:
        """The size of the file so far."""
        return int(self._sink.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if not batch.num_rows:
            return
        for name in BOUNDED:
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
        """Finish the file and describe it."""
        self._flush()
        self._writer.close()
        self._sink.close()
        found = self._files.get_file_info(self._written_path)
        if self._place.is_local:
            root = Path(self._place.location)
            path = root / self._written_path
            while path != root:
                synced_file(path)
                path = path.parent
        modified_ms = int(found.mtime_ns or 0) // 1_000_000
        return TableFile(
            self._path, int(found.size), self._rows, self._partition, self._bounds, modified_ms
        )

    def discard(self) -> None:
        """Remove the unfinished file, if possible."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._sink.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._files.delete_file(self._written_path)


def opened_parquet(place: Place, path: str) -> pq.ParquetFile:
    """Open a file of a table for reading in parts: READ_AHEAD_BYTES of each column at a time."""
    return pq.ParquetFile(
        path,
        filesystem=place.files(),
        pre_buffer=False,
        buffer_size=READ_AHEAD_BYTES,
    )


def rows_at_once(metadata: pq.FileMetaData) -> int:
    """The number of rows to read at once, from the file's metadata: BATCH_READ_ROWS rows or BATCH_READ_BYTES."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    sizes = (int(group.total_byte_size) // max(1, int(group.num_rows)) for group in groups)
    return max(1, min(BATCH_READ_ROWS, BATCH_READ_BYTES // max(1, max(sizes, default=1))))


def by_folder(files: Iterable[TableFile]) -> dict[str, list[TableFile]]:
    """A table's files by the folders of their logs, in the order of each log."""
    found: dict[str, list[TableFile]] = {}
    for file in sorted(files, key=_order):
        found.setdefault(file.partition.get(TOPIC_PARTITION, ""), []).append(file)
    return found


def _order(file: TableFile) -> tuple[tuple[int, int], tuple[int, int]]:
    unknown = (0, NUMBER_MAX)
    return file.bounds.get(LEDGER, unknown), file.bounds.get(ENTRY, unknown)


def files_of(
    files: Iterable[TableFile], log: str, first_ledger: int, last_ledger: int
) -> list[TableFile]:
    """The files that may have messages of some ledgers of a log, in the order of the log."""
    folder = folder_of(log)
    found = []
    for file in files:
        low, high = file.bounds.get(LEDGER, (first_ledger, last_ledger))
        of_log = file.partition.get(TOPIC_PARTITION) == folder
        if of_log and low <= last_ledger and high >= first_ledger:
            found.append(file)
    return sorted(found, key=_order)


def reveal(place: Place, files: Iterable[TableFile]) -> None:
    """Give files their names, immediately before their commit. May be repeated. Raises TableError."""
    if not place.is_local:
        return
    root, folders = Path(place.location), set()
    with table_errors(place):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # it has its name
                (root / hidden_path(file.path)).rename(root / file.path)
                folders.add((root / file.path).parent)
        for folder in folders:
            synced_file(folder)


def hidden(place: Place, before_seconds: float) -> list[str]:
    """The hidden files that were written before a time, in seconds since 1970: of killed jobs. For local places."""
    if not place.is_local:
        return []
    root = Path(place.location)
    return [
        str(path.relative_to(root))
        for path in root.rglob(".onewriter-*.part")
        if path.stat().st_mtime < before_seconds
    ]


def check_there(place: Place, files: Sequence[TableFile]) -> None:
    """Raise TableError if files that tasks wrote are not visible here, or differ."""
    if not files:
        return
    reveal(place, files)
    with table_errors(place):
        found = place.files().get_file_info([file.path for file in files])
    for file, info in zip(files, found, strict=True):
        if not info.is_file or info.size != file.size:
            raise TableError(
                f"{place.location}/{file.path} was written by a task and is not here: executors need"
                " the same folder as the driver, or an object store"
            )


def discard(place: Place, files: Iterable[TableFile]) -> None:
    """Remove files that were not committed. ``vacuum`` removes the rest later."""
    for file in files:
        for path in (file.path, *([hidden_path(file.path)] if place.is_local else [])):
            with contextlib.suppress(OSError, pa.ArrowException):
                place.files().delete_file(path)


def discard_run(place: Place, run: str, folders: Iterable[str]) -> None:
    """Remove all files of a run, of any task, like ``discard``. ``folders``: where they are."""
    files = place.files()
    for folder in folders:
        with contextlib.suppress(OSError, pa.ArrowException):
            selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
            for each in files.get_file_info(selector):
                if each.is_file and is_of_run(each.path, run):
                    files.delete_file(each.path)


@contextlib.contextmanager
def table_errors(place: Place) -> Iterator[None]:
    """Errors of a disk or an object store in the block become a TableError of one sentence."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{place.location}: {line(error)}") from error


def line(error: Exception) -> str:
    """An error as one short line: what failed, and why, from the chain of errors of delta-rs."""
    text = _COLOURS.sub("", str(error)).strip()
    if not text:
        return type(error).__name__
    links = [_link(each) for each in text.removeprefix("Kernel error -> ").split(_LINK)]
    if len(links) == 1:
        return text.splitlines()[0][:ERROR_CHARACTERS_MAX]
    return ": ".join(dict.fromkeys((links[0], *links[-2:])))[:ERROR_CHARACTERS_MAX]


def _link(text: str) -> str:
    """One link of such a chain. For an answer of an object store, its code and its message."""
    answer = _ANSWER.search(text)
    return ": ".join(answer.groups()) if answer else " ".join(text.split())


def write_rows(place: Place, schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> TableFile:
    """Write a file of a small table in this process. Raises TableError."""
    with table_errors(place):
        writer = FileWriter(place, {}, schema)
        try:
            writer.write(pa.RecordBatch.from_pylist(list(rows), schema))
            return writer.close()
        except (OSError, pa.ArrowException):
            writer.discard()
            raise
