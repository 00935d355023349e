"""The audit beside ``onewriter verify``: the same histories, the same corruptions, the same verdicts.

All mutants are judged at once, each under a name and a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.unit.broker.test_verify_mutants import (
    MUTANTS,
    Stored,
    a_publish_holds_what_somebody_else_wrote,
    report_of,
    the_bucket_forgets_its_ledgers,
    the_state_forgot_a_version,
)
from tests.unit.broker.verify_histories import BUCKETS, TOPIC, an_eventful_life

from onewriter_broker.http.bulk import _record
from onewriter_broker.log.api import Marker, StoredBlock
from onewriter_broker.log.memory import MemoryLogStore
from onewriter_broker.log.memory_server import MemoryServer
from onewriter_pipeline.auditing import facts
from onewriter_pipeline.auditing.judging import Finding, Judge
from onewriter_pipeline.auditing.observer import Observer
from onewriter_pipeline.auditing.records import Records
from onewriter_pipeline.frames import BlockFrame, MarkerFrame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ONLY_THE_STORE_SHOWS = {
    the_bucket_forgets_its_ledgers,
    the_state_forgot_a_version,
    a_publish_holds_what_somebody_else_wrote,
}
"""What stands in the bucket's record, in the state and in a block's own fields, which brokers do not tell."""


def frame_of(block: StoredBlock) -> BlockFrame | MarkerFrame:
    if isinstance(block, Marker):
        return MarkerFrame(block.position.ledger, dict(block.fields))
    counts = None if block.counts is None else np.array(block.counts, "<u4")
    lengths = np.array(block.lengths, "<u4")
    return BlockFrame(
        *(block.position, block.time_ms, lengths, counts, bool(block.publish), block.chain),
        memoryview(block.payload),
        bool(block.commits),
    )


def observed(log: str, blocks: list[StoredBlock]) -> Iterator[pa.RecordBatch]:
    observer = Observer(log, 0, {})
    for block in blocks:
        frame = frame_of(block)
        if isinstance(frame, MarkerFrame):
            observer.marker(frame)
        else:
            yield from observer.block(frame)
    yield from observer.due()


@dataclass
class Case:
    """A history, what verify says of it, and what the audit is given."""

    log: str
    verdict: set[str]
    batches: list[pa.RecordBatch]
    records: list[dict[str, object]]
    state: dict[str, object]


async def case(name: str, mutate: Callable[[Stored], None], bucket: int) -> Case:
    server = MemoryServer()
    store = MemoryLogStore(server.resolve, buckets=BUCKETS)
    await an_eventful_life(store)
    stored = Stored(server.primary.dataset)
    mutate(stored)
    report = await report_of(store)
    log = f"{TOPIC}-{name}"
    renamed = [
        _record(record_id, {**fields, "topic": f"{fields['topic']}-{name}"})
        for record_id, fields in stored.audit
    ]
    state = {
        "log": log,
        "bucket": bucket,
        "settled": None,
        "state_epoch": int(stored.state.get("epoch", "0")),
        "state_ledger": int(stored.state.get("ledger", "0")),
    }
    verdict = {violation.predicate for violation in report.findings.violations}
    return Case(log, verdict, list(observed(log, stored.blocks)), renamed, state)


def judge(spark: SparkSession, cases: list[Case]) -> list[Finding]:
    records = Records()
    for number, each in enumerate(cases):
        records.add(number, each.records)
    assert records.unreadable == []
    judge = Judge(spark, records.table(), [each.state for each in cases])
    try:
        batches = [batch for each in cases for batch in each.batches]
        observed = pa.Table.from_batches(batches, facts.FACTS)
        is_print = pc.equal(observed["kind"], facts.PRINT)
        prints = spark.createDataFrame(observed.filter(is_print))
        judge.observed(observed.filter(pc.invert(is_print)), prints)
        return judge.findings()
    finally:
        judge.close()


async def test_the_audit_and_verify_say_the_same_of_every_mutant(spark: SparkSession) -> None:
    cases = [await case("whole", lambda _: None, 0)]
    for mutate, _ in MUTANTS:
        cases.append(await case(mutate.__name__, mutate, len(cases)))
    findings = judge(spark, cases)
    blind = {f"{TOPIC}-{mutate.__name__}" for mutate in ONLY_THE_STORE_SHOWS}
    said = {
        each.log: {finding.predicate for finding in findings if finding.log == each.log}
        for each in cases
    }
    expected = {each.log: set() if each.log in blind else each.verdict for each in cases}
    assert said == expected, "\n".join(map(str, findings))
    assert all(finding.where and finding.sentence for finding in findings)
