"""Commands that only some clients send, found in the Go and Java clients and tested one by one."""

from __future__ import annotations

import pytest
from tests.integration.conftest import RawClients
from tests.integration.raw import SHARED, contents_of, eventually, full

from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.encoding import encode_send_header
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers


@pytest.mark.parametrize("num_messages", [0, -1])
def test_a_send_of_no_messages_ends_its_own_connection_only(
    broker: LocalBrokers, raw: RawClients, topic: str, num_messages: int
) -> None:
    beside = raw(broker.address()).producer(topic, SHARED)
    client = raw(broker.address())
    producer = client.producer(topic, SHARED)
    entry = producer.entry(b"costs no permits", 1)
    header = encode_send_header(producer.producer_id, 1, len(entry), num_messages=num_messages)
    client.write(header + entry)
    client.wait_closed()
    beside.publish(b"undisturbed")
    assert contents_of(broker.address(), topic) == [b"undisturbed"]


def test_a_failover_consumer_learns_its_role_with_its_first_permits(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    # Go's client registers a consumer after it has read SUCCESS, and loses what arrives with it.
    client = raw(broker.address())
    consumer = client.subscribe(topic, kind=pb.CommandSubscribe.FAILOVER, permits=0)
    client.ping()
    assert not client.has_received(pb.CommandActiveConsumerChange)
    consumer.flow(10)
    reported = client.expect(pb.CommandActiveConsumerChange)
    assert (reported.consumer_id, reported.is_active) == (consumer.consumer_id, True)


def test_a_first_producer_may_bring_a_subscription(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    for producer_id in (7, 8):  # the second request finds the subscription
        request_id = client.next_request_id()
        client.say(
            pb.CommandProducer(
                topic=full(topic),
                producer_id=producer_id,
                request_id=request_id,
                initial_subscription_name="first",
            )
        )
        client.answer(pb.CommandProducerSuccess, request_id)
    client.producer(topic, SHARED).publish(b"kept")
    later = raw(broker.address()).subscribe(topic, "first", earliest=False)
    assert later.contents(1) == [b"kept"]


def test_schemas_are_made_and_found_by_version(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())

    def make(schema: pb.Schema) -> pb.CommandGetOrCreateSchemaResponse:
        request_id = client.next_request_id()
        client.say(
            pb.CommandGetOrCreateSchema(request_id=request_id, topic=full(topic), schema=schema)
        )
        return client.answer(pb.CommandGetOrCreateSchemaResponse, request_id)

    def find(version: bytes | None) -> pb.CommandGetSchemaResponse:
        request_id = client.next_request_id()
        client.say(
            pb.CommandGetSchema(request_id=request_id, topic=full(topic), schema_version=version)
        )
        return client.answer(pb.CommandGetSchemaResponse, request_id)

    text = pb.Schema(name="text", schema_data=b"", type=pb.Schema.STRING)
    assert make(text).error_code == replies.wire_code(ServerError.TOPIC_NOT_FOUND)
    client.producer(topic, SHARED).publish(b"there is a topic now")
    made = make(text)
    assert make(text).schema_version == made.schema_version
    for version in (made.schema_version, None, b""):
        assert find(version).schema.type == pb.Schema.STRING
        assert find(version).schema_version == made.schema_version
    for other in (
        pb.Schema(name="point", schema_data=b"{}", type=pb.Schema.JSON),
        pb.Schema(name="point", schema_data=b'"int"', type=pb.Schema.AVRO),
        pb.Schema(name="point", schema_data=b"", type=pb.Schema.PROTOBUF_NATIVE),
    ):
        assert make(other).error_code == replies.wire_code(ServerError.INCOMPATIBLE_SCHEMA)
    for unknown in (b"8 chars.", b"\xff" * 8, b"long" * 100):
        assert find(unknown).error_code == replies.wire_code(ServerError.TOPIC_NOT_FOUND)


def test_a_producer_with_too_many_properties_is_refused(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    request_id = client.next_request_id()
    client.say(
        pb.CommandProducer(
            topic=full(topic),
            producer_id=7,
            request_id=request_id,
            metadata=[pb.KeyValue(key="large", value="x" * 20_000)],
        )
    )
    eventually(lambda: client.has_received(pb.CommandError, lambda e: e.request_id == request_id))
    client.producer(topic, SHARED).publish(b"the connection lives")
