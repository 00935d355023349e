"""Batches for several logs, written without Spark as a driver and its tasks would write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from tests.integration.http_calls import Http
from tests.integration.leaders import lead_session
from tests.integration.test_atomic_publish import Reader

from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.lead.requests import EXCLUSIVE, Grant
from onewriter_pipeline.publish import transfer
from onewriter_pipeline.publish.staging import Publication
from onewriter_pipeline.publish.transfer import PublishTarget, StagedLog
from onewriter_testing.processes import LocalBrokers

APP = "job"


def rows(numbers: Iterable[int], topics: Sequence[str] = (), keys: int = 0) -> pa.RecordBatch:
    """Return numbered rows, for the topics in turn, with one of ``keys`` keys."""
    listed = list(numbers)
    columns: dict[str, Any] = {"value": pa.array([b"%d" % number for number in listed])}
    if topics:
        columns["__topic"] = [topics[number % len(topics)] for number in listed]
    if keys:
        columns["__key"] = [f"key-{number % keys}" for number in listed]
    return pa.record_batch(columns)


def staged(target: PublishTarget, version: int, *batches: pa.RecordBatch) -> list[StagedLog]:
    """Stage like one task for each batch."""
    return [
        log
        for number, batch in enumerate(batches)
        for log in transfer.stage(target, APP, version, (number, 100 + number), [batch])
    ]


def publish(
    target: PublishTarget, version: int, parts: Sequence[StagedLog], mode: str = EXCLUSIVE
) -> dict[str, Publication]:
    """Publish like a driver, which leads unless the target names the epochs that its program leads."""
    if target.is_led:
        return transfer.publish(target, APP, version, parts)
    with lead_session(mode) as led:
        begun = {topic: grant.epoch for topic, grant in led.begin(target, APP).grants.items()}
        return led.publish(target, APP, version, parts, begun)


def write(
    target: PublishTarget, version: int, *batches: pa.RecordBatch, mode: str = EXCLUSIVE
) -> dict[str, Publication]:
    if target.is_led:
        return publish(target, version, staged(target, version, *batches))
    with lead_session(mode) as led:
        begun = led.begin(target, APP)
        epochs = {topic: grant.epoch for topic, grant in begun.grants.items()}
        return led.publish(target, APP, version, staged(begun, version, *batches), epochs)


def led_by(target: PublishTarget, grants: Mapping[str, Grant]) -> PublishTarget:
    """Return the target of a program that leads its topics itself."""
    return replace(target, grants={full(topic): grants[topic] for topic in grants}, is_led=True)


def target_of(broker: LocalBrokers, topic: str = "", **more: Any) -> PublishTarget:
    return PublishTarget(Access(broker.http_url), topic, **more)


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def partitioned(broker: LocalBrokers, topic: str, partitions: int, method: str = "PUT") -> None:
    path = f"/admin/v2/persistent/public/default/{topic}/partitions"
    assert Http(broker.http_url)(method, path, partitions)[0] == 204


def stored(client: Any, topic: str, partitions: int) -> list[list[int]]:
    return [Reader(client, f"{topic}-partition-{each}").numbers() for each in range(partitions)]


def half_published(
    broker: LocalBrokers, topic: str, version: int
) -> tuple[PublishTarget, pa.RecordBatch]:
    """Publish a batch of 200 rows to only one of two partitions, because its driver died then.

    The topic now has five partitions.
    """
    partitioned(broker, topic, 2)
    target, batch = target_of(broker, topic), rows(range(200), keys=50)
    with lead_session() as led:
        begun = led.begin(target, APP)
        epochs = {name: grant.epoch for name, grant in begun.grants.items()}
        led.publish(target, APP, version, staged(begun, version, batch)[:1], epochs)
    partitioned(broker, topic, 5, "POST")
    return target, batch
