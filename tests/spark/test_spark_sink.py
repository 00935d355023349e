"""A real Spark writes to topics: every row once, in order, and none under an epoch that is over."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.integration.conftest import StockClients
from tests.integration.http_calls import Http
from tests.spark.queries import through

import onewriter.sync
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.lead.leader import Leader
from onewriter_pipeline.publish.lead_session import LeadSession
from onewriter_pipeline.publish.transfer import PublishTarget
from onewriter_testing.processes import LocalBrokers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def rows(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "cast(id as string) as value", "cast(id % 7 as string) as __key"
    )


def write(frame: DataFrame, broker: LocalBrokers, log: str, version: int, **options: Any) -> None:
    named: dict[str, Any] = {
        "admin.url": broker.http_url,
        "topic": log,
        "txnAppId": "job",
        "txnVersion": version,
    }
    frame.write.format("onewriter").options(**(named | options)).mode("append").save()


def stored(spark: SparkSession, broker: LocalBrokers, topic: str) -> list[int]:
    """All rows of a topic, in the order of the log."""
    found = (
        spark.read.format("onewriter")
        .option("admin.url", broker.http_url)
        .option("topic", topic)
        .load()
        .orderBy("__ledgerId", "__entryId", "__batchIndex")
        .selectExpr("cast(cast(value as string) as bigint) as number")
        .collect()
    )
    return [row.number for row in found]


def test_batch_is_written_once_in_order(
    spark: SparkSession, broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    frame = rows(spark, 10_000)
    write(frame, broker, topic, 1)
    write(frame, broker, topic, 1)
    assert stored(spark, broker, topic) == list(range(10_000))
    write(rows(spark, 5), broker, topic, 2, rowsPerEntry=1)
    assert stored(spark, broker, topic) == [*range(10_000), *range(5)]


def test_rows_go_to_the_topics_that_they_name_and_to_partitions_by_key(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    plain, parted = f"{topic}-plain", f"{topic}-parted"
    path = f"/admin/v2/persistent/public/default/{parted}/partitions"
    assert Http(broker.http_url)("PUT", path, 3)[0] == 204
    columns = f"value, __key, if(cast(value as int) % 2 = 0, '{plain}', '{parted}') as __topic"
    frame = rows(spark, 2_000).selectExpr(*columns.split(", ", 2))
    for _ in range(2):
        write(frame.repartition(2), broker, "", 1)
    assert sorted(stored(spark, broker, plain)) == list(range(0, 2_000, 2))
    read = spark.read.format("onewriter").option("admin.url", broker.http_url)
    found = (
        read.option("topic", parted)
        .load()
        .selectExpr("cast(value as string) v", "__key k", "__topic t")
    )
    assert sorted(int(row.v) for row in found.collect()) == list(range(1, 2_000, 2))
    assert (
        found.groupBy("k").agg({"t": "collect_set"}).toDF("k", "t").where("size(t) > 1").count()
        == 0
    )
    assert found.select("t").distinct().count() > 1


def test_at_least_once_batch_needs_no_version(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    for _ in range(2):
        writer = rows(spark, 10, 1).write.format("onewriter").mode("append")
        writer = writer.option("admin.url", broker.http_url).option("topic", topic)
        writer.option("deliveryGuarantee", "at-least-once").save()
    assert stored(spark, broker, topic) == 2 * list(range(10))


def plans(spark: SparkSession) -> str:
    """What Spark's UI and event logs show of all queries so far."""
    store = spark._jsparkSession.sharedState().statusStore()
    shown = store.executionsList()
    return "\n".join(
        shown.apply(number).physicalPlanDescription() for number in range(shown.size())
    )


