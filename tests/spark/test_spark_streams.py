"""Streams of a real Spark over both tiers, with limits of messages and a subscription that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession
from tests.integration.offloading import numbered, offload, trim
from tests.spark.conftest import Fill
from tests.spark.queries import through

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EXCLUSIVE = {"access_mode": pulsar.ProducerAccessMode.Exclusive, "batching_enabled": False}


def run(spark: SparkSession, broker: LocalBrokers, folder: Path, **options: Any) -> list[int]:
    """The rows of each micro-batch of a query that reads everything."""
    given = {"admin.url": broker.http_url, "startingOffsets": "earliest"} | options
    frame = spark.readStream.format("onewriter").options(**given).load()
    writer = frame.writeStream.format("parquet").option("path", str(folder / "table"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = through(writer.trigger(availableNow=True).start)
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def table(spark: SparkSession, folder: Path) -> list[bytes]:
    frame = spark.read.parquet(str(folder / "table"))
    ordered = frame.orderBy("__ledgerId", "__entryId", "__batchIndex")
    return [bytes(row.value) for row in ordered.select("value").collect()]


def test_stream_over_both_tiers_while_the_table_grows(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    access, tables = Access(broker.http_url), Tables(str(tmp_path / "tables"))
    tiers = {"tier": "all", "table": tables.place.location, "topic": topic}
    fill(topic, numbered(0, 600), **EXCLUSIVE)
    offload(access, tables, topic)
    fill(topic, numbered(600, 700), **EXCLUSIVE)
    trim(access, tables, topic)
    assert run(spark, broker, tmp_path, **tiers, maxMessagesPerTrigger=250) == [250, 250, 200]
    fill(topic, numbered(700, 1300), **EXCLUSIVE)
    offload(access, tables, topic)
    fill(topic, numbered(1300, 1310), **EXCLUSIVE)
    trim(access, tables, topic)
    assert sum(run(spark, broker, tmp_path, **tiers)) == 610
    assert table(spark, tmp_path) == numbered(0, 1310)


def test_subscription_follows_the_checkpoint(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 25), **EXCLUSIVE)
    options = {"topic": topic, "ackSubscription": "spark"}

    def standing() -> Position:
        with Broker(Access(broker.http_url)) as client:
            return client.acknowledge(topic, "spark", Position(0, 0))

    assert run(spark, broker, tmp_path, **options, maxEntriesPerTrigger=10) == [10, 10, 5]
    began = standing()
    assert began.entry in {11, 21}  # never more than Spark's checkpoint has
    assert run(spark, broker, tmp_path, **options) == []
    assert standing() == Position(began.ledger, 26)
    assert run(spark, broker, tmp_path, **options) == []
    assert standing() == Position(began.ledger, 26)


def test_query_from_the_end_reads_all_new_messages(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 5), **EXCLUSIVE)
    options = {"topic": topic, "startingOffsets": "latest"}
    assert run(spark, broker, tmp_path, **options) == []
    fill(topic, numbered(5, 9), **EXCLUSIVE)
    assert run(spark, broker, tmp_path, **options) == [4]
    assert table(spark, tmp_path) == numbered(5, 9)
