"""Offload and both tiers with a real Spark, and the command as users run it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.conftest import Fill

from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.cli import run
from onewriter_pipeline.engine import cores_of, on_spark
from onewriter_pipeline.jobs.offload import Offload, OffloadReport
from onewriter_pipeline.jobs.options import EXIT_ERROR, EXIT_OK
from onewriter_pipeline.jobs.trim import TrimJob
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.tables.layout import MESSAGES
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COMMAND_SECONDS = 600
ATTEMPTS_MAX = 5
EXCLUSIVE = {"access_mode": pulsar.ProducerAccessMode.Exclusive}


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def load(spark: SparkSession, broker: LocalBrokers, **options: Any) -> DataFrame:
    reader = spark.read.format("onewriter").option("admin.url", broker.http_url)
    return reader.options(**options).load()


def offload(spark: SparkSession, broker: LocalBrokers, tables: Tables, topic: str) -> OffloadReport:
    job = Offload(Access(broker.http_url), tables, Selection(topics=(topic,)))
    return job.run(on_spark(spark), cores_of(spark))


def command(broker: LocalBrokers, table: Path, topic: str, verb: str, *more: str) -> Any:
    program = [sys.executable, "-m", "onewriter_pipeline", verb, "--admin-url", broker.http_url]
    arguments = ["--table", str(table), "--topic", topic, "-o", "json", *more]
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
    )


def test_trimmed_messages_are_read_from_the_table(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 1200), batching_enabled=False, **EXCLUSIVE)
    fill(topic, numbered(1200, 2000), **EXCLUSIVE)
    assert offload(spark, broker, tables, topic).rows == 2000
    fill(topic, numbered(2000, 2300), **EXCLUSIVE)
    before = load(spark, broker, topic=topic).localCheckpoint()
    job = TrimJob(Access(broker.http_url), tables, Selection(topics=(topic,)), datetime.now(UTC))
    (report,) = job.run(lambda line: None)
    assert report.differences == []
    assert load(spark, broker, topic=topic).count() < 2300
    after = load(spark, broker, topic=topic, tier="all", table=str(tmp_path))
    rows = after.collect()
    assert rows == before.collect()
    assert [int(bytes(row.value)) for row in rows] == list(range(2300))
    cold = load(spark, broker, topic=topic, tier="cold", table=str(tmp_path), valueFormat="json")
    assert cold.selectExpr("max(CAST(value AS INT))").collect()[0][0] == 1999


def test_spark_reads_the_files_of_a_table_itself(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 300), **EXCLUSIVE)
    delta, parquet = Tables(str(tmp_path / "d")), Tables(str(tmp_path / "p"), kind="parquet")
    for _ in range(2):
        offload(spark, broker, delta, topic)
        offload(spark, broker, parquet, topic)
        fill(topic, numbered(300, 400), **EXCLUSIVE)
    folder = tmp_path / "d" / "messages"
    files = [str(folder / file.path) for file in delta.existing(MESSAGES).files()]
    (tmp_path / "p" / "messages" / "onewriter-0.parquet").write_bytes(b"an orphan")
    for found in (
        spark.read.option("basePath", str(folder)).parquet(*files),
        spark.read.parquet(str(tmp_path / "p" / "messages")),
    ):
        assert found.filter(f"topic = 'public__default__{topic}'").count() == 400
        assert found.agg({"__publishTime": "max"}).collect()[0][0] is not None


def test_gap_between_table_and_log_is_an_error(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 10), **EXCLUSIVE)
    with pytest.raises(AnalysisException, match="has no delta table messages"):
        load(spark, broker, topic=topic, tier="all", table=str(tmp_path)).count()
    tables = Tables(str(tmp_path))
    offload(spark, broker, tables, topic)
    start = json.dumps({topic: "9:1"})
    options = {"tier": "cold", "table": str(tmp_path), "startingOffsets": start}
    with pytest.raises(AnalysisException, match="the table ends at"):
        load(spark, broker, topic=topic, **options).count()


def test_command_offloads_and_trims(
    broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 700), batching_enabled=False, **EXCLUSIVE)
    fill(topic, numbered(700, 710), **EXCLUSIVE)
    done = command(broker, tmp_path, topic, "offload", "--master", "local[2]")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 710
    assert "batch 0: 710 messages of 1 logs" in done.stderr
    done = command(broker, tmp_path, topic, "trim")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["topics"]
    assert (report["messagesVerified"], report["limitedBy"]) == (700, "ledger")
    for file in tmp_path.glob("messages/**/*.parquet"):
        file.unlink()
    fill(topic, numbered(710, 720), **EXCLUSIVE)
    assert command(broker, tmp_path, topic, "trim").returncode == 2
    missing = command(broker, tmp_path, f"{topic}-none", "offload", "--master", "local[2]")
    assert missing.returncode == 1
    assert missing.stderr.strip().splitlines()[-1].startswith("onewriter-pipeline: ")
    assert "Traceback" not in missing.stderr


@pytest.mark.full  # tests/integration/test_pipeline_offload_failures.py: no files without a commit remain
def test_killed_command_leaves_a_usable_table(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 5000), batching_enabled=False, **EXCLUSIVE)
    program = [sys.executable, "-m", "onewriter_pipeline", "offload", "--master", "local[2]"]
    for attempt in range(ATTEMPTS_MAX):
        table = tmp_path / str(attempt)
        access = ["--admin-url", broker.http_url, "--table", str(table), "--topic", topic]
        # Kill it with its Java process and its workers when a task has begun a file.
        with subprocess.Popen([*program, *access], start_new_session=True) as process:
            while process.poll() is None and not list(table.glob("messages/**/*onewriter-*")):
                time.sleep(0.001)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == -signal.SIGKILL:
            break  # otherwise it finished before the kill, and prints nothing
    assert process.returncode == -signal.SIGKILL
    assert run(["offload", *access]) == EXIT_OK
    assert spark.range(3).count() == 3  # the shared session keeps running
    counted = sum(file.rows for file in Tables(str(table)).existing(MESSAGES).files())
    assert counted == 5000


def java_of(session: int) -> int | None:
    """The process id of Spark's Java process in a session of processes, if there is one.

    A short-lived Java process (``launcher.Main``) determines its command line before.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            head, _, fields = stat.read_text().rpartition(")")
            if head.endswith("(java") and int(fields.split()[3]) == session:
                command = (stat.parent / "cmdline").read_bytes()
                if b"spark.launcher.Main" not in command:
                    return int(stat.parent.name)
    return None


