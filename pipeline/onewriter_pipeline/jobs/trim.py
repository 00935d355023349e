"""``onewriter-pipeline trim``: trims topics to what the tables do not have, after verifying the tables.

The only input is the end of the last commit of ``messages``. Everything to be trimmed is first compared with the
files. A single difference prevents the trim of all topics. The broker trims under the epoch that was seen, and
keeps what subscriptions and other readers still need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import click

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of, shown
from onewriter_pipeline.brokers.segments import Segment, Segments, Trim
from onewriter_pipeline.errors import Conflict
from onewriter_pipeline.jobs.options import (
    Violation,
    access_of,
    access_options,
    output_option,
    print_report,
    progress,
    selection_of,
    table_options,
    tables_of,
    topic_options,
)
from onewriter_pipeline.read.selection import Selection, logs_of
from onewriter_pipeline.read.spans import trimmable_before
from onewriter_pipeline.tables.layout import MESSAGES, SegmentRow
from onewriter_pipeline.tables.read_back import Altered, read_back
from onewriter_pipeline.tables.table import Table
from onewriter_pipeline.tables.tables import Tables
from onewriter_pipeline.tables.verification import (
    DIFFERENCES_SHOWN,
    Counted,
    Difference,
    WantedRows,
    differences,
)
from onewriter_pipeline.tables.witnesses import Unlike, WitnessWriter, unlike_witness

OPEN: Final = "ledger"
"""The limit of a trim at a ledger that may still grow."""

TRIM_REQUESTS_MAX: Final = 10_000
"""Requests to trim one log; each one drops at most 20,000 blocks."""

OFFLOAD: Final = "offload"
"""The limit of a trim at entries that are not in the table yet."""

_REASONS: Final = {
    None: "all that was asked for",
    "keepHours": "the rest is younger than --keep-hours",
    OFFLOAD: "the rest is not in the table yet",
    OPEN: "the current ledger stays",
    "subscription": "subscription {name} has not acknowledged the rest",
    "deduplication": "deduplication needs the rest",
    "compaction": "compaction has not seen the rest",
    "witness": "nothing witnesses that the rest was copied to table {name}",
}


@dataclass(slots=True)
class LogReport:
    """The result for one log. ``limited_by``: what prevented a larger trim; ``error``: why nothing was trimmed."""

    log: str
    first: Position
    before: Position
    limited_by: str | None
    segments: int
    messages: int
    name: str | None = None
    error: str = ""
    differences: list[Difference | Altered | Unlike] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "topic": self.log,
            "first": shown(self.first),
            "trimmedBefore": shown(self.before),
            "limitedBy": self.limited_by,
            "name": self.name,
            "segmentsVerified": self.segments,
            "messagesVerified": self.messages,
            "differences": [str(each) for each in self.differences],
            "error": self.error,
        }

    def line(self, *, is_dry: bool = False) -> str:
        """The report as a line of text."""
        if self.differences or self.error:
            return (
                f"{self.log}: {self.error or 'the table differs from the log'}; nothing was trimmed"
            )
        reason = _REASONS.get(self.limited_by, f"limited by {self.limited_by}")
        done = "would be trimmed" if is_dry else "trimmed"
        rest = "" if self.first >= self.before else ", the rest of a node of the store"
        return (
            f"{self.log}: {done} below {shown(self.before)}, begins at {shown(self.first)}{rest};"
            f" {self.segments} ledgers, {self.messages:,} messages verified;"
            f" {reason.format(name=self.name)}"
        )


@dataclass(frozen=True, slots=True)
class TrimJob:
    """What to trim, and the tables to compare with. ``now``: the time, for ``keep_hours``."""

    access: Access
    tables: Tables
    selection: Selection
    now: datetime
    keep_hours: float = 0.0
    is_dry: bool = False

    def run(self, tell_progress: Callable[[str], None]) -> list[LogReport]:
        """Verify all logs, then trim all of them; one difference prevents all trims. Raises PipelineError."""
        messages = self.tables.existing(MESSAGES)
        offsets = messages.state().offsets
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            rows = self.tables.segments(logs)
            checked = []
            for log in logs:
                held = broker.segments(log, witnesses=True)
                if log not in offsets:
                    checked.append((held, LogReport(log, held.first, held.first, OFFLOAD, 0, 0)))
                    continue
                # The first chunks of a message that is incomplete in the table are still needed.
                end = trimmable_before(broker, log, position_of(offsets[log]))
                report = self._verified(messages, held, end, rows)
                report.differences += unlike_witness(held, rows, messages)
                tell_progress(
                    f"{log}: {report.segments} ledgers compared, {len(report.differences)} differences"
                )
                checked.append((held, report))
            if not self.is_dry and not any(report.differences for _, report in checked):
                for held, report in checked:
                    self._trim(broker, held, report, messages)
        return [report for _, report in checked]

    def _verified(
        self, messages: Table, held: Segments, end: Position, rows: Sequence[SegmentRow]
    ) -> LogReport:
        segments, limited_by = going(held, end, self._youngest_ms())
        report = LogReport(held.log, held.first, held.first, limited_by, len(segments), 0)
        of_ledger: dict[int, list[SegmentRow]] = {segment.ledger: [] for segment in segments}
        for row in rows:
            if row.topic == held.log and row.ledger in of_ledger:
                of_ledger[row.ledger].append(row)
        sought = {each.ledger: WantedRows.of(each, of_ledger[each.ledger]) for each in segments}
        wanted = {ledger: each for ledger, each in sought.items() if each is not None}
        read, altered = read_back(messages, held.log, wanted)
        report.differences += altered
        for segment in segments:
            counted = read.get(segment.ledger, Counted())
            report.differences += differences(held.log, segment, of_ledger[segment.ledger], counted)
            report.messages += segment.messages
            report.before = segment.end
        return report

    def _youngest_ms(self) -> int | None:
        """Newer blocks than this are kept."""
        if not self.keep_hours:
            return None
        return int((self.now.timestamp() - self.keep_hours * 3600) * 1000)

    def _trim(self, broker: Broker, held: Segments, report: LogReport, messages: Table) -> None:
        """Trim a log, after its witness was completed. A broker of an earlier release has no witnesses."""
        if report.before <= held.first:
            return
        table = None
        if held.witnesses is not None:
            witnesses = WitnessWriter(broker, self.tables, messages)
            witnesses.begin(held, messages.state())
            witnesses.catch_up()
            if witnesses.notes:
                report.error = witnesses.notes[0]
                return
            table = messages.identity()
        try:
            done = trim_all(broker, held.log, report.before, held.epoch, table)
        except Conflict as error:
            report.error = f"{error} (its holder changed meanwhile: run it again)"
            return
        report.before, report.first = done.before, done.first
        if done.limited_by is not None:
            report.limited_by, report.name = done.limited_by, done.name


def trim_all(
    broker: Broker, log: str, before: Position, epoch: int, table: str | None = None
) -> Trim:
    """Repeat the request until nothing more is trimmed, because one request drops a part of a large log.

    Raises PipelineError; what was trimmed before stays trimmed.
    """
    done = broker.trim(log, before, epoch=epoch, table=table)
    for _ in range(TRIM_REQUESTS_MAX):
        if done.first >= done.before:
            break
        first = done.first
        done = broker.trim(log, before, epoch=epoch, table=table)
        if done.first <= first:
            break
    return done


def going(
    held: Segments, end: Position, youngest_ms: int | None = None
) -> tuple[list[Segment], str | None]:
    """The segments of a log that may be trimmed, oldest first, and what prevents the next one.

    They cannot grow, are offloaded completely, and have nothing newer than ``youngest_ms``.
    """
    found: list[Segment] = []
    for segment in held.segments:
        if segment.is_open:
            return found, OPEN
        if segment.end > end and segment.last is not None:
            return found, OFFLOAD
        if youngest_ms is not None and (segment.newest_ms or 0) > youngest_ms:
            return found, "keepHours"
        found.append(segment)
    return found, None


@click.command("trim")
@access_options
@table_options
@topic_options
@click.option(
    "--keep-hours",
    default=0.0,
    show_default=True,
    help="Keep messages of the last N hours.",
)
@click.option("--dry-run", is_flag=True, help="Verify only.")
@output_option
def command(**options: Any) -> None:
    """Drop from topics what the tables hold, after verifying the files.

    Never trims past the last commit of the table, the current ledger, or a durable subscription. Exit
    codes: 0 done (perhaps less than requested: the result says what kept the rest), 1 an error, 2 the
    table differs from the log, and nothing was trimmed.
    """
    is_dry = options["dry_run"]
    job = TrimJob(
        access=access_of(options),
        tables=tables_of(options),
        selection=selection_of(options),
        now=datetime.now(UTC),
        keep_hours=options["keep_hours"],
        is_dry=is_dry,
    )
    reports = job.run(progress)
    found = [each for report in reports for each in report.differences]
    print_report(
        options["output"],
        {
            "verified": not found,
            "dryRun": is_dry,
            "topics": [report.document() for report in reports],
        },
        [
            *[f"difference: {each}" for each in found[:DIFFERENCES_SHOWN]],
            *[report.line(is_dry=is_dry) for report in reports],
        ],
    )
    if found:
        raise Violation
    if any(report.error for report in reports):
        raise click.exceptions.Exit(1)
