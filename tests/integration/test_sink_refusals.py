"""Batches for several logs of which one refuses, and batches after unfinished ones, with real brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.conftest import StockClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import OWN, PERSISTENT, Http
from tests.integration.leaders import lead_session, program, shown
from tests.integration.sinks import (
    APP,
    full,
    half_published,
    led_by,
    partitioned,
    rows,
    staged,
    stored,
    target_of,
    write,
)
from tests.integration.test_atomic_publish import Reader, holder

from onewriter_broker.topic.publish import staged_rows
from onewriter_core.log_format.limits import PUBLISH_VERSION_MAX
from onewriter_pipeline.errors import Conflict, Invalid, PipelineError
from onewriter_pipeline.lead.requests import WAIT_FOR_EXCLUSIVE, Grant
from onewriter_pipeline.publish import transfer
from onewriter_pipeline.publish.parts import ENTRY_HEAD_BYTES, ROW_AND_KEY_BYTES_MAX, pack
from onewriter_pipeline.publish.transfer import TransferLimits
from onewriter_testing.processes import LocalBrokers

LONG_APP = "a" * 200


def test_a_batch_that_one_topic_refuses_is_published_to_none(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    small, large = f"{topic}-a", f"{topic}-b"
    limits = TransferLimits(entries_max=100)
    target = replace(target_of(broker, frame_rows=1), limits=limits)
    batches = [rows(range(10), [small]), rows(range(101), [large])]
    with pytest.raises(Invalid, match=r"101 entries .*rowsPerEntry") as refused:
        write(target, 1, *batches)
    assert not hasattr(refused.value, "__notes__")
    client = stock(broker.service_url)
    assert Reader(client, small).numbers() == []
    write(replace(target, frame_rows=2), 1, *batches)
    assert [len(Reader(client, each).numbers()) for each in (small, large)] == [10, 101]


@pytest.mark.parametrize("frame_rows", [1, 3, 1000])
@pytest.mark.parametrize("app", ["a", LONG_APP], ids=["short", "long"])
async def test_the_log_of_each_part_is_known_before_the_publish(frame_rows: int, app: str) -> None:
    keys = [None if number % 7 == 0 else "k" * (number * 40) for number in range(100)]
    batch = pa.record_batch({"value": pa.array([b"v" * 100] * 100), "__key": keys})
    (part,) = pack([batch], frame_rows=frame_rows)
    now, latest = 1_800_000_000_000, PUBLISH_VERSION_MAX - 1
    made = [len(entry) async for _, entry in staged_rows.entries(part.body, app, latest, now)]
    assert len(made) == part.entries
    most = part.entry_bytes + part.entries * (ENTRY_HEAD_BYTES + len(app))
    assert most - 12 * part.entries <= sum(made) <= most


def test_the_largest_row_with_a_key_is_published(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    key = "k" * 10_000
    value_bytes = ROW_AND_KEY_BYTES_MAX - 2 * len(key) - 20
    batch = pa.record_batch({"value": [b"1".zfill(value_bytes)], "__key": [key]})
    target, version = target_of(broker, topic), PUBLISH_VERSION_MAX - 1
    logs = transfer.stage(target, LONG_APP, version, (0, 0), [batch])
    assert ROW_AND_KEY_BYTES_MAX - 10 < logs[0].parts[0].entry_bytes <= ROW_AND_KEY_BYTES_MAX
    with lead_session() as led:
        led.publish(target, LONG_APP, version, logs, {full(topic): 0})
    (message,) = Reader(stock(broker.service_url), topic).all()
    assert (len(message.data()), message.partition_key()) == (value_bytes, key)


def test_a_batch_is_finished_although_a_later_one_began(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    target, batch = half_published(broker, topic, 6)
    staged(target, 7, rows(range(200, 210), keys=5))  # and its driver dies
    found = write(target, 6, batch)
    assert [each.is_duplicate for each in found.values()] == [True, False]
    assert sorted(n for numbers in stored(client, topic, 5) for n in numbers) == list(range(200))
    write(target, 7, rows(range(200, 400), keys=50))
    with pytest.raises(Conflict, match="has version 7 of it already"):
        write(target, 6, batch)
    assert sum(map(len, stored(client, topic, 5))) == 400


REFUSING = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: waits}
spec: {access: {modes: [WaitForExclusive], requireClaim: false}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: ends}
spec: {access: {requireClaim: false}}
"""


