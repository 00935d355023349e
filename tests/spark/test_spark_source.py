"""``format("onewriter")`` in a real Spark: tables, SQL, streams with checkpoints, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.conftest import Fill
from tests.spark.queries import through

from onewriter_broker.testing.processes import LocalBrokers
from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.schema import MESSAGE_COLUMNS

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


def test_missing_topic_is_an_error(spark: SparkSession, broker: LocalBrokers, topic: str) -> None:
    with pytest.raises(AnalysisException, match=f"{topic}"):
        load(spark, broker, topic=topic).count()


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
