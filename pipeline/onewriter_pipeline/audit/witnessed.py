"""Compares tables with what the brokers know of them: witnesses, audit records, and the ledgers that logs still have.

``observe_brokers`` asks the brokers; everything else is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from onewriter_core.audit.findings import Finding
from onewriter_core.audit.grants import LogAudit
from onewriter_core.ids import EARLIEST, Position, TopicName, bucket_of
from onewriter_core.witnesses import Witness, audit_order
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.brokers.segments import Segment, Segments
from onewriter_pipeline.errors import NotFound
from onewriter_pipeline.tables.layout import SegmentRow
from onewriter_pipeline.tables.table import State
from onewriter_pipeline.tables.witnesses import (
    audit_hashes,
    lacks_commits,
    records_of,
    unlike,
    unlike_audit,
)

RECORDS_NAMED_MAX: Final = 20
"""Audit records of one bucket that findings name."""

NOT_DETECTED_WITH_WITNESSES: Final = (
    "changes of a table together with the brokers' state of its logs",
    "changes of messages and audit records that were made before they were witnessed first",
    "rows that were chosen so that their 64-bit digest does not change",
    "changed audit records about no log that was copied, if the brokers' audit does not have them any more",
)
"""Changes of tables that an audit does not find although it compares witnesses."""

_HOLDER: Final = ("epoch", "producer", "subject")


@dataclass(frozen=True, slots=True)
class KnownToBrokers:
    """What brokers know of some logs. ``held``: logs that exist there. ``records``: the audit of their buckets."""

    held: Mapping[str, Segments] = field(default_factory=dict)
    records: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


def observe_brokers(broker: Broker, logs: Iterable[str]) -> KnownToBrokers:
    """Ask for the segments and witnesses of logs, and for the audit of their buckets. Raises PipelineError."""
    held: dict[str, Segments] = {}
    for log in logs:
        try:
            held[log] = broker.segments(log, witnesses=True)
        except NotFound:
            continue  # it was deleted
    count = broker.buckets()
    buckets = {bucket_of(TopicName.parse(log), count) for log in held}
    return KnownToBrokers(held, {bucket: list(broker.audit(bucket)) for bucket in sorted(buckets)})


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """What a table has of a log. ``table``: its id; ``rows``: of ``segments``; ``counted``: rows and first entry of
    the files, by ledger.
    """

    log: str
    table: str
    state: State
    rows: Sequence[SegmentRow]
    counted: Mapping[int, tuple[int, int]]


def by_log(
    logs: Iterable[str], audited: Mapping[int, Iterable[Mapping[str, Any]]]
) -> dict[str, list[Mapping[str, Any]]]:
    """The audit records about each log, in order. ``audited``: those of each bucket."""
    of_topic: dict[str, list[Mapping[str, Any]]] = {}
    for records in audited.values():
        for record in records:
            of_topic.setdefault(str(record.get("topic")), []).append(record)
    return {log: of_topic.get(str(TopicName.parse(log).base), []) for log in logs}


def copied_logs(
    logs: Iterable[str],
    table: str,
    state: State,
    rows: Iterable[SegmentRow],
    counted: Mapping[tuple[str, int], tuple[int, int]],
) -> list[CopiedLog]:
    """What a table has of some logs."""
    rows_of: dict[str, list[SegmentRow]] = {log: [] for log in logs}
    counted_of: dict[str, dict[int, tuple[int, int]]] = {log: {} for log in rows_of}
    for row in rows:
        if row.topic in rows_of:
            rows_of[row.topic].append(row)
    for (log, ledger), found in counted.items():
        if log in counted_of:
            counted_of[log][ledger] = found
    return [CopiedLog(log, table, state, rows_of[log], counted_of[log]) for log in rows_of]


def witness_findings(
    copied: CopiedLog, held: Segments | None, audited: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Where a table differs from the witness in the state of its log.

    ``audited``: the table's audit records about the log, in order.
    """
    witness, others = _witness(copied, held)
    if witness is None:
        if others:
            text = (
                f"{copied.log} has no witness of table {copied.table}, but of {', '.join(others)}: the"
                " table has another id than before, or its copies were never witnessed"
            )
            yield Finding(copied.log, "S7", ("state",), text)
        return
    if copied.state.batch is None or copied.state.batch < witness.version:
        text = lacks_commits(copied.log, witness, copied.state)
        yield Finding(copied.log, "S5", (str(witness.end),), text)
    for each in unlike(copied.log, witness, records_of(copied.log, copied.rows)):
        yield Finding(copied.log, each.predicate, each.where, each.sentence)
    wrong = unlike_audit(copied.log, witness, audit_hashes(audited))
    if wrong is not None:
        yield Finding(copied.log, wrong.predicate, wrong.where, wrong.sentence)


