"""One report from an audit of the logs and an audit of the tables. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onewriter_pipeline.audit import history
from onewriter_pipeline.audit.audit import BOTH, AuditReport

Row = Mapping[str, Any]


def combined(reports: Sequence[AuditReport]) -> AuditReport:
    """The reports as one. Each tenure and each ledger counts once, although both tiers may have it."""
    if len(reports) == 1:
        return reports[0]
    written = _written(row for report in reports for row in report.written)
    timeline = _timeline(row for report in reports for row in report.timeline)
    return replace(
        reports[0],
        tier=BOTH,
        findings=[each for report in reports for each in report.findings],
        notes=list(dict.fromkeys(note for report in reports for note in report.notes)),
        topics=_topics(reports, written),
        timeline=timeline,
        leaderless=history.leaderless(timeline),
        holders=history.holders(written),
        written=written,
        losses=_once(row for report in reports for row in report.losses),
        records=max(report.records for report in reports),
    )


def _written(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """What was written, by ledger. A trim drops whole ledgers, so the tier that has more of a ledger has all of it."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["topic"], row["ledger"]
        known = found.get(key)
        if known is None or row["entries"] > known["entries"]:
            found[key] = dict(row)
    return [found[key] for key in sorted(found)]


def _timeline(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """All tenures in order. A tenure ends where the next one of either tier begins."""
    known: dict[tuple[str, int], dict[str, Any]] = {}
    for tenure in rows:
        known.setdefault((tenure["topic"], tenure["epoch"]), dict(tenure))
    found = [known[key] for key in sorted(known)]
    for row, after in itertools.pairwise(found):
        if row["topic"] == after["topic"]:
            row |= {"until_ms": after["since_ms"], "ended_by": after["cause"]}
    return found


def _topics(reports: Sequence[AuditReport], written: Iterable[Row]) -> list[dict[str, Any]]:
    """The extent of each topic in both tiers."""
    found: dict[str, dict[str, Any]] = {}
    for report in reversed(reports):  # the table begins earlier, and the log ends later
        for row in report.topics:
            known = found.setdefault(row["topic"], dict(row))
            known["first"] = known["first"] or row["first"]
            known["last"] = row["last"] or known["last"]
    by_topic: dict[str, list[Row]] = {}
    for part in written:
        by_topic.setdefault(part["topic"], []).append(part)
    for topic, rows in by_topic.items():
        sums = {name: sum(row[name] for row in rows) for name in ("entries", "messages")}
        found[topic] |= {"ledgers": len(rows), **sums}
    return [found[topic] for topic in sorted(found)]


def _once(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({tuple(row.values()): row for row in rows}.values())


def with_ends(timeline: Iterable[Row], left: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """Tenures with ``left_ms``, the time from which on their topic had no writer; None: their end.

    ``left``: for topics without a writer now, the time of their last message.
    """
    rows = [dict(row) for row in timeline]
    for row, after in itertools.zip_longest(rows, rows[1:]):
        follows = after is not None and after["topic"] == row["topic"]
        row["left_ms"] = None
        if not row["producer"]:
            continue
        if follows and after["producer"] and after["leaderless_ms"]:
            row["left_ms"] = max(row["since_ms"], after["since_ms"] - after["leaderless_ms"])
        elif not follows and row["topic"] in left:
            row["left_ms"] = max(row["since_ms"], left[row["topic"]] or 0)
    return rows
