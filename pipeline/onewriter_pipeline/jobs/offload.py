"""``onewriter-pipeline offload``: what topics hold, into tables, once, however often it is run.

It goes on where the last commit of ``messages`` ends and stops at what was committed to the log when it
began. A batch is read and written by tasks, then committed in one step with its end offsets. Killed
anywhere, it leaves files that nobody reads; what was committed is never done again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final

import click

from onewriter_core.ids import Position
from onewriter_pipeline.broker import Broker, Segment, Segments
from onewriter_pipeline.connection import Access, position_of
from onewriter_pipeline.engine import Runner, cores_of, in_process, on_spark, running
from onewriter_pipeline.errors import LogEnds, TableError, Trimmed
from onewriter_pipeline.jobs.offload_audit import offload_audit
from onewriter_pipeline.offsets import (
    Run,
    Span,
    divided,
    entries_of,
    limited,
    runs_between,
    tasks_for,
)
from onewriter_pipeline.planning import Selection, check_kept, logs_of, shown
from onewriter_pipeline.reading import Reading
from onewriter_pipeline.table import State, Table
from onewriter_pipeline.table_files import Stored, Storing, check_there, discard, join, store
from onewriter_pipeline.table_layout import MESSAGES, Coverage
from onewriter_pipeline.tables import FOREIGN_SHOWN, Tables
from onewriter_pipeline.verbs import (
    access_of,
    access_options,
    output_option,
    progress,
    selection_of,
    spark_options,
    table_options,
    tables_of,
    tell,
    topic_options,
)

BATCH_BYTES: Final = 1024 * 1024 * 1024
"""What a batch reads at most, about, unless one says otherwise."""

RUNS_MAX: Final = 20_000
"""Ledgers, or parts of them, of one batch: its commit has a line for each."""


class Step(Enum):
    """What has just been done."""

    PLANNED = "planned"
    WRITTEN = "written"
    COMMITTED = "committed"
    SEGMENTS = "segments"
    AUDIT = "audit"


@dataclass(slots=True)
class Batch:
    """One batch: what it reads, and up to where."""

    number: int
    parts: list[tuple[str, list[Run]]]
    ends: dict[str, Position]
    held: dict[str, Segments]
    starts: dict[str, Position]
    rows: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Report:
    """What a run did."""

    batches: int = 0
    rows: int = 0
    entries: int = 0
    bytes: int = 0
    files: int = 0
    audit_records: int = 0
    seconds: float = 0.0
    offsets: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "batches": self.batches,
            "messages": self.rows,
            "entries": self.entries,
            "bytes": self.bytes,
            "files": self.files,
            "auditRecords": self.audit_records,
            "seconds": round(self.seconds, 3),
            "offsets": self.offsets,
        }


Observer = Callable[[Step, Batch | None], None]


def _nobody(step: Step, batch: Batch | None) -> None:
    del step, batch


@dataclass(frozen=True, slots=True)
class Offload:
    """What to copy, from where to where. ``accept_loss``: what was lost or trimmed is passed over."""

    access: Access
    tables: Tables
    selection: Selection
    batch_bytes: int = BATCH_BYTES
    accept_loss: bool = False
    skip_corrupt: bool = False
    with_audit: bool = True

    def run(self, runner: Runner[Any, Any], cores: int, observe: Observer = _nobody) -> Report:
        """Do it. Raises PipelineError: then all that was committed counts, and it may be run again."""
        began = time.monotonic()
        report = Report()
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)  # a mistake in a name makes no tables
            messages = self.tables.made(MESSAGES)
            self.tables.catch_up()
            targets = {log: broker.segments(log).end for log in logs}
            while True:
                state = messages.state()
                batch = self._planned(broker, state, targets)
                if batch is None:
                    break
                observe(Step.PLANNED, batch)
                self._copy(batch, messages, state, runner, cores, observe, report)
                observe(Step.COMMITTED, batch)
                if messages.state().batch == state.batch:
                    break  # nothing but empty ledgers, which wait for messages to be noted with
            self.tables.catch_up()
            observe(Step.SEGMENTS, None)
            if self.with_audit:
                report.audit_records = offload_audit(broker, self.tables)
                observe(Step.AUDIT, None)
        offsets = messages.state().offsets
        report.offsets = {log: offsets[log] for log in logs if log in offsets}
        report.seconds = time.monotonic() - began
        return report

    def is_needed(self) -> bool:
        """Whether there is anything to copy now; without it no Spark has to be started.

        Raises PipelineError for what ``run`` would raise at its beginning.
        """
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)
            messages = self.tables.opened(MESSAGES)
            state = State() if messages is None else messages.state()
            targets = {log: broker.segments(log).end for log in logs}
            batch = self._planned(broker, state, targets)
            return batch is not None and bool(batch.parts)

    # ------------------------------------------------------------ planning

    def _planned(
        self, broker: Broker, state: State, targets: Mapping[str, Position]
    ) -> Batch | None:
        """The next batch; None: all was read."""
        held: dict[str, Segments] = {}
        starts: dict[str, Position] = {}
        ahead: dict[str, list[Run]] = {}
        for log, target in targets.items():
            known = state.offsets.get(log)
            if known is not None and position_of(known) == target:
                continue
            segments = (
                broker.segments(log, position_of(known).previous) if known else broker.segments(log)
            )
            held[log] = segments
            starts[log] = self._start(broker, segments, known, target)
            ahead[log] = runs_between(segments.segments, starts[log], target)
        share = max(1, RUNS_MAX // max(1, len(ahead)))
        bounded = limited(ahead, bytes_=self.batch_bytes)
        ends = {
            log: _end(runs[:share], bounded[log], targets[log], is_cut=len(runs) > share)
            for log, runs in ahead.items()
        }
        moved = {log: end for log, end in ends.items() if shown(end) != state.offsets.get(log)}
        if not moved:
            return None
        parts = [
            (log, runs_between(held[log].segments, starts[log], end)) for log, end in moved.items()
        ]
        return Batch(
            state.next_batch, [(log, runs) for log, runs in parts if runs], moved, held, starts
        )

    def _start(
        self, broker: Broker, held: Segments, known: str | None, target: Position
    ) -> Position:
        """Where a log goes on. Raises Trimmed, LogEnds where that is not there."""
        if known is None:
            return held.first
        start, log = position_of(known), held.log
        if start > target:
            if self.accept_loss:
                return target
            raise LogEnds(
                f"{log} ends at {shown(target)}, in front of {shown(start)}, which is in the table: its"
                " tail was lost, or it was deleted and made again (--accept-loss goes on with it)",
                target,
            )
        if self.accept_loss:
            return max(start, held.first)
        try:
            check_kept(broker, log, held, start)
        except Trimmed as error:
            raise Trimmed(
                f"{log} was trimmed before it was offloaded: it begins at {shown(held.first)}, and"
                f" the table ends at {shown(start)} (--accept-loss goes on there)",
                error.first,
                error.trimmed,
            ) from None
        return start

    # ------------------------------------------------------------ copying

    def _copy(
        self,
        batch: Batch,
        messages: Table,
        state: State,
        runner: Runner[Sequence[Span], Stored],
        cores: int,
        observe: Observer,
        report: Report,
    ) -> None:
        began = time.monotonic()
        reading = Reading(MESSAGES.columns.names, not self.accept_loss, self.skip_corrupt)
        how = Storing(self.access, messages.place, reading)
        done = list(runner(partial(store, how=how), _tasks(batch.parts, cores)))
        files = [file for each in done for file in each.files]
        try:
            wrong = next((each.error for each in done if each.error), "")
            if wrong:
                raise TableError(wrong)
            check_there(messages.place, files)
            observe(Step.WRITTEN, batch)
            coverage = [part for each in done for part in each.coverage]
            rows = [row for log in batch.ends for row in segment_rows(batch, log, coverage)]
            offsets = dict(state.offsets) | {log: shown(end) for log, end in batch.ends.items()}
            messages.commit(state, files, offsets, rows)
        except TableError:
            discard(messages.place, files)
            raise
        batch.rows = sum(part.rows for part in coverage)
        batch.seconds = time.monotonic() - began
        report.batches += 1
        report.rows += batch.rows
        report.entries += sum(part.entries for part in coverage)
        report.bytes += sum(part.bytes for part in coverage)
        report.files += len(files)


def _end(
    runs: Sequence[Run], bounded: Position | None, target: Position, *, is_cut: bool
) -> Position:
    """Where a log's part of a batch ends."""
    if bounded is None and not is_cut:
        return target
    last = Position(runs[-1].ledger, runs[-1].end)
    return last if bounded is None else min(bounded, last)


