"""Facts of live logs: the division into parts, and how a task reads its part from the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from onewriter_core.ids import EARLIEST, Position, TopicName, bucket_of
from onewriter_pipeline.audit.audit_records import AuditRecords
from onewriter_pipeline.audit.observer import Observer
from onewriter_pipeline.audit.repeats import PossibleRepeats
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.frames import MarkerFrame
from onewriter_pipeline.brokers.segments import Segment, Segments
from onewriter_pipeline.errors import Away, Damaged, LogEnds, Trimmed
from onewriter_pipeline.read.offsets import END_OF_LOG, divided, runs_between, tasks_for

HOLES_MAX: Final = 1_000
"""A task reads its part on after this many holes at most."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """The blocks and markers of one log that begin in [start, end); can be pickled."""

    log: str
    number: int
    start: Position
    end: Position
    is_first: bool
    exclusive: dict[int, bool]
    checksummed: frozenset[str] = frozenset()
    """Producers whose entries need checksums."""


@dataclass(slots=True)
class Observations:
    """What the brokers know besides the blocks: audit records, and the states of the logs."""

    kept: AuditRecords = field(default_factory=AuditRecords)
    held: dict[str, Segments] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def observe_before(broker: Broker, logs: Sequence[str]) -> Observations:
    """Read the audit and the segments, in an order that allows for fences and blocks that are added meanwhile.

    A fence whose record is read first must have its marker in the blocks that are read later. ``observe_after`` reads
    the rest of the audit after the logs.
    """
    found = Observations()
    kept, count = found.kept, broker.buckets()
    kept.buckets = {log: bucket_of(TopicName.parse(log), count) for log in logs}
    for bucket in sorted(set(kept.buckets.values())):
        kept.add(bucket, broker.audit(bucket))
    for log in logs:
        kept.of(log).settle([log])
        held = found.held[log] = _segments(broker, log, found.notes)
        if held.end < END_OF_LOG and not held.stored_blocks:
            found.notes.append(
                f"{log}: its broker has an earlier release, and may have sent the newest blocks from its"
                " memory instead of the store"
            )
    return found


def observe_after(broker: Broker, found: Observations) -> None:
    """Read the state of each log, and the audit records that were added meanwhile.

    The order matters: the state includes what the blocks show, and the audit includes any request to forget an app.
    """
    kept = found.kept
    for log, held in found.held.items():
        if held.end < END_OF_LOG:
            kept.states[log] = broker.state(log, held.end.previous)
    for bucket in sorted(set(kept.buckets.values())):
        kept.add(bucket, broker.audit(bucket, kept.audits[bucket].last_id))


def _segments(broker: Broker, log: str, notes: list[str]) -> Segments:
    """The segments of a log. If the broker cannot return them, the log is read in one piece."""
    try:
        return broker.segments(log)
    except (Away, Damaged) as error:
        notes.append(f"{log}: its segments are unknown ({error}); it was read in one piece")
        return Segments(log, 0, 0, EARLIEST, END_OF_LOG, ())


def parts_of(held: Iterable[Segments], cores: int) -> list[LogPart]:
    """Divide logs into parts for tasks: each block and marker belongs to one part."""
    runs = {each.log: runs_between(each.segments) for each in held}
    weight = sum(run.weight for each in runs.values() for run in each)
    entries = sum(run.entries for each in runs.values() for run in each)
    tasks = tasks_for(weight, entries, cores=cores, tasks_min=1, entries_max=0)
    spans = [span for task in divided(list(runs.items()), max(1, tasks)) for span in task]
    parts: list[LogPart] = []
    for each in held:
        cuts = [span.start for span in spans if span.log == each.log][1:]
        edges = [each.first, *cuts, each.end]
        for number in range(len(edges) - 1):
            start, end = edges[number], edges[number + 1]
            if start < end:
                segments = _exclusive(each.segments, start, end)
                parts.append(LogPart(each.log, number, start, end, number == 0, segments))
    return parts


def bytes_of(held: Iterable[Segments]) -> int | None:
    """The size of some logs; None: unknown."""
    logs = list(held)
    if any(each.end == END_OF_LOG for each in logs):
        return None
    return sum(segment.bytes for each in logs for segment in each.segments)


def reread_for_checksums(
    parts: Iterable[LogPart], wanted: Mapping[str, PossibleRepeats]
) -> list[LogPart]:
    """The parts of these logs, to be read again for the checksums of some producers."""
    return [
        replace(part, checksummed=frozenset(wanted[part.log].producers))
        for part in parts
        if part.log in wanted
    ]


def _exclusive(segments: Iterable[Segment], start: Position, end: Position) -> dict[int, bool]:
    return {
        each.ledger: each.epoch is not None and bool(each.producer)
        for each in segments
        if start.ledger <= each.ledger <= end.ledger
    }


def observe(access: Access, part: LogPart) -> Iterator[pa.RecordBatch]:
    """The facts of a part. Unreadable data becomes a fact, too; other errors raise PipelineError."""
    observer = Observer(part.log, part.number, part.exclusive, part.checksummed)
    at: Position | None = part.start if part.is_first else part.start.previous
    with Broker(access) as broker:
        for _ in range(HOLES_MAX):
            try:
                yield from _observed(broker, part, at, observer)
                break
            except Trimmed as gone:
                if gone.first is None or gone.first >= part.end:
                    break
                _note_hole(observer, part, gone)
                at = gone.first
            except LogEnds as ended:
                observer.fault("S5", str(ended), ended.end)
                break
            except Damaged as damaged:
                observer.fault("S7", f"a block cannot be read: {damaged}", at or part.start)
                break
        else:
            text = f"there are more than {HOLES_MAX} holes: later entries were not checked"
            observer.fault("S5", text, at or part.start)
    yield from observer.due()


def _observed(
    broker: Broker, part: LogPart, at: Position | None, observer: Observer
) -> Iterator[pa.RecordBatch]:
    start = None if at == EARLIEST else at
    end = None if part.end == END_OF_LOG else part.end
    for frame in broker.frames(part.log, start, end, publishers=True, stored=True):
        if isinstance(frame, MarkerFrame):
            if part.start <= frame.position < part.end:
                observer.marker(frame)
        elif frame.first < part.start and not part.is_first:
            observer.seed(frame)
        elif frame.first < part.end:
            yield from observer.block(frame)


def _note_hole(observer: Observer, part: LogPart, gone: Trimmed) -> None:
    """Check a hole: a trim explains missing entries below its position, and nothing explains others."""
    if gone.first is None:
        return
    if gone.trimmed is None or gone.first > gone.trimmed:
        observer.fault("S5", f"{part.log}: {gone}", part.start, gone.first)
    observer.cut(gone.first)
