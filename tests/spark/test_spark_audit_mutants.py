"""The audit and ``onewriter verify`` report the same violations for the same corrupted histories.

All mutants are audited at once, each with its own log and bucket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.contents import stored_in
from tests.unit.broker.verify.histories import (
    BUCKETS,
    TOPIC,
    Story,
    a_life_with_publishers,
    an_eventful_life,
)
from tests.unit.broker.verify.test_verify_mutants import BUCKET, MUTANTS, Stored, report_of
from tests.unit.broker.verify.test_verify_publishers import MUTANTS as PUBLISHERS
from tests.unit.broker.verify.test_verify_publishers import names_no_publisher

from onewriter_broker.http.onewriter.bulk import _record, _stored_state
from onewriter_broker.log.store.api import LogStore, Marker, StoredBlock
from onewriter_broker.log.store.fake.server import FakeServer
from onewriter_broker.log.store.fake.store import FakeLogStore
from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.judge import Finding, Judge
from onewriter_pipeline.audit.live import state_columns
from onewriter_pipeline.audit.observer import Observer
from onewriter_pipeline.audit.records import Records
from onewriter_pipeline.audit.repeats import Doubtful, doubtful
from onewriter_pipeline.brokers.frames import BlockFrame, MarkerFrame
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.brokers.segments import LogState

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


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


def facts_of(
    log: str, blocks: Sequence[StoredBlock], printed: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    observer = Observer(log, 0, {}, printed)
    for block in blocks:
        frame = frame_of(block)
        if isinstance(frame, MarkerFrame):
            observer.marker(frame)
        else:
            yield from observer.block(frame)
    yield from observer.due()


@dataclass
class Case:
    """A history, the findings of verify, and the input of the audit."""

    log: str
    verdict: set[str]
    observed: pa.Table
    prints: pa.Table
    records: list[dict[str, object]]
    state: dict[str, object]


Life = Callable[[LogStore], Awaitable[Story]]


async def case(
    name: str, mutate: Callable[[Stored], None], bucket: int, live: Life = an_eventful_life
) -> Case:
    server = FakeServer()
    store = FakeLogStore(server.resolve, buckets=BUCKETS)
    await live(store)
    stored = Stored(stored_in(server.primary))
    mutate(stored)
    report = await report_of(store)
    log = f"{TOPIC}-{name}"
    renamed = [
        _record(
            record_id,
            {
                field: f"{text}-{name}" if field in {"topic", "log"} else text
                for field, text in fields.items()
            },
        )
        for record_id, fields in stored.audit
    ]
    reported = await _stored_state(store, TOPIC, BUCKET)
    remembered = LogState(
        reported["epoch"],
        reported["ledger"],
        reported["bucketLedger"],
        reported["published"],
        position_of(reported["trimmed"]) if reported["trimmed"] else None,
    )
    state = {"log": log, "bucket": bucket, "settled": None, **state_columns(remembered)}
    verdict = {violation.predicate for violation in report.findings.violations}
    observed = pa.Table.from_batches(facts_of(log, stored.blocks), facts.FACTS)
    producers = doubtful(observed).get(log, Doubtful()).producers
    again = pa.Table.from_batches(facts_of(log, stored.blocks, producers), facts.FACTS)
    prints = again.filter(pc.equal(again["kind"], facts.PRINT))
    return Case(log, verdict, observed, prints, renamed, state)


def judge(spark: SparkSession, cases: list[Case]) -> list[Finding]:
    records = Records()
    for number, each in enumerate(cases):
        records.add(number, each.records)
    assert records.unreadable == []
    prints = spark.createDataFrame(pa.concat_tables([each.prints for each in cases]))
    observed = pa.concat_tables([each.observed for each in cases])
    judge = Judge(spark, records.table(), [each.state for each in cases], observed, prints)
    try:
        return judge.findings()
    finally:
        judge.close()


async def test_audit_and_verify_agree_on_every_mutant(spark: SparkSession) -> None:
    cases = [await case("whole", lambda _: None, 0)]
    for mutate, _ in MUTANTS:
        cases.append(await case(mutate.__name__, mutate, len(cases)))
    cases.append(await case("whole_publishers", lambda _: None, len(cases), a_life_with_publishers))
    cases.append(
        await case("no_publishers", names_no_publisher, len(cases), a_life_with_publishers)
    )
    for mutate in PUBLISHERS:
        cases.append(await case(mutate.__name__, mutate, len(cases), a_life_with_publishers))
    findings = judge(spark, cases)
    said = {
        each.log: {finding.predicate for finding in findings if finding.log == each.log}
        for each in cases
    }
    assert said == {each.log: each.verdict for each in cases}, "\n".join(map(str, findings))
    assert all(finding.where and finding.sentence for finding in findings)
