"""The history of holders from markers, runs and audit records: who held a topic when, and how much each holder
wrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onewriter_core.audit.grants import LogAudit
from onewriter_core.ids import Position
from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.audit_records import AuditRecords


def timeline(kept: AuditRecords, logs: Iterable[str]) -> list[dict[str, Any]]:
    """Tenures: from a grant, or from a fence without a new holder, to the next."""
    found: list[dict[str, Any]] = []
    for log in sorted(logs):
        audit = kept.of(log)
        known = audit.logs.get(log, LogAudit())
        fences = [each for each in known.fences.values() if each.begins_epoch]
        for fence, after in itertools.zip_longest(fences, fences[1:]):
            ready_ms = audit.ready.get((str(fence.topic), fence.ledger))
            found.append(
                {
                    "topic": log,
                    "epoch": fence.ledger,
                    "producer": fence.producer,
                    "subject": fence.subject,
                    "host": fence.host,
                    "cause": fence.cause,
                    "since_ms": fence.time_ms,
                    "until_ms": None if after is None else after.time_ms,
                    "ended_by": None if after is None else after.cause,
                    "leaderless_ms": ready_ms
                    if fence.leaderless_ms is None
                    else fence.leaderless_ms,
                    "broker": fence.broker,
                }
            )
    return found


def load(observed: pa.Table) -> list[dict[str, Any]]:
    """What was written, by ledger, from facts."""
    columns = ["log", "ledger", "epoch", "producer"]
    marked = observed.filter(pc.equal(observed["kind"], facts.MARKER)).select(columns)
    held = {(row["log"], row["ledger"]): row for row in marked.to_pylist()}
    runs = observed.filter(pc.equal(observed["kind"], facts.RUN))
    sums = [("entries", "sum"), ("messages", "sum"), ("bytes", "sum")]
    written = runs.group_by(["log", "ledger"]).aggregate(sums)
    found = []
    for row in written.sort_by([("log", "ascending"), ("ledger", "ascending")]).to_pylist():
        marker = held.get((row["log"], row["ledger"]))
        if marker is not None:
            found.append(
                {
                    "topic": row["log"],
                    "producer": marker["producer"] or "(shared)",
                    "epoch": marker["epoch"],
                    "ledger": row["ledger"],
                    **{name: row[f"{name}_sum"] for name, _ in sums},
                }
            )
    return found


def leaderless(timeline: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Periods without a writer, by the cause that ended the previous tenure; from ``timeline``."""
    windows: dict[str, list[int]] = {}
    for row in timeline:
        if row["leaderless_ms"] is not None:
            windows.setdefault(row["cause"], []).append(row["leaderless_ms"])
    return [
        {
            "cause": cause,
            "windows": len(found),
            "p50_ms": float(np.percentile(found, 50)),
            "p99_ms": float(np.percentile(found, 99)),
            "max_ms": max(found),
        }
        for cause, found in sorted(windows.items())
    ]


def holders(written: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each holder wrote, the largest amount first; from ``load``."""
    by_producer: dict[str, list[Mapping[str, Any]]] = {}
    for row in written:
        by_producer.setdefault(row["producer"], []).append(row)
    found = [
        {
            "producer": producer,
            "topics": len({row["topic"] for row in rows}),
            "epochs": len(
                {(row["topic"], row["epoch"]) for row in rows if row["epoch"] is not None}
            ),
            "entries": sum(row["entries"] for row in rows),
            "messages": sum(row["messages"] for row in rows),
            "bytes": sum(row["bytes"] for row in rows),
        }
        for producer, rows in by_producer.items()
    ]
    return sorted(found, key=lambda row: (-row["bytes"], row["producer"]))


def extents(observed: pa.Table, logs: Iterable[str]) -> list[dict[str, Any]]:
    """The audited part of each log, from facts."""
    along = observed.filter(pc.is_in(observed["kind"], pa.array([facts.RUN, facts.MARKER])))
    grouped = (
        along.sort_by("ordinal")
        .group_by("log", use_threads=False)
        .aggregate(
            [
                ("ledger", "first"),
                ("first", "first"),
                ("ledger", "last"),
                ("last", "last"),
                ("ledger", "count_distinct"),
                ("entries", "sum"),
                ("messages", "sum"),
            ]
        )
    )
    seen = {row["log"]: row for row in grouped.to_pylist()}
    return [_extent(log, seen.get(log)) for log in sorted(logs)]


def _extent(log: str, row: Mapping[str, Any] | None) -> dict[str, Any]:
    if row is None:
        nothing = dict.fromkeys(("first", "last", "ledgers", "entries", "messages"))
        return {"topic": log, **nothing, "ledgers": 0}
    return {
        "topic": log,
        "first": str(Position(row["ledger_first"], row["first_first"])),
        "last": str(Position(row["ledger_last"], row["last_last"])),
        "ledgers": row["ledger_count_distinct"],
        "entries": row["entries_sum"],
        "messages": row["messages_sum"],
    }