def _tasks(parts: Sequence[tuple[str, Sequence[Run]]], cores: int) -> list[list[Span]]:
    count = tasks_for(
        sum(run.weight for _, runs in parts for run in runs),
        sum(entries_of(runs) for _, runs in parts),
        cores=cores,
        tasks_min=1,
        entries_max=0,
    )
    return divided(parts, math.ceil(count / cores) * cores if count > cores else count)


def segment_rows(batch: Batch, log: str, coverage: Sequence[Coverage]) -> list[list[object]]:
    """What a batch read of a log, ledger by ledger, as rows of ``segments`` (without ``batch``)."""
    start, end = batch.starts[log], batch.ends[log]
    known = {segment.ledger: segment for segment in batch.held[log].segments}
    parts = [part for part in coverage if part.log == log]
    merged: list[Coverage] = []
    for part in sorted(parts, key=lambda each: (each.ledger, each.first)):
        join(merged, part)
    rows = [_segment_row(log, known.get(part.ledger), part) for part in merged]
    for segment in known.values():
        begins = Position(segment.ledger, 1)
        if segment.last is None and start < begins <= end:  # a tenure that wrote nothing
            rows.append(_segment_row(log, segment, Coverage(log, segment.ledger, 1, 1, 0, 0, 0)))
    return sorted(rows, key=lambda row: (row[1], row[7]))


