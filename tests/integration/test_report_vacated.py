"""Which topics of a report have no writer now, and since when, with a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.conftest import StockClients
from tests.integration.offloading import EXCLUSIVE, FULL, Fill, numbered, offload

from onewriter_pipeline.audit.audit import LIVE, TABLE, Audit, AuditReport
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.jobs.report import vacated
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers


def test_a_topic_is_vacant_since_its_last_message(
    broker: LocalBrokers,
    access: Access,
    topic: str,
    fill: Fill,
    stock: StockClients,
    tmp_path: Path,
) -> None:
    fill(topic, numbered(0, 10))
    log = FULL + topic
    tables = Tables(str(tmp_path))
    offload(access, tables, topic)
    job = Audit(access, Selection(topics=(topic,)), tables)
    tenures: list[dict[str, Any]] = [{"topic": log}]
    with Broker(access) as client:
        times = [each.newest_ms for each in client.segments(topic).segments if each.newest_ms]
    assert vacated(job, AuditReport(LIVE, timeline=tenures)) == {log: max(times)}
    assert vacated(job, AuditReport(TABLE, timeline=tenures)) == {log: max(times)}
    producer = stock(broker.service_url).create_producer(topic, **EXCLUSIVE)
    assert vacated(job, AuditReport(LIVE, timeline=tenures)) == {}
    producer.close()
