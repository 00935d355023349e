"""What the tables look like: their columns, how files are named and described. Pure.

A table's location holds three tables, each a folder with a log of its own: ``messages``, ``segments`` (what
was offloaded of each ledger, and whose it was) and ``audit`` (the brokers' records of changes of hands).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from onewriter_core.ids import TopicName
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.schema import arrow_schema

TABLE_VERSION: Final = 1
"""Of what is described here; a table with a higher one is not touched."""

TOPIC_PARTITION: Final = "topic"
DATE_PARTITION: Final = "date"
"""How messages are laid out in folders: by log, and by the day (UTC) on which a broker stored them."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_FILE: Final = re.compile(r"onewriter-[0-9a-f]{32}\.parquet")
_DELTA_FILE: Final = re.compile(r"part-\d{5}-[0-9a-f-]{36}(-c\d{3})?(\.\w+)?\.parquet")


@dataclass(frozen=True, slots=True)
class Layout:
    """One of the tables: its name, the columns in its files, and what its folders are named by."""

    name: str
    columns: pa.Schema
    partition_by: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """All columns, those of the folders last."""
        kinds = {TOPIC_PARTITION: pa.string(), DATE_PARTITION: pa.date32()}
        fields = [pa.field(name, kinds[name]) for name in self.partition_by]
        return pa.schema([*self.columns, *fields])


MESSAGES: Final = Layout("messages", arrow_schema(), (TOPIC_PARTITION, DATE_PARTITION))

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
            ("oldest", _TIME),
            ("newest", _TIME),
            ("chain", pa.string()),
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
    """A Parquet file of a table. ``path`` is relative to it; ``bounds``: least and greatest, by column."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    modified_ms: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """Entries [first, end) of a ledger that were offloaded.

    ``messages``: as their clients said; ``rows``: what was written. They differ where messages came in
    chunks, were compacted away by their client, or were corrupt and left out.
    """

    log: str
    ledger: int
    first: int
    end: int
    messages: int
    rows: int
    bytes: int

    @property
    def entries(self) -> int:
        """How many."""
        return self.end - self.first


def new_path(partition: Mapping[str, str]) -> str:
    """A path for a file that nobody else uses."""
    folders = [f"{name}={value}" for name, value in partition.items()]
    return "/".join([*folders, f"onewriter-{uuid.uuid4().hex}.parquet"])


def is_ours(path: str) -> bool:
    """Whether a path is one that these tables, or their compaction, give to files."""
    name = path.rsplit("/", 1)[-1]
    return bool(_FILE.fullmatch(name) or _DELTA_FILE.fullmatch(name))


def folder_of(log: str) -> str:
    """The name of a log's folder: letters, digits, dots and dashes stay, ``__`` stands for a slash."""
    name = TopicName.parse(log)
    local = str(name).split("/", 4)[4]
    return "__".join(map(_escaped, (name.tenant, name.namespace, local)))


def _escaped(text: str) -> str:
    return "".join(
        each if each.isascii() and (each.isalnum() or each in ".-") else _hex(each) for each in text
    )


def _hex(character: str) -> str:
    return "".join(f"_{byte:02X}" for byte in character.encode())


def check_version(name: str, text: str | None) -> None:
    """Raise Invalid for a table that this code must not touch."""
    if text is None:
        raise Invalid(f"{name} is a table, but none of onewriter's: choose another place")
    if not text.isdecimal() or int(text) > TABLE_VERSION:
        raise Invalid(
            f"{name} was written by a newer onewriter: its version is {text[:20]}, and this one knows"
            f" {TABLE_VERSION}"
        )
