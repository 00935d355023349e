"""A foreign write to a key of one topic stops that topic with an error, and affects no other topic.

Also the repair of each kind of key, and its cost (docs/operations.md).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import pulsar
import pytest
from tests.integration.conftest import RawClients, StockClients
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.http_calls import ADMIN, OWN, Http, epoch_of
from tests.integration.raw import (
    EXCLUSIVE,
    FENCING,
    SHARED,
    WAIT,
    RawProducer,
    RefusedByBroker,
    contents_of,
    eventually,
    full,
)
from tests.servers import StoreServer, running_server

from onewriter_broker.log.store.keys import SETTINGS, Keys
from onewriter_core.errors import ServerError
from onewriter_core.ids import TopicName
from onewriter_testing.processes import LocalBrokers

KEYS = Keys(BUCKETS)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def brokers(store: StoreServer) -> Iterator[LocalBrokers]:
    with forked_brokers(redis_url=store.url) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return full(f"poisoned-{next(_numbers)}")


@pytest.fixture
def neighbour(topic: str) -> str:
    """Return another topic of the same bucket."""
    bucket = KEYS.bucket(TopicName.parse(topic))
    names = (TopicName.parse(f"{topic}-neighbour-{number}") for number in itertools.count())
    return str(next(name for name in names if KEYS.bucket(name) == bucket))


@pytest.fixture(autouse=True)
def nothing_hangs(brokers: LocalBrokers) -> Iterator[None]:
    """Check that no call stays undecided, and that a topic fails only on purpose."""
    process_id = brokers.pid()
    before = {name: len(brokers.events(name)) for name in ("append.undecided", "fence.undecided")}
    yield
    assert brokers.pid() == process_id
    assert {name: len(brokers.events(name)) for name in before} == before
    assert brokers.events("topic.failed") == []


def overwrite(store: StoreServer, key: str) -> None:
    store.command("SET", key, "written by somebody else")


def keys_of(topic: str) -> tuple[str, str]:
    return KEYS.of(TopicName.parse(topic))


def refusal(ask: Callable[[], RawProducer]) -> RefusedByBroker:
    with pytest.raises(RefusedByBroker) as caught:
        ask()
    return caught.value


def after_repair(brokers: LocalBrokers, raw: RawClients, topic: str, mode: Any) -> RawProducer:
    """Return a producer; retry until the broker has read the topic's keys again.

    The retries also last until the former holder's right to resume has ended.
    """
    granted: list[RawProducer] = []

    def is_granted() -> bool:
        client = raw(brokers.address())
        with contextlib.suppress(RefusedByBroker):
            granted.append(client.producer(topic, mode))
        return bool(granted)

    eventually(is_granted, what=f"{topic} is not served again")
    return granted[0]


def status(brokers: LocalBrokers, topic: str) -> Any:
    return Http(brokers.http_url)("GET", f"{OWN}/{TopicName.parse(topic).local}")[1]


def of_topic(topic: str) -> Callable[[dict[str, object]], bool]:
    return lambda event: event["topic"] == topic


def test_a_log_that_was_overwritten_stops_its_topic_and_no_other(
    brokers: LocalBrokers,
    store: StoreServer,
    raw: RawClients,
    topic: str,
    neighbour: str,
) -> None:
    key = keys_of(topic)[0]
    other = raw(brokers.address()).producer(neighbour, EXCLUSIVE)
    connection = raw(brokers.address())
    writer = connection.producer(topic, EXCLUSIVE)
    on_the_same_connection = connection.producer(f"{neighbour}-too", SHARED)
    waiter = raw(brokers.address()).waiter(topic)
    writer.publish(b"acknowledged, and about to be lost")
    overwrite(store, key)

    writer.send(b"never written")
    writer.closed_by_broker()
    reported = refusal(waiter.ready)
    assert key in reported.text
    for number in range(20):  # the same connection, and others
        other.publish(b"%d" % number)
        on_the_same_connection.publish(b"%d" % number)
    for mode in (EXCLUSIVE, WAIT, FENCING, SHARED):
        refused = refusal(lambda mode=mode: raw(brokers.address()).producer(topic, mode))  # type: ignore[misc]
        assert refused.code is ServerError.PERSISTENCE_ERROR
        assert key in refused.text
        assert "WRONGTYPE" in refused.text
        other.publish(b"goes on")
    (lines,) = [event for event in brokers.events("topic.broken") if event["topic"] == topic]
    assert key in str(lines["reason"])
    assert key in status(brokers, topic)["waitingReason"]
    assert "onewriter_topics_broken 1.0" in Http(brokers.http_url)("GET", "/metrics")[1]

    store.command("DEL", key)
    again = after_repair(brokers, raw, topic, EXCLUSIVE)
    assert epoch_of(again) > epoch_of(writer)
    again.publish(b"new")
    assert contents_of(brokers.address(), topic) == [b"new"]
    brokers.wait_for_event("topic.repaired", of_topic(topic))
    lost = brokers.wait_for_event("entries.lost", of_topic(topic))
    assert lost["entries"] == 1
    assert status(brokers, topic)["waitingReason"] == ""


def test_a_state_that_was_overwritten_is_written_again(
    brokers: LocalBrokers,
    store: StoreServer,
    raw: RawClients,
    topic: str,
    neighbour: str,
) -> None:
    key = keys_of(topic)[1]
    other = raw(brokers.address()).producer(neighbour, EXCLUSIVE)
    writer = raw(brokers.address()).producer(topic, EXCLUSIVE)
    kept = writer.publish(b"kept")
    consumer = raw(brokers.address()).subscribe(topic, "durable")
    consumer.receive()
    consumer.acknowledge(kept)
    overwrite(store, key)
    writer.send(b"never written")
    writer.closed_by_broker()
    other.publish(b"goes on")
    assert key in refusal(lambda: raw(brokers.address()).producer(topic, EXCLUSIVE)).text

    store.command("DEL", key)
    again = after_repair(brokers, raw, topic, EXCLUSIVE)
    assert epoch_of(again) > epoch_of(writer)
    again.publish(b"new")
    assert contents_of(brokers.address(), topic) == [b"kept", b"new"]
    assert raw(brokers.address()).subscribe(topic, "durable").contents(1) == [b"new"]
    assert not [event for event in brokers.events("entries.lost") if event["topic"] == topic]


@pytest.mark.parametrize("field", ["heardAt", "sequences", "epoch"])
def test_a_field_that_was_overwritten_stops_its_topic_and_not_its_clients(
    brokers: LocalBrokers,
    store: StoreServer,
    raw: RawClients,
    topic: str,
    neighbour: str,
    field: str,
) -> None:
    key = keys_of(topic)[1]
    connection = raw(brokers.address())
    writer = connection.producer(topic, EXCLUSIVE)
    writer.publish(b"kept")
    other = connection.producer(neighbour, EXCLUSIVE)
    asked, _ = Http(brokers.http_url)(
        "PUT", f"{ADMIN}/persistent/public/default/{TopicName.parse(topic).local}/unload"
    )
    assert asked == HTTPStatus.NO_CONTENT
    writer.closed_by_broker()
    other.publish(b"goes on")
    before = store.command("HGET", key, field)
    ledger = store.command("HGET", key, "ledger")
    store.command("HSET", key, field, "foreign")

    for _ in range(3):
        refused = refusal(lambda: connection.producer(topic, EXCLUSIVE))
        assert refused.code is ServerError.PERSISTENCE_ERROR
        assert f"{key}: {field} is 'foreign'" in refused.text
        other.publish(b"on the same connection")
    assert field in status(brokers, topic)["waitingReason"]
    assert store.command("HGET", key, "ledger") == ledger
    assert brokers.events("connection.failed") == []
    assert brokers.events("http.defect") == []

    store.command("HSET", key, field, before or "")
    again = after_repair(brokers, raw, topic, EXCLUSIVE)
    again.publish(b"new")
    assert contents_of(brokers.address(), topic) == [b"kept", b"new"]


def test_settings_that_were_overwritten_stop_no_broker(
    brokers: LocalBrokers, store: StoreServer, raw: RawClients, topic: str
) -> None:
    writer = raw(brokers.address()).producer(topic, EXCLUSIVE)
    store.command("HSET", SETTINGS, "policy/public/default/compactionThreshold", "foreign")
    brokers.wait_for_event("namespaces.unreadable", lambda _: True)
    for number in range(10):
        writer.publish(b"%d" % number)
    store.command("HDEL", SETTINGS, "policy/public/default/compactionThreshold")


def test_takeovers_wait_for_the_audit_while_the_holder_writes(
    brokers: LocalBrokers, store: StoreServer, raw: RawClients, topic: str, neighbour: str
) -> None:
    key = KEYS.audit(KEYS.bucket(TopicName.parse(topic)))
    holder = raw(brokers.address()).producer(topic, EXCLUSIVE)
    other = raw(brokers.address()).producer(neighbour, EXCLUSIVE)
    overwrite(store, key)
    holder.publish(b"an append needs no audit")
    reported = refusal(lambda: raw(brokers.address()).producer(topic, FENCING))
    assert key in reported.text
    other.publish(b"goes on")
    store.command("DEL", key)
    assert epoch_of(after_repair(brokers, raw, topic, FENCING)) > epoch_of(holder)


def test_a_broken_key_is_reported_without_a_write(
    brokers: LocalBrokers, store: StoreServer, raw: RawClients, topic: str, neighbour: str
) -> None:
    holder = raw(brokers.address()).producer(topic, EXCLUSIVE)
    other = raw(brokers.address()).producer(neighbour, EXCLUSIVE)
    overwrite(store, keys_of(topic)[0])
    waiter = raw(brokers.address()).waiter(topic)
    holder.client.close()  # and its successor cannot be granted
    assert keys_of(topic)[0] in refusal(waiter.ready).text
    other.publish(b"goes on")
    store.command("DEL", keys_of(topic)[0])
    after_repair(brokers, raw, topic, EXCLUSIVE)


def test_a_bucket_record_that_was_overwritten_stops_its_bucket_and_no_other(
    raw: RawClients, topic: str
) -> None:
    bucket = KEYS.bucket(TopicName.parse(topic))
    key = KEYS.unit(bucket)
    names = (TopicName.parse(f"{topic}-elsewhere-{number}") for number in itertools.count())
    elsewhere = str(next(name for name in names if KEYS.bucket(name) != bucket))
    with running_server() as own, forked_brokers(redis_url=own.url) as brokers:
        writer = raw(brokers.address()).producer(topic, EXCLUSIVE)
        other = raw(brokers.address()).producer(elsewhere, EXCLUSIVE)
        overwrite(own, key)
        writer.send(b"never written")
        writer.closed_by_broker()
        assert key in refusal(lambda: raw(brokers.address()).producer(topic, EXCLUSIVE)).text
        other.publish(b"goes on")
        own.command("DEL", key)

        def is_refused() -> bool:
            refusal(lambda: raw(brokers.address()).producer(topic, EXCLUSIVE))
            return bool(brokers.events("bucket.refused"))

        eventually(is_refused, what="no refusal says how to adopt the bucket")
        other.publish(b"still goes on")


def test_a_stock_client_continues_by_itself_after_the_repair(
    brokers: LocalBrokers, store: StoreServer, stock: StockClients, topic: str
) -> None:
    producer = stock(brokers.service_url).create_producer(
        topic,
        access_mode=pulsar.ProducerAccessMode.Exclusive,
        send_timeout_millis=0,
        batching_enabled=False,
    )
    producer.send(b"before")
    overwrite(store, keys_of(topic)[1])
    answers: list[Any] = []
    producer.send_async(b"meanwhile", lambda result, _: answers.append(result))
    brokers.wait_for_event("topic.broken", of_topic(topic))
    store.command("DEL", keys_of(topic)[1])
    producer.flush()
    assert answers == [pulsar.Result.Ok]
    assert contents_of(brokers.address(), topic) == [b"before", b"meanwhile"]
