"""The layout of the tables: their columns, and the names and descriptions of files. Pure.

A place has three tables, each a folder with its own log: ``messages``, ``segments`` (what was offloaded of each
ledger, and its holder) and ``audit`` (the brokers' audit records).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from onewriter_core.ids import TopicName
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.schema import arrow_schema
from onewriter_pipeline.tables.publishes import PublishRun

TABLE_VERSION: Final = 2
"""The version of this layout. Tables with another version are not touched."""

TOPIC_PARTITION: Final = "topic"
DATE_PARTITION: Final = "date"
"""Messages are in one folder for each log and day (UTC). The day is that on which a broker stored them."""

RUN_DIGITS: Final = 16
"""Digits of a file's name that identify the run; the other 16 digits identify the file."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_OLDEST: Final = "oldest"
_NEWEST: Final = "newest"
_FILE: Final = re.compile(
    r"onewriter-[0-9a-f]{32}\.parquet|\.onewriter-[0-9a-f]{32}\.parquet\.part"
)
_DELTA_FILE: Final = re.compile(r"part-\d{5}-[0-9a-f-]{36}(-c\d{3})?(\.\w+)?\.parquet")


@dataclass(frozen=True, slots=True)
class Layout:
    """A table: its name, the columns of its files, and the columns that name its folders."""

    name: str
    columns: pa.Schema
    partition_by: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """All columns; those of the folders are last."""
        kinds = {TOPIC_PARTITION: pa.string(), DATE_PARTITION: pa.date32()}
        fields = [pa.field(name, kinds[name]) for name in self.partition_by]
        return pa.schema([*self.columns, *fields])


MESSAGES: Final = Layout("messages", arrow_schema(), (TOPIC_PARTITION, DATE_PARTITION))

_PUBLISHES: Final = pa.list_(
    pa.struct(
        [
            ("app", pa.string()),
            ("version", pa.int64()),
            ("last_version", pa.int64()),
            ("first", pa.int64()),
            ("end", pa.int64()),
            ("is_open", pa.bool_()),
        ]
    )
)

SEGMENTS: Final = Layout(
    "segments",
    pa.schema(
        [
            ("topic", pa.string()),
            ("ledger", pa.int64()),
            ("epoch", pa.int64()),
            ("producer", pa.string()),
            ("subject", pa.string()),
            ("cause", pa.string()),
            ("mode", pa.string()),
            ("first", pa.int64()),
            ("end", pa.int64()),
            ("entries", pa.int64()),
            ("messages", pa.int64()),
            ("rows", pa.int64()),
            ("bytes", pa.int64()),
            (_OLDEST, _TIME),
            (_NEWEST, _TIME),
            ("digest", pa.string()),
            ("chain", pa.string()),
            ("lost", pa.string()),
            ("publishes", _PUBLISHES),
            ("batch", pa.int64()),
        ]
    ),
)

AUDIT: Final = Layout(
    "audit",
    pa.schema(
        [
            ("bucket", pa.int32()),
            ("id", pa.string()),
            ("time", _TIME),
            ("kind", pa.string()),
            ("topic", pa.string()),
            ("ledger", pa.int64()),
            ("epoch", pa.int64()),
            ("oldEpoch", pa.int64()),
            ("cause", pa.string()),
            ("broker", pa.string()),
            ("producer", pa.string()),
            ("subject", pa.string()),
            ("leaderlessMs", pa.int64()),
            ("record", pa.string()),
        ]
    ),
)

