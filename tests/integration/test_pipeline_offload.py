"""Topics into tables, and out of the broker, with real brokers: without a JVM, tasks run here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.integration.conftest import StockClients
from tests.integration.http_calls import PERSISTENT, Http

from onewriter_broker.testing import LocalBrokers
from onewriter_core.ids import Position
from onewriter_pipeline import cli
from onewriter_pipeline.broker import Broker
from onewriter_pipeline.connection import Access, position_of
from onewriter_pipeline.engine import in_process
from onewriter_pipeline.errors import Gap, NotFound, Overtaken, TableError, Trimmed
from onewriter_pipeline.jobs.offload import Batch, Offload, Report, Step
from onewriter_pipeline.jobs.table import command as table_command
from onewriter_pipeline.jobs.trim import LogReport, TrimJob
from onewriter_pipeline.planning import Selection
from onewriter_pipeline.schema import MESSAGE_COLUMNS
from onewriter_pipeline.table import DeltaLog
from onewriter_pipeline.table_layout import AUDIT, MESSAGES, SEGMENTS
from onewriter_pipeline.tables import FORMATS, Tables
from pyspark_onewriter.options import read_options
from pyspark_onewriter.source import TopicReader

FULL = "persistent://public/default/"
EXCLUSIVE = {"access_mode": pulsar.ProducerAccessMode.Exclusive}

Fill = Callable[..., None]


@pytest.fixture
def fill(broker: LocalBrokers, stock: StockClients) -> Fill:
    """Sends messages: ``fill(topic, values, **options of the producer)``."""
    client = stock(broker.service_url)

    def send(topic: str, values: Iterable[bytes], **options: Any) -> None:
        options = {"batching_enabled": False, "block_if_queue_full": True} | EXCLUSIVE | options
        producer = client.create_producer(topic, **options)
        for value in values:
            producer.send_async(value, None)
        producer.flush()
        producer.close()

    return send


@pytest.fixture
def access(broker: LocalBrokers) -> Access:
    return Access(broker.http_url)


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def offload(access: Access, tables: Tables, *topics: str, **options: Any) -> Report:
    observe = options.pop("observe", lambda step, batch: None)
    options.setdefault("with_audit", False)
    job = Offload(access, tables, Selection(topics=topics), **options)
    return job.run(in_process, 2, observe)


def trim(access: Access, tables: Tables, topic: str, **options: Any) -> LogReport:
    job = TrimJob(access, tables, Selection(topics=(topic,)), datetime.now(UTC), **options)
    (report,) = job.run(lambda line: None)
    return report


def stored(tables: Tables) -> list[bytes]:
    """The values in the table, in the log's order."""
    table = tables.existing(MESSAGES)
    files = [pq.ParquetFile(file.path, filesystem=table.place.files()) for file in table.files()]
    rows = pa.concat_tables([file.read() for file in files]).to_pylist() if files else []
    rows.sort(
        key=lambda row: (row["__topic"], row["__ledgerId"], row["__entryId"], row["__batchIndex"])
    )
    return [row["value"] for row in rows]


def rows(access: Access, topic: str, tables: Tables | None = None, **options: Any) -> list[Any]:
    """What the data source reads."""
    given = {"admin.url": access.url, "topic": topic} | {k: str(v) for k, v in options.items()}
    if tables is not None:
        given |= {"tier": options.get("tier", "all"), "table": tables.place.location}
    reader = TopicReader(read_options(given))
    return [
        row
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in pa.Table.from_batches([batch]).to_pylist()
    ]


def values(access: Access, topic: str, tables: Tables | None = None, **options: Any) -> list[bytes]:
    return [row["value"] for row in rows(access, topic, tables, **options)]


# ------------------------------------------------------------ offload


@pytest.mark.parametrize("kind", FORMATS)
def test_an_offload_goes_on_where_the_last_one_ended(
    access: Access, topic: str, fill: Fill, tmp_path: Path, kind: str
) -> None:
    tables = Tables(str(tmp_path), kind=kind)
    fill(topic, numbered(0, 500))
    assert offload(access, tables, topic).rows == 500
    assert offload(access, tables, topic).batches == 0
    fill(topic, numbered(500, 900), batching_enabled=True)
    report = offload(access, tables, topic)
    assert report.rows == 400
    assert stored(tables) == numbered(0, 900)
    with Broker(access) as broker:
        assert position_of(report.offsets[FULL + topic]) == broker.segments(topic).end


