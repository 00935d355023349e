"""The audit of logs and tables: collects facts, checks them, and creates a report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from onewriter_pipeline.audit import facts, history, live, table_files, table_segments
from onewriter_pipeline.audit.judge import FINDINGS_MAX, Finding, Judge, small
from onewriter_pipeline.audit.records import Records
from onewriter_pipeline.audit.repeats import doubtful
from onewriter_pipeline.audit.tasks import gathered, printed
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.engine import cores_of
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.read.selection import Selection, logs_of, selected
from onewriter_pipeline.tables.layout import MESSAGES, SegmentRow
from onewriter_pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIVE: Final = "live"
TABLE: Final = "table"
BOTH: Final = "both"

TENURES_SHOWN: Final = 20
"""Tenures in the text of a report; its JSON has all."""

UNREADABLE_SHOWN: Final = 5


@dataclass(slots=True)
class AuditReport:
    """The result of an audit of one tier. Its rows are those of the queries in ``audit.history``."""

    tier: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    leaderless: list[dict[str, Any]] = field(default_factory=list)
    holders: list[dict[str, Any]] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    read_seconds: float = 0.0
    judge_seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "from": self.tier,
            "holds": not self.findings,
            "topics": self.topics,
            "auditRecords": self.records,
            "findings": [
                {
                    "predicate": each.predicate,
                    "topic": each.log,
                    "where": list(each.where),
                    "sentence": each.sentence,
                }
                for each in self.findings
            ],
            "losses": self.losses,
            "notes": self.notes,
            "timeline": self.timeline,
            "leaderless": self.leaderless,
            "holders": self.holders,
            "readSeconds": round(self.read_seconds, 3),
            "judgeSeconds": round(self.judge_seconds, 3),
        }

    def lines(self) -> Iterator[str]:
        """The report as text."""
        for topic in self.topics:
            wrong = sum(each.log == topic["topic"] for each in self.findings)
            verdict = f"{wrong} violations" if wrong else "holds"
            yield (
                f"{topic['topic']} ({self.tier}): {verdict}; {topic['first']} to {topic['last']},"
                f" {topic['ledgers']} ledgers, {topic['entries'] or 0:,} entries,"
                f" {topic['messages'] or 0:,} messages"
            )
        for finding in self.findings:
            where = ", ".join(finding.where)
            yield f"  {finding.predicate} {finding.log} {where}: {finding.sentence}"
        for note in self.notes:
            yield f"  note: {note}"
        for loss in self.losses:
            yield f"  lost, as the broker reported: {loss['log']} after {loss['after']} up to {loss['last']}"
        for row in self.leaderless:
            yield (
                f"  without a writer, {row['cause']}: {row['windows']} times, p50 {row['p50_ms']:.0f} ms,"
                f" p99 {row['p99_ms']:.0f} ms, longest {row['max_ms']:.0f} ms"
            )
        for row in self.timeline[-TENURES_SHOWN:]:
            yield f"  {tenure(row)}"


def tenure(row: Mapping[str, Any]) -> str:
    """A tenure in one line."""
    seconds = None if row["until_ms"] is None else (row["until_ms"] - row["since_ms"]) / 1000
    lasted = "until now" if seconds is None else f"{seconds:,.3f} s, then {row['ended_by']}"
    gap = (
        ""
        if row["leaderless_ms"] is None
        else f", {row['leaderless_ms']} ms without a writer before"
    )
    who = row["producer"] or "no producer"
    return f"{row['topic']} epoch {row['epoch']}: {who}, {lasted}{gap}"


@dataclass(frozen=True, slots=True)
class Audit:
    """What to audit. ``tables`` None: only live logs can be audited."""

    access: Access
    selection: Selection
    tables: Tables | None = None

    def check(self, tier: str) -> None:
        """Raise Invalid if an audit of ``live``, ``table`` or ``both`` lacks a parameter. Sends no request."""
        if tier != LIVE:
            self._there()

    def run(self, spark: SparkSession, tier: str) -> list[AuditReport]:
        """Audit ``live``, ``table`` or ``both``. Raises PipelineError."""
        with small(spark) as own:
            if tier == BOTH:
                return self.both(own)
            return [self.live(own) if tier == LIVE else self.table(own)]

    def live(self, spark: SparkSession) -> AuditReport:
        """Audit the live logs. Raises PipelineError."""
        report = AuditReport(LIVE)
        began = time.monotonic()
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            around = live.observe_before(broker, logs)
            parts = live.parts_of(around.held.values(), cores_of(spark))
            observe, size = partial(live.observe, self.access), live.bytes_of(around.held.values())
            observed = gathered(spark, observe, parts, size)
            live.observe_after(broker, around)
            report.notes += [*_nothing(logs), *around.notes, *unread(observed)]
            unclear = doubtful(observed)
            again = live.printing(parts, unclear)
            count = sum(each.entries for each in unclear.values())
            with printed(spark, observe, again, size, count) as prints:
                report.read_seconds = time.monotonic() - began
                judge(spark, report, observed, prints, around.records, around.logs)
        return report

    def table(self, spark: SparkSession) -> AuditReport:
        """Audit the tables. Raises PipelineError."""
        tables = self._there()
        report = AuditReport(TABLE)
        began = time.monotonic()
        messages = tables.existing(MESSAGES)
        state, stored = messages.snapshot()
        offsets, logs = state.offsets, selected(self.selection, state.offsets)
        records = table_files.kept_records(tables)
        segments = [row for row in tables.segments(logs) if row.batch < state.next_batch]
        publishes = table_segments.publishes_of(segments)
        files = table_files.files_of(messages.place, stored, logs, publishes)
        observed = gathered(
            spark, table_files.observe_file, files, sum(file.size for file in files)
        )
        said = list(table_segments.segment_facts(segments))
        said += table_segments.publish_facts(
            segments, {log: position_of(offsets[log]) for log in logs}
        )
        said += table_segments.count_faults(segments, table_segments.counted_of(observed))
        report.notes += [*_nothing(logs), *table_segments.unknown_publishes(segments)]
        observed = table_segments.in_order(
            pa.concat_tables([observed, pa.Table.from_pylist(said, facts.FACTS)])
        )
        report.read_seconds = time.monotonic() - began
        buckets = {row["log"]: row["bucket"] for row in records.rows if row.get("log")}
        known = table_segments.logs_of(offsets, buckets, logs)
        judge(spark, report, observed, None, records, known)
        return report

    def both(self, spark: SparkSession) -> list[AuditReport]:
        """Audit both, and compare the hashes of ledgers that both have. Raises PipelineError."""
        tables = self._there()
        reports = [self.live(spark), self.table(spark)]
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            held = {log: broker.segments(log) for log in logs}
        reports[1].findings += different(held, tables.segments(logs))
        return reports

    def _there(self) -> Tables:
        if self.tables is None:
            raise Invalid("--table is missing: name the place of the tables")
        return self.tables


def _nothing(logs: Sequence[str]) -> Iterator[str]:
    if not logs:
        yield "no topic matches; nothing was audited"


def unread(observed: pa.Table) -> Iterator[str]:
    """Notes about entries whose metadata cannot be read, by log."""
    mine = observed.filter(pc.equal(observed["kind"], facts.UNREAD))
    for row in mine.group_by("log").aggregate([("entries", "sum")]).sort_by("log").to_pylist():
        yield (
            f"{row['log']}: {row['entries_sum']} entries have metadata that cannot be read: their order"
            " was not checked"
        )


def judge(
    spark: SparkSession,
    report: AuditReport,
    observed: pa.Table,
    prints: DataFrame | None,
    records: Records,
    logs: Sequence[dict[str, Any]],
) -> None:
    """Fill a report from facts and audit records."""
    began = time.monotonic()
    wanted = {row["log"] for row in logs}
    judging = Judge(spark, records.table(), logs, observed, prints)
    try:
        found = [each for each in judging.findings() if each.log in wanted]
        tenures = judging.rows(history.TIMELINE)
        load = judging.rows(history.LOAD)
    finally:
        judging.close()
    report.topics = history.extents(observed, wanted)
    report.timeline = [row for row in tenures if row["topic"] in wanted]
    report.leaderless = history.leaderless(report.timeline)
    report.holders = history.holders(load)
    if len(found) > FINDINGS_MAX:
        report.notes.append(f"there are more findings than the {FINDINGS_MAX} that are listed")
    report.findings += found[:FINDINGS_MAX]
    report.losses = [
        _loss(row) for row in records.rows if row["kind"] == "loss" and row["log"] in wanted
    ]
    report.records = records.count
    if records.unreadable:
        shown = ", ".join(records.unreadable[:UNREADABLE_SHOWN])
        report.notes.append(f"{len(records.unreadable)} audit records cannot be read: {shown}")
    report.judge_seconds = time.monotonic() - began


def _loss(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "log": row["log"],
        "after": f"{row['after_ledger']}-{row['after_entry']}",
        "last": f"{row['last_ledger']}-{row['last_entry']}",
        "timeMs": row["time_ms"],
    }


def different(held: dict[str, Segments], rows: Sequence[SegmentRow]) -> list[Finding]:
    """Ledgers that both have completely, with different hashes."""
    chains = {(row.topic, row.ledger, row.end): row.chain for row in rows if row.chain}
    found = []
    for log, segments in held.items():
        for segment in segments.segments:
            key = (log, segment.ledger, segment.end.entry)
            if segment.chain and chains.get(key, segment.chain) != segment.chain:
                text = f"ledger {segment.ledger} was offloaded with another hash than it has now"
                found.append(
                    Finding(log, "S7", (f"{segment.ledger}-{segment.end.entry - 1}",), text)
                )
    return found
