"""Batches for several logs, as a driver and its tasks write them, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.http_calls import Http
from tests.integration.test_atomic_publish import Reader, holder

from onewriter_broker.testing import LocalBrokers
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Conflict
from onewriter_pipeline.publishing import writing
from onewriter_pipeline.publishing.staging import Publication
from onewriter_pipeline.publishing.writing import StagedLog, Target

APP = "job"


def rows(numbers: Iterable[int], topics: Sequence[str] = (), keys: int = 0) -> pa.RecordBatch:
    """Numbered rows, for topics in turn, with one of so many keys."""
    listed = list(numbers)
    columns: dict[str, Any] = {"value": pa.array([b"%d" % number for number in listed])}
    if topics:
        columns["__topic"] = [topics[number % len(topics)] for number in listed]
    if keys:
        columns["__key"] = [f"key-{number % keys}" for number in listed]
    return pa.record_batch(columns)


def staged(target: Target, version: int, *batches: pa.RecordBatch) -> list[StagedLog]:
    """As a task for each batch does."""
    return [
        log
        for number, batch in enumerate(batches)
        for log in writing.stage(target, APP, version, (number, 100 + number), [batch])
    ]


def write(target: Target, version: int, *batches: pa.RecordBatch) -> dict[str, Publication]:
    return writing.publish(target, APP, version, staged(target, version, *batches))


def target_of(broker: LocalBrokers, topic: str = "", **more: Any) -> Target:
    return Target(Access(broker.http_url), topic, **more)


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def partitioned(broker: LocalBrokers, topic: str, partitions: int, method: str = "PUT") -> None:
    path = f"/admin/v2/persistent/public/default/{topic}/partitions"
    assert Http(broker.http_url)(method, path, partitions)[0] == 204


def stored(client: Any, topic: str, partitions: int) -> list[list[int]]:
    return [Reader(client, f"{topic}-partition-{each}").numbers() for each in range(partitions)]


def half_published(
    broker: LocalBrokers, topic: str, client: Any, version: int
) -> tuple[Target, pa.RecordBatch]:
    """A batch of 200 rows that one of two partitions has, as somebody held the other one.

    Now nobody does, and the topic has five.
    """
    partitioned(broker, topic, 2)
    target, batch = target_of(broker, topic), rows(range(200), keys=50)
    producer = holder(client, f"{topic}-partition-1")
    with pytest.raises(Conflict):
        write(target, version, batch)
    partitioned(broker, topic, 5, "POST")
    producer.close()
    return target, batch
