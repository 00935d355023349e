"""``onewriter-pipeline offload``: copies topics to tables, each message once, however often it is run.

It continues at the end of the last commit of ``messages``, and stops at what was committed to the log when it
began. Tasks read and write a batch; then one commit adds its files and its end offsets. If it is killed, it leaves
files that no reader uses. It never copies committed messages again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Final

import click

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of, shown
from onewriter_pipeline.brokers.segments import Segment, Segments
from onewriter_pipeline.engine import Runner, cores_of, in_process, on_spark, running
from onewriter_pipeline.errors import EngineFailed, LogEnds, TableError, Trimmed
from onewriter_pipeline.jobs.offload_audit import copied_audit, offload_audit
from onewriter_pipeline.jobs.options import (
    access_of,
    access_options,
    output_option,
    print_report,
    progress,
    selection_of,
    spark_options,
    table_options,
    tables_of,
    topic_options,
)
from onewriter_pipeline.read.offsets import (
    Run,
    Span,
    divided,
    entries_of,
    limited,
    runs_between,
    tasks_for,
)
from onewriter_pipeline.read.selection import BEGINNING, Selection, check_kept, logs_of
from onewriter_pipeline.read.spans import Reading
from onewriter_pipeline.tables.digest import shown as digest_shown
from onewriter_pipeline.tables.files import check_there, discard, discard_run
from onewriter_pipeline.tables.layout import (
    MESSAGES,
    TOPIC_PARTITION,
    Coverage,
    SegmentRow,
    folder_of,
)
from onewriter_pipeline.tables.log_writer import Stored, WriteSettings, join, store
from onewriter_pipeline.tables.table import State, Table
from onewriter_pipeline.tables.tables import FOREIGN_SHOWN, Tables
from onewriter_pipeline.tables.witnesses import WitnessWriter

BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Approximate size of a batch, by default."""

BATCH_RUNS_MAX: Final = 20_000
"""Ledgers, or parts of ledgers, in one batch. Its commit has a line for each."""

PUBLISHES_MAX: Final = 20_000
"""Runs of atomic publishes in one batch. Its commit names each."""


class Step(Enum):
    """The step that was just completed."""

    PLANNED = "planned"
    WRITTEN = "written"
    COMMITTED = "committed"
    WITNESSED = "witnessed"
    SEGMENTS = "segments"
    AUDIT = "audit"


@dataclass(slots=True)
class Batch:
    """What a batch reads. ``lost``: for some logs, the beginning of the missing entries before ``starts``."""

    number: int
    parts: list[tuple[str, list[Run]]]
    ends: dict[str, Position]
    held: dict[str, Segments]
    starts: dict[str, Position]
    lost: dict[str, Position] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class OffloadReport:
    """The result of a run."""

    batches: int = 0
    rows: int = 0
    entries: int = 0
    bytes: int = 0
    files: int = 0
    audit_records: int = 0
    seconds: float = 0.0
    offsets: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "batches": self.batches,
            "messages": self.rows,
            "entries": self.entries,
            "bytes": self.bytes,
            "files": self.files,
            "auditRecords": self.audit_records,
            "seconds": round(self.seconds, 3),
            "offsets": self.offsets,
            "notes": self.notes,
        }


Observe = Callable[[Step, Batch | None], None]


def _no_step(step: Step, batch: Batch | None) -> None:
    del step, batch


