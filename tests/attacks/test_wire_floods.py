"""Input of one client, of any kind and amount, does not block the broker for others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pytest
from google.protobuf.message import Message
from tests.attacks.guarded import GuardedBrokers, address_of, token_of, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import RawClient, eventually, full
from tests.integration.raw_connection import RefusedByBroker

from onewriter_broker.app import BrokerLimits
from onewriter_broker.connection.clients import ConnectionLimits
from onewriter_broker.connection.rounds import RoundLimits
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.wire.commands import decode_command, encode_command
from onewriter_core.wire.encoding import encode_ack, encode_send_header
from onewriter_core.wire.messages import METADATA_BYTES_MAX, build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId
from onewriter_testing.in_process import InProcessBroker, in_process_broker

PAIRS = 80_000


def producer_frame(pairs: int) -> bytes:
    metadata = [pb.KeyValue(key="k", value="v")] * pairs
    return encode_command(
        pb.CommandProducer(topic=full("flood"), producer_id=1, request_id=1, metadata=metadata)
    )


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the commands that were decoded."""
    lengths: list[int] = []

    def counting(data: bytes | bytearray | memoryview) -> object:
        lengths.append(len(data))
        return decode_command(data)

    monkeypatch.setattr("onewriter_core.wire.connection.decode_command", counting)
    return lengths


@pytest.mark.parametrize("pairs", [1, 500, PAIRS])
def test_before_connect_no_other_command_is_decoded(
    guarded: GuardedBrokers, raw: RawClients, decoded: list[int], pairs: int
) -> None:
    broker = guarded()
    unauthorized = raw(address_of(broker), connects=False)
    before = len(decoded)
    with contextlib.suppress(OSError):  # closed while it was still sending
        unauthorized.write(producer_frame(pairs))
    unauthorized.wait_closed()
    assert len(decoded) == before
    wire_as(broker, raw, "somebody").producer("flood")


