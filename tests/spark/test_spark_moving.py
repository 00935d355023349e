"""A real Spark reads while brokers die and topics move: all rows are read once, in order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from tests.integration.conftest import StockClients
from tests.integration.following import placed, topic_of
from tests.integration.http_calls import Http
from tests.servers import running_server
from tests.spark.conftest import PATIENT_SENDING
from tests.spark.queries import reading

from onewriter_core.errors import Unavailable
from onewriter_testing.processes import LocalBrokers, running_brokers

# tests/unit/pipeline/brokers/test_pipeline_broker.py: lost owners are looked up again, broken streams continue.
pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(900)]

VALUE_BYTES = 40_000
VALUES = 1_000
"""40 MB in total: more than sockets and a task buffer, so that the read takes a while."""

QUERY_SECONDS = 600.0
POLL_SECONDS = 0.05
ROWS_BEFORE_KILL = 20
"""Rows of each task; a task buffers some hundred."""


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalBrokers]:
    """Two brokers over one store. A test that kills one starts it again."""
    with (
        running_server() as store,
        running_brokers(brokers=2, redis_url=store.url, supervised=False) as brokers,
    ):
        yield brokers


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%08d" % number + bytes(VALUE_BYTES) for number in range(first, end)]


def send(brokers: LocalBrokers, stock: StockClients, topic: str, first: int, end: int) -> None:
    """Send more values with a client that follows the topic to its broker."""
    client = stock(brokers.service_url)
    producer = client.create_producer(topic, batching_enabled=False, **PATIENT_SENDING)
    for value in numbered(first, end):
        producer.send_async(value, None)
    producer.flush()
    client.close()


def options_of(brokers: LocalBrokers, topic: str) -> dict[str, Any]:
    return {"admin.url": ",".join(brokers.http_urls), "topic": topic}


def streams_open(brokers: LocalBrokers, number: int) -> bool:
    """Whether that broker is serving blocks."""
    status, text = Http(brokers.http_urls[number])("GET", "/metrics")
    return status == 200 and "onewriter_block_streams 0.0" not in text


def heads(rows: Any) -> list[int]:
    return [int(bytes(row["value"][:8])) for row in rows]


def test_read_survives_the_death_of_its_broker(
    spark: SparkSession, pair: LocalBrokers, stock: StockClients, tmp_path: Path
) -> None:
    topic = topic_of(pair, 0, "dying")
    placed(pair, topic)
    send(pair, stock, topic, 0, VALUES)
    killed: list[int] = []
    goes_on = tmp_path / "killed"

    def kill_while_it_reads() -> None:
        try:
            wait_until(lambda: streams_open(pair, 0))
            killed.append(pair.kill(0))
        finally:
            goes_on.touch()

    def waiting_for_the_kill(rows: Iterable[Row]) -> Iterator[int]:
        """The rows after these are neither in a socket nor in a task yet."""
        for number, row in enumerate(rows):
            while number == ROWS_BEFORE_KILL and not goes_on.exists():
                time.sleep(POLL_SECONDS)
            yield int(bytes(row["value"][:8]))

    killer = threading.Thread(target=kill_while_it_reads)
    killer.start()
    reader = spark.read.format("onewriter").options(**options_of(pair, topic))
    frame = reader.schema("value BINARY").option("minPartitions", 2).load()
    found = frame.rdd.mapPartitions(waiting_for_the_kill).collect()
    killer.join()
    assert killed
    assert found == list(range(VALUES))
    assert pair.owner_of(topic, through=1) == 1
    pair.restart(0)


def test_stream_survives_the_move_of_its_topic(
    spark: SparkSession, pair: LocalBrokers, stock: StockClients, tmp_path: Path
) -> None:
    topic = topic_of(pair, 1, "moving")
    placed(pair, topic)
    send(pair, stock, topic, 0, 300)
    reader = spark.readStream.format("onewriter").options(**options_of(pair, topic))
    frame = reader.options(startingOffsets="earliest", maxMessagesPerTrigger=20).load()
    writer = frame.select("value", "__ledgerId", "__entryId").writeStream.format("parquet")
    query = writer.options(path=str(tmp_path / "table"), checkpointLocation=str(tmp_path / "c"))
    running = reading(query.start)
    try:
        pair.kill(1)
        wait_until(lambda: pair.owner_of(topic) == 0)
        send(pair, stock, topic, 300, 400)
        pair.restart(1)
        placed(pair, topic)  # it moves back, from a running broker
        send(pair, stock, topic, 400, 500)
        running.processAllAvailable()
    finally:
        running.stop()
    table = spark.read.parquet(str(tmp_path / "table")).orderBy("__ledgerId", "__entryId")
    assert heads(table.select("value").collect()) == list(range(500))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; a condition that no broker answers does not hold."""
    until = time.monotonic() + QUERY_SECONDS
    while True:
        with contextlib.suppress(OSError, Unavailable):
            if condition():
                return
        assert time.monotonic() < until
        time.sleep(POLL_SECONDS)
