"""``onewriter-pipeline audit``: proof from stored data that each topic had one writer at a time.

What logs, tables and the brokers' audit can show of docs/invariants.md; ends with 2 where something does
not hold. Each task turns its part of a log into few facts, SQL puts them together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa

from onewriter_core.ids import EARLIEST, TopicName
from onewriter_pipeline.auditing import facts, history, kept, live
from onewriter_pipeline.auditing.gathering import collected, gather
from onewriter_pipeline.auditing.judging import FINDINGS_MAX, Finding, Judge, small
from onewriter_pipeline.auditing.records import Records
from onewriter_pipeline.broker import Broker, Segments
from onewriter_pipeline.connection import Access
from onewriter_pipeline.engine import cores_of, running
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.planning import Selection, full_positions, logs_of, matching
from onewriter_pipeline.table_layout import MESSAGES
from onewriter_pipeline.tables import Tables
from onewriter_pipeline.verbs import (
    Violation,
    access_of,
    access_options,
    optional_table_options,
    output_option,
    progress,
    selection_of,
    spark_options,
    tables_of,
    tell,
    topic_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIVE: Final = "live"
TABLE: Final = "table"
BOTH: Final = "both"

TENURES_SHOWN: Final = 20
"""Tenures that people are shown of each run; JSON has all."""

UNREADABLE_SHOWN: Final = 5


@dataclass(slots=True)
class Report:
    """What an audit of one tier found. Rows are those of the queries in ``auditing.history``."""

    tier: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    leaderless: list[dict[str, Any]] = field(default_factory=list)
    holders: list[dict[str, Any]] = field(default_factory=list)
    load: list[dict[str, Any]] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    read_seconds: float = 0.0
    judge_seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """As JSON."""
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
        """For people."""
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
            yield f"  lost, as the broker said: {loss['log']} behind {loss['after']} up to {loss['last']}"
        for row in self.leaderless:
            yield (
                f"  without a writer, {row['cause']}: {row['windows']} times, p50 {row['p50_ms']:.0f} ms,"
                f" p99 {row['p99_ms']:.0f} ms, longest {row['max_ms']:.0f} ms"
            )
        for row in self.timeline[-TENURES_SHOWN:]:
            yield f"  {tenure(row)}"


def tenure(row: dict[str, Any]) -> str:
    """A tenure in one line."""
    seconds = None if row["until_ms"] is None else (row["until_ms"] - row["since_ms"]) / 1000
    lasted = "until now" if seconds is None else f"{seconds:,.3f} s, then {row['ended_by']}"
    gap = (
        ""
        if row["leaderless_ms"] is None
        else f", {row['leaderless_ms']} ms without a writer before"
    )
    who = row["producer"] or "nobody"
    return f"{row['topic']} epoch {row['epoch']}: {who}, {lasted}{gap}"


@dataclass(frozen=True, slots=True)
class Audit:
    """What to audit. ``tables`` None: only live logs can be."""

    access: Access
    selection: Selection
    tables: Tables | None = None

    def run(self, spark: SparkSession, tier: str) -> list[Report]:
        """Audit ``live``, ``table`` or ``both``. Raises PipelineError."""
        spark = small(spark)
        if tier == BOTH:
            return self.both(spark)
        return [self.live(spark) if tier == LIVE else self.table(spark)]

    def live(self, spark: SparkSession) -> Report:
        """Audit the live logs. Raises PipelineError."""
        report = Report(LIVE)
        began = time.monotonic()
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            around = live.look_around(broker, logs)
            parts = live.parts_of(around.held.values(), cores_of(spark))
            observed = gather(spark, partial(live.observe, self.access), parts)
            few, prints = collected(observed)
            live.look_again(broker, around)
        report.notes += around.notes
        report.read_seconds = time.monotonic() - began
        try:
            judge(spark, report, few, prints, around.records, around.logs)
        finally:
            observed.unpersist()
        return report

    def table(self, spark: SparkSession) -> Report:
        """Audit the tables. Raises PipelineError."""
        if self.tables is None:
            raise Invalid("--table is missing: where the tables are")
        report = Report(TABLE)
        began = time.monotonic()
        messages = self.tables.existing(MESSAGES)
        offsets = messages.state().offsets
        logs = self._kept_logs(sorted(offsets))
        records = kept.kept_records(self.tables)
        files = kept.files_of(messages.place, messages.files(), logs)
        observed = gather(spark, kept.observe_file, files)
        few, _ = collected(observed)
        observed.unpersist()
        segments = self.tables.segments(logs)
        said = list(kept.segment_facts(segments))
        said += kept.count_faults(segments, kept.counted_of(few))
        few = kept.in_order(pa.concat_tables([few, pa.Table.from_pylist(said, facts.FACTS)]))
        report.read_seconds = time.monotonic() - began
        buckets = {row["log"]: row["bucket"] for row in records.rows if row.get("log")}
        judge(spark, report, few, None, records, kept.logs_of(offsets, buckets, logs))
        return report

    def both(self, spark: SparkSession) -> list[Report]:
        """Audit both, and compare what both have: the hashes of ledgers."""
        if self.tables is None:
            raise Invalid("--table is missing: where the tables are")
        reports = [self.live(spark), self.table(spark)]
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            held = {log: broker.segments(log) for log in logs}
        reports[1].findings += different(held, self.tables.segments(logs))
        return reports

    def _kept_logs(self, offloaded: Sequence[str]) -> list[str]:
        """The logs in the table that are selected; without asking a broker."""
        wanted = self.selection
        if wanted.topics:
            names = set(full_positions(dict.fromkeys(wanted.topics, EARLIEST)))
            found = [log for log in offloaded if {log, str(TopicName.parse(log).base)} & names]
        else:
            found = matching(offloaded, wanted.pattern)
        if not found:
            raise Invalid("the table has none of these topics")
        return found


def judge(
    spark: SparkSession,
    report: Report,
    few: pa.Table,
    prints: DataFrame | None,
    records: Records,
    logs: Sequence[dict[str, Any]],
) -> None:
    """Fill a report with what facts and records show."""
    began = time.monotonic()
    wanted = {row["log"] for row in logs}
    judging = Judge(spark, records.table(), logs)
    try:
        judging.observed(few, prints)
        found = [each for each in judging.findings() if each.log in wanted]
        judging.view("timeline", judging.sql(history.TIMELINE))
        judging.view("load", judging.sql(history.LOAD))
        report.topics = judging.rows(history.EXTENT)
        report.timeline = [
            row for row in judging.rows("SELECT * FROM timeline") if row["topic"] in wanted
        ]
        report.leaderless = judging.rows(history.LEADERLESS)
        report.load = judging.rows("SELECT * FROM load")
        report.holders = judging.rows(history.HOLDERS)
    finally:
        judging.close()
    if len(found) > FINDINGS_MAX:
        report.notes.append(f"there are more findings than the {FINDINGS_MAX} that are told")
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


def different(held: dict[str, Segments], rows: Sequence[dict[str, Any]]) -> list[Finding]:
    """Ledgers that are whole in both, and have other hashes."""
    chains = {
        (row["topic"], row["ledger"], row["end"]): row["chain"] for row in rows if row["chain"]
    }
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


@click.command("audit")
@access_options
@optional_table_options
@topic_options
@click.option(
    "--from",
    "tier",
    type=click.Choice([LIVE, TABLE, BOTH]),
    default=LIVE,
    show_default=True,
    help="The logs in the brokers, the tables, or both.",
)
@output_option
@spark_options
def command(**options: Any) -> None:
    """Check that every topic had one writer at a time, from what is stored.

    Exit codes: 0 everything holds; 1 an error; 2 something does not hold: each finding says what.
    """
    job = Audit(
        access_of(options),
        selection_of(options),
        tables_of(options) if options["table"] else None,
    )
    if options["tier"] != LIVE and job.tables is None:
        raise Invalid("--table is missing: where the tables are")
    with running("onewriter audit", options["master"], options["conf"]) as spark:
        progress(f"reading ({options['tier']})")
        reports = job.run(spark, options["tier"])
    documents = [report.document() for report in reports]
    tell(
        options["output"],
        {"holds": all(each["holds"] for each in documents), "audits": documents},
        [line for report in reports for line in report.lines()],
    )
    if any(report.findings for report in reports):
        raise Violation
