"""What one stretch of a log shows, as few rows: facts that are put together and judged by SQL.

A task reads blocks in their stored order and leaves per chunk: the runs of entries, what each producer
numbered in it, markers as they stand; and at once what it can judge alone (faults): hashes, and atomic
publishes that are torn. ``ordinal`` gives the order in which all of that stands in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

RUN: Final = "run"
"""Entries [first, last] of a ledger that follow each other."""

KEPT: Final = "kept"
"""The same of messages in a table, from (first, chunk) to (last, last_chunk); chunks are batch indexes."""

MARKER: Final = "marker"
WRITER: Final = "writer"
"""What a producer wrote to one ledger, within one chunk: how its numbers begin and end."""

FALL: Final = "fall"
"""A producer's entry whose number does not rise, and that was published no later."""

TORN: Final = "torn"
"""A chunk of a large message without the one before it."""

SPREAD: Final = "spread"
"""The numbers of a producer within one chunk, where a ledger is not held by one: they rise from entry to
entry, from ``sequence`` to ``last_sequence``."""

TANGLE: Final = "tangle"
"""The same where they do not rise: between these two."""

PRINT: Final = "print"
"""What tells an entry from others of its producer, where a ledger is not held by one."""

PUBLISH: Final = "publish"
"""Atomic publishes of the app ``producer``, from version ``sequence`` to ``last_sequence``, which rise."""

PUBLISHER: Final = "publisher"
"""The publisher of the atomic publish ``uuid`` of the app ``producer``, from its blocks: ``subject`` and ``pod_uid``,
both empty if the blocks name none. It also applies to later publishes of that app and ledger, up to the next fact."""

CUT: Final = "cut"
"""The log goes on at ``first`` for whom reads it now: what stood before was trimmed, or is damaged."""

UNREAD: Final = "unread"
"""Entries of a chunk whose metadata cannot be read: their order was not checked."""

FAULT: Final = "fault"
"""Something wrong that one task sees by itself. ``place`` names positions, with commas between."""

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
"""Columns of facts; each kind has those that make sense of it. Times are milliseconds since 1970."""


DDL: Final = ", ".join(
    f"{field.name} {'BIGINT' if pa.types.is_integer(field.type) else 'STRING'}" for field in FACTS
)
"""The same for Spark."""


def facts_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as a record batch of FACTS; what a row does not say is null."""
    return pa.RecordBatch.from_pylist(list(rows), FACTS)


def prints_of(log: str, columns: dict[str, Any]) -> pa.RecordBatch:
    """Prints, given as arrays of equal length."""
    size = len(columns["ledger"])
    columns = columns | {"log": [log] * size, "kind": [PRINT] * size}
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(size, field.type)
        for field in FACTS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FACTS)
