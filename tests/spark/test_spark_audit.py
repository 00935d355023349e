"""``onewriter-pipeline audit`` over real brokers, logs and tables, and beside ``onewriter verify``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from tests.integration.conftest import StockClients
from tests.servers import StoreServer
from tests.spark.conftest import Fill

from onewriter_broker.log.keys import Keys
from onewriter_broker.testing import LocalBrokers, running_brokers
from onewriter_broker.verify.cli import verify_command
from onewriter_core.ids import TopicName
from onewriter_pipeline.connection import Access
from onewriter_pipeline.engine import in_process
from onewriter_pipeline.jobs.audit import Audit, Report
from onewriter_pipeline.jobs.offload import Offload
from onewriter_pipeline.planning import Selection
from onewriter_pipeline.tables import Tables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FENCING = {"access_mode": pulsar.ProducerAccessMode.ExclusiveWithFencing}
COMMAND_SECONDS = 120
LARGE = b"x" * 300_000


def takeovers(fill: Fill, topic: str) -> None:
    """Three holders one after the other, chunks and batches among what they write, then Shared ones."""
    for holder in ("alice", "bob", "carol"):
        fill(topic, [b"%d" % n for n in range(300)], producer_name=holder, **FENCING)
        single = {"batching_enabled": False, "chunking_enabled": True}
        fill(topic, [LARGE, b"small"], producer_name=holder, **single, **FENCING)
    for name in ("x", "y"):
        fill(topic, [b"%d" % n for n in range(20)], producer_name=name)


def audited(spark: SparkSession, broker: LocalBrokers, topic: str, tables: Tables | None) -> Audit:
    return Audit(Access(broker.http_url), Selection(topics=(topic,)), tables)


def test_log_and_table_hold_and_tell_the_history_of_writers(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    takeovers(fill, topic)
    tables = Tables(str(tmp_path / "table"))
    Offload(Access(broker.http_url), tables, Selection(topics=(topic,))).run(in_process, 2)
    live, table = audited(spark, broker, topic, tables).run(spark, "both")
    assert (live.findings, table.findings) == ([], [])
    for report in (live, table):
        (seen,) = report.topics
        assert seen["topic"] == f"persistent://public/default/{topic}"
        assert seen["ledgers"] >= 7
        holders = [row["producer"] for row in report.timeline]
        assert holders == ["alice", "alice", "bob", "bob", "carol", "carol"]
        assert {row["producer"] for row in report.holders} == {"alice", "bob", "carol", "(shared)"}
        assert all(row["bytes"] > 0 for row in report.holders)
    assert live.topics[0]["entries"] == table.topics[0]["entries"]
    assert any("holds" in line for line in live.lines())


def violated(report: Report) -> set[str]:
    return {finding.predicate for finding in report.findings}


def test_a_table_that_lacks_a_file_or_has_one_twice_is_found_out(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    from onewriter_pipeline.table_files import FileWriter
    from onewriter_pipeline.table_layout import MESSAGES

    fill(topic, [b"%d" % n for n in range(500)], producer_name="alice", **FENCING)
    tables = Tables(str(tmp_path / "table"))
    Offload(Access(broker.http_url), tables, Selection(topics=(topic,))).run(in_process, 1)
    audit = audited(spark, broker, topic, tables)
    messages = tables.existing(MESSAGES)
    (file,) = messages.files()
    import pyarrow.parquet as pq

    rows = pq.ParquetFile(tmp_path / "table" / "messages" / file.path).read().to_batches()
    writer = FileWriter(messages.place, file.partition, MESSAGES.columns)
    writer.write(rows[0].slice(10, 5))
    state = messages.state()
    messages.commit(state, [writer.close()], state.offsets)
    report = audit.table(spark)
    assert violated(report) == {"S5"}
    said = " ".join(finding.sentence for finding in report.findings)
    assert "500 messages of ledger" in said
    assert "stand twice" in said


@pytest.fixture
def stored(valkey: StoreServer) -> Iterator[LocalBrokers]:
    """A broker whose store can be tampered with."""
    with running_brokers(redis_url=valkey.url) as brokers:
        yield brokers


def verified(url: str, topic: str, buckets: int) -> set[str]:
    words = [topic, "--redis-url", url, "--buckets", str(buckets), "-o", "json"]
    result = CliRunner().invoke(verify_command, words)
    report = json.loads(result.stdout)
    return {found["predicate"] for log in report["logs"] for found in log["violations"]}


def test_what_was_tampered_with_is_found_by_both(
    spark: SparkSession, stored: LocalBrokers, valkey: StoreServer, stock: StockClients
) -> None:
    client, name = stock(stored.service_url), TopicName.parse("orders")
    for holder in ("alice", "bob", "carol"):
        producer = client.create_producer("orders", producer_name=holder, **FENCING)
        for number in range(3):
            producer.send(b"%d" % number)
        producer.close()
    audit = Audit(Access(stored.http_url, patience_seconds=2.0), Selection(topics=("orders",)))
    assert (audit.live(spark).findings, verified(valkey.url, "orders", stored.buckets)) == (
        [],
        set(),
    )
    keys = Keys(stored.buckets)
    records = dict(valkey.command("XRANGE", keys.audit(keys.bucket(name)), "-", "+"))
    grants = [key for key, fields in records.items() if fields[b"kind"] == b"grant"]
    assert valkey.command("XDEL", keys.audit(keys.bucket(name)), grants[1]) == 1
    assert violated(audit.live(spark)) == {"S4"} == verified(valkey.url, "orders", stored.buckets)


def test_the_command_tells_people_and_programs_and_ends_with_2(
    stored: LocalBrokers, valkey: StoreServer, stock: StockClients
) -> None:
    stock(stored.service_url).create_producer("orders", **FENCING).send(b"1")
    code, said = command(stored, "-o", "json")
    assert (code, json.loads(said)["holds"]) == (0, True)
    keys = Keys(stored.buckets)
    bucket = keys.bucket(TopicName.parse("orders"))
    (last,) = valkey.command("XREVRANGE", keys.audit(bucket), "+", "-", "COUNT", "1")
    words = [word for pair in last[1].items() for word in pair]
    valkey.command("XADD", keys.audit(bucket), "*", *words)
    code, said = command(stored)
    assert code == 2
    assert "S2 persistent://public/default/orders audit" in said
    assert "handed out twice" in said


def command(broker: LocalBrokers, *more: str) -> tuple[int, str]:
    program = [sys.executable, "-m", "onewriter_pipeline", "audit", "--admin-url", broker.http_url]
    done = subprocess.run(
        [*program, "--topic", "orders", "--master", "local[2]", *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    return done.returncode, done.stdout