@pytest.mark.full  # tests/unit/pipeline/test_engine_failures.py: the sentence for each error
def test_killed_java_process_gives_one_sentence(
    spark: SparkSession,
    broker: LocalBrokers,
    topic: str,
    fill: Fill,
    tmp_path: Path,
) -> None:
    fill(topic, numbered(0, 5000), batching_enabled=False, **EXCLUSIVE)
    program = [sys.executable, "-m", "onewriter_pipeline", "offload", "--master", "local[2]"]
    for attempt in range(ATTEMPTS_MAX):
        table = tmp_path / str(attempt)
        access = ["--admin-url", broker.http_url, "--table", str(table), "--topic", topic]
        with subprocess.Popen(
            [*program, *access], start_new_session=True, stderr=subprocess.PIPE, text=True
        ) as process:
            java: int | None = None
            while process.poll() is None and java is None:
                if list(table.glob("messages/**/*onewriter-*")):
                    java = java_of(process.pid)
                time.sleep(0.001)
            if java is not None:
                os.kill(java, signal.SIGKILL)
            _, errors = process.communicate(timeout=COMMAND_SECONDS)
        if process.returncode != EXIT_OK:
            break  # otherwise it finished before the kill
    assert process.returncode == EXIT_ERROR
    assert "Traceback" not in errors
    (sentence,) = [line for line in errors.splitlines() if line.startswith("onewriter-pipeline: ")]
    assert "the Java process of Spark ended" in sentence or "Spark did not start" in sentence
    assert run(["offload", *access]) == EXIT_OK
    assert spark.range(3).count() == 3  # the session of this process is another one
