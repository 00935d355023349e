"""Reads logs, audit and states from a store and checks them, in bounded memory.

It works beside running brokers, and distinguishes concurrent appends, fences and trims from faults by the
order of its reads. Fences whose record is read first must have left markers when the log's end is read
afterwards. Markers up to that end must have their record when the audit is read further after that. The state
is read last, and only increases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from onewriter_broker.log.store.api import Block, LogStore, StoredBlock, Unit
from onewriter_broker.log.store.blocks import READ_BYTES, MalformedBlock
from onewriter_broker.log.topic_log.log import last_position, stored_bytes
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.verify.compacted import check_compacted
from onewriter_broker.verify.observer import LogObserver
from onewriter_core.audit.facts import number_of
from onewriter_core.audit.findings import DEFAULT_LIMITS, AuditLimits, Finding, Findings
from onewriter_core.audit.grants import BucketAudit, check_audit
from onewriter_core.audit.logs import LogChecker, StoredState
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position, TopicName, bucket_of
from onewriter_core.log_format.field_names import TRIMMED, VERSION_PREFIX

READ_BLOCKS_MAX = 256
"""Blocks that one read asks for at most."""

READ_RECORDS = 500
"""Audit records in one read."""

READ_ATTEMPTS_MAX = 5
RETRY_SECONDS = 0.2
"""The number of attempts, and the delay between them, of a read that the store did not answer."""

_Result = TypeVar("_Result")

Progress = Callable[[str, int], None]
"""Called from time to time with a log's name and the number of entries checked so far."""


@dataclass(slots=True)
class LogReport:
    """The result for one log."""

    log: str
    findings: Findings = field(default_factory=Findings)
    first: Position | None = None
    last: Position = EARLIEST
    ledgers: int = 0
    blocks: int = 0
    entries: int = 0
    audit_records: int = 0
    """Fences of this log in the audit."""


async def logs_of(store: LogStore, name: TopicName, buckets: int) -> list[TopicName]:
    """The logs that a topic name means: all partitions of a base name; empty if there are none.

    Raises Undecided.
    """
    catalog = await _patiently(partial(store.read_catalog, bucket_of(name, buckets)))
    text = catalog.get(str(name.base))
    names = [] if text is None else CatalogEntry.decode(text).log_names(name.base)
    if name.partition is not None or not names:
        names = [name]
    return [log for log in names if await _exists(store, log)]


async def all_logs(store: LogStore, buckets: int) -> list[TopicName]:
    """Every log in the catalogs, including those of deleted topics. Raises Undecided."""
    found: list[TopicName] = []
    for bucket in range(buckets):
        catalog = await _patiently(partial(store.read_catalog, bucket))
        for text, entry in sorted(catalog.items()):
            found += CatalogEntry.decode(entry).log_names(TopicName.parse_stored(text))
    return [log for log in found if await _exists(store, log)]


async def verify(
    store: LogStore,
    logs: Sequence[TopicName],
    buckets: int,
    progress: Progress,
    limits: AuditLimits = DEFAULT_LIMITS,
) -> list[LogReport]:
    """Check these logs with their buckets' audits; one report each, bucket by bucket.

    Raises Undecided if the store does not answer.
    """
    reports: list[LogReport] = []
    of_bucket: dict[int, list[TopicName]] = {}
    for log in logs:
        of_bucket.setdefault(bucket_of(log, buckets), []).append(log)
    for bucket, names in sorted(of_bucket.items()):
        reports += await _verify_bucket(store, bucket, names, progress, limits)
    return reports


async def _verify_bucket(
    store: LogStore,
    bucket: int,
    names: Sequence[TopicName],
    progress: Progress,
    limits: AuditLimits,
) -> list[LogReport]:
    reports = {str(name): LogReport(str(name), Findings(limits=limits)) for name in names}
    audit = BucketAudit(limits=limits)
    after = await _read_audit(store, bucket, audit, "", reports)
    audit.settle(list(reports))
    ends = {str(name): await _end(store, name) for name in names}
    await _read_audit(store, bucket, audit, after, reports)
    for name in names:
        report = reports[str(name)]
        checker, observer = LogChecker(report.log, audit), LogObserver(report.log)
        await _read_log(store, name, ends[str(name)], checker, observer, report, progress)
        state = await _patiently(partial(store.read_state, name))
        observed = await _patiently(partial(store.observe, [bucket]))
        unit = observed.units.get(bucket, Unit())
        report.findings.add(checker.finish(stored_state(state, unit)))
        await _patiently(partial(check_compacted, store, name, state, report.findings))
        for note in (*audit.notes, *checker.notes):
            report.findings.note(note)
        if observer.open_publish:
            report.findings.note(
                f"publish {observer.open_publish} is not whole: it is being written, or the next"
                " fence drops it"
            )
        report.first, report.last = checker.first, checker.last
        report.ledgers, report.entries = checker.ledgers, checker.entries
        known = audit.logs.get(report.log)
        report.audit_records = 0 if known is None else len(known.fences)
    return list(reports.values())