def test_a_batch_that_one_topic_refuses_permanently_is_published_to_none(
    stock: StockClients,
) -> None:
    with forked_brokers(manifests=REFUSING) as brokers:
        http, client = Http(brokers.http_url), stock(brokers.service_url)
        holder(client, "ends").close()
        assert http("POST", f"{PERSISTENT}/ends/terminate")[0] == 200
        for guarantee in transfer.GUARANTEES:
            target = target_of(brokers, guarantee=guarantee)
            for name, error, why in (
                ("ends", Conflict, "was already terminated"),
                ("waits", Invalid, "does not allow access mode Exclusive"),
            ):
                with pytest.raises(error, match=why):
                    write(target, 1, rows(range(20), ["a-good-one", name]))
        assert Reader(client, "a-good-one").numbers() == []
        waiting = target_of(brokers)
        write(waiting, 1, rows(range(20), ["a-good-one", "waits"]), mode=WAIT_FOR_EXCLUSIVE)
        assert len(Reader(client, "a-good-one").numbers()) == 10


@pytest.mark.parametrize("guarantee", transfer.GUARANTEES)
def test_an_epoch_continues_over_the_partitions_that_it_leads(
    broker: LocalBrokers, topic: str, stock: StockClients, guarantee: str
) -> None:
    """Partitions that are added while a program leads a topic are used once it leads it again."""
    partitioned(broker, topic, 2)
    client = stock(broker.service_url)
    plain = target_of(broker, topic, guarantee=guarantee)
    app = plain.app("job")
    with program(broker.service_url, topic, app) as grant:
        held = led_by(plain, {topic: grant})
        write(held, 1, rows(range(100), keys=50))
        partitioned(broker, topic, 5, "POST")
        assert len(write(held, 2, rows(range(100, 200), keys=50))) == 2
        half = staged(held, 3, rows(range(200, 300), keys=50))
        transfer.publish(held, "job", 3, half[:1])
        if guarantee == transfer.EXACTLY_ONCE:
            staged(plain, 4, rows(range(5), keys=50))  # over all five
            with pytest.raises(Conflict, match="does not lead") as refused:
                write(held, 4, rows(range(5), keys=50))
            assert "asked before the first" in refused.value.__notes__[0]
    with program(broker.service_url, topic, app) as grant:
        with pytest.raises(PipelineError):
            write(held, 5, rows(range(5), keys=50))
        now = led_by(plain, {topic: grant})
        if guarantee == transfer.EXACTLY_ONCE:
            finished = write(now, 3, rows(range(200, 300), keys=50))
            assert [each.is_duplicate for each in finished.values()] == [True, False]
        assert len(write(now, 6, rows(range(300, 400), keys=50))) == 5
    found = stored(client, topic, 5)
    numbers = sorted(number for each in found for number in each)
    if guarantee == transfer.EXACTLY_ONCE:
        assert numbers == list(range(400))
    assert all(number >= 300 for each in found[2:] for number in each)


def test_a_query_uses_added_partitions_from_its_next_batch_on(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    partitioned(broker, topic, 2)
    target = target_of(broker, topic)
    with lead_session() as query:
        for version, partitions in ((1, 2), (2, 5)):
            begun = query.begin(target, APP)
            epochs = {name: grant.epoch for name, grant in begun.grants.items()}
            parts = staged(begun, version, rows(range(100), keys=50))
            assert len(query.publish(target, APP, version, parts, epochs)) == partitions
            query.end(is_over=False)
            partitioned(broker, topic, 5, "POST")
    assert sum(map(len, stored(stock(broker.service_url), topic, 5))) == 200


@pytest.mark.parametrize("body", [{"epoch": 0}, {"epoch": "7"}, {"noted": 1}, []], ids=str)
def test_a_question_for_partitions_is_checked(
    broker: LocalBrokers, topic: str, body: object
) -> None:
    partitioned(broker, topic, 2)
    http = Http(broker.http_url)
    assert http("POST", f"{OWN}/{topic}/staged/app/1/layout", body)[0] == 400
    assert http("POST", f"{OWN}/{topic}/staged/app/1/layout") == (200, {"partitions": 2})


def test_of_partitions_that_an_epoch_does_not_lead_nothing_is_noted(
    broker: LocalBrokers, topic: str
) -> None:
    partitioned(broker, topic, 3)
    http = Http(broker.http_url)
    path = f"{OWN}/{topic}/staged/{APP}/1/layout"

    def asked(grant: Grant, **more: object) -> tuple[int, Any]:
        return http("POST", path, {"epoch": grant.epoch} | more, **shown(grant))

    with program(broker.service_url, f"{topic}-partition-1", APP) as second:
        assert asked(second)[0] in {403, 409}
    with program(broker.service_url, f"{topic}-partition-0", APP) as first:
        assert asked(first, noted=False) == (200, {"partitions": 1})
    assert http("POST", path) == (200, {"partitions": 3})
    with program(broker.service_url, topic, APP) as all_of_them:
        assert asked(all_of_them) == (200, {"partitions": 3}), "it was noted"
