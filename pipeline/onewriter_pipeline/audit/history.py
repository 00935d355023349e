"""The history of holders from markers, runs and audit records: who held a topic when, and how much each holder
wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onewriter_core.ids import Position
from onewriter_pipeline.audit import facts

TIMELINE: Final = """
    SELECT f.log AS topic, f.ledger AS epoch, f.producer, f.subject, f.host, f.cause, f.time_ms AS since_ms,
        lead(f.time_ms) OVER (PARTITION BY f.log ORDER BY f.ordinal) AS until_ms,
        lead(f.cause) OVER (PARTITION BY f.log ORDER BY f.ordinal) AS ended_by,
        coalesce(f.leaderless_ms, r.leaderless_ms) AS leaderless_ms,
        f.broker
    FROM first_fences f
    LEFT JOIN (
        SELECT topic, ledger, max(leaderless_ms) AS leaderless_ms FROM ready GROUP BY topic, ledger
    ) r ON r.topic = f.topic AND r.ledger = f.ledger
    WHERE f.changes_hands
    ORDER BY topic, epoch"""
"""Tenures: from a grant, or from a fence without a new holder, to the next."""

LOAD: Final = """
    SELECT m.log AS topic, coalesce(m.producer, '(shared)') AS producer, m.epoch, m.ledger,
        sum(r.entries) AS entries, sum(r.messages) AS messages, sum(r.bytes) AS bytes
    FROM along r JOIN markers m ON m.log = r.log AND m.ledger = r.ledger
    WHERE r.kind = 'run'
    GROUP BY m.log, m.producer, m.epoch, m.ledger
    ORDER BY topic, m.ledger"""
"""What was written, by ledger."""


def leaderless(timeline: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Periods without a writer, by the cause that ended the previous tenure; from rows of TIMELINE."""
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


def holders(load: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each holder wrote, the largest amount first; from rows of LOAD."""
    mine: dict[str, list[Mapping[str, Any]]] = {}
    for row in load:
        mine.setdefault(row["producer"], []).append(row)
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
        for producer, rows in mine.items()
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
