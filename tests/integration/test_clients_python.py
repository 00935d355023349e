"""The breadth of the stock Python client, sync and asyncio, following upstream's own tests."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pulsar
import pulsar.asyncio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar import CompressionType, ConsumerType, InitialPosition, MessageId
from pulsar.schema import StringSchema
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


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_a_message_arrives_with_all_it_carries(
    client: Any, topic: str, compression: str, batched: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, compression_type=getattr(CompressionType, compression), batching_enabled=batched
    )
    sent = producer.send(
        b"value" * 1000,
        properties={"colour": "red"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=77,
    )
    message = consumer.receive(RECEIVE_MS)
    assert message.data() == b"value" * 1000
    assert message.properties() == {"colour": "red"}
    assert message.partition_key() == "key"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 77
    assert message.producer_name() == producer.producer_name()
    assert message.topic_name() == f"persistent://public/default/{topic}"
    assert message.message_id() == sent
    assert MessageId.deserialize(sent.serialize()) == sent


def test_a_null_value_stays_null(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(None)
    producer.send(b"")
    assert consumer.receive(RECEIVE_MS).has_null_value()
    assert not consumer.receive(RECEIVE_MS).has_null_value()


def test_a_large_message_goes_in_chunks(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True)
    large = bytes(range(256)) * 4 * 1024 * 12  # 12 MiB; the broker accepts 5 at a time
    producer.send(large)
    producer.send(b"behind it")
    first = consumer.receive(RECEIVE_MS)
    assert first.data() == large
    consumer.acknowledge(first)
    assert consumer.receive(RECEIVE_MS).data() == b"behind it"
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert consumer.receive(RECEIVE_MS).data() == b"behind it"


def test_a_message_that_is_too_large_is_the_sender_s_error(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 * 1024 * 1024))
    producer.send(bytes(5 * 1024 * 1024 - 20_000))


def test_listeners_and_batches_of_messages(client: Any, topic: str) -> None:
    received: list[bytes] = []
    client.subscribe(
        topic, "listener", message_listener=lambda _, message: received.append(message.data())
    )
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, RECEIVE_MS)
    consumer = client.subscribe(topic, "batches", batch_receive_policy=policy)
    producer = client.create_producer(topic)
    contents = [b"%d" % number for number in range(10)]
    for content in contents:
        producer.send(content)
    assert [message.data() for message in consumer.batch_receive()] == contents
    eventually(lambda: received == contents, what="the listener")


def test_an_empty_queue_asks_for_one_message_at_a_time(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=0)
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
    for number in range(5):
        assert consumer.receive().data() == b"%d" % number


def test_partitions_are_spread_read_and_found(client: Any, http: Http, topic: str) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 3)[0] == 204
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = {producer.send(b"%d" % number).partition() for number in range(9)}
    assert sent == {0, 1, 2}
    found = [consumer.receive(RECEIVE_MS) for _ in range(9)]
    assert sorted(int(message.data()) for message in found) == list(range(9))
    reader = client.create_reader(topic, MessageId.earliest)
    read = [reader.read_next(RECEIVE_MS) for _ in range(9)]
    assert sorted(int(message.data()) for message in read) == list(range(9))


def test_many_topics_and_a_pattern_of_topics(client: Any, topic: str) -> None:
    names = [f"persistent://public/default/{topic}-of-many-{number}" for number in range(3)]
    producers = [client.create_producer(name) for name in names]
    listed = client.subscribe(names, "listed", ConsumerType.Shared)
    names_like = re.compile(f"persistent://public/default/{topic}-of-many-.*")
    pattern = client.subscribe(names_like, "pattern", ConsumerType.Shared)
    for producer in producers:
        producer.send(b"x")
    for consumer in (listed, pattern):
        assert {consumer.receive(RECEIVE_MS).topic_name() for _ in names} == set(names)


def test_a_table_view_follows_its_topic(client: Any, topic: str) -> None:
    producer = client.create_producer(topic, schema=StringSchema())
    for number in range(10):
        producer.send(f"value {number}", partition_key=f"key {number % 3}")
    view = client.create_table_view(topic, schema=StringSchema())
    assert len(view) == 3
    assert view.get("key 0") == "value 9"
    producer.send("newer", partition_key="key 0")
    eventually(lambda: view.get("key 0") == "newer", what="the newer value")
    view.close()


def test_an_http_address_serves_as_well(
    broker: LocalBrokers, stock: StockClients, http: Http, topic: str
) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 2)[0] == 204
    client = stock(broker.http_url)
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"found over HTTP")
    assert consumer.receive(RECEIVE_MS).data() == b"found over HTTP"
    plain = client.create_producer(f"{topic}-plain")
    assert plain.is_connected()


def test_encrypted_messages_pass_through(client: Any, topic: str, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "private.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    (tmp_path / "public.pem").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    keys = pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "private.pem"))
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys)
    producer.send(b"secret")
    assert consumer.receive(RECEIVE_MS).data() == b"secret"


def backlog(http: Http, topic: str, subscription: str) -> int:
    """Return the number of messages that the subscription has not acknowledged."""
    _, stats = http("GET", f"{PERSISTENT}/{topic}/stats")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def test_a_producer_and_a_consumer_live_through_an_unload(
    client: Any, http: Http, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer.acknowledge(consumer.receive(RECEIVE_MS))
    # The client gathers acknowledgements for a moment.
    eventually(lambda: backlog(http, topic, "s") == 0, what="it is not acknowledged")
    assert http("PUT", f"{PERSISTENT}/{topic}/unload")[0] == 204
    producer.send(b"after")
    assert consumer.receive(RECEIVE_MS).data() == b"after"


def test_names_and_sequence_ids_are_the_producer_s(client: Any, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="ours", initial_sequence_id=41)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="ours")
    producer.send(b"x")
    assert (producer.producer_name(), producer.last_sequence_id()) == ("ours", 42)
    invented = client.create_producer(topic).producer_name()
    assert invented != "ours"


def test_unsupported_requests_are_refused_and_the_connection_survives(
    client: Any, topic: str
) -> None:
    beside = client.create_producer(topic)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", ConsumerType.KeyShared)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"non-persistent://public/default/{topic}")
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://nobody/nowhere/topic")
    beside.send(b"undisturbed")


def test_the_statistics_name_clients_and_their_properties(
    client: Any, http: Http, topic: str
) -> None:
    client.create_producer(topic, producer_name="ours", properties={"team": "blue"})
    client.subscribe(topic, "s", properties={"team": "red"})
    stats = http("GET", f"{PERSISTENT}/{topic}/stats")[1]
    (publisher,) = stats["publishers"]
    assert publisher["producerName"] == "ours"
    assert publisher["metadata"] == {"team": "blue"}
    assert "CPP" in publisher["clientVersion"]
    (consumer,) = stats["subscriptions"]["s"]["consumers"]
    assert consumer["metadata"] == {"team": "red"}


async def test_asyncio(broker: LocalBrokers, topic: str) -> None:
    client = pulsar.asyncio.Client(broker.service_url)
    try:
        consumer = await client.subscribe(
            topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
        )
        producer = await client.create_producer(topic, batching_enabled=False)
        ids = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(100)))
        assert ids == sorted(ids, key=lambda each: (each.ledger_id(), each.entry_id()))
        messages = [await consumer.receive() for _ in range(100)]
        assert [int(message.data()) for message in messages] == list(range(100))
        for message in messages[:-1]:
            await consumer.acknowledge(message)
        await consumer.negative_acknowledge(messages[-1])
        again = await asyncio.wait_for(consumer.receive(), 60)
        assert (again.data(), again.redelivery_count()) == (b"99", 1)
        await consumer.close()
        with pytest.raises(pulsar.asyncio.PulsarException, match="TopicNotFound"):
            await client.create_producer("persistent://nobody/nowhere/topic")
        reader = await client.subscribe(topic, "all", initial_position=InitialPosition.Earliest)
        await reader.seek(ids[49])
        assert (await reader.receive()).data() == b"50"
        await reader.unsubscribe()
        await producer.close()
    finally:
        await client.close()
