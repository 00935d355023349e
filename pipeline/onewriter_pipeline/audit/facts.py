"""Facts: a few rows that describe a part of a log. SQL combines and checks them.

A task reads blocks in their stored order. For each chunk it returns the runs of entries, the sequence ids of each
producer, and the markers. It checks hashes and the completeness of atomic publishes itself, and returns violations
as faults. ``ordinal`` is the order of all facts in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

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

TANGLE: Final = "tangle"
"""The same if they do not rise; they are between these two."""

PRINT: Final = "print"
"""A checksum that distinguishes an entry from others of its producer, in a ledger without a single holder."""

PUBLISH: Final = "publish"
"""Atomic publishes of the app ``producer``, with rising versions from ``sequence`` to ``last_sequence``."""

PUBLISHER: Final = "publisher"
"""The publisher of the atomic publish ``uuid`` of the app ``producer``, from its blocks: ``subject`` and
``pod_uid``, both empty if the blocks name none. It also applies to later publishes of that app and ledger, up to
the next fact.
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
        ("pod_uid", pa.string()),
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
        ("print", pa.int64()),
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


def prints_of(log: str, columns: dict[str, Any]) -> pa.RecordBatch:
    """Prints, from arrays of equal length."""
    size = len(columns["ledger"])
    columns = columns | {"log": [log] * size, "kind": [PRINT] * size}
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(size, field.type)
        for field in FACTS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FACTS)
