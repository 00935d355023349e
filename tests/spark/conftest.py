"""One real Spark for all tests, with real brokers. Data sources run in other processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.integration.conftest import StockClients, broker, stock, topic

from onewriter_pipeline.java_runtime import use_java
from onewriter_testing.processes import LocalBrokers

__all__ = ["broker", "stock", "topic"]  # fixtures of the tests with real brokers

Fill = Callable[..., None]

PATIENT_SENDING: dict[str, Any] = {"block_if_queue_full": True, "send_timeout_millis": 0}
"""Options of a stock producer: a send ends only with an answer."""

LOOPBACK = "127.0.0.1"
TUNED = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
}


def session(master: str, settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """The only Spark of this process. ``settings``: in addition to those of all tests."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    builder = SparkSession.builder.master(master)
    for name, value in {**TUNED, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark of all tests: two parallel tasks, each tried up to three times."""
    started = session("local[2,3]")
    yield started
    started.stop()


@pytest.fixture
def fill(broker: LocalBrokers, stock: StockClients) -> Fill:
    """Sends messages: ``fill(topic, values, **options of the producer)``."""
    client = stock(broker.service_url)

    def send(name: str, values: Iterable[bytes], **options: Any) -> None:
        producer = client.create_producer(name, **PATIENT_SENDING, **options)
        for value in values:
            producer.send_async(value, None)
        producer.flush()
        producer.close()

    return send
