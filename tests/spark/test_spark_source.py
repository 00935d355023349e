"""``format("onewriter")`` in a real Spark: tables, SQL, streams with checkpoints, errors."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.conftest import Fill
from tests.spark.queries import QUERY_SECONDS, through

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.schema import MESSAGE_COLUMNS
from onewriter_testing.processes import LocalBrokers
from pyspark_onewriter.lag import LagListener
from pyspark_onewriter.topics import read_topic, write_topic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def load(spark: SparkSession, broker: LocalBrokers, **options: Any) -> DataFrame:
    reader = spark.read.format("onewriter").option("admin.url", broker.http_url)
    return reader.options(**options).load()


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.select("value").collect()]


@pytest.mark.parametrize(
    "batched",
    [
        # test_growth_epochs_and_trimming reads single messages
        pytest.param(False, id="unbatched", marks=pytest.mark.full),
        pytest.param(True, id="batched"),
    ],
)
def test_topic_is_a_table(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, batched: bool
) -> None:
    codec = pulsar.CompressionType.ZSTD
    fill(topic, numbered(0, 1000), batching_enabled=batched, compression_type=codec)
    frame = load(spark, broker, topic=topic, minPartitions=3)
    assert frame.columns == list(MESSAGE_COLUMNS)
    assert values(frame) == numbered(0, 1000)
    assert frame.filter("__sequenceId < 10").count() == 10
    assert frame.count() == 1000  # rows that the filter of another action excluded


def test_every_column_reaches_spark(
    spark: SparkSession, broker: LocalBrokers, topic: str, stock: Any
) -> None:
    producer = stock(broker.service_url).create_producer(
        topic, producer_name="w", access_mode=pulsar.ProducerAccessMode.Exclusive
    )
    more: dict[str, Any] = {"properties": {"a": "b", "c": ""}, "event_timestamp": 1_500}
    producer.send(b"v", partition_key="k", **more)
    producer.send(b"")
    producer.close()
    first, second = load(spark, broker, topic=topic).collect()
    assert (bytes(first["value"]), bytes(first["__key"])) == (b"v", b"k")
    assert first["__messageProperties"] == {"a": "b", "c": ""}
    assert first["__eventTime"].timestamp() == 1.5
    assert first["__topic"] == f"persistent://public/default/{topic}"
    assert first["__epoch"] > 0
    assert (first["__producerName"], first["__sequenceId"], first["__batchIndex"]) == ("w", 0, -1)
    assert (second["__key"], second["__eventTime"], second["__messageProperties"]) == (
        None,
        None,
        {},
    )
    assert (second["__ledgerId"], second["__entryId"]) == (first["__ledgerId"], 2)


def test_sql_and_a_custom_schema(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill
) -> None:
    fill(topic, [b'{"n": %d}' % number for number in range(10)])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING onewriter OPTIONS "
        f"(`admin.url` '{broker.http_url}', topic '{topic}', valueFormat 'json')"
    )
    found = spark.sql("SELECT sum(CAST(get_json_object(value, '$.n') AS INT)) AS total FROM orders")
    assert found.collect()[0]["total"] == 45
    reader = spark.read.format("onewriter").option("admin.url", broker.http_url)
    frame = reader.option("topic", topic).schema("__entryId BIGINT, value BINARY").load()
    assert [row["__entryId"] for row in frame.collect()] == list(range(1, 11))


def test_a_table_of_a_catalog_reads_and_writes_a_topic(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill
) -> None:
    fill(topic, numbered(0, 10))
    name = topic.replace("-", "_")
    spark.sql(
        f"CREATE TABLE {name} USING onewriter OPTIONS (`kafka.bootstrap.servers` '{broker.http_url}',"
        f" topic '{topic}', txnAppId 'sql')"
    )
    for _ in range(2):  # the same version: it is there once
        spark.sql(
            "INSERT INTO IDENTIFIER(:t) WITH (txnVersion = 1) (value, __key) VALUES (X'31', X'6B')",
            {"t": name},
        )
    found = spark.table(name).select("value", "__key", "__epoch")
    rows = found.collect()
    assert [bytes(each["value"]) for each in rows] == [*numbered(0, 10), b"1"]
    assert bytes(rows[-1]["__key"]) == b"k"
    newest = rows[-1]["__epoch"]
    assert spark.read.option("startingEpoch", newest).table(name).count() == 1
    with pytest.raises(PythonException, match="rows cannot set the column __messageId"):
        spark.sql(
            "INSERT INTO IDENTIFIER(:t) WITH (txnVersion = 2) TABLE IDENTIFIER(:t)", {"t": name}
        )
    spark.sql(f"DROP TABLE {name}")


def test_a_new_thread_writes_to_a_topic(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    rows = spark.createDataFrame([("1",), ("2",)], "value STRING").coalesce(1)
    url = broker.http_url
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_topic, rows, topic, app="thread", version=1, admin_url=url).result()
    assert values(read_topic(spark, topic, columns=["value"], admin_url=url)) == [b"1", b"2"]


def test_growth_epochs_and_trimming(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill
) -> None:
    exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive, "batching_enabled": False}
    fill(topic, numbered(0, 600), **exclusive)
    frame = load(spark, broker, topic=topic)
    assert frame.count() == 600
    fill(topic, numbered(600, 650), **exclusive)
    assert frame.count() == 600  # one DataFrame is one snapshot
    assert load(spark, broker, topic=topic).count() == 650
    with Broker(Access(broker.http_url)) as client:
        held = client.segments(topic)
        last = held.segments[-1]
        assert values(load(spark, broker, topic=topic, epochs=last.epoch)) == numbered(600, 650)
        epoch = int(client.topic(topic)["epoch"])
        client.trim(topic, Position(last.ledger, 0), epoch=epoch)
    assert values(load(spark, broker, topic=topic)) == numbered(600, 650)
    start = json.dumps({topic: f"{held.segments[0].ledger}:1"})
    with pytest.raises(AnalysisException, match="was trimmed"):
        load(spark, broker, topic=topic, startingOffsets=start).count()
    careless = load(spark, broker, topic=topic, startingOffsets=start, failOnDataLoss="false")
    assert careless.count() == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "x"}, "there is no option 'startingofsets': 'startingOffsets'?"),
        # tests/unit/pipeline/spark_source/test_read_options.py tests the error of each invalid option
        pytest.param({"topics": "o"}, "topic and topics: give one of", marks=pytest.mark.full),
        pytest.param(
            {"startingOffsets": "latest"},
            "a batch cannot start at 'latest'",
            marks=pytest.mark.full,
        ),
    ],
)
def test_errors_are_short(
    spark: SparkSession, broker: LocalBrokers, topic: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, broker, topic=topic, authToken="secret", **options).count()
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2  # no Python traceback


def test_missing_topic_is_an_error(spark: SparkSession, broker: LocalBrokers, topic: str) -> None:
    with pytest.raises(AnalysisException, match=f"{topic}") as caught:
        load(spark, broker, topic=topic).count()
    assert len(str(caught.value).splitlines()) <= 2
    assert load(spark, broker, topicsPattern=topic).count() == 0  # no whole name


# ------------------------------------------------------------ streams


def start(
    spark: SparkSession, broker: LocalBrokers, directory: Path, **options: Any
) -> StreamingQuery:
    reader = spark.readStream.format("onewriter").option("admin.url", broker.http_url)
    frame = reader.options(**{"startingOffsets": "earliest"} | options).load()
    writer = frame.writeStream.format("parquet").option("path", str(directory / "table"))
    return (
        writer.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def run(spark: SparkSession, broker: LocalBrokers, directory: Path, **options: Any) -> list[int]:
    """The rows of each micro-batch of a query that reads everything."""
    query = through(lambda: start(spark, broker, directory, **options))
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def table(spark: SparkSession, directory: Path) -> list[bytes]:
    frame = spark.read.parquet(str(directory / "table"))
    return values(frame.orderBy("__ledgerId", "__entryId", "__batchIndex"))


def test_stream_continues_at_its_checkpoint(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 25), batching_enabled=False)
    assert run(spark, broker, tmp_path, topic=topic, maxEntriesPerTrigger=10) == [10, 10, 5]
    assert table(spark, tmp_path) == numbered(0, 25)
    fill(topic, numbered(25, 60), batching_enabled=True)
    assert sum(run(spark, broker, tmp_path, topic=topic)) == 35
    assert run(spark, broker, tmp_path, topic=topic) == []
    assert table(spark, tmp_path) == numbered(0, 60)


@pytest.mark.full  # tests/integration/test_pipeline_streams.py determines lags without a JVM
def test_lag_of_a_stream_and_the_trigger_once(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 25), batching_enabled=False)
    listener = LagListener({"admin.url": broker.http_url})
    spark.streams.addListener(listener)
    try:
        reader = spark.readStream.format("onewriter").option("admin.url", broker.http_url)
        frame = reader.options(topic=topic, startingOffsets="earliest").load()
        writer = frame.writeStream.format("noop").queryName(topic)
        query = through(lambda: writer.trigger(once=True).start())
        assert sum(each["numInputRows"] for each in query.recentProgress) == 0
        until = time.monotonic() + QUERY_SECONDS
        while not listener.lags:
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        spark.streams.removeListener(listener)
    (lag,) = listener.lags[topic].values()
    assert (lag.entries, lag.messages) == (25, 25)


@pytest.mark.full
def test_spark_connect_reads_and_writes(broker: LocalBrokers, topic: str, fill: Fill) -> None:
    fill(topic, numbered(0, 10))
    program = [sys.executable, "-m", "tests.spark.connected", broker.http_url, topic]
    done = subprocess.run(
        program, check=False, capture_output=True, text=True, timeout=QUERY_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "12", "12"]


def test_stream_fails_if_its_next_entries_were_trimmed(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive, "batching_enabled": False}
    fill(topic, numbered(0, 600), **exclusive)
    assert run(spark, broker, tmp_path, topic=topic, maxEntriesPerTrigger=300) == [300, 300]
    fill(topic, numbered(600, 1200), **exclusive)
    fill(topic, numbered(1200, 1210), **exclusive)
    with Broker(Access(broker.http_url)) as client:
        last = client.segments(topic).segments[-1]
        epoch = int(client.topic(topic)["epoch"])
        client.trim(topic, Position(last.ledger, 0), epoch=epoch)
    with pytest.raises(StreamingQueryException, match="was trimmed"):
        through(lambda: start(spark, broker, tmp_path, topic=topic))
    assert run(spark, broker, tmp_path, topic=topic, failOnDataLoss="false") == [10]
