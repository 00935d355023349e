"""``onewriter-pipeline audit`` with real brokers, logs and tables, compared with ``onewriter verify``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from tests.integration.conftest import StockClients
from tests.integration.http_calls import Http
from tests.integration.raw import clients
from tests.integration.test_atomic_publish import APP, publish, rows
from tests.servers import StoreServer
from tests.spark.conftest import Fill

import onewriter.sync
from onewriter import ProducerOptions
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.verify.cli import verify_command
from onewriter_core.ids import TopicName
from onewriter_core.wire.encoding import encode_send_header
from onewriter_pipeline.audit import facts, live
from onewriter_pipeline.audit.audit import Audit, AuditReport
from onewriter_pipeline.audit.repeats import PossibleRepeats
from onewriter_pipeline.audit.tasks import CHECKSUMS_HERE_MAX, Repeat, gathered, repeated
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.cli import run
from onewriter_pipeline.engine import active, in_process
from onewriter_pipeline.errors import NotFound
from onewriter_pipeline.jobs.offload import Offload
from onewriter_pipeline.jobs.options import EXIT_OK, EXIT_VIOLATION
from onewriter_pipeline.lead.requests import Grant
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.tables.files import FileWriter
from onewriter_pipeline.tables.layout import MESSAGES, SegmentRow
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers, running_brokers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FENCING = {"access_mode": pulsar.ProducerAccessMode.ExclusiveWithFencing}
LARGE = b"x" * 300_000


def takeovers(fill: Fill, topic: str) -> None:
    """Three successive holders that write chunks and batches, among others, then Shared producers."""
    for holder in ("alice", "bob", "carol"):
        fill(topic, [b"%d" % n for n in range(300)], producer_name=holder, **FENCING)
        single = {"batching_enabled": False, "chunking_enabled": True}
        fill(topic, [LARGE, b"small"], producer_name=holder, **single, **FENCING)
    for name in ("x", "y"):
        fill(topic, [b"%d" % n for n in range(20)], producer_name=name)


def audited(spark: SparkSession, broker: LocalBrokers, topic: str, tables: Tables | None) -> Audit:
    return Audit(Access(broker.http_url), Selection(topics=(topic,)), tables)


def test_log_and_table_pass_and_show_the_history_of_holders(
    spark: SparkSession,
    broker: LocalBrokers,
    topic: str,
    fill: Fill,
    tmp_path: Path,
) -> None:
    takeovers(fill, topic)
    tables = Tables(str(tmp_path / "table"))
    Offload(Access(broker.http_url), tables, Selection(topics=(topic,))).run(in_process, 2)
    with active(spark):
        hot, cold = audited(spark, broker, topic, tables).run(spark, "both")
        assert SparkSession.getActiveSession() is spark  # continues in the ledger that it had
    assert (hot.findings, cold.findings) == ([], [])
    for report in (hot, cold):
        (seen,) = report.topics
        assert seen["topic"] == f"persistent://public/default/{topic}"
        assert seen["ledgers"] >= 7
        holders = [row["producer"] for row in report.timeline]
        assert holders == ["alice", "alice", "bob", "bob", "carol", "carol"]
        assert {row["producer"] for row in report.holders} == {"alice", "bob", "carol", "(shared)"}
        assert all(row["bytes"] > 0 for row in report.holders)
    assert hot.topics[0]["entries"] == cold.topics[0]["entries"]
    assert any("holds" in line for line in hot.lines())
    assert len({all_facts(spark, broker, topic, *size) for size in SIZES}) == 1


SIZES = ((0, 1), (None, 1), (None, CHECKSUMS_HERE_MAX + 1))
"""Sizes that make this process read, then executors, then executors that keep large results."""


def all_facts(
    spark: SparkSession, broker: LocalBrokers, topic: str, size: int | None, checksums_max: int
) -> tuple[str, tuple[Repeat, ...]]:
    """All facts of a log, and the entries of Shared producers that are read twice."""
    access = Access(broker.http_url)
    with Broker(access) as http:
        parts = live.parts_of([http.segments(topic)], 2)
    observe = partial(live.observe, access)
    observed = gathered(spark, observe, parts, size)
    producers = {row["producer"] for row in observed.to_pylist() if row["kind"] == facts.SPREAD}
    name = f"persistent://public/default/{topic}"
    again = live.reread_for_checksums(parts, {name: PossibleRepeats(producers, checksums_max)})
    assert repeated(spark, observe, again, size, checksums_max) == []
    twice = sorted(repeated(spark, observe, again * 2, size, checksums_max), key=str)
    assert len(twice) == 40
    return "\n".join(sorted(map(str, observed.to_pylist()))), tuple(twice)


def test_atomic_publishes_under_an_epoch_pass_in_the_table_too(
    spark: SparkSession, broker: LocalBrokers, topic: str, tmp_path: Path
) -> None:
    with (
        onewriter.sync.Client(broker.service_url) as client,
        client.lead(topic, announce=False, options=ProducerOptions(name="alice")) as leadership,
    ):
        leadership.send(b"0")
        grant = Grant(leadership.epoch, leadership.capability(APP))
        for version in (1, 2):
            publish(broker.http_url, topic, version, rows(0, 3), rows(3, 3), grant=grant)
        leadership.send(b"1")
        publish(broker.http_url, topic, 5, rows(0, 3), grant=grant)
    tables = Tables(str(tmp_path / "table"))
    Offload(Access(broker.http_url), tables, Selection(topics=(topic,))).run(in_process, 1)
    audit = audited(spark, broker, topic, tables)
    hot, cold = audit.run(spark, "both")
    assert (hot.findings, cold.findings, cold.notes) == ([], [], [])
    (noted,) = [row.publishes for row in tables.segments() if row.publishes]
    versions = [(each.version, each.last_version, each.is_open) for each in noted]
    assert versions == [(1, 2, False), (5, 5, False)]

    (file,) = tables.existing(MESSAGES).files()
    path = tmp_path / "table" / "messages" / file.path
    kept = pq.read_table(path, partitioning=None)
    names = [
        "mallory" if (name, sequence) == (APP, 5) else name
        for name, sequence in zip(
            kept["__producerName"].to_pylist(), kept["__sequenceId"].to_pylist(), strict=True
        )
    ]
    at = kept.schema.get_field_index("__producerName")
    pq.write_table(kept.set_column(at, "__producerName", pa.array(names)), path)
    assert violated(audit.table(spark)) == {"S7", "S15"}


def test_partitions_are_selected_by_topic_and_missing_offloads_reported(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    parted, access = f"{topic}-parts", Access(broker.http_url)
    path = f"/admin/v2/persistent/public/default/{parted}/partitions"
    assert Http(broker.http_url)("PUT", path, 2)[0] == 204
    fill(parted, [b"%d" % n for n in range(20)], batching_enabled=False)
    fill(topic, [b"1"])
    tables = Tables(str(tmp_path / "table"))
    Offload(access, tables, Selection(topics=(parted,))).run(in_process, 1)
    for selection in (Selection(topics=(parted,)), Selection(pattern=f"public/default/{parted}")):
        hot, cold = Audit(access, selection, tables).run(spark, "both")
        seen = [[row["topic"].rpartition("/")[2] for row in each.topics] for each in (hot, cold)]
        assert seen == [[f"{parted}-partition-0", f"{parted}-partition-1"]] * 2
    with pytest.raises(NotFound, match=f"the table has nothing of persistent://.*/{topic}:"):
        Audit(access, Selection(topics=(parted, topic)), tables).table(spark)
    for each in Audit(access, Selection(pattern="nobody's"), tables).run(spark, "both"):
        assert each.notes == ["no topic matches; nothing was audited"]


def test_rows_offloaded_during_an_audit_are_left_to_the_next_audit(
    spark: SparkSession,
    broker: LocalBrokers,
    topic: str,
    fill: Fill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables, access = Tables(str(tmp_path / "table")), Access(broker.http_url)
    request = Tables.segments

    def more() -> None:
        fill(topic, [b"%d" % n for n in range(30)])
        Offload(access, tables, Selection(topics=(topic,))).run(in_process, 1)

    def meanwhile(self: Tables, logs: Sequence[str]) -> list[SegmentRow]:
        with monkeypatch.context() as unpatched:
            unpatched.setattr(Tables, "segments", request)
            more()
            found = self.segments(logs)
            more()
        return found

    more()
    monkeypatch.setattr(Tables, "segments", meanwhile)
    report = audited(spark, broker, topic, tables).table(spark)
    assert (report.findings, report.topics[0]["messages"]) == ([], 30)


def violated(report: AuditReport) -> set[str]:
    return {finding.predicate for finding in report.findings}


def test_missing_and_duplicate_files_of_a_table_are_found(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, [b"%d" % n for n in range(500)], producer_name="alice", **FENCING)
    tables = Tables(str(tmp_path / "table"))
    Offload(Access(broker.http_url), tables, Selection(topics=(topic,))).run(in_process, 1)
    audit = audited(spark, broker, topic, tables)
    messages = tables.existing(MESSAGES)
    (file,) = messages.files()
    batches = pq.ParquetFile(tmp_path / "table" / "messages" / file.path).read().to_batches()
    writer = FileWriter(messages.place, file.partition, MESSAGES.columns)
    writer.write(batches[0].slice(10, 5))
    state = messages.state()
    messages.commit(state, [writer.close()], state.offsets)
    report = audit.table(spark)
    assert violated(report) == {"S5"}
    text = " ".join(finding.sentence for finding in report.findings)
    assert "500 messages of ledger" in text
    assert "are stored twice" in text


@pytest.fixture
def stored(valkey: StoreServer) -> Iterator[LocalBrokers]:
    """A broker whose store the test can modify."""
    with running_brokers(redis_url=valkey.url) as brokers:
        yield brokers


def verified(url: str, topic: str, buckets: int) -> set[str]:
    words = [topic, "--redis-url", url, "--buckets", str(buckets), "-o", "json"]
    result = CliRunner().invoke(verify_command, words)
    report = json.loads(result.stdout)
    return {found["predicate"] for log in report["logs"] for found in log["violations"]}


@pytest.mark.full  # tests/unit/pipeline/audit/test_falsified_logs.py: they agree on every falsification
def test_audit_and_verify_find_modified_entries(
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
    publish(stored.http_url, "orders", 7, rows(0, 3))
    for key, field, wrong, predicate in (
        (keys.state(name), f"txn:{APP}", "6", "S15"),
        (keys.unit(keys.bucket(name)), "lastLedger", "1", "S12"),
    ):
        right = valkey.command("HGET", key, field)
        valkey.command("HSET", key, field, wrong)
        both = violated(audit.live(spark)), verified(valkey.url, "orders", stored.buckets)
        assert both == ({predicate}, {predicate})
        valkey.command("HSET", key, field, right)
    records = dict(valkey.command("XRANGE", keys.audit(keys.bucket(name)), "-", "+"))
    grants = [key for key, fields in records.items() if fields[b"kind"] == b"grant"]
    assert valkey.command("XDEL", keys.audit(keys.bucket(name)), grants[1]) == 1
    assert violated(audit.live(spark)) == {"S4"} == verified(valkey.url, "orders", stored.buckets)
    (publisher,) = [key for key, fields in records.items() if fields[b"kind"] == b"publisher"]
    assert valkey.command("XDEL", keys.audit(keys.bucket(name)), publisher) == 1
    both = violated(audit.live(spark)), verified(valkey.url, "orders", stored.buckets)
    assert both == ({"S4"}, {"S4"}), (
        "whoever is not named needs no record where no broker writes any"
    )


@pytest.mark.full  # the other tests here test the audit, and tests/unit/pipeline tests its texts
def test_command_prints_text_or_json_and_exits_with_2(
    spark: SparkSession,
    stored: LocalBrokers,
    valkey: StoreServer,
    stock: StockClients,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stock(stored.service_url).create_producer("orders", **FENCING).send(b"1")
    words = ["audit", "--admin-url", stored.http_url, "--topic", "orders"]
    assert run([*words, "-o", "json"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["holds"]
    keys = Keys(stored.buckets)
    bucket = keys.bucket(TopicName.parse("orders"))
    records = valkey.command("XREVRANGE", keys.audit(bucket), "+", "-", "COUNT", "10")
    grant = next(fields for _, fields in records if fields[b"kind"] == b"grant")
    again = [word for pair in grant.items() for word in pair]
    valkey.command("XADD", keys.audit(bucket), "*", *again)
    assert run(words) == EXIT_VIOLATION == 2
    output = capsys.readouterr().out
    assert "S2 persistent://public/default/orders audit" in output
    assert "handed out twice" in output


def test_unreadable_entries_are_reported_as_by_verify(
    spark: SparkSession,
    stored: LocalBrokers,
    valkey: StoreServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = urlsplit(stored.service_url)
    with clients((url.hostname or "", url.port or 0), 1) as (client,):
        producer = client.producer("orders", name="alice")
        producer.publish(b"1")
        nonsense = b"this is no entry of any client"
        client.write(encode_send_header(producer.producer_id, 1, len(nonsense)) + nonsense)
        producer.receipt(1)
    sentence = "1 entries have metadata that cannot be read: their order was not checked"
    words = ["audit", "--admin-url", stored.http_url, "--topic", "orders", "-o", "json"]
    assert run(words) == EXIT_OK
    (live_logs,) = json.loads(capsys.readouterr().out)["audits"]
    assert live_logs["notes"] == [f"persistent://public/default/orders: {sentence}"]
    words = ["orders", "--redis-url", valkey.url, "--buckets", str(stored.buckets), "-o", "json"]
    (log,) = json.loads(CliRunner().invoke(verify_command, words).stdout)["logs"]
    assert log["notes"] == [sentence]
