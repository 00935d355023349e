"""``onewriter verify`` and the pipeline's audit find the same violations in the same falsified logs.

Each falsification changes what is stored of a correct history. ``verify`` reads it from a store, block by block. The
audit gets the blocks as a broker sends them, and observes them with arrays. Both must find the predicate that the
falsification violates, at the same places and in the same words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from tests.contents import stored_in
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    TopicHistory,
    a_history_with_publishers,
    a_long_history,
)
from tests.unit.broker.verify.test_verify_mutants import BUCKET, MUTANTS, Stored, report_of
from tests.unit.broker.verify.test_verify_publishers import MUTANTS as PUBLISHERS

from onewriter_broker.http.onewriter.bulk import _record, _stored_state
from onewriter_broker.log.store.api import LogStore, Marker, StoredBlock
from onewriter_core.audit.findings import Finding
from onewriter_core.audit.logs import StoredState
from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.audit import AuditReport, judge
from onewriter_pipeline.audit.audit_records import AuditRecords
from onewriter_pipeline.audit.observer import Observer
from onewriter_pipeline.audit.repeats import PossibleRepeats, possible_repeats
from onewriter_pipeline.audit.tasks import Repeat, repeated
from onewriter_pipeline.brokers.frames import BlockFrame, MarkerFrame
from onewriter_pipeline.brokers.names import position_of
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

LOG = str(TOPIC)

Life = Callable[[LogStore], Awaitable[TopicHistory]]
Falsify = Callable[[Stored], None]

FALSIFIED: list[tuple[Life, Falsify, str]] = [
    *((a_long_history, falsify, predicate) for falsify, predicate in MUTANTS),
    *((a_history_with_publishers, falsify, "S15") for falsify in PUBLISHERS),
]


def frame_of(block: StoredBlock) -> BlockFrame | MarkerFrame:
    if isinstance(block, Marker):
        return MarkerFrame(block.position.ledger, dict(block.fields))
    counts = None if block.counts is None else np.array(block.counts, "<u4")
    lengths = np.array(block.lengths, "<u4")
    return BlockFrame(
        *(block.position, block.time_ms, lengths, counts, block.publish, block.chain),
        memoryview(block.payload),
        bool(block.commits),
        block.by,
    )


def observed(
    blocks: Sequence[StoredBlock], checksummed: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    observer = Observer(LOG, 0, {}, checksummed)
    for block in blocks:
        frame = frame_of(block)
        if isinstance(frame, MarkerFrame):
            observer.marker(frame)
        else:
            yield from observer.block(frame)
    yield from observer.due()


async def audited(store: LogStore, stored: Stored) -> AuditReport:
    """The report of the pipeline's audit of what is stored."""
    kept = AuditRecords(buckets={LOG: BUCKET})
    kept.add(BUCKET, [_record(record_id, dict(fields)) for record_id, fields in stored.audit])
    told = await _stored_state(store, TOPIC, BUCKET)
    trimmed = position_of(told["trimmed"]) if told["trimmed"] else None
    kept.states[LOG] = StoredState(
        told["epoch"], told["ledger"], told["bucketLedger"], told["published"], trimmed
    )
    table = pa.Table.from_batches(observed(stored.blocks), facts.FACTS)
    report = AuditReport("live")
    judge(report, [LOG], table, kept, repeats_in(stored, table))
    return report


def repeats_in(stored: Stored, table: pa.Table) -> list[Repeat]:
    producers = possible_repeats(table).get(LOG, PossibleRepeats()).producers
    no_spark, few = None, 0
    return repeated(
        no_spark,
        lambda _: observed(stored.blocks, producers),
        [LOG] if producers else [],
        few,
        few,
    )


def said(findings: Sequence[Finding]) -> list[tuple[str, tuple[str, ...], str]]:
    return sorted((each.predicate, each.where, each.sentence) for each in findings)


@pytest.mark.parametrize(
    ("live", "falsify", "predicate"),
    FALSIFIED,
    ids=[falsify.__name__ for _, falsify, _ in FALSIFIED],
)
async def test_verify_and_audit_find_the_same_violations(
    live: Life, falsify: Falsify, predicate: str
) -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    await live(store)
    stored = Stored(stored_in(server.primary))
    falsify(stored)
    verified = await report_of(store)
    report = await audited(store, stored)
    assert {each.predicate for each in verified.findings.violations} == {predicate}
    assert said(report.findings) == said(verified.findings.violations)
    assert report.notes == [f"{LOG}: {note}" for note in verified.findings.notes]


@pytest.mark.parametrize("live", [a_long_history, a_history_with_publishers])
async def test_verify_and_audit_accept_correct_logs(live: Life) -> None:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    await live(store)
    stored = Stored(stored_in(server.primary))
    verified, report = await report_of(store), await audited(store, stored)
    assert said(report.findings) == said(verified.findings.violations) == []
    (topic,) = report.topics
    assert (topic["ledgers"], topic["entries"]) == (verified.ledgers, verified.entries)