def test_what_is_kept_of_segments_and_of_the_audit(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    for number in range(3):
        fill(topic, numbered(0, 10), producer_name=f"w{number}", batching_enabled=number == 2)
    offload(access, tables, topic, with_audit=True)
    with Broker(access) as broker:
        held = {each.ledger: each for each in broker.segments(topic).segments}
    found = {row["ledger"]: row for row in tables.segments()}
    assert found.keys() == held.keys()
    for ledger, segment in held.items():
        row = found[ledger]
        assert (row["epoch"], row["producer"]) == (segment.epoch, segment.producer)
        assert (row["entries"], row["messages"]) == (segment.entries, segment.messages)
        assert (row["rows"], row["bytes"]) == (segment.messages, segment.bytes)
        assert row["chain"] == segment.chain
    audit = tables.existing(AUDIT)
    (file,) = audit.files()
    kept = pq.ParquetFile(file.path, filesystem=audit.place.files()).read().to_pylist()
    granted = [row for row in kept if row["kind"] == "grant" and row["topic"] == FULL + topic]
    assert [row["producer"] for row in granted] == ["w0", "w1", "w2"]
    assert json.loads(granted[0]["record"])["producer"] == "w0"
    again = offload(access, tables, topic, with_audit=True)
    assert again.audit_records == 0


def test_small_batches_are_committed_one_by_one(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 2000))
    tables = Tables(str(tmp_path))
    report = offload(access, tables, topic, batch_bytes=20_000)
    assert report.batches > 3
    assert stored(tables) == numbered(0, 2000)
    assert [row["batch"] for row in tables.segments()][-1] == report.batches - 1