def test_a_token_that_is_too_large_is_refused_as_a_token(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    with pytest.raises(RefusedByBroker, match="AUTHENTICATION_ERROR"):
        raw(address_of(guarded()), token="t" * 19 * 1024)


def test_properties_beyond_all_need_close_the_connection_undecoded(
    raw: RawClients, decoded: list[int]
) -> None:
    with in_process_broker() as broker:
        client = raw(address_of(broker))
        client.say(pb.CommandPing())
        client.expect(pb.CommandPong)
        with contextlib.suppress(OSError):
            client.write(producer_frame(PAIRS))
        client.wait_closed()
        assert max(decoded) < 100_000


@contextlib.contextmanager
def broker_with_short_rounds() -> Iterator[InProcessBroker]:
    """A broker whose connections handle one frame in each tick of the event loop."""
    with in_process_broker() as broker:
        limits = RoundLimits(connection_seconds=0.0, tick_seconds=0.0, frames_between_readings=1)
        broker._broker.clients.rounds.limits = limits
        yield broker


def published(broker: InProcessBroker, raw: RawClients, topic: str, count: int) -> RawClient:
    client = raw(address_of(broker))
    producer = client.producer(topic)
    sent = [producer.send(b"x") for _ in range(count)]
    for sequence_id in sent:
        producer.receipt(sequence_id)
    return client


@pytest.mark.parametrize("order", [1, -1])
def test_acknowledgements_of_many_messages_are_handled_in_steps(
    raw: RawClients, order: int
) -> None:
    with broker_with_short_rounds() as broker:
        client = published(broker, raw, "acknowledged", 1_000)
        consumer = client.subscribe("acknowledged", "s", pb.CommandSubscribe.SHARED)
        ids = [consumer.receive()[0].message_id for _ in range(1_000)]
        odd = [MessageId(each.ledger, each.entry) for each in ids[1::2]][::order]
        filling = [MessageId(ids[0].ledger, 1_000_000)] * 5_000
        client.write(encode_ack(consumer.consumer_id, 0, odd + filling, request_id=7))
        client.say(pb.CommandPing())
        client.expect(pb.CommandPong)  # after the ACK
        found = client.expect(pb.CommandAckResponse, lambda each: each.request_id == 7)
        assert found.HasField("error")  # of the ids that are not in the log
        again = raw(address_of(broker))
        client.close()
        other = again.subscribe("acknowledged", "s", pb.CommandSubscribe.SHARED)
        left = {other.receive()[0].message_id.entry for _ in range(500)}
        assert left == {each.entry for each in ids[::2]}


def test_the_order_of_commands_is_kept_though_each_waits_for_a_round(raw: RawClients) -> None:
    with broker_with_short_rounds() as broker:
        client = raw(address_of(broker))
        frames = b"".join(
            encode_command(pb.CommandPartitionedMetadata(topic=full(f"t{n}"), request_id=n))
            + encode_command(pb.CommandConsumerStats(consumer_id=1, request_id=n))
            for n in range(300)
        )
        client.write(frames)
        answers = [client.expect(pb.CommandConsumerStatsResponse).request_id for _ in range(300)]
        assert answers == list(range(300))
        for _ in range(300):
            client.expect(pb.CommandPartitionedMetadataResponse)


def test_look_ups_beyond_the_bound_wait_and_are_all_answered(raw: RawClients) -> None:
    limits = BrokerLimits(connection=ConnectionLimits(requests_max=10))
    with in_process_broker(limits=limits) as broker:
        client = raw(address_of(broker))
        frames = [
            encode_command(pb.CommandLookup(topic=full(f"t{n}"), request_id=n)) for n in range(2000)
        ]
        client.write(b"".join(frames))
        answers = {client.expect(pb.CommandLookupResponse).request_id for _ in range(2000)}
        assert answers == set(range(2000))


def test_a_client_that_reads_no_answers_is_not_read_either(raw: RawClients) -> None:
    """What it asks for stays with it, and not in the broker's memory."""
    with in_process_broker(settings={"outgoing_bytes_per_connection_max": 64 * 1024}) as broker:
        client = raw(address_of(broker), window=4096)
        client.freeze()
        client.socket.settimeout(2)
        ping = encode_command(pb.CommandLookup(topic=full("t"), request_id=1))
        with contextlib.suppress(TimeoutError):
            for _ in range(10_000):
                client.socket.sendall(ping * 100)
            pytest.fail("the broker read everything")
        raw(address_of(broker)).producer("bystander").publish(b"served")
        client.close()
        eventually(lambda: len(broker._broker.clients.connections) == 1)


def test_a_guarded_broker_serves_on_beside_floods(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded()
    other_client = wire_as(broker, raw, "bystander").producer("bystander")
    clients = [raw(address_of(broker), token=token_of(f"flood{n}")) for n in range(5)]
    for client in clients:
        client.write(producer_frame(4_000) + encode_command(pb.CommandPing()) * 500)
    other_client.publish(b"served")
    for client in clients:
        client.expect(pb.CommandProducerSuccess)
        for _ in range(500):
            client.expect(pb.CommandPong)


def test_concurrent_listings_share_one_complete_list(
    raw: RawClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = BrokerLimits(connection=ConnectionLimits(names_per_step=7))
    made: list[str | None] = []
    listed = Topics.list

    async def counting(self: Topics, namespace: str | None) -> Mapping[str, CatalogEntry]:
        made.append(namespace)
        return await listed(self, namespace)

    monkeypatch.setattr(Topics, "list", counting)
    with in_process_broker(limits=limits) as broker:
        clients = [raw(address_of(broker)) for _ in range(5)]
        for number in range(40):
            clients[0].producer(f"t{number}")
        frames = b"".join(
            encode_command(
                pb.CommandGetTopicsOfNamespace(request_id=number, namespace="public/default")
            )
            for number in range(40)
        )
        for client in clients:
            client.write(frames)
        wanted = sorted(full(f"t{number}") for number in range(40))
        for client in clients:
            answers = [client.expect(pb.CommandGetTopicsOfNamespaceResponse) for _ in range(40)]
            assert [answer.request_id for answer in answers] == list(range(40))
            assert all(list(answer.topics) == wanted for answer in answers)
            assert not answers[0].filtered
            assert answers[0].changed
        assert len(made) <= 2 * 40 + len(clients)  # of 200: each client's are made one by one


def test_a_message_with_metadata_beyond_all_need_is_refused(raw: RawClients) -> None:
    with in_process_broker() as broker:
        client = raw(address_of(broker))
        producer = client.producer("large-metadata")
        pairs = [pb.KeyValue(key="k", value="v" * 1000)] * (METADATA_BYTES_MAX // 1000)
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, properties=pairs
        )
        entry = build_entry(metadata, b"x")
        client.write(encode_send_header(producer.producer_id, 0, len(entry)) + entry)
        assert "metadata" in client.expect(pb.CommandSendError).message
        producer.publish(b"x" * 3_000_000)


@pytest.mark.parametrize(
    "command",
    [
        pb.CommandOwn(request_id=1, resources=[pb.OwnedResource(name="r", generation=1)] * 20_001),
        pb.CommandDisown(
            request_id=1, resources=[pb.OwnedResource(name="r", generation=1)] * 20_001
        ),
        pb.CommandAck(
            consumer_id=1,
            ack_type=pb.CommandAck.AckType.Value("INDIVIDUAL"),
            properties=[pb.KeyLongValue(key="k", value=1)] * 1_001,
        ),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_field_that_is_repeated_too_often_closes_the_connection(
    raw: RawClients, command: Message
) -> None:
    with in_process_broker() as broker:
        client = raw(address_of(broker))
        client.write(encode_command(command))
        client.wait_closed()
        raw(address_of(broker)).producer("topic").publish(b"served")
