"""Facts as rows: how tasks send what they observe of a part of a log to the driver.

A task reads blocks in their stored order. For each chunk it returns the runs of entries, the sequence ids of each
producer, and the markers. It checks hashes and the completeness of atomic publishes itself, and returns violations
as faults. ``ordinal`` is the order of all facts in the log. ``facts_in`` converts rows to the facts that
``onewriter_core.audit`` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from onewriter_core.audit.facts import (
    EntryRun,
    Fact,
    Gap,
    LedgerBegins,
    Misplaced,
    NamedPublisher,
    Numbers,
    PublishRun,
    Unreadable,
    WriterRun,
)
from onewriter_core.audit.findings import Finding
from onewriter_core.ids import Position

RUN: Final = "run"
"""Consecutive entries [first, last] of a ledger."""

KEPT: Final = "kept"
"""The same for messages in a table, from (first, chunk) to (last, last_chunk); chunks are batch indexes."""

MARKER: Final = "marker"
WRITER: Final = "writer"
"""The entries of one producer in one ledger within a chunk: its first and last sequence ids."""

FALL: Final = "fall"
"""An entry whose sequence id does not exceed that of its producer's previous entry, and that was not published
later.
"""

TORN: Final = "torn"
"""A chunk of a large message without its predecessor."""

SPREAD: Final = "spread"
"""The sequence ids of one producer within a chunk, in a ledger without a single holder. They rise from entry to
entry, from ``sequence`` to ``last_sequence``.
"""

UNORDERED: Final = "unordered"
"""The same if they do not rise; they are between these two."""

CHECKSUM: Final = "checksum"
"""A checksum that distinguishes an entry from others of its producer, in a ledger without a single holder."""

PUBLISH: Final = "publish"
"""Atomic publishes of the app ``producer``, with rising versions from ``sequence`` to ``last_sequence``."""

PUBLISHER: Final = "publisher"
"""The publisher of the atomic publish ``uuid``, as its block names it: ``subject``. It also applies to later publishes
of that app and ledger, up to the next fact.
"""

DIGEST: Final = "digest"
"""What a file has of the entries [first, last] that were offloaded together: the number of rows is ``messages``, and
``uuid`` is their digest.
"""

CUT: Final = "cut"
"""The readable log continues at ``first``; what was before was trimmed, or is damaged."""

UNREAD: Final = "unread"
"""Entries of a chunk whose metadata cannot be read. Their order was not checked."""

FAULT: Final = "fault"
"""A violation that a single task detects. ``place`` lists positions, separated by commas."""

FACTS: Final = pa.schema(
    [
        ("log", pa.string()),
        ("kind", pa.string()),
        ("ordinal", pa.int64()),
        ("ledger", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("epoch", pa.int64()),
        ("producer", pa.string()),
        ("subject", pa.string()),
        ("owner", pa.string()),
        ("time_ms", pa.int64()),
        ("entries", pa.int64()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("sequence", pa.int64()),
        ("chunk", pa.int64()),
        ("published_ms", pa.int64()),
        ("last_sequence", pa.int64()),
        ("last_chunk", pa.int64()),
        ("last_published_ms", pa.int64()),
        ("uuid", pa.string()),
        ("last_uuid", pa.string()),
        ("checksum", pa.int64()),
        ("predicate", pa.string()),
        ("place", pa.string()),
        ("sentence", pa.string()),
    ]
)
"""The columns of facts. Each kind of fact uses some of them. Times are in milliseconds since 1970."""


DDL: Final = ", ".join(
    f"{field.name} {'BIGINT' if pa.types.is_integer(field.type) else 'STRING'}" for field in FACTS
)
"""The same for Spark."""


def facts_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as a record batch of FACTS; missing columns are null."""
    return pa.RecordBatch.from_pylist(list(rows), FACTS)


def checksums_of(log: str, columns: dict[str, Any]) -> pa.RecordBatch:
    """Checksums, from arrays of equal length."""
    size = len(columns["ledger"])
    columns = columns | {"log": [log] * size, "kind": [CHECKSUM] * size}
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(size, field.type)
        for field in FACTS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FACTS)


# ------------------------------------------------------------ as the audit checks them


def _marker(*row: Any) -> LedgerBegins:
    ledger, last, epoch, producer, subject, owner, time_ms = row
    return LedgerBegins(
        Position(ledger, 0), epoch, producer or "", subject or "", owner, time_ms, last + 1
    )


def _run(*row: Any) -> EntryRun:
    ledger, first, last = row
    return EntryRun(Position(ledger, first), last)


def _cut(*row: Any) -> Gap:
    return Gap(Position(*row))


def _writer(*row: Any) -> WriterRun:
    ledger, producer, first, last = row[:4]
    return WriterRun(ledger, producer, Numbers(first, *row[4:8]), Numbers(last, *row[8:]))


def _misplaced(*row: Any, is_torn: bool = False) -> Misplaced:
    ledger, producer, before, after = row[:4]
    numbers = Numbers(before, *row[8:]), Numbers(after, *row[4:8])
    return Misplaced(ledger, producer, *numbers, is_torn)


def _torn(*row: Any) -> Misplaced:
    return _misplaced(*row, is_torn=True)


def _publish(*row: Any) -> PublishRun:
    ledger, first, app, version, last_version = row
    return PublishRun(Position(ledger, first), app, version, last_version)


def _publisher(*row: Any) -> NamedPublisher:
    ledger, first, publish, by = row
    return NamedPublisher(Position(ledger, first), publish, by)


def _unread(*row: Any) -> Unreadable:
    return Unreadable(*row)


def _fault(*row: Any) -> Finding:
    log, predicate, place, sentence = row
    return Finding(log, predicate, tuple(place.split(",")), sentence)


_NUMBERS: Final = ("sequence", "chunk", "published_ms", "uuid")
_WRITTEN: Final = (
    *("ledger", "producer", "first", "last", *_NUMBERS),
    *(f"last_{name}" for name in _NUMBERS),
)
_PLACE: Final = ("ledger", "first")

_READ: Final[dict[str, tuple[Callable[..., Fact], tuple[str, ...]]]] = {
    MARKER: (_marker, ("ledger", "last", "epoch", "producer", "subject", "owner", "time_ms")),
    CUT: (_cut, _PLACE),
    RUN: (_run, (*_PLACE, "last")),
    FAULT: (_fault, ("log", "predicate", "place", "sentence")),
    PUBLISHER: (_publisher, (*_PLACE, "uuid", "subject")),
    PUBLISH: (_publish, (*_PLACE, "producer", "sequence", "last_sequence")),
    WRITER: (_writer, _WRITTEN),
    FALL: (_misplaced, _WRITTEN),
    TORN: (_torn, _WRITTEN),
    UNREAD: (_unread, ("entries",)),
}
"""For each kind of rows, the fact and the columns of its arguments. Rows with equal ordinals are in this order."""


def facts_in(table: pa.Table) -> dict[str, list[Fact]]:
    """The facts of each log, in the order of the log."""
    found: dict[str, list[tuple[int, Fact]]] = {}
    for kind, (fact_of, columns) in _READ.items():
        of_kind = table.filter(pc.equal(table["kind"], kind)).select(["log", "ordinal", *columns])
        for log, ordinal, *row in zip(*(each.to_pylist() for each in of_kind.columns), strict=True):
            found.setdefault(log, []).append((ordinal or 0, fact_of(*row)))
    return {
        log: [fact for _, fact in sorted(each, key=itemgetter(0))] for log, each in found.items()
    }