def test_partitions_and_patterns(
    broker: LocalBrokers, access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    for number in range(2):
        fill(f"{topic}-p{number}_x", numbered(0, 50))
    tables = Tables(str(tmp_path))
    job = Offload(
        access, tables, Selection(pattern=f"public/default/{topic}-p.*"), with_audit=False
    )
    assert job.run(in_process, 2).rows == 100
    assert {file.partition["topic"] for file in tables.existing(MESSAGES).files()} == {
        f"public__default__{topic}-p0_5Fx",
        f"public__default__{topic}-p1_5Fx",
    }


def test_messages_in_chunks_are_one_row_and_are_verified(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    large = os.urandom(11_000_000)
    fill(topic, [b"before", large, b"behind"], chunking_enabled=True)
    fill(topic, [b"next"])
    tables = Tables(str(tmp_path))
    assert offload(access, tables, topic).rows == 4
    assert stored(tables) == [b"before", large, b"behind", b"next"]
    report = trim(access, tables, topic)
    assert (report.differences, report.segments > 0) == ([], True)
    assert values(access, topic, tables) == [b"before", large, b"behind", b"next"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_topic_without_messages(
    broker: LocalBrokers, access: Access, topic: str, fill: Fill, tmp_path: Path, kind: str
) -> None:
    fill(topic, [])
    tables = Tables(str(tmp_path), kind=kind)
    offload(access, tables, topic)
    assert offload(access, tables, topic).rows == 0
    assert values(access, topic, tables, **{"table.format": kind}) == []
    fill(topic, [b"first"])
    assert offload(access, tables, topic).rows == 1
    assert stored(tables) == values(access, topic, tables, **{"table.format": kind}) == [b"first"]
    report = trim(access, tables, topic)
    assert (report.differences, report.limited_by) == ([], "ledger")


STEPS = [step for step in Step if step is not Step.AUDIT]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_nothing_is_lost_or_doubled(
    access: Access, topic: str, fill: Fill, tmp_path: Path, step: Step
) -> None:
    fill(topic, numbered(0, 1000))
    program = (
        "import os, signal, sys\n"
        "from onewriter_pipeline.connection import Access\n"
        "from onewriter_pipeline.engine import in_process\n"
        "from onewriter_pipeline.jobs.offload import Offload, Step\n"
        "from onewriter_pipeline.planning import Selection\n"
        "from onewriter_pipeline.tables import Tables\n"
        "url, place, topic, step = sys.argv[1:]\n"
        "def observe(done, batch):\n"
        "    if done is Step(step) and (batch is None or batch.number == 1):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "job = Offload(Access(url), Tables(place), Selection(topics=(topic,)), 10_000)\n"
        "job.run(in_process, 2, observe)\n"
    )
    arguments = [sys.executable, "-c", program, access.url, str(tmp_path), topic, step.value]
    killed = subprocess.run(arguments, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    tables = Tables(str(tmp_path))
    offload(access, tables, topic)
    assert stored(tables) == numbered(0, 1000)
    covered = sum(row["rows"] for row in tables.segments())
    assert covered == 1000
    assert trim(access, tables, topic).differences == []


def test_two_offloads_at_once_one_wins(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 100))
    tables = Tables(str(tmp_path))

    def other(step: Step, batch: Batch | None) -> None:
        if step is Step.WRITTEN:
            offload(access, Tables(str(tmp_path)), topic)

    with pytest.raises(Overtaken, match="nothing was committed"):
        offload(access, tables, topic, observe=other)
    assert stored(tables) == numbered(0, 100)
    written = list(tmp_path.glob("messages/**/*.parquet"))
    assert len(written) == len(tables.existing(MESSAGES).files())  # the loser took its files away


def test_what_was_trimmed_before_it_was_offloaded_is_named(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 600))
    tables = Tables(str(tmp_path))
    offload(access, tables, topic)
    fill(topic, numbered(600, 1200))
    fill(topic, numbered(1200, 1210))
    with Broker(access) as broker:
        held = broker.segments(topic)
        broker.trim(topic, Position(held.segments[-1].ledger, 0), epoch=held.epoch)
    with pytest.raises(Trimmed, match=r"trimmed before it was offloaded.*--accept-loss"):
        offload(access, tables, topic)
    with pytest.raises(Gap, match="neither in the table nor in the log"):
        values(access, topic, tables)
    offload(access, tables, topic, accept_loss=True)
    assert stored(tables)[:600] == numbered(0, 600)
    assert stored(tables)[-10:] == numbered(1200, 1210)


def test_a_full_disk_ends_in_one_sentence_and_the_next_run_goes_on(
    access: Access, topic: str, fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, numbered(0, 100))
    tables = Tables(str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("onewriter_pipeline.table_files.synced_file", full)
        with pytest.raises(TableError, match=f"{tmp_path}/messages: .*No space left") as caught:
            offload(access, tables, topic)
    assert "\n" not in str(caught.value)
    assert tables.existing(MESSAGES).files() == []
    assert offload(access, tables, topic).rows == 100


# ------------------------------------------------------------ trim, and both tiers


def filled(access: Access, topic: str, fill: Fill, tables: Tables) -> list[bytes]:
    """Four tenures, the first three of them offloaded."""
    fill(topic, numbered(0, 600))
    fill(topic, numbered(600, 1300), batching_enabled=True)
    fill(topic, numbered(1300, 2000))
    offload(access, tables, topic)
    fill(topic, numbered(2000, 2100))
    return numbered(0, 2100)


def test_trim_and_then_read_across_both_tiers(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    sent = filled(access, topic, fill, tables)
    before = rows(access, topic)
    assert rows(access, topic, tables) == before
    report = trim(access, tables, topic, is_dry=True)
    assert (report.messages, report.differences) == (2000, [])
    assert rows(access, topic) == before
    report = trim(access, tables, topic)
    assert report.limited_by == "ledger"
    assert report.first > Position(before[0]["__ledgerId"], 1)
    assert len(values(access, topic)) < 1000
    found = rows(access, topic, tables)
    assert [row["value"] for row in found] == sent
    assert found == before
    assert list(found[0]) == list(MESSAGE_COLUMNS)
    assert values(access, topic, tables, tier="cold") == sent[:2000]
    # What is left is offloaded, verified and read as ever.
    offload(access, tables, topic)
    assert rows(access, topic, tables) == before
    assert values(access, topic, tables, tier="cold") == sent


def test_ranges_across_both_tiers(access: Access, topic: str, fill: Fill, tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    before = rows(access, topic)
    trim(access, tables, topic)
    ledgers = sorted({row["__ledgerId"] for row in before})
    epochs = sorted({row["__epoch"] for row in before})
    some = {epochs[1], epochs[3]}
    assert rows(access, topic, tables, epochs=f"{epochs[1]},{epochs[3]}") == [
        row for row in before if row["__epoch"] in some
    ]
    start, end = Position(ledgers[0], 100), Position(ledgers[3], 20)
    bounds = {
        "startingOffsets": json.dumps({topic: f"{start.ledger}:{start.entry}"}),
        "endingOffsets": json.dumps({topic: f"{end.ledger}:{end.entry}"}),
    }
    assert rows(access, topic, tables, **bounds) == [
        row for row in before if start <= (row["__ledgerId"], row["__entryId"]) < end
    ]
    publish = before[1300]["__publishTime"]
    index = next(i for i, row in enumerate(before) if row["__publishTime"] >= publish)
    starting = {"startingTimestamp": int(publish.timestamp() * 1000)}
    assert rows(access, topic, tables, **starting) == before[index:]
    assert rows(access, topic, tables, minPartitions=5) == before


def test_what_subscriptions_need_and_what_is_young_stays(
    broker: LocalBrokers,
    access: Access,
    topic: str,
    fill: Fill,
    stock: StockClients,
    tmp_path: Path,
) -> None:
    consumer = stock(broker.service_url).subscribe(topic, "slow")
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    assert trim(access, tables, topic, keep_hours=1).limited_by == "keepHours"
    report = trim(access, tables, topic)
    assert (report.limited_by, report.name) == ("subscription", "slow")
    assert "subscription slow has not acknowledged" in report.line()
    assert len(values(access, topic)) == 2100
    consumer.close()


def test_a_topic_that_changes_hands_meanwhile_is_not_trimmed(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    job = TrimJob(access, tables, Selection(topics=(topic,)), datetime.now(UTC))
    (report,) = job.run(lambda line: fill(topic, [b"by another"]))
    assert "it changed hands meanwhile: run it again" in report.error
    assert "nothing was trimmed" in report.line()
    assert len(values(access, topic)) == 2101


def test_partitions_across_both_tiers(
    broker: LocalBrokers, access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    assert Http(broker.http_url)("PUT", f"{PERSISTENT}/{topic}/partitions", 2)[0] == 204
    for number in range(2):
        fill(f"{topic}-partition-{number}", [b"%d" % number] * 100)
        fill(f"{topic}-partition-{number}", [b"%d" % number] * 10)
    before = rows(access, topic)
    tables = Tables(str(tmp_path))
    assert offload(access, tables, topic).rows == 220
    assert rows(access, topic, tables, tier="cold") == before
    one = rows(access, f"{topic}-partition-1", tables, tier="cold")
    assert one == [row for row in before if row["__topic"].endswith("-partition-1")]
    job = TrimJob(access, tables, Selection(topics=(topic,)), datetime.now(UTC))
    assert [report.differences for report in job.run(lambda line: None)] == [[], []]
    assert rows(access, topic, tables) == before
    with pytest.raises(NotFound, match="the table has nothing of"):
        rows(access, f"{topic}-partition-7", tables, tier="cold")


def lost(tables: Tables) -> None:
    file = min(tables.existing(MESSAGES).files(), key=lambda each: each.rows)
    (Path(tables.place.location) / "messages" / file.path).unlink()


def doubled(tables: Tables) -> None:
    table = tables.existing(MESSAGES)
    assert isinstance(table, DeltaLog)
    state = table.state()
    table.commit(state, [table.files()[0]], state.offsets)
    name = table.files()[0].path
    path = Path(tables.place.location) / "messages" / name
    content = pq.ParquetFile(path).read()
    pq.write_table(pa.concat_tables([content, content]), path)


def cut(tables: Tables) -> None:
    file = max(tables.existing(MESSAGES).files(), key=lambda each: each.rows)
    path = Path(tables.place.location) / "messages" / file.path
    content = pq.ParquetFile(path).read()
    pq.write_table(content.slice(0, len(content) - 1), path)


@pytest.mark.parametrize("damage", [doubled, cut])
def test_a_table_that_is_not_what_the_log_is_stops_all(
    access: Access, topic: str, fill: Fill, tmp_path: Path, damage: Callable[[Tables], None]
) -> None:
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    damage(tables)
    arguments = ["trim", "--admin-url", access.url, "--table", str(tmp_path), "--topic", topic]
    assert cli.run([*arguments, "-o", "json"]) == 2
    assert len(values(access, topic)) == 2100


def test_a_file_that_is_gone_stops_a_trim(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    lost(tables)
    with pytest.raises(TableError, match="cannot be read"):
        trim(access, tables, topic)
    assert len(values(access, topic)) == 2100


# ------------------------------------------------------------ keeping house


def test_compaction_changes_nothing_that_is_read(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    for number in range(4):
        fill(topic, numbered(100 * number, 100 * number + 100))
        offload(access, tables, topic)
    before = rows(access, topic)
    foreign = tmp_path / "messages" / "notes.txt"
    foreign.write_text("mine")
    arguments = ["--table", str(tmp_path), "--optimize", "-o", "json"]
    result = CliRunner().invoke(table_command, arguments)
    document = json.loads(result.stdout)
    assert document["joined"]["messages"] == {"files": 4, "into": 1}
    assert document["foreign"] == ["messages/notes.txt"]
    assert len(tables.existing(MESSAGES).files()) == 1
    assert rows(access, topic, tables, tier="cold") == before
    fill(topic, numbered(400, 450))
    offload(access, tables, topic)
    assert values(access, topic, tables, tier="cold") == numbered(0, 450)
    assert trim(access, tables, topic).differences == []
    assert tables.orphans(24) == []
    assert foreign.read_text() == "mine"
    assert sum(row["rows"] for row in tables.segments()) == 450
    assert len(tables.existing(SEGMENTS).files()) == 2