@dataclass(frozen=True, slots=True)
class Offload:
    """What to copy, from where to where. ``accept_loss``: lost or trimmed entries are skipped."""

    access: Access
    tables: Tables
    selection: Selection
    batch_bytes: int = BATCH_BYTES
    accept_loss: bool = False
    skip_corrupt: bool = False
    with_audit: bool = True

    def run(
        self, runner: Runner[Any, Any], cores: int, observe: Observe = _no_step
    ) -> OffloadReport:
        """Copy everything. Raises PipelineError; then the committed batches are valid, and the job can be repeated."""
        began = time.monotonic()
        report = OffloadReport()
        with Broker(self.access) as broker:
            logs = logs_of(broker, self.selection)  # an unknown topic creates no tables
            messages = self.tables.made(MESSAGES)
            self.tables.catch_up()
            witnesses = WitnessWriter(broker, self.tables, messages)
            before = messages.state()
            targets = {}
            for log in logs:
                held = broker.segments(log, witnesses=True)
                targets[log] = held.end
                witnesses.begin(held, before)
            while True:
                state = messages.state()
                batch = self._planned(broker, state, targets)
                if batch is None:
                    break
                observe(Step.PLANNED, batch)
                rows = self._copy(batch, messages, state, runner, cores, observe, report)
                if rows is None:
                    break  # only empty ledgers, which are recorded with the next messages
                observe(Step.COMMITTED, batch)
                for log in batch.ends:
                    witnesses.add(log, state.offsets.get(log), rows, batch.number)
                observe(Step.WITNESSED, batch)
            self.tables.catch_up()
            observe(Step.SEGMENTS, None)
            witnesses.catch_up()
            if self.with_audit:
                report.audit_records = offload_audit(broker, self.tables)
                witnesses.add_audit(copied_audit(self.tables, logs))
                observe(Step.AUDIT, None)
            report.notes += witnesses.notes
        offsets = messages.state().offsets
        report.offsets = {log: offsets[log] for log in logs if log in offsets}
        report.seconds = time.monotonic() - began
        return report

    def is_needed(self) -> bool:
        """Whether there is anything to copy; if not, Spark need not start.

        Raises the PipelineErrors of the beginning of ``run``.
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
        """The next batch; None: everything was read."""
        held: dict[str, Segments] = {}
        starts: dict[str, Position] = {}
        lost: dict[str, Position] = {}
        ahead: dict[str, list[Run]] = {}
        for log, target in targets.items():
            known = state.offsets.get(log)
            if known is not None and position_of(known) == target:
                continue
            segments = (
                broker.segments(log, position_of(known).previous) if known else broker.segments(log)
            )
            held[log] = segments
            starts[log], gone = self._start(broker, segments, known, target)
            if gone is not None:
                lost[log] = gone
            ahead[log] = runs_between(segments.segments, starts[log], target)
        share = max(1, BATCH_RUNS_MAX // max(1, len(ahead)))
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
            state.next_batch,
            [(log, runs) for log, runs in parts if runs],
            moved,
            held,
            starts,
            lost,
        )

    def _start(
        self, broker: Broker, held: Segments, known: str | None, target: Position
    ) -> tuple[Position, Position | None]:
        """Where the copy of a log continues, and where missing entries before that begin; None: none are missing.

        Raises Trimmed or LogEnds for missing entries, unless loss is accepted.
        """
        start, log = BEGINNING if known is None else position_of(known), held.log
        if start > target:
            if self.accept_loss:
                return target, None
            raise LogEnds(
                f"{log} ends at {shown(target)}, before {shown(start)}, which is in the table: its"
                " tail was lost, or it was deleted and created again (--accept-loss continues with it)",
                target,
            )
        try:
            check_kept(broker, held, start)
        except Trimmed as error:
            if self.accept_loss or known is None:
                return held.first, start
            raise Trimmed(
                f"{log} was trimmed before it was offloaded: it begins at {shown(held.first)}, and"
                f" the table ends at {shown(start)} (--accept-loss continues there)",
                error.first,
                error.trimmed,
            ) from None
        if self.accept_loss or known is None:
            return max(start, held.first), None
        return start, None

    # ------------------------------------------------------------ copying

    def _copy(
        self,
        batch: Batch,
        messages: Table,
        state: State,
        runner: Runner[Sequence[Span], Stored],
        cores: int,
        observe: Observe,
        report: OffloadReport,
    ) -> list[SegmentRow] | None:
        """Write and commit a batch. Returns the new rows of ``segments``; None: there was nothing to commit."""
        began = time.monotonic()
        reading = Reading(MESSAGES.columns.names, not self.accept_loss, self.skip_corrupt)
        how = WriteSettings(self.access, messages.place, reading)
        try:
            done = list(runner(partial(store, how=how), _tasks(batch.parts, cores)))
        except (EngineFailed, KeyboardInterrupt):  # it is unknown which tasks wrote files
            folders = {f"{TOPIC_PARTITION}={folder_of(log)}" for log, _ in batch.parts}
            discard_run(messages.place, how.run, folders)
            raise
        files = [file for each in done for file in each.files]
        try:
            wrong = next((each.error for each in done if each.error), "")
            if wrong:
                raise TableError(wrong)
            check_there(messages.place, files)
            observe(Step.WRITTEN, batch)
            coverage = [part for each in done for part in each.coverage]
            found = [row for log in batch.ends for row in segment_rows(batch, log, coverage)]
            rows = list(within_publishes_max(found))
            offsets = dict(state.offsets) | {log: shown(end) for log, end in batch.ends.items()}
            after = messages.commit(state, files, offsets, [row.as_list() for row in rows])
        except TableError:
            discard(messages.place, files)
            raise
        if after == state:
            return None
        batch.rows = sum(part.rows for part in coverage)
        batch.seconds = time.monotonic() - began
        report.batches += 1
        report.rows += batch.rows
        report.entries += sum(part.entries for part in coverage)
        report.bytes += sum(part.bytes for part in coverage)
        report.files += len(files)
        return rows


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


def segment_rows(batch: Batch, log: str, coverage: Sequence[Coverage]) -> list[SegmentRow]:
    """What a batch read of a log, by ledger."""
    start, end = batch.starts[log], batch.ends[log]
    known = {segment.ledger: segment for segment in batch.held[log].segments}
    parts = [part for part in coverage if part.log == log]
    merged: list[Coverage] = []
    for part in sorted(parts, key=lambda each: (each.ledger, each.first)):
        join(merged, part)
    rows = [_segment_row(batch, known.get(part.ledger), part) for part in merged]
    for segment in known.values():
        begins = Position(segment.ledger, 1)
        if segment.last is None and start < begins <= end:  # a tenure without messages
            rows.append(_segment_row(batch, segment, Coverage(log, segment.ledger, 1, 1, 0, 0, 0)))
    for begin, end in _gone(batch, log, merged):
        at = Coverage(log, end.ledger, end.entry, end.entry, 0, 0, 0)
        rows.append(_segment_row(batch, known.get(end.ledger), at, lost=shown(begin)))
    return sorted(rows, key=lambda row: (row.ledger, row.first))


def _gone(
    batch: Batch, log: str, covered: Sequence[Coverage]
) -> Iterator[tuple[Position, Position]]:
    """Ranges that no offload will read: missing before the batch, or trimmed before its tasks read them."""
    if log in batch.lost:
        yield batch.lost[log], batch.starts[log]
    for run in (run for of, runs in batch.parts if of == log for run in runs):
        at = run.first
        for part in covered:
            if part.ledger == run.ledger and part.end > at and part.first < run.end:
                if part.first > at:
                    yield Position(run.ledger, at), Position(run.ledger, part.first)
                at = part.end
        if at < run.end:
            yield Position(run.ledger, at), Position(run.ledger, run.end)


def _segment_row(
    batch: Batch, segment: Segment | None, part: Coverage, *, lost: str | None = None
) -> SegmentRow:
    row = SegmentRow(
        topic=part.log,
        ledger=part.ledger,
        first=part.first,
        end=part.end,
        entries=part.entries,
        messages=part.messages,
        rows=part.rows,
        bytes=part.bytes,
        digest=digest_shown(part.digest),
        chain=part.chain or None,
        lost=lost,
        publishes=part.publishes,
        batch=batch.number,
    )
    if segment is None:
        return row
    return replace(
        row,
        epoch=segment.epoch,
        producer=segment.producer,
        subject=segment.subject,
        cause=segment.cause,
        mode=segment.mode,
        oldest_ms=segment.oldest_ms,
        newest_ms=segment.newest_ms,
    )


def within_publishes_max(rows: Iterable[SegmentRow]) -> Iterator[SegmentRow]:
    """The rows, without publishes beyond PUBLISHES_MAX; None means unknown."""
    left = PUBLISHES_MAX
    for row in rows:
        left -= len(row.publishes or ())
        yield row if left >= 0 else replace(row, publishes=None)


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
    help="Approximate size of one commit, in MiB of the log.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Continue after a range that was trimmed or lost before it was offloaded.",
)
@click.option("--skip-corrupt", is_flag=True, help="Leave out entries that cannot be read.")
@click.option(
    "--audit/--no-audit",
    "with_audit",
    default=True,
    show_default=True,
    help="Copy the brokers' audit records, too.",
)
@output_option
def command(**options: Any) -> None:
    """Copy the messages of topics to tables; run it again for new messages.

    Each batch is copied completely or not at all. You can kill the command at any time and run it
    again. Exit codes: 0 all messages from before the start are in the tables; 1 an error: committed
    batches stay; 2 the tables are not what was copied to them before, as the brokers witness.
    """
    job = Offload(
        access=access_of(options),
        tables=tables_of(options),
        selection=selection_of(options),
        batch_bytes=options["batch_mb"] * 1024**2,
        accept_loss=options["accept_loss"],
        skip_corrupt=options["skip_corrupt"],
        with_audit=options["with_audit"],
    )
    for path in job.tables.foreign()[:FOREIGN_SHOWN]:
        progress(f"{path} does not belong to the tables; it was not touched")
    if job.is_needed():
        with running("onewriter offload", options["master"], options["conf"]) as spark:
            report = job.run(on_spark(spark), cores_of(spark), _shown_progress)
    else:
        report = job.run(in_process, 1, _shown_progress)
    line = (
        f"{report.rows:,} messages of {len(report.offsets)} logs in {report.batches} batches and"
        f" {report.files} files"
        if report.rows
        else "nothing to offload: there are no messages that are not in the table"
    )
    line += f"; {report.audit_records:,} records of the audit, {report.seconds:.1f} s"
    lines = [line, *(f"note: {note}" for note in report.notes)]
    print_report(options["output"], report.document(), lines)


def _shown_progress(step: Step, batch: Batch | None) -> None:
    if step is Step.COMMITTED and batch is not None:
        rate = batch.rows / max(batch.seconds, 0.001)
        progress(
            f"batch {batch.number}: {batch.rows:,} messages of {len(batch.parts)} logs in"
            f" {batch.seconds:.1f} s ({rate:,.0f}/s)"
        )
