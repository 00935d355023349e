"""The audit of logs and tables: collects facts, checks them, and creates a report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from onewriter_core.audit.findings import NOT_DETECTED, Finding
from onewriter_core.audit.grants import LogAudit
from onewriter_core.audit.logs import LogChecker
from onewriter_core.audit.records import LossRecord
from onewriter_core.audit.sequences import stored_twice
from onewriter_core.ids import Position
from onewriter_pipeline.audit import (
    facts,
    history,
    live,
    table_files,
    table_segments,
    witnessed,
)
from onewriter_pipeline.audit.audit_records import AuditRecords
from onewriter_pipeline.audit.repeats import possible_repeats
from onewriter_pipeline.audit.tasks import Repeat, gathered, repeated
from onewriter_pipeline.audit.witnessed import (
    NOT_DETECTED_WITH_WITNESSES,
    KnownToBrokers,
)
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.engine import cores_of
from onewriter_pipeline.errors import Away, Invalid, NotAllowed
from onewriter_pipeline.read.selection import Selection, logs_of, selected
from onewriter_pipeline.tables.layout import MESSAGES, SegmentRow
from onewriter_pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIVE: Final = "live"
TABLE: Final = "table"
BOTH: Final = "both"

TENURES_SHOWN: Final = 20
"""Tenures in the text of a report; its JSON has all."""

NOT_DETECTED_IN_LOGS: Final = (
    *NOT_DETECTED,
    "changes of compacted views (onewriter verify compares them with the log)",
)
"""Changes of logs that an audit over HTTP does not find."""

NOT_DETECTED_IN_TABLES: Final = (
    "rows that were changed together with their digests in segments",
    "removed newest commits of messages, unless --from both finds that the log was trimmed further",
    "removed newest records of audit",
)
"""Changes of tables that an audit does not find."""

FINDINGS_MAX: Final = 10_000
"""Findings in a report. The report says if there are more."""


@dataclass(slots=True)
class AuditReport:
    """The result of an audit of one tier. ``audit.history`` describes its rows."""

    tier: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    leaderless: list[dict[str, Any]] = field(default_factory=list)
    holders: list[dict[str, Any]] = field(default_factory=list)
    written: list[dict[str, Any]] = field(default_factory=list)
    """What was written, by ledger; not a part of the document."""
    losses: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    read_seconds: float = 0.0
    judge_seconds: float = 0.0
    kept: AuditRecords = field(default_factory=AuditRecords)
    """What is known besides the contents; not a part of the document."""
    is_witnessed: bool = False
    """Whether tables were compared with what the brokers know of them."""

    @property
    def not_detected(self) -> tuple[str, ...]:
        """The changes that this audit does not find."""
        if self.tier == LIVE:
            return NOT_DETECTED_IN_LOGS
        tables = NOT_DETECTED_WITH_WITNESSES if self.is_witnessed else NOT_DETECTED_IN_TABLES
        return (*NOT_DETECTED_IN_LOGS, *tables) if self.tier == BOTH else tables

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "from": self.tier,
            "holds": not self.findings,
            "witnessed": self.is_witnessed,
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
            "notDetected": list(self.not_detected),
            "timeline": self.timeline,
            "leaderless": self.leaderless,
            "holders": self.holders,
            "readSeconds": round(self.read_seconds, 3),
            "judgeSeconds": round(self.judge_seconds, 3),
        }

    def lines(self, tenures_max: int = TENURES_SHOWN) -> Iterator[str]:
        """The report as text; ``tenures_max``: how many of the newest tenures it shows."""
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
        yield f"  not detected ({self.tier}): {'; '.join(self.not_detected)}"
        for loss in self.losses:
            yield f"  lost, as the broker reported: {loss['log']} after {loss['after']} up to {loss['last']}"
        for row in self.leaderless:
            yield (
                f"  without a writer, {row['cause']}: {row['windows']} times, p50 {row['p50_ms']:.0f} ms,"
                f" p99 {row['p99_ms']:.0f} ms, longest {row['max_ms']:.0f} ms"
            )
        for row in self.timeline[max(0, len(self.timeline) - tenures_max) :]:
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
    """What to audit. ``tables`` None: only live logs can be audited.

    ``asks_brokers``: tables are compared with what the brokers know of them, if a broker answers. ``keeps_rows``: rows
    that are missing at the beginning of a table are a violation, unless they are older than ``keep_days``.
    """

    access: Access
    selection: Selection
    tables: Tables | None = None
    asks_brokers: bool = False
    keeps_rows: bool = False
    keep_days: int | None = None

    def check(self, tier: str) -> None:
        """Raise Invalid if an audit of ``live``, ``table`` or ``both`` lacks a parameter. Sends no request."""
        if tier != LIVE:
            self._there()

    def run(self, spark: SparkSession | None, tier: str) -> list[AuditReport]:
        """Audit ``live``, ``table`` or ``both``. ``spark`` None: in this process. Raises PipelineError."""
        if tier == BOTH:
            return self.both(spark)
        return [self.live(spark) if tier == LIVE else self.table(spark)]

    def live(self, spark: SparkSession | None) -> AuditReport:
        """Audit the live logs. Raises PipelineError."""
        report = AuditReport(LIVE)
        began = time.monotonic()
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            around = live.observe_before(broker, logs)
            cores = 1 if spark is None else cores_of(spark)
            parts = live.parts_of(around.held.values(), cores)
            observe, size = partial(live.observe, self.access), live.bytes_of(around.held.values())
            observed = gathered(spark, observe, parts, size)
            live.observe_after(broker, around)
            report.notes += [*_nothing(logs), *around.notes]
            unclear = possible_repeats(observed)
            again = live.reread_for_checksums(parts, unclear)
            count = sum(each.entries for each in unclear.values())
            repeats = repeated(spark, observe, again, size, count)
        report.read_seconds = time.monotonic() - began
        judge(report, logs, observed, around.kept, repeats)
        return report

    def table(self, spark: SparkSession | None, known: KnownToBrokers | None = None) -> AuditReport:
        """Audit the tables, and compare them with what brokers know. Raises PipelineError."""
        tables = self._there()
        report = AuditReport(TABLE)
        began = time.monotonic()
        messages = tables.existing(MESSAGES)
        state, stored = messages.snapshot()
        offsets, logs = state.offsets, selected(self.selection, state.offsets)
        audited, audit_ends = table_files.audit_rows(tables)
        kept = table_files.audit_records(audited)
        segments = [row for row in tables.segments(logs) if row.batch < state.next_batch]
        publishes = table_segments.publishes_of(segments)
        offloaded = table_segments.offloaded_of(segments)
        files = table_files.files_of(messages.place, stored, logs, publishes, offloaded)
        observed = gathered(
            spark, table_files.observe_file, files, sum(file.size for file in files)
        )
        rows = list(table_segments.segment_facts(segments))
        rows += table_segments.publish_facts(
            segments, {log: position_of(offsets[log]) for log in logs}
        )
        counted = table_segments.counted_of(observed)
        rows += table_segments.count_faults(segments, counted)
        rows += table_segments.digest_faults(segments, observed)
        report.notes += [*_nothing(logs), *table_segments.unknown_publishes(segments)]
        observed = table_segments.in_order(
            pa.concat_tables([observed, pa.Table.from_pylist(rows, facts.FACTS)])
        )
        report.read_seconds = time.monotonic() - began
        for log in logs:
            end = position_of(offsets[log])
            kept.of(log).log(log).settled_ledger = table_segments.settled_ledger(end)
        kept.findings += table_files.twice_in(observed)
        if known is None and self.asks_brokers:
            known = self._known(logs, report)
        commits = [each for each in messages.coverage_since(None) if each[0] < state.next_batch]
        kept.findings += witnessed.commit_findings(logs, commits, segments)
        if known is not None:
            report.is_witnessed = True
            for bucket, records in known.records.items():
                copied = {str(each["id"]): each for each in audited.get(bucket, ())}
                last = audit_ends.get(str(bucket), "")
                kept.findings += witnessed.record_findings(logs, bucket, last, copied, records)
        of_log = witnessed.by_log(logs, audited)
        for each in witnessed.copied_logs(logs, messages.identity(), state, segments, counted):
            about = kept.of(each.log).logs.get(each.log, LogAudit())
            kept.findings += witnessed.offset_findings(each, about)
            if self.keeps_rows:
                now = datetime.now(UTC)
                kept.findings += witnessed.missing_findings(each, self.keep_days, now)
            if known is not None:
                held = known.held.get(each.log)
                records = of_log[each.log]
                kept.findings += witnessed.witness_findings(each, held, records)
                kept.findings += witnessed.ledger_findings(each, held)
                report.notes += witnessed.witness_notes(each, held, records)
        judge(report, logs, observed, kept)
        return report

    def _known(self, logs: Sequence[str], report: AuditReport) -> KnownToBrokers | None:
        """What the brokers know; None: no broker answers, as a note says."""
        try:
            with Broker(self.access) as broker:
                return witnessed.observe_brokers(broker, logs)
        except (Away, NotAllowed) as error:
            report.notes.append(f"the tables were not compared with witnesses: {error}")
            return None

    def both(self, spark: SparkSession | None) -> list[AuditReport]:
        """Audit both, and compare the hashes of ledgers that both have. Raises PipelineError."""
        tables = self._there()
        reports = [self.live(spark), self.table(spark)]
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            held = {log: broker.segments(log) for log in logs}
        reports[1].findings += different(held, tables.segments(logs))
        offsets = tables.existing(MESSAGES).state().offsets
        for log, segments in held.items():
            if log in offsets:
                known = reports[0].kept.of(log).logs.get(log, LogAudit())
                end = position_of(offsets[log])
                reports[1].findings += missing_between(log, known, end, segments.first)
        return reports

    def _there(self) -> Tables:
        if self.tables is None:
            raise Invalid("--table is missing: name the place of the tables")
        return self.tables


def _nothing(logs: Sequence[str]) -> Iterator[str]:
    if not logs:
        yield "no topic matches; nothing was audited"


def judge(
    report: AuditReport,
    logs: Sequence[str],
    observed: pa.Table,
    kept: AuditRecords,
    repeats: Sequence[Repeat] = (),
    findings_max: int = FINDINGS_MAX,
) -> None:
    """Fill a report from the facts about these logs, and from what is known besides."""
    began = time.monotonic()
    wanted = set(logs)
    report.kept = kept
    found = [each for each in kept.findings if each.log in wanted]
    found += _stored_twice(observed, repeats)
    of_log = facts.facts_in(observed)
    for log in sorted(wanted):
        checker = LogChecker(log, kept.of(log))
        for fact in of_log.pop(log, ()):
            found += checker.feed(fact)
        found += checker.finish(kept.states.get(log))
        report.notes += [f"{log}: {note}" for note in checker.notes]
    report.topics = history.extents(observed, wanted)
    report.timeline = history.timeline(kept, wanted)
    report.leaderless = history.leaderless(report.timeline)
    report.written = history.load(observed)
    report.holders = history.holders(report.written)
    if len(found) > findings_max:
        report.notes.append(f"there are more findings than the {findings_max} that are listed")
    report.findings += sorted(found)[:findings_max]
    report.losses = [_loss(each) for log in sorted(wanted) for each in _losses(kept, log)]
    report.records = kept.records
    report.notes += kept.notes()
    report.judge_seconds = time.monotonic() - began


def _stored_twice(observed: pa.Table, repeats: Sequence[Repeat]) -> Iterator[Finding]:
    """Repeats in ledgers without a single holder; in other ledgers the order of the numbers shows them."""
    if not repeats:
        return
    markers = observed.filter(pc.equal(observed["kind"], facts.MARKER)).to_pylist()
    held = {(row["log"], row["ledger"]) for row in markers if row["epoch"] and row["producer"]}
    for each in repeats:
        places = [place for place in each.positions if (each.log, place.ledger) not in held]
        for again in places[1:]:
            yield stored_twice(each.log, each.producer, each.sequence_id, places[0], again)


def _losses(kept: AuditRecords, log: str) -> Sequence[LossRecord]:
    known = kept.of(log).logs.get(log)
    return () if known is None else known.losses


def _loss(loss: LossRecord) -> dict[str, Any]:
    return {
        "log": loss.log,
        "after": str(loss.after),
        "last": str(loss.last),
        "timeMs": loss.time_ms,
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


def missing_between(log: str, known: LogAudit, end: Position, first: Position) -> list[Finding]:
    """Entries that were acknowledged after the end of the table, and before the beginning of the log.

    Ledgers without entries do not count: a trim may drop them before the table records them.
    """
    acknowledged = {
        position
        for fence in known.fences.values()
        for partition, position in fence.acknowledged.items()
        if fence.log_name(partition) == log and position.entry > 0
    }
    gone = [each for each in acknowledged if end <= each < first and not known.is_lost(end, each)]
    if not gone:
        return []
    last = max(gone)
    sentence = (
        f"entries were acknowledged up to {last}, but the table ends before {end}, and the log begins"
        f" at {first}"
    )
    return [Finding(log, "S5", (str(end), str(last), str(first)), sentence)]
