"""Topics into tables, and out of the broker, with real brokers. Tasks run here, without a JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.integration.offloading import FULL, Fill, numbered, offload, rows, stored, trim, values

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.engine import in_process
from onewriter_pipeline.errors import Gap, Overtaken, TableError, Trimmed
from onewriter_pipeline.jobs.offload import Batch, Offload, Step
from onewriter_pipeline.jobs.table import command as table_command
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import DELTA, FORMATS
from onewriter_pipeline.tables.layout import AUDIT, MESSAGES, SEGMENTS
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

# ------------------------------------------------------------ offload


@pytest.mark.parametrize("kind", FORMATS)
def test_an_offload_continues_where_the_last_one_ended(
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


def test_a_task_writes_several_chunks_to_one_file(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    large = [b"%d" % number + bytes(1024 * 1024) for number in range(20)]  # two tasks
    fill(topic, large)
    tables = Tables(str(tmp_path))
    report = offload(access, tables, topic)
    assert (report.rows, report.files) == (20, 2)
    assert stored(tables) == large


def test_segments_and_audit_are_kept_in_tables(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    for number in range(3):
        fill(topic, numbered(0, 10), producer_name=f"w{number}", batching_enabled=number == 2)
    offload(access, tables, topic, with_audit=True)
    with Broker(access) as broker:
        held = {each.ledger: each for each in broker.segments(topic).segments}
    found = {row.ledger: row for row in tables.segments()}
    assert found.keys() == held.keys()
    for ledger, segment in held.items():
        row = found[ledger]
        assert (row.epoch, row.producer) == (segment.epoch, segment.producer)
        assert (row.entries, row.messages) == (segment.entries, segment.messages)
        assert (row.rows, row.bytes) == (segment.messages, segment.bytes)
        assert row.chain == segment.chain
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
    assert [row.batch for row in tables.segments()][-1] == report.batches - 1


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
    reports = [offload(access, tables, topic) for _ in range(2)]
    assert [report.rows for report in reports] == [0, 0]
    assert [report.batches for report in reports] == ([1, 0] if kind == DELTA else [0, 0])
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
        "from onewriter_pipeline.brokers.connection import Access\n"
        "from onewriter_pipeline.engine import in_process\n"
        "from onewriter_pipeline.jobs.offload import Offload, Step\n"
        "from onewriter_pipeline.read.selection import Selection\n"
        "from onewriter_pipeline.tables.tables import Tables\n"
        "url, place, topic, step = sys.argv[1:]\n"
        "def observe(done, batch):\n"
        "    if done is Step(step) and (batch is None or batch.number == 1):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "job = Offload(Access(url), Tables(place), Selection(topics=(topic,)), 10_000)\n"
        "job.run(in_process, 2, observe)\n"
    )
    arguments = [sys.executable, "-c", program, access.url, str(tmp_path), topic, step.value]
    killed = subprocess.run(arguments, check=False, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    tables = Tables(str(tmp_path))
    offload(access, tables, topic)
    assert stored(tables) == numbered(0, 1000)
    covered = sum(row.rows for row in tables.segments())
    assert covered == 1000
    assert trim(access, tables, topic).differences == []


def test_one_of_two_concurrent_offloads_wins(
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
    assert len(written) == len(tables.existing(MESSAGES).files())  # the loser removed its files


def test_offload_names_entries_that_were_trimmed_before(
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
    found = stored(tables)
    assert len(found) < 1210
    for tier in ("cold", "all"):
        with pytest.raises(Gap, match="was lost or trimmed before it was offloaded"):
            values(access, topic, tables, tier=tier)
        assert values(access, topic, tables, tier=tier, failOnDataLoss="false") == found
    assert trim(access, tables, topic).differences == []


def test_a_log_of_which_the_beginning_was_trimmed_is_whole_from_there_on(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    for part in range(3):
        fill(topic, numbered(300 * part, 300 * part + 300))
    with Broker(access) as broker:
        held = broker.segments(topic)
        second, third = (each.ledger for each in held.segments[-2:])
        broker.trim(topic, Position(third, 0), epoch=held.epoch)
    tables = Tables(str(tmp_path))
    offload(access, tables, topic)
    found = stored(tables)
    for tier in ("cold", "all"):
        assert values(access, topic, tables, tier=tier) == found
        at = json.dumps({topic: f"{third}:150"})
        assert values(access, topic, tables, tier=tier, startingOffsets=at)[-1:] == found[-1:]
        begin = json.dumps({topic: f"{second}:1"})
        with pytest.raises(Gap, match=f"{second}:1 to .* was lost or trimmed"):
            values(access, topic, tables, tier=tier, startingOffsets=begin)
        for epoch in (held.segments[-2].epoch, held.segments[-3].epoch):
            with pytest.raises(Gap, match="was lost or trimmed"):
                values(access, topic, tables, tier=tier, epochs=epoch)
            with pytest.raises(Gap, match="was lost or trimmed"):
                values(access, topic, tables, tier=tier, startingEpoch=epoch)
        newest = held.segments[-1].epoch
        of_newest = values(access, topic, tables, tier=tier, startingEpoch=newest)
        assert of_newest == numbered(600, 900)
    fill(topic, numbered(900, 910))
    offload(access, tables, topic)
    tables.existing(MESSAGES).expire(datetime.now(UTC).date() + timedelta(days=1))
    for tier in ("cold", "all"):
        with pytest.raises(Gap, match="is not in the table any more"):
            values(access, topic, tables, tier=tier, startingEpoch=newest)


def test_a_full_disk_ends_in_one_sentence_and_the_next_run_continues(
    access: Access, topic: str, fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, numbered(0, 100))
    tables = Tables(str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("onewriter_pipeline.tables.files.synced_file", full)
        with pytest.raises(TableError, match=f"{tmp_path}/messages: .*No space left") as caught:
            offload(access, tables, topic)
    assert "\n" not in str(caught.value)
    assert tables.existing(MESSAGES).files() == []
    assert offload(access, tables, topic).rows == 100


# ------------------------------------------------------------ maintenance


def test_compaction_changes_nothing_that_is_read(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    for number in range(4):
        fill(topic, numbered(100 * number, 100 * number + 100))
        offload(access, tables, topic)
    before = rows(access, topic)
    days = Counter(file.partition["date"] for file in tables.existing(MESSAGES).files())
    joined = [count for count in days.values() if count > 1]
    foreign = tmp_path / "messages" / "notes.txt"
    foreign.write_text("mine")
    arguments = ["--table", str(tmp_path), "--optimize", "-o", "json"]
    result = CliRunner().invoke(table_command, arguments)
    document = json.loads(result.stdout)
    assert document["joined"]["messages"] == {"files": sum(joined), "into": len(joined)}
    assert sum(joined) >= 3, "four, unless midnight passes meanwhile"
    assert document["foreign"] == ["messages/notes.txt"]
    assert len(tables.existing(MESSAGES).files()) == len(days)
    assert rows(access, topic, tables, tier="cold") == before
    fill(topic, numbered(400, 450))
    offload(access, tables, topic)
    assert values(access, topic, tables, tier="cold") == numbered(0, 450)
    assert trim(access, tables, topic).differences == []
    assert tables.orphans(24) == []
    assert foreign.read_text() == "mine"
    assert sum(row.rows for row in tables.segments()) == 450
    assert len(tables.existing(SEGMENTS).files()) == 2