def test_plans_and_event_logs_show_no_capability(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    spark.conf.set("spark.sql.ui.explainMode", "extended")  # with the options of reads and writes
    try:
        with (
            onewriter.sync.Client(broker.service_url) as client,
            client.lead(topic, announce=False) as leadership,
        ):
            options = leadership.spark_options("job")
            write(rows(spark, 10), broker, topic, 1, **options)
    finally:
        spark.conf.unset("spark.sql.ui.explainMode")
    (secret,) = [value for name, value in options.items() if name.startswith("capability")]
    shown = plans(spark)
    assert f"epoch={options['epoch']}" in shown
    assert "capabilityToken=" in shown
    assert secret not in shown


def test_nothing_is_written_under_an_epoch_that_is_over(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    with onewriter.sync.Client(broker.service_url) as client:
        with client.lead(topic, announce=False) as leadership:
            options = leadership.spark_options("job")
            write(rows(spark, 10), broker, topic, 1, **options)
        with client.lead(topic, announce=False):
            with pytest.raises(PySparkException):
                write(rows(spark, 10), broker, topic, 2, **options)
            with pytest.raises(PySparkException, match="another producer holds"):
                write(rows(spark, 10), broker, topic, 2)
    assert stored(spark, broker, topic) == list(range(10))


def copy(
    spark: SparkSession,
    broker: LocalBrokers,
    source: str,
    target: str,
    checkpoint: Path,
    **options: str,
) -> None:
    """A query that publishes what is new in one topic to another one, and ends."""
    writer = (
        spark.readStream.format("onewriter")
        .option("admin.url", broker.http_url)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("value", "__key")
        .writeStream.format("onewriter")
        .option("admin.url", broker.http_url)
        .option("topic", target)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    through(writer.start)


def test_second_driver_on_a_checkpoint_fences_the_first(
    spark: SparkSession, broker: LocalBrokers, topic: str, tmp_path: Path
) -> None:
    """The next batch of a superseded query fails, its error names the leader, and none of its rows is published."""
    source, target = f"{topic}-source", f"{topic}-target"
    fencing = "exclusive-with-fencing"
    write(rows(spark, 10, 1), broker, source, 1)

    def run() -> None:
        copy(spark, broker, source, target, tmp_path / "checkpoint", accessMode=fencing)

    run()
    write(rows(spark, 5, 1), broker, source, 2)
    # Another process with a copy of the checkpoint, like a driver on another machine.
    with tempfile.TemporaryDirectory(prefix="ow") as folder:
        other = LeadSession("another driver", Leader(root=Path(folder)), fencing)
        begun = other.begin(PublishTarget(Access(broker.http_url), target), "query")
        with pytest.raises(PySparkException, match="is led by query-"):
            run()
        assert stored(spark, broker, target) == list(range(10))
        assert begun.grants
        other.end(is_over=True)


def test_task_that_fails_after_its_rows_leaves_none_of_them(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    broken = rows(spark, 100).selectExpr(
        "if(value = '99', raise_error('the last row'), value) as value"
    )
    with pytest.raises(PySparkException):
        write(broken, broker, topic, 1)
    write(rows(spark, 10), broker, topic, 1)
    assert stored(spark, broker, topic) == list(range(10))


def test_stream_continues_after_a_restart(
    spark: SparkSession, broker: LocalBrokers, topic: str, tmp_path: Path
) -> None:
    source, target = f"{topic}-source", f"{topic}-target"

    def run() -> None:
        copy(spark, broker, source, target, tmp_path / "checkpoint")

    write(rows(spark, 100, 1), broker, source, 1)
    run()
    write(rows(spark, 50, 1), broker, source, 2)
    run()
    assert stored(spark, broker, target) == [*range(100), *range(50)]
    # As after a driver that died after its publish: the batch that it had not recorded is repeated.
    for folder in ("commits", "offsets"):
        notes = [each for each in (tmp_path / "checkpoint" / folder).iterdir() if each.name != "0"]
        for each in notes:
            if folder == "commits":
                each.unlink()
    run()
    assert stored(spark, broker, target) == [*range(100), *range(50)]


def test_new_stream_under_an_old_name_fails(
    spark: SparkSession, broker: LocalBrokers, topic: str, tmp_path: Path
) -> None:
    source = f"{topic}-source"
    write(rows(spark, 10, 1), broker, source, 1)
    write(rows(spark, 5, 1), broker, topic, 5)
    with pytest.raises(PySparkException, match="has version 5 of it already"):
        copy(spark, broker, source, topic, tmp_path / "checkpoint", txnAppId="job")
    assert stored(spark, broker, topic) == list(range(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": ""}, "txnAppId and txnVersion"),
        # tests/unit/pipeline/spark_source/test_write_options.py tests the error of each invalid option
        pytest.param({"topic": ""}, "topic is missing", marks=pytest.mark.full),
        pytest.param({"txnAppID2": "x"}, "txnAppId", marks=pytest.mark.full),
        pytest.param({"deliveryGuarantee": "at-most-once"}, "exactly-once", marks=pytest.mark.full),
        pytest.param({"txnAppId": "a b"}, "not a valid app", marks=pytest.mark.full),
        pytest.param({"rowsPerEntry": 0}, "rowsPerEntry", marks=pytest.mark.full),
    ],
    ids=str,
)
def test_invalid_options_are_named_before_anything_runs(
    spark: SparkSession, broker: LocalBrokers, topic: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((PySparkException, AnalysisException), match=message):
        write(rows(spark, 1), broker, topic, 1, **options)


def test_unsupported_columns_are_named(
    spark: SparkSession, broker: LocalBrokers, topic: str
) -> None:
    with pytest.raises(PySparkException, match="messages cannot have the columns other"):
        write(rows(spark, 1).selectExpr("value", "1 as other"), broker, topic, 1)
    with pytest.raises(PySparkException, match="to_json"):
        write(rows(spark, 1).selectExpr("__key"), broker, topic, 1)
