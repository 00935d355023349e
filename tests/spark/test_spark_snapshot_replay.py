"""Snapshots by key, and replays, from topics and tables, with a real Spark and real brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.integration.conftest import StockClients
from tests.integration.http_calls import PERSISTENT, Http
from tests.spark.conftest import Fill

from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.engine import active, in_process
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.jobs import replay, snapshot
from onewriter_pipeline.jobs.dataframes import publish
from onewriter_pipeline.jobs.offload import Offload
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import FORMATS, PARQUET
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def keyed(
    broker: LocalBrokers, stock: StockClients, topic: str, pairs: list[tuple[str, bytes]]
) -> None:
    producer = stock(broker.service_url).create_producer(topic, batching_enabled=False)
    for key, value in pairs:
        producer.send(value, partition_key=key)
    producer.send(b"without a key")
    producer.close()


def reading(broker: LocalBrokers, topic: str, **more: str) -> dict[str, str]:
    return {"admin.url": broker.http_url, "topic": topic} | more


def newest_values(spark: SparkSession, options: dict[str, str]) -> list[tuple[bytes, bytes]]:
    kept, counts = snapshot.newest(spark, options)
    try:
        rows = snapshot.values(kept).collect()
        assert (counts.values, counts.keys >= counts.values) == (len(rows), True)
        return [(bytes(row["__key"]), bytes(row["value"])) for row in rows]
    finally:
        kept.unpersist()


MESSAGES = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"")]
NEWEST = [(b"a", b"2"), (b"c", b"1")]


def test_snapshot_has_the_newest_message_of_each_key_and_can_be_published(
    spark: SparkSession, broker: LocalBrokers, topic: str, stock: StockClients, tmp_path: Path
) -> None:
    keyed(broker, stock, topic, MESSAGES)
    access = Access(broker.http_url)
    assert newest_values(spark, reading(broker, topic)) == NEWEST
    place = str(tmp_path / "table")
    Offload(access, Tables(place), Selection(topics=(topic,))).run(in_process, 1)
    cold = {"topic": topic, "tier": "cold", "table": place}
    assert newest_values(spark, cold) == NEWEST
    kept, _ = snapshot.newest(spark, reading(broker, topic))
    whole = snapshot.values(kept)
    rows = whole.select("__key", "value")
    assert Http(broker.http_url)("PUT", f"{PERSISTENT}/{topic}-parts/partitions", 3)[0] == 204
    for target in (f"{topic}-newest", f"{topic}-parts"):
        again = [publish(rows, access, topic=target, app="snapshot", version=1) for _ in range(2)]
        assert again == [True, False]
        assert sorted(newest_values(spark, reading(broker, target))) == NEWEST
    for kind in FORMATS:
        path = str(tmp_path / kind)
        with active(spark.newSession()):  # another part of the program uses its own session
            snapshot.SnapshotTarget(path, kind, False, "", "", None).write(whole)
        files = [path] if kind == PARQUET else DeltaTable(path).file_uris()
        assert spark.read.parquet(*files).count() == len(NEWEST)
        with pytest.raises(Invalid, match="--overwrite"):
            snapshot.SnapshotTarget(path, kind, False, "", "", None).check()
    kept.unpersist()


async def test_shared_state_is_refused(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    import onewriter

    async with (
        onewriter.Client(broker.service_url) as client,
        onewriter.SharedMap(client, topic, str, int) as limits,
    ):
        await limits.put("requests", 100)
    with pytest.raises(Invalid, match="onewriter map list"):
        snapshot.newest(spark, reading(broker, topic))


def test_range_is_replayed_once_and_in_order(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill
) -> None:
    fill(topic, [b"%d" % n for n in range(1000)], producer_name="alice")
    target, access = f"{topic}-again", Access(broker.http_url)
    rows = replay.chosen(spark, reading(broker, topic, minPartitions="4"), "__sequenceId >= 500")
    again = [publish(rows, access, topic=target, app="replay", version=1) for _ in range(2)]
    assert again == [True, False]
    loaded = spark.read.format("onewriter").options(**reading(broker, target)).load()
    found = loaded.orderBy("__ledgerId", "__entryId", "__batchIndex").select("value").collect()
    sent = [b"%d" % n for n in range(1000)]
    chosen = [bytes(row["value"]) for row in rows.collect()]
    assert [bytes(row["value"]) for row in found] == chosen
    assert 0 < len(chosen) < len(sent)
    assert chosen == sent[-len(chosen) :]
    with pytest.raises(Invalid, match="not a condition in SQL"):
        replay.chosen(spark, reading(broker, topic), "what is")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topic", "t"], "give --to PATH, --publish-to TOPIC, or both"),
        (["--topic", "t", "--publish-to", "u"], "needs --app, a name, and --version"),
        (["--topic", "t", "--to", "/nowhere/x", "--tier", "all"], "needs --table"),
    ],
)
def test_invalid_options_are_refused_before_anything_starts(words: list[str], message: str) -> None:
    result: Any = CliRunner().invoke(snapshot.command, words)
    assert isinstance(result.exception, Invalid)
    assert message in str(result.exception)