LAYOUTS: Final = (MESSAGES, SEGMENTS, AUDIT)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of a table. ``path`` is relative to the table; ``bounds``: minimum and maximum by column."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    modified_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """A row of ``segments``, with its columns in order: what was offloaded of a ledger, and the holder of the
    ledger.

    The table stores ``oldest_ms`` and ``newest_ms`` as the times ``oldest`` and ``newest``.
    """

    topic: str
    ledger: int
    epoch: int | None = None
    producer: str | None = None
    subject: str | None = None
    cause: str | None = None
    mode: str | None = None
    first: int
    end: int
    entries: int
    messages: int
    rows: int
    bytes: int
    oldest_ms: int | None = None
    newest_ms: int | None = None
    digest: str
    chain: str | None = None
    lost: str | None = None
    publishes: tuple[PublishRun, ...] | None
    batch: int

    @classmethod
    def of_list(cls, columns: Sequence[Any], batch: int) -> SegmentRow:
        """A row from commit ``batch`` of ``messages``."""
        names = (each.name for each in fields(cls))
        values = dict(zip(names, [*columns, batch], strict=True))
        if values["publishes"] is not None:
            values["publishes"] = tuple(PublishRun(**each) for each in values["publishes"])
        return cls(**values)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SegmentRow:
        """A row from the table's files."""
        times = {name: _milliseconds(row[name]) for name in (_OLDEST, _NEWEST)}
        *values, batch = (times.get(name, row[name]) for name in SEGMENTS.columns.names)
        return cls.of_list(values, batch)

    def as_list(self) -> list[Any]:
        """The row in a commit of ``messages``, as JSON, without ``batch``."""
        *values, _ = asdict(self).values()
        return values

    def as_row(self) -> dict[str, Any]:
        """The row in the table's files."""
        row = dict(zip(SEGMENTS.columns.names, asdict(self).values(), strict=True))
        for name in (_OLDEST, _NEWEST):
            row[name] = None if row[name] is None else row[name] * 1000
        return row


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Entries [first, end) of a ledger that were offloaded.

    ``messages``: their number according to the clients; ``rows``: the number of written rows. They differ if
    messages came in chunks, were compacted by their client, or were corrupt and skipped. ``publishes``: the atomic
    publishes among them; None: too many. ``digest``: the digest of the rows; ``chain``: the hash of the block that
    ends before ``end``, or empty; ``day``: the day of the folder. Several days make several parts.
    """

    log: str
    ledger: int
    first: int
    end: int
    messages: int
    rows: int
    bytes: int
    publishes: tuple[PublishRun, ...] | None = ()
    digest: int = 0
    chain: str = ""
    day: str = ""

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.end - self.first


def new_path(partition: Mapping[str, str], run: str = "") -> str:
    """A unique path for a file; ``run``: the first RUN_DIGITS hex digits of its name."""
    folders = [f"{name}={value}" for name, value in partition.items()]
    number = run + uuid.uuid4().hex[len(run) :]
    return "/".join([*folders, f"onewriter-{number}.parquet"])


def hidden_path(path: str) -> str:
    """The path of a file until it is committed: readers of a folder pass over names that begin with a dot."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.part"


def is_of_run(path: str, run: str) -> bool:
    """Whether the path belongs to a file of that run."""
    return path.rsplit("/", 1)[-1].removeprefix(".").startswith(f"onewriter-{run}")


def is_ours(path: str) -> bool:
    """Whether these tables, or their compaction, could have created the path."""
    name = path.rsplit("/", 1)[-1]
    return bool(_FILE.fullmatch(name) or _DELTA_FILE.fullmatch(name))


def folder_of(log: str) -> str:
    """The name of a log's folder. Letters, digits, dots and dashes are unchanged; ``__`` stands for a slash."""
    name = TopicName.parse(log)
    return "__".join(map(_escaped, (name.tenant, name.namespace, name.local_name)))


def _escaped(text: str) -> str:
    return "".join(
        each if each.isascii() and (each.isalnum() or each in ".-") else _hex(each) for each in text
    )


def _hex(character: str) -> str:
    return "".join(f"_{byte:02X}" for byte in character.encode())


def check_version(name: str, text: str | None) -> None:
    """Raise Invalid for a table that this code must not touch."""
    if text is None:
        raise Invalid(f"{name} is a table that onewriter did not create: choose another place")
    if not text.isdecimal() or int(text) > TABLE_VERSION:
        raise Invalid(
            f"{name} was written by a newer onewriter: its version is {text[:20]}, and this one knows"
            f" {TABLE_VERSION}"
        )
    if int(text) < TABLE_VERSION:
        raise Invalid(
            f"{name} was written by an older onewriter: its version is {text}, and this one writes"
            f" {TABLE_VERSION}: choose another place"
        )
