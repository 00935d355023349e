"""``onewriter-pipeline trim``: drop from topics what the tables hold, once that is verified.

The input is where the last commit of ``messages`` ends, nothing else. Everything that would go is
compared with the files first; one difference, and nothing of any topic goes. The broker does it, under
the epoch that was seen, and keeps what subscriptions and others still need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import click

from onewriter_core.ids import Position
from onewriter_pipeline.broker import Broker, Segment, Segments, Trim
from onewriter_pipeline.connection import Access, position_of
from onewriter_pipeline.errors import Conflict
from onewriter_pipeline.planning import Selection, logs_of, shown
from onewriter_pipeline.reading import trimmable_before
from onewriter_pipeline.table import Table
from onewriter_pipeline.table_layout import MESSAGES
from onewriter_pipeline.tables import Tables
from onewriter_pipeline.verbs import (
    Violation,
    access_of,
    access_options,
    output_option,
    progress,
    selection_of,
    table_options,
    tables_of,
    tell,
    topic_options,
)
from onewriter_pipeline.verifying import DIFFERENCES_SHOWN, Counted, Difference, count, differences

OPEN: Final = "ledger"
"""What limits a trim at a ledger that may still grow."""

_REASONS: Final = {
    None: "all that was asked for",
    "keepHours": "the rest is younger than --keep-hours",
    "offload": "the rest is not in the table yet",
    "ledger": "the current ledger stays",
    "subscription": "subscription {name} has not acknowledged the rest",
    "deduplication": "deduplication needs the rest",
    "compaction": "compaction has not seen the rest",
}


@dataclass(slots=True)
class LogReport:
    """What becomes of one log. ``limited_by``: what kept more from going; ``error``: why nothing went."""

    log: str
    first: Position
    before: Position
    limited_by: str | None
    segments: int
    messages: int
    name: str | None = None
    error: str = ""
    differences: list[Difference] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON."""
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

    def line(self) -> str:
        """For people."""
        if self.differences or self.error:
            return f"{self.log}: {self.error or 'the table is not what the log is'}; nothing was trimmed"
        reason = _REASONS.get(self.limited_by, f"limited by {self.limited_by}")
        return (
            f"{self.log}: trimmed below {shown(self.before)}, begins at {shown(self.first)};"
            f" {self.segments} ledgers, {self.messages:,} messages verified;"
            f" {reason.format(name=self.name)}"
        )


@dataclass(frozen=True, slots=True)
class TrimJob:
    """What to trim, by which tables. ``now``: the time, for ``keep_hours``."""

    access: Access
    tables: Tables
    selection: Selection
    now: datetime
    keep_hours: float = 0.0
    is_dry: bool = False

    def run(self, tell_progress: Callable[[str], None]) -> list[LogReport]:
        """Verify all, then trim all; with one difference nothing is trimmed. Raises PipelineError."""
        messages = self.tables.existing(MESSAGES)
        offsets = messages.state().offsets
        with Broker(self.access) as broker:
            logs = [log for log in logs_of(broker, self.selection) if log in offsets]
            rows = self.tables.segments(logs)
            checked = []
            for log in logs:
                held = broker.segments(log)
                # The first chunks of a message that is not whole in the table are needed still.
                end = trimmable_before(broker, log, position_of(offsets[log]))
                report = self._verified(messages, held, end, rows)
                tell_progress(
                    f"{log}: {report.segments} ledgers compared, {len(report.differences)} differences"
                )
                checked.append((held, report))
            if not self.is_dry and not any(report.differences for _, report in checked):
                for held, report in checked:
                    self._trim(broker, held, report)
        return [report for _, report in checked]

    def _verified(
        self, messages: Table, held: Segments, end: Position, rows: Sequence[dict[str, Any]]
    ) -> LogReport:
        segments, limited_by = going(held, end, self._youngest_ms())
        report = LogReport(held.log, held.first, held.first, limited_by, len(segments), 0)
        wanted = {
            each.ledger: (each.first.entry, each.last.entry)
            for each in segments
            if each.first is not None and each.last is not None
        }
        counted = count(messages, held.log, wanted)
        of_log = [row for row in rows if row["topic"] == held.log]
        for segment in segments:
            of_ledger = [row for row in of_log if row["ledger"] == segment.ledger]
            found = counted.get(segment.ledger, Counted())
            report.differences += differences(held.log, segment, of_ledger, found)
            report.messages += segment.messages
            report.before = segment.end
        return report

    def _youngest_ms(self) -> int | None:
        """What is newer than this stays."""
        if not self.keep_hours:
            return None
        return int((self.now.timestamp() - self.keep_hours * 3600) * 1000)

    def _trim(self, broker: Broker, held: Segments, report: LogReport) -> None:
        if report.before <= held.first:
            return
        try:
            done: Trim = broker.trim(held.log, report.before, epoch=held.epoch)
        except Conflict as error:
            report.error = f"{error} (it changed hands meanwhile: run it again)"
            return
        report.before, report.first = done.before, done.first
        if done.limited_by is not None:
            report.limited_by, report.name = done.limited_by, done.name


def going(
    held: Segments, end: Position, youngest_ms: int | None = None
) -> tuple[list[Segment], str | None]:
    """The segments of a log that may go, oldest first, and what keeps the next one.

    Those that cannot grow, are offloaded to their end, and hold nothing newer than ``youngest_ms``.
    """
    found: list[Segment] = []
    for segment in held.segments:
        if segment.is_open:
            return found, OPEN
        if segment.end > end and segment.last is not None:
            return found, "offload"
        if youngest_ms is not None and (segment.newest_ms or 0) > youngest_ms:
            return found, "keepHours"
        found.append(segment)
    return found, None


@click.command("trim")
@access_options
@table_options
@topic_options
@click.option("--keep-hours", default=0.0, help="What was stored in the last hours stays.")
@click.option("--dry-run", is_flag=True, help="Verify only.")
@output_option
def command(**options: Any) -> None:
    """Drop from topics what the tables hold, once that is verified against the files.

    Never past the last commit of the table, the current ledger, or a durable subscription. Exit
    codes: 0 done (perhaps less than was asked for: it says what kept the rest), 1 an error, 2 the
    table is not what the log is, and nothing was trimmed.
    """
    now = datetime.now(UTC)
    job = TrimJob(
        access_of(options),
        tables_of(options),
        selection_of(options),
        now,
        options["keep_hours"],
        options["dry_run"],
    )
    reports = job.run(progress)
    found = [each for report in reports for each in report.differences]
    tell(
        options["output"],
        {
            "verified": not found,
            "dryRun": options["dry_run"],
            "topics": [report.document() for report in reports],
        },
        [
            *[f"difference: {each}" for each in found[:DIFFERENCES_SHOWN]],
            *[_line(report, is_dry=options["dry_run"]) for report in reports],
        ],
    )
    if found:
        raise Violation
    if any(report.error for report in reports):
        raise click.exceptions.Exit(1)


def _line(report: LogReport, *, is_dry: bool) -> str:
    line = report.line()
    return line.replace(": trimmed below", ": would be trimmed below") if is_dry else line