def witness_notes(
    copied: CopiedLog, held: Segments | None, audited: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """What a comparison with witnesses does not show of a log."""
    if held is None:
        yield f"{copied.log}: no broker has this log: nothing outside the table was compared"
        return
    if held.witnesses is None:
        yield f"{copied.log}: its broker has an earlier release, which stores no witnesses"
        return
    witness, others = _witness(copied, held)
    if witness is None and not others:
        yield f"{copied.log}: its broker has no witness of the rows that were copied to the table"
    elif witness is not None and witness.adopted > EARLIEST:
        yield (
            f"{copied.log}: messages before {witness.adopted} were witnessed as the table had them later"
        )
    if audited and witness is not None and not witness.audit.count:
        yield f"{copied.log}: its broker has no witness of the audit records that were copied"


def _witness(copied: CopiedLog, held: Segments | None) -> tuple[Witness | None, list[str]]:
    """The witness of the table, and the ids of the other tables."""
    known = {} if held is None else {each.table: each for each in held.witnesses or ()}
    return known.pop(copied.table, None), sorted(known)


def offset_findings(copied: CopiedLog, known: LogAudit) -> Iterator[Finding]:
    """The end of a log in the table is not before the end of what was copied.

    After a loss that was accepted, it may be: the log ended earlier then.
    """
    ends = [Position(row.ledger, row.end) for row in copied.rows if row.entries]
    offset = copied.state.offsets.get(copied.log)
    if not ends or offset is None or known.losses:
        return
    if position_of(offset) < max(ends):
        text = f"the table's end of the log is {position_of(offset)}, and it was copied up to {max(ends)}"
        yield Finding(copied.log, "S5", (str(position_of(offset)), str(max(ends))), text)


def missing_findings(copied: CopiedLog, keep_days: int | None, now: datetime) -> Iterator[Finding]:
    """Rows at the beginning that are gone although the table should keep them.

    ``keep_days`` None: it keeps everything. Otherwise messages of earlier days may be gone.
    """
    oldest_ms = None
    if keep_days is not None:
        midnight = datetime.combine(now.date(), datetime.min.time(), UTC)
        oldest_ms = round((midnight - timedelta(days=keep_days)).timestamp() * 1000)
    by_ledger: dict[int, list[SegmentRow]] = {}
    for row in copied.rows:
        by_ledger.setdefault(row.ledger, []).append(row)
    for ledger, rows in sorted(by_ledger.items()):
        wanted, (found, _) = sum(row.rows for row in rows), copied.counted.get(ledger, (0, 0))
        if found >= wanted:
            continue
        times = [row.oldest_ms for row in rows if row.oldest_ms is not None]
        if oldest_ms is None or (times and min(times) >= oldest_ms):
            text = f"{wanted - found} of {wanted} messages of ledger {ledger} are not in the table"
            yield Finding(copied.log, "S5", (str(Position(ledger, rows[0].first)),), text)


def commit_findings(
    logs: Iterable[str],
    commits: Iterable[tuple[int, Sequence[Sequence[Any]]]],
    rows: Sequence[SegmentRow],
) -> Iterator[Finding]:
    """Commits of ``messages`` that describe other copies than ``segments`` does; both have a description."""
    wanted = set(logs)
    by_batch: dict[int, dict[tuple[str, int, int, int], SegmentRow]] = {}
    for row in rows:
        by_batch.setdefault(row.batch, {})[_key(row)] = row
    for batch, ranges in commits:
        described = {}
        for values in ranges:
            row = SegmentRow.of_list(values, batch)
            if row.topic in wanted:
                described[_key(row)] = row
        kept = by_batch.get(batch, {})
        for key in sorted(described.keys() | kept.keys()):
            if described.get(key) != kept.get(key):
                log, ledger, first, _ = key
                text = f"commit {batch} and segments describe the messages from {ledger}-{first} differently"
                yield Finding(log, "S7", (str(Position(ledger, first)),), text)


def _key(row: SegmentRow) -> tuple[str, int, int, int]:
    return row.topic, row.ledger, row.first, row.end


def ledger_findings(copied: CopiedLog, held: Segments | None) -> Iterator[Finding]:
    """Ledgers that the log still has, and whose holder or contents ``segments`` describes differently."""
    by_ledger: dict[int, list[SegmentRow]] = {}
    for row in copied.rows:
        by_ledger.setdefault(row.ledger, []).append(row)
    for segment in () if held is None else held.segments:
        rows = by_ledger.get(segment.ledger, [])
        for row in rows:
            yield from _holder_findings(copied.log, segment, row)
        end = None if segment.last is None else segment.end.entry
        is_copied = any(row.end == end for row in rows) and not any(row.lost for row in rows)
        if segment.is_whole and is_copied:
            entries = sum(row.entries for row in rows)
            if entries != segment.entries:
                text = (
                    f"ledger {segment.ledger} has {segment.entries} entries, and {entries} of them were"
                    " copied as segments says"
                )
                yield Finding(copied.log, "S5", (str(Position(segment.ledger, 1)),), text)


def _holder_findings(log: str, segment: Segment, row: SegmentRow) -> Iterator[Finding]:
    if segment.epoch is None or row.epoch is None:
        return  # without an exclusive holder, or its marker was trimmed
    for name in _HOLDER:
        held, copied = getattr(segment, name), getattr(row, name)
        if (held or "") != (copied or ""):
            text = (
                f"the {name} of ledger {row.ledger} is {copied} in segments, and {held} in the log"
            )
            yield Finding(log, "S2", (str(Position(row.ledger, row.first)),), text)


# ------------------------------------------------------------ audit records


def record_findings(
    logs: Iterable[str],
    bucket: int,
    last: str,
    copied: Mapping[str, Mapping[str, Any]],
    known: Sequence[Mapping[str, Any]],
) -> Iterator[Finding]:
    """Audit records of a bucket that a table and the brokers have differently.

    ``last``: the last record that was copied to the table; ``copied``: the table's records by id; ``known``: those of
    the brokers, oldest first.
    """
    of_topic = {str(TopicName.parse(log).base): log for log in logs}
    live = {str(record["id"]): record for record in known}
    if not live:
        return
    first, end = audit_order(next(iter(live))), audit_order(last) if last else (0, 0)
    found = 0
    for record_id in sorted(live.keys() | copied.keys(), key=audit_order):
        there, here = live.get(record_id), copied.get(record_id)
        log = of_topic.get(str((there or here or {}).get("topic")))
        if log is None or not first <= audit_order(record_id) <= end or found >= RECORDS_NAMED_MAX:
            continue
        text = _difference(there, here)
        if text:
            found += 1
            sentence = f"bucket {bucket}: {text}"
            yield Finding(log, "S4", (f"audit {record_id}",), sentence)


def _difference(there: Mapping[str, Any] | None, here: Mapping[str, Any] | None) -> str:
    if here is None:
        return "the brokers have this audit record, and the table lacks it"
    if there is None:
        return "the table has this audit record, and the brokers do not have it"
    names = [name for name in sorted(there.keys() & here.keys()) if there[name] != here[name]]
    if not names:
        return ""
    return f"the table has this audit record with another {', '.join(names)} than the brokers"