def stored_state(state: Mapping[str, str], unit: Unit) -> StoredState:
    """The stored fields of a log's state, with the record of its bucket, as the audit compares them."""
    trimmed = state.get(TRIMMED)
    return StoredState(
        epoch=number_of(state.get("epoch", "")) or 0,
        ledger=number_of(state.get("ledger", "")) or 0,
        bucket_ledger=unit.last_ledger,
        published={
            name.removeprefix(VERSION_PREFIX): number_of(state[name]) or 0
            for name in sorted(state)
            if name.startswith(VERSION_PREFIX)
        },
        trimmed=Position.parse(trimmed) if trimmed else None,
    )


async def _read_audit(
    store: LogStore, bucket: int, audit: BucketAudit, after: str, reports: dict[str, LogReport]
) -> str:
    """Check the audit records after ``after``; returns the id of the last one."""
    while True:
        records = await _patiently(
            partial(store.read_audit, bucket, after=after, count=READ_RECORDS)
        )
        for violation in check_audit(records, audit):
            if violation.log in reports:
                reports[violation.log].findings.add([violation])
        if records:
            after = records[-1][0]
        if len(records) < READ_RECORDS:  # the end, even if more records keep coming
            return after


async def _read_log(
    store: LogStore,
    name: TopicName,
    end: Position,
    checker: LogChecker,
    observer: LogObserver,
    report: LogReport,
    progress: Progress,
) -> None:
    start, count = EARLIEST, 1
    while start <= end:
        try:
            blocks = await _patiently(partial(store.read_blocks, name, start, end, count=count))
        except MalformedBlock as malformed:
            if count > 1:
                count = 1  # check everything before it
                continue
            report.findings.add([_unreadable(report.log, malformed)])
            report.findings.note(f"nothing behind {checker.last} was checked")
            return
        if not blocks:
            return
        if await _was_trimmed(store, name, checker, blocks[0]):
            checker.cut()
            observer.cut()
            report.findings.note(
                f"trimmed during the check: checked again from {blocks[0].position}"
            )
        report.blocks += len(blocks)
        for block in blocks:
            for fact in observer.facts(block):
                report.findings.add(checker.feed(fact))
        progress(report.log, checker.entries)
        ledger, entry = last_position(blocks[-1])
        start = Position(ledger, entry + 1)
        largest = max(stored_bytes(block) for block in blocks)
        count = max(1, min(READ_BLOCKS_MAX, READ_BYTES // largest))
        await asyncio.sleep(0)


async def _was_trimmed(
    store: LogStore, name: TopicName, checker: LogChecker, following: StoredBlock
) -> bool:
    """Whether a trim happened between the last read and this one.

    One reply shows one moment of the log, so a trim can only happen between two replies, and only if the
    second does not continue the first.
    """
    last = checker.last
    goes_on = following.position == (last.ledger, last.entry + 1)
    if checker.first is None or (goes_on and isinstance(following, Block)):
        return False
    begins = await _patiently(partial(store.read_blocks, name, EARLIEST, count=1))
    return not begins or begins[0].position > last


def _unreadable(log: str, malformed: MalformedBlock) -> Finding:
    return Finding(log, "S7", (), f"a block cannot be read: {malformed}")


async def _end(store: LogStore, name: TopicName) -> Position:
    try:
        newest = await _patiently(partial(store.read_blocks, name, EARLIEST, count=1, reverse=True))
    except MalformedBlock:
        return Position(NUMBER_MAX, NUMBER_MAX)  # the reader finds it and reports it
    return last_position(newest[0]) if newest else EARLIEST


async def _exists(store: LogStore, name: TopicName) -> bool:
    if await _patiently(partial(store.read_state, name)):
        return True
    return await _end(store, name) > EARLIEST


async def _patiently(read: Callable[[], Awaitable[_Result]]) -> _Result:
    """The result of a read, which is retried if the store did not answer."""
    for _ in range(READ_ATTEMPTS_MAX - 1):
        try:
            return await read()
        except Undecided:
            await asyncio.sleep(RETRY_SECONDS)
    return await read()