def _segment_row(log: str, segment: Segment | None, part: Coverage) -> list[object]:
    """In the order of the columns; a chain only where all of the ledger up to its end was read."""
    of = segment
    is_all = of is not None and of.last is not None and of.last.entry + 1 == part.end
    return [
        log,
        part.ledger,
        of and of.epoch,
        of and of.producer,
        of and of.subject,
        of and of.cause,
        of and of.mode,
        part.first,
        part.end,
        part.entries,
        part.messages,
        part.rows,
        part.bytes,
        of and of.oldest_ms,
        of and of.newest_ms,
        of.chain if of is not None and is_all else None,
    ]


@click.command("offload")
@access_options
@table_options
@topic_options
@spark_options
@click.option(
    "--batch-mb",
    default=BATCH_BYTES // 1024**2,
    show_default=True,
    type=click.IntRange(1),
    help="What one commit holds at most, about, in MiB of the log.",
)
@click.option(
    "--accept-loss", is_flag=True, help="Go on behind what was trimmed or lost meanwhile."
)
@click.option("--skip-corrupt", is_flag=True, help="Leave out entries that cannot be read.")
@click.option("--audit/--no-audit", "with_audit", default=True, help="The audit, too.")
@output_option
def command(**options: Any) -> None:
    """Copy what topics hold to tables; run it again for what came since.

    Whole or not at all, batch by batch; it may be killed at any time and run again. Exit codes: 0
    all that was committed when it began is in the tables; 1 an error: what was committed counts.
    """
    job = Offload(
        access_of(options),
        tables_of(options),
        selection_of(options),
        options["batch_mb"] * 1024**2,
        options["accept_loss"],
        options["skip_corrupt"],
        options["with_audit"],
    )
    for path in job.tables.foreign()[:FOREIGN_SHOWN]:
        progress(f"{path} is none of the tables' files: left alone")
    if job.is_needed():
        with running("onewriter offload", options["master"], options["conf"]) as spark:
            report = job.run(on_spark(spark), cores_of(spark), _shown_progress)
    else:
        report = job.run(in_process, 1, _shown_progress)
    line = (
        f"{report.rows:,} messages of {len(report.offsets)} logs in {report.batches} batches and"
        f" {report.files} files, {report.audit_records:,} records of the audit,"
        f" {report.seconds:.1f} s"
    )
    tell(options["output"], report.document(), [line])


def _shown_progress(step: Step, batch: Batch | None) -> None:
    if step is Step.COMMITTED and batch is not None:
        rate = batch.rows / max(batch.seconds, 0.001)
        progress(
            f"batch {batch.number}: {batch.rows:,} messages of {len(batch.parts)} logs in"
            f" {batch.seconds:.1f} s ({rate:,.0f}/s)"
        )
