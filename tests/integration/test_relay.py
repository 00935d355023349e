"""Stock clients of Pulsar through the loopback relay: everything as without it, and quick at a silent broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import ATTENTIVE, RawClients, StockClients
from tests.integration.following import placed, topic_of
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import Http
from tests.integration.raw import EXCLUSIVE, contents_of
from tests.integration.relays import RelayProcess, running_relay
from tests.integration.secured import REFRESHED_SECONDS, WRITER, secured_broker
from tests.integration.sidecars import sidecars
from tests.servers import running_server

from onewriter_testing.ports import free_ports
from onewriter_testing.processes import LocalBrokers

RECEIVE_MS = 60_000
RETURN_SECONDS = 300.0


@pytest.fixture(scope="module")
def relay(pair: LocalBrokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with running_relay(tmp_path_factory.mktemp("relay"), pair.service_url) as found:
        yield found


def test_a_client_reaches_the_topics_of_both_brokers(
    pair: LocalBrokers, relay: RelayProcess, stock: StockClients
) -> None:
    topics = [topic_of(pair, number, "relayed") for number in range(2)]
    placed(pair, *topics)
    client = stock(relay.url)
    for number, topic in enumerate(topics):
        producer = client.create_producer(topic, access_mode=Mode.Exclusive)
        producer.send(topic.encode())
        assert pair.owner_of(topic) == number
        assert contents_of(pair.address(number), topic) == [topic.encode()]
        consumer = client.subscribe(
            topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == topic.encode()
        consumer.acknowledge(message)
        reader = client.create_reader(topic, MessageId.earliest)
        assert reader.read_next(RECEIVE_MS).data() == topic.encode()
    assert relay.metrics()["relay_connections"] == 3, "one for look-ups, one for each broker"


def test_large_messages_and_many_pass(relay: RelayProcess, stock: StockClients) -> None:
    client = stock(relay.url)
    producer = client.create_producer("large", block_if_queue_full=True, max_pending_messages=50)
    contents = [
        bytes([number % 251]) * (4_000_000 if number % 50 == 0 else 50) for number in range(500)
    ]
    consumer = client.subscribe("large", "s", ConsumerType.Exclusive)
    for content in contents:
        producer.send_async(content, None)
    producer.flush()
    for content in contents:
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == content
        consumer.acknowledge(message)


def test_a_partitioned_topic(pair: LocalBrokers, relay: RelayProcess, stock: StockClients) -> None:
    created = Http(pair.http_url)(
        "PUT", "/admin/v2/persistent/public/default/parts/partitions", b"4"
    )
    assert created[0] == 204
    client = stock(relay.url)
    producer = client.create_producer(
        "parts", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    consumer = client.subscribe("parts", "s")
    sent = {b"%d" % number for number in range(20)}
    for content in sent:
        producer.send(content)
    assert {consumer.receive(RECEIVE_MS).data() for _ in sent} == sent


def test_a_waiter_waits_and_is_promoted(relay: RelayProcess, stock: StockClients) -> None:
    first, second = stock(relay.url), stock(relay.url)
    holder = first.create_producer("queue", access_mode=Mode.WaitForExclusive)
    holder.send(b"first")
    with pytest.raises(pulsar.ProducerFenced):
        second.create_producer("queue", access_mode=Mode.Exclusive)
    holder.close()
    second.create_producer("queue", access_mode=Mode.WaitForExclusive).send(b"second")


def test_a_writer_continues_at_the_other_broker_when_its_own_is_frozen(
    stock: StockClients, tmp_path: Path
) -> None:
    """Without the relay, the client notices the frozen broker only by its keep-alive of 30 seconds."""
    settings = {"resume_window_seconds": RETURN_SECONDS}
    with (
        running_server() as store,
        forked_brokers(brokers=2, redis_url=store.url, settings=settings) as brokers,
        running_relay(tmp_path, brokers.service_url) as relay,
    ):
        topic = topic_of(brokers, 0, "frozen")
        placed(brokers, topic)
        client = stock(relay.url)
        holder = client.create_producer(topic, access_mode=Mode.Exclusive)
        holder.send(b"before")
        granted = brokers.events("topic.transition")[-1]
        frozen = brokers.freeze(0)
        try:
            holder.send(b"after")
            resumed = brokers.wait_for_event("topic.transition", lambda e: e["kind"] == "resume")
            assert resumed["epoch"] == granted["epoch"]
            assert contents_of(brokers.address(1), topic) == [b"before", b"after"]
            assert relay.metrics()['relay_closed_total{reason="silent"}'] >= 1
        finally:
            brokers.thaw(frozen)


def test_a_frozen_writer_is_detected_through_the_relay(
    stock: StockClients, raw: RawClients, tmp_path: Path
) -> None:
    """The relay answers no ping of a broker by itself."""
    with (
        forked_brokers(settings=ATTENTIVE) as brokers,
        running_relay(tmp_path, brokers.service_url) as relay,
    ):
        frozen = raw(("127.0.0.1", relay.port))
        frozen.producer("held", EXCLUSIVE)
        frozen.freeze()
        waiter = stock(brokers.service_url).create_producer(
            "held", access_mode=Mode.WaitForExclusive
        )
        waiter.send(b"it sent nothing, and answered no ping")


def test_beside_a_leader_other_topics_are_written_and_this_one_is_read(
    broker: LocalBrokers, stock: StockClients, topic: str, tmp_path: Path
) -> None:
    port = free_ports(1)
    with sidecars(tmp_path, broker.service_url, topic, "a", relay_port=port) as (leader,):
        session = leader.lead()
        client = stock(f"pulsar://127.0.0.1:{port}")
        for mode in (Mode.Shared, Mode.Exclusive, Mode.WaitForExclusive, Mode.ExclusiveWithFencing):
            with pytest.raises(pulsar.NotAllowedError):
                client.create_producer(topic, access_mode=mode)
        client.create_producer(f"{topic}-other", access_mode=Mode.Exclusive).send(b"allowed")
        assert leader.publish(b"led", session)[0] == 200
        reader = client.create_reader(topic, MessageId.earliest)
        assert reader.read_next(RECEIVE_MS).data() == b"led"
        assert leader.standing()["session"] == session


@pytest.mark.parametrize(
    "seconds", [0, pytest.param(REFRESHED_SECONDS, marks=pytest.mark.full)], ids=["once", "renewed"]
)
def test_tls_and_the_pods_token_are_the_relays_affair(
    stock: StockClients, tmp_path: Path, seconds: int
) -> None:
    with (
        secured_broker(tmp_path, "orders") as secured,
        secured.renewed(WRITER) as token,
        running_relay(
            tmp_path, secured.url, token_file=token, tls_ca_file=secured.authorities
        ) as relay,
    ):
        producer = stock(relay.url).create_producer("orders", access_mode=Mode.Exclusive)
        producer.send(b"first")
        for _ in range(seconds * 10):
            producer.send(b"again")
            time.sleep(0.1)
        unauthorized = stock(
            relay.url, authentication=pulsar.AuthenticationToken(secured.token("stranger"))
        )
        with pytest.raises(pulsar.PulsarException):
            unauthorized.create_producer("orders")
