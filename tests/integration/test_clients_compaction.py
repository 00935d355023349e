"""Compaction by key with stock clients: readCompacted, tombstones, batches, the admin API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulsar
import pytest
from pulsar import CompressionType, ConsumerType, InitialPosition, MessageId
from tests.integration.conftest import StockClients
from tests.integration.http_calls import PERSISTENT, Http
from tests.integration.raw import eventually

from onewriter_testing.processes import LocalBrokers

RECEIVE_MS = 60_000
"""Time limit for expected messages: a machine may be slow, and a failing test may take that long."""


@pytest.fixture
def client(broker: LocalBrokers, stock: StockClients) -> Any:
    return stock(broker.service_url)


@pytest.fixture
def http(broker: LocalBrokers) -> Http:
    return Http(broker.http_url)


def compact(http: Http, topic: str) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}/compaction")[0] == 204
    eventually(lambda: status(http, topic)["status"] == "SUCCESS")


def status(http: Http, topic: str) -> Any:
    code, body = http("GET", f"{PERSISTENT}/{topic}/compaction")
    assert code == 200
    return body


def drained(reader: Any) -> list[Any]:
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS))
    return found


def everything(client: Any, topic: str, *, compacted: bool = True) -> list[tuple[str, bytes]]:
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=compacted)
    try:
        return [(message.partition_key(), message.data()) for message in drained(reader)]
    finally:
        reader.close()


def send_all(producer: Any, messages: list[tuple[str | None, bytes | None]]) -> list[MessageId]:
    """Send all messages, batched if the producer batches."""
    ids: list[MessageId] = []

    def reported(_: object, message_id: MessageId) -> None:
        ids.append(message_id)

    for key, content in messages:
        producer.send_async(content, reported, partition_key=key)
    producer.flush()
    return ids


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batched", [False, True])
def test_each_key_keeps_its_newest_message_at_its_position(
    client: Any, http: Http, topic: str, compression: str, batched: bool
) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_publish_delay_ms=200,
        compression_type=getattr(CompressionType, compression),
    )
    send_all(producer, [("a", b"1"), ("b", b"1"), (None, b"no key"), ("c", b"1")])
    ids = send_all(producer, [("a", b"2"), ("b", b""), ("d", b"1"), ("d", b"2")])
    compact(http, topic)
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    found = drained(reader)
    assert [(each.partition_key(), each.data()) for each in found] == [
        ("c", b"1"),
        ("a", b"2"),
        ("d", b"2"),
    ]
    assert [each.message_id() for each in found[1:]] == [ids[0], ids[3]]
    whole = everything(client, topic, compacted=False)
    assert [content for _, content in whole].count(b"1") == 4


def test_entries_after_the_horizon_are_read_after_the_view(
    client: Any, http: Http, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [("a", b"1"), ("a", b"2")])
    compact(http, topic)
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(RECEIVE_MS).data() == b"2"
    send_all(producer, [("a", b"3"), ("a", b"4")])
    assert [reader.read_next(RECEIVE_MS).data() for _ in range(2)] == [b"3", b"4"]
    assert everything(client, topic) == [("a", b"2"), ("a", b"3"), ("a", b"4")]
    compact(http, topic)
    assert everything(client, topic) == [("a", b"4")]


def test_a_topic_of_which_nothing_is_left_has_nothing_to_read(
    client: Any, http: Http, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [("a", b"1"), ("a", None)])
    compact(http, topic)
    assert everything(client, topic) == []
    producer.send(b"2", partition_key="a")
    assert everything(client, topic) == [("a", b"2")]


def test_a_consumer_acknowledges_what_it_gets_and_gets_it_once(
    client: Any, http: Http, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(50):
        producer.send(b"%d" % number, partition_key=f"key-{number % 5}")
    compact(http, topic)

    def consumer() -> Any:
        return client.subscribe(
            topic,
            "s",
            consumer_type=ConsumerType.Failover,
            initial_position=InitialPosition.Earliest,
            is_read_compacted=True,
        )

    first = consumer()
    for number in range(45, 50):
        message = first.receive(RECEIVE_MS)
        assert message.data() == b"%d" % number
        first.acknowledge(message)  # one by one: the omitted messages between count as acknowledged
    first.close()

    def backlog() -> int:
        _, stats = http("GET", f"{PERSISTENT}/{topic}/stats")
        return int(stats["subscriptions"]["s"]["msgBacklog"])

    eventually(lambda: backlog() == 0, what="it is not acknowledged")
    producer.send(b"more", partition_key="key-0")
    assert consumer().receive(RECEIVE_MS).data() == b"more"


def test_shared_consumers_may_not_ask_for_it(client: Any, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, is_read_compacted=True)


def test_the_admin_api_answers_as_pulsar_s(client: Any, http: Http, topic: str) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}/compaction")[0] == 404
    client.create_producer(topic).send(b"x", partition_key="a")
    assert status(http, topic) == {"status": "NOT_RUN", "lastError": ""}
    compact(http, topic)
    _, internal = http("GET", f"{PERSISTENT}/{topic}/internalStats")
    assert internal["compactedLedger"]["entries"] == 1
    _, stats = http("GET", f"{PERSISTENT}/{topic}/stats")
    compaction: Mapping[str, int] = stats["compaction"]
    assert compaction["lastCompactionSucceedTimestamp"] > 0
    assert compaction["lastCompactionRemovedEventCount"] == 0


def test_a_partitioned_topic_is_compacted_in_all_of_its_partitions(
    client: Any, http: Http, topic: str
) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 3)[0] == 204
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"key-{number % 10}")
    compact(http, topic)
    found: list[tuple[str, bytes]] = []
    for partition in range(3):
        found += everything(client, f"{topic}-partition-{partition}")
    assert sorted(found) == [(f"key-{n}", b"%d" % (20 + n)) for n in range(10)]


def test_a_threshold_has_it_done_without_being_asked(client: Any, http: Http, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [("a", bytes(1000))] * 20)
    assert http("POST", f"{PERSISTENT}/{topic}/compactionThreshold", 10_000)[0] == 204
    assert "Warning" not in http.headers
    eventually(lambda: status(http, topic)["status"] == "SUCCESS")
    assert len(everything(client, topic)) == 1
    assert http("GET", f"{PERSISTENT}/{topic}/compactionThreshold") == (200, 10_000)


def test_a_table_view_holds_the_newest_of_each_key(client: Any, http: Http, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, [("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b"")])
    compact(http, topic)
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("a", "b")} == {"a": b"2", "b": None}
    producer.send(b"3", partition_key="a")
    eventually(lambda: view.get("a") == b"3")


def test_a_deleted_topic_has_no_view(client: Any, http: Http, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, [("a", b"old")])
    compact(http, topic)
    producer.close()
    assert http("DELETE", f"{PERSISTENT}/{topic}?force=true")[0] == 204
    client.create_producer(topic).send(b"new", partition_key="b")
    assert everything(client, topic) == [("b", b"new")]
