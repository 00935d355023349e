"""Batches for several logs, without Spark: by topic and by key, once each, with real brokers."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jwt
import numpy as np
import pyarrow as pa
import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import RawClients, StockClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import OWN, Http
from tests.integration.leaders import program
from tests.integration.raw import WAIT, eventually
from tests.integration.sinks import (
    APP,
    full,
    half_published,
    led_by,
    partitioned,
    publish,
    rows,
    staged,
    stored,
    target_of,
    write,
)
from tests.integration.test_atomic_publish import Reader, epoch_of, holder, number_of

from onewriter_pipeline.binaries import binaries
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Conflict, Invalid, PipelineError
from onewriter_pipeline.lead.leader import Leader
from onewriter_pipeline.lead.requests import EXCLUSIVE_WITH_FENCING, WAIT_FOR_EXCLUSIVE
from onewriter_pipeline.publish import transfer
from onewriter_pipeline.publish.hashing import JAVA, MURMUR, partition_of, partitions_of
from onewriter_pipeline.publish.lead_session import LeadSession
from onewriter_pipeline.publish.transfer import AT_LEAST_ONCE, PublishTarget, TransferLimits
from onewriter_testing.processes import LocalBrokers

ATTEMPTS_MAX = 50


# ------------------------------------------------------------ by topic


def test_each_row_goes_to_the_topic_that_it_names_once(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    target = target_of(broker)
    found = write(target, 1, rows(range(3000), topics), rows(range(3000, 3010), topics[:1]))
    assert sorted(found) == [full(name) for name in topics]
    again = write(target, 1, rows(range(3000), topics))
    assert all(each.is_duplicate for each in again.values())
    client = stock(broker.service_url)
    more: list[int] = list(range(3000, 3010))
    for number, name in enumerate(topics):
        assert Reader(client, name).numbers() == [
            *range(number, 3000, 3),
            *([] if number else more),
        ]


def test_the_option_beats_the_column(broker: LocalBrokers, topic: str, stock: StockClients) -> None:
    write(target_of(broker, topic), 1, rows(range(10), ["elsewhere"]))
    assert Reader(stock(broker.service_url), topic).numbers() == list(range(10))


def test_a_batch_that_was_published_to_some_topics_is_finished(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    client, target = stock(broker.service_url), target_of(broker)
    producer = holder(client, topics[1])
    with pytest.raises(Conflict, match=f"another producer holds .*{topics[1]}"):
        write(target, 1, rows(range(30), topics))
    assert Reader(client, topics[0]).numbers() == [], "none before all are led"
    producer.close()
    parts = staged(target, 1, rows(range(30), topics))
    publish(target, 1, [parts[0], parts[2]])  # and its driver dies
    found = write(target, 1, rows(range(30), topics))
    assert [found[full(name)].is_duplicate for name in topics] == [True, False, True]
    for number, name in enumerate(topics):
        assert Reader(client, name).numbers() == list(range(number, 30, 3))


def test_each_topic_has_its_own_epoch(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    topics = [f"{topic}-{number}" for number in range(2)]
    client = stock(broker.service_url)
    with contextlib.ExitStack() as stack:
        grants = {
            name: stack.enter_context(program(broker.service_url, name, APP)) for name in topics
        }
        target = led_by(target_of(broker), grants)
        write(target, 1, rows(range(10), topics))
        with pytest.raises(Invalid, match="whose epoch is not given"):
            write(target, 2, rows(range(10), [*topics, f"{topic}-other"]))
        holder(client, topics[0])
        with pytest.raises(PipelineError):
            write(target, 2, rows(range(10, 20), topics))
    assert Reader(client, topics[0]).numbers() == list(range(0, 10, 2))


def test_rows_that_wait_for_several_topics_are_bounded(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    target = replace(target_of(broker), limits=TransferLimits(pending_bytes_max=2_000))
    batches = [rows(range(first, first + 60), topics) for first in range(0, 600, 60)]
    logs = transfer.stage(target, APP, 1, (0, 0), batches)
    assert sum(len(log.parts) for log in logs) > len(topics)
    publish(target, 1, logs)
    client = stock(broker.service_url)
    for number, name in enumerate(topics):
        assert Reader(client, name).numbers() == list(range(number, 600, 3))


def test_rows_that_end_in_an_error_leave_nothing_staged_for_any_topic(
    broker: LocalBrokers, topic: str
) -> None:
    topics = [f"{topic}-{number}" for number in range(2)]

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(range(10), topics)
        yield rows(range(10), [None])  # type: ignore[list-item]

    target = replace(target_of(broker), limits=TransferLimits(pending_bytes_max=0))
    with pytest.raises(Invalid, match="names no topic"):
        transfer.stage(target, APP, 1, (0, 0), broken())
    for name in topics:
        dropped = Http(broker.http_url)("DELETE", f"{OWN}/{name}/staged/{APP}/1")
        assert dropped == (200, {"dropped": 0})


# ------------------------------------------------------------ by partition


@pytest.mark.parametrize(
    "scheme",
    [
        JAVA,
        # tests/unit/pipeline/publish/test_row_router.py: both hashes are those of stock clients
        pytest.param(MURMUR, marks=pytest.mark.full),
    ],
)
def test_a_key_has_one_partition_and_a_batch_without_keys_too(
    broker: LocalBrokers, topic: str, stock: StockClients, scheme: str
) -> None:
    partitioned(broker, topic, 4)
    target = target_of(broker, topic, scheme=scheme)
    found = write(target, 1, rows(range(500), keys=50), rows(range(500, 1000), keys=50))
    assert len(found) == 4
    client = stock(broker.service_url)
    keys = pa.array([f"key-{number % 50}" for number in range(1000)])
    chosen = partitions_of(binaries(keys), np.full(1000, 4), scheme).tolist()
    expected = [[n for n in range(1000) if chosen[n] == each] for each in range(4)]
    assert stored(client, topic, 4) == expected
    assert all(each.is_duplicate for each in write(target, 1, rows(range(1000), keys=50)).values())
    without = [write(target, version, rows([version])) for version in range(2, 40)]
    assert all(len(each) == 1 for each in without)
    assert len({log for each in without for log in each}) == 4, "they take turns"


def test_a_batch_is_finished_over_the_partitions_that_it_began_with(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    target, batch = half_published(broker, topic, 1)
    found = write(target, 1, batch)
    assert [found[f"{full(topic)}-partition-{each}"].is_duplicate for each in (0, 1)] == [
        True,
        False,
    ]
    assert sorted(n for numbers in stored(client, topic, 5) for n in numbers) == list(range(200))
    assert stored(client, topic, 5)[2:] == [[], [], []]
    assert len(write(target, 2, rows(range(200, 400), keys=50))) == 5


def test_an_older_batch_is_refused_before_it_reaches_any_partition(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    partitioned(broker, topic, 3)
    target = target_of(broker, topic)
    write(target, 7, rows([1], keys=1))
    with pytest.raises(Conflict, match=r"has version 7 of it already.*txnAppId"):
        write(target, 6, rows(range(100), keys=50))
    with pytest.raises(Conflict, match="has version 7"):
        write(target, 6)
    assert sorted(map(len, stored(stock(broker.service_url), topic, 3))) == [0, 0, 1]
    assert write(target, 8) != {}, "no rows, but this driver may go on"
    http, path = Http(broker.http_url), f"{OWN}/{topic}/published/{APP}"
    assert http("DELETE", path) == (200, {"app": APP, "version": 8})
    assert http("DELETE", path)[0] == 404
    assert not any(each.is_duplicate for each in write(target, 6, rows([2], keys=1)).values())


def test_a_partition_is_written_by_its_name(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    partitioned(broker, topic, 2)
    write(target_of(broker, f"{topic}-partition-1"), 1, rows(range(10), keys=5))
    both = rows(range(10, 20), [f"{topic}-partition-1", topic], keys=5)
    found = write(target_of(broker), 2, both)
    assert found[f"{full(topic)}-partition-1"].rows >= 5
    numbers = stored(stock(broker.service_url), topic, 2)
    assert numbers[1][:10] == list(range(10))
    assert sorted(numbers[0] + numbers[1]) == list(range(20))


def test_a_leader_of_a_topic_leads_all_its_partitions(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    partitioned(broker, topic, 3)
    client = stock(broker.service_url)
    with program(broker.service_url, topic, APP) as grant:
        target = led_by(target_of(broker, topic), {topic: grant})
        assert len(write(target, 1, rows(range(100), keys=50))) == 3
        holder(client, topic)
        with pytest.raises(PipelineError):
            write(target, 2, rows(range(100), keys=50))
    assert sum(map(len, stored(client, topic, 3))) == 100


def test_a_configured_python_producer_sends_a_key_to_the_same_partition(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    partitioned(broker, topic, 5)
    client = stock(broker.service_url)
    producer = client.create_producer(
        topic, message_router=lambda message, count: partition_of(message.partition_key(), count)
    )
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"key-{number}")
    producer.close()
    sent = stored(client, topic, 5)
    write(target_of(broker, topic), 1, rows(range(30), keys=30))
    assert stored(client, topic, 5) == [2 * numbers for numbers in sent]


# ------------------------------------------------------------ how a driver starts to lead


def test_a_driver_deposes_the_leader_if_requested(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    client = stock(broker.service_url)
    producer = holder(client, topic)
    producer.send(b"1")
    before = epoch_of(broker, topic)
    target = target_of(broker, topic)
    with pytest.raises(Conflict):
        write(target, 1, rows([2]))
    write(target, 1, rows([2]), mode=EXCLUSIVE_WITH_FENCING)
    assert epoch_of(broker, topic) > before
    assert Reader(client, topic).numbers() == [1, 2]


def test_a_driver_joins_the_queue_if_configured(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    http = Http(broker.http_url)
    client = stock(broker.service_url)
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    target = target_of(broker, topic)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(write, target, 1, rows([2]), mode=WAIT_FOR_EXCLUSIVE)
        eventually(lambda: http("GET", f"{OWN}/{topic}")[1]["waiters"])
        (waiter,) = http("GET", f"{OWN}/{topic}")[1]["waiters"]
        assert waiter["producerName"].startswith(f"{APP}-")
        for number in (0, 1):
            producer.send(b"%d" % number)
        assert not answer.done()
        producer.close()
        assert not answer.result(120)[full(topic)].is_duplicate
    assert Reader(client, topic).numbers() == [0, 1, 2]


def test_a_driver_leads_with_the_priority_of_its_claim_and_its_token(
    raw: RawClients, tmp_path: Path
) -> None:
    manifest = (
        "apiVersion: onewriter.dev/v1alpha1\nkind: ExclusiveTopic\nmetadata: {name: queued}\n"
        "---\napiVersion: onewriter.dev/v1alpha1\nkind: ProducerClaim\nmetadata: {name: first}\n"
        "spec: {topicRef: {name: queued}, subject: {tokenSubject: writer},\n"
        " mode: WaitForExclusive, priority: 10, defaultPriority: 10}\n"
    )
    secret = secrets.token_hex(32)
    (tmp_path / "secret").write_text(secret)
    settings = {"authentication_required": True, "token_secret_file": tmp_path / "secret"}
    token = jwt.encode({"sub": "writer"}, secret, algorithm="HS256")
    (tmp_path / "token").write_text(token)
    with forked_brokers(manifests=manifest, settings=settings) as brokers:
        http = Http(brokers.http_url, token)
        holder = raw(brokers.address(), token=token).producer("queued", WAIT)
        access = Access(brokers.http_url, token_file=str(tmp_path / "token"))
        with ThreadPoolExecutor(1) as pool:
            target = PublishTarget(access, "queued")
            answer = pool.submit(write, target, 1, rows([0]), mode=WAIT_FOR_EXCLUSIVE)
            eventually(lambda: http("GET", f"{OWN}/queued")[1]["waiters"])
            (waiter,) = http("GET", f"{OWN}/queued")[1]["waiters"]
            holder.close()
            assert not answer.result(120)[full("queued")].is_duplicate
        assert waiter["priority"] == 10


def test_drivers_that_depose_each_other_leave_every_row_once(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    """Each continues with the next batch once this one is published, by either of them."""
    partitioned(broker, topic, 3)
    target = target_of(broker, topic)
    batches = {
        version: rows(range(100 * version, 100 * version + 100), keys=50) for version in range(8)
    }

    def drive(number: int, folder: str) -> None:
        leader = Leader(root=Path(folder, str(number)))
        for version, batch in batches.items():
            for _ in range(ATTEMPTS_MAX):
                driver = LeadSession(secrets.token_hex(8), leader, EXCLUSIVE_WITH_FENCING)
                try:
                    begun = driver.begin(target, APP)
                    epochs = {name: grant.epoch for name, grant in begun.grants.items()}
                    parts = staged(begun, version, batch)
                    driver.publish(target, APP, version, parts, epochs)
                    break
                except PipelineError as error:
                    if "has version" in str(error):  # the other driver is ahead
                        break
                finally:
                    driver.end(is_over=True)
            else:
                pytest.fail(f"version {version} was not published")

    with tempfile.TemporaryDirectory(prefix="ow") as folder, ThreadPoolExecutor(2) as pool:
        for number in range(2):
            Path(folder, str(number)).mkdir()
        list(pool.map(drive, range(2), [folder] * 2))
    found = [number for each in stored(stock(broker.service_url), topic, 3) for number in each]
    assert sorted(found) == list(range(800))


# ------------------------------------------------------------ at least once


def test_at_least_once_rows_are_stored_once_per_write(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    target = target_of(broker, topic, guarantee=AT_LEAST_ONCE)
    for version in (5, 5, 0):
        assert not write(target, version, rows(range(10)))[full(topic)].is_duplicate
    write(replace(target, guarantee=transfer.EXACTLY_ONCE), 1, rows([77]))
    client = stock(broker.service_url)
    messages = Reader(client, topic).all()
    assert [number_of(each) for each in messages] == [*list(range(10)) * 3, 77]
    assert [each.producer_name() for each in messages[::10]] == [f"{APP}:at-least-once"] * 3 + [APP]
    assert Http(broker.http_url)("DELETE", f"{OWN}/{topic}/staged/{APP}:at-least-once/5")[1] == {
        "dropped": 0
    }, "what is published is staged no more"
