"""A client without the right to produce adds no schema, which could lock out the topic's writer."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import GuardedBrokers, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import RawClient

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

TOPIC = "persistent://public/default/payments"
MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: payments}
spec: {access: {consumers: {everyone: true}}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: writer}
spec: {topicRef: {name: payments}, subject: {tokenSubject: writer}}
"""


def test_a_reader_creates_no_schema(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(manifests=MANIFESTS)
    reader = wire_as(broker, raw, "reader")
    wire_as(broker, raw, "writer").producer(TOPIC, pb.EXCLUSIVE).close()
    number = pb.Schema(name="n", type=pb.Schema.INT32, schema_data=b"")
    request_id = reader.next_request_id()
    reader.say(pb.CommandGetOrCreateSchema(request_id=request_id, topic=TOPIC, schema=number))
    refused = reader.answer(pb.CommandGetOrCreateSchemaResponse, request_id)
    assert ServerError(refused.error_code) is ServerError.AUTHORIZATION_ERROR
    assert "lacks the right create_schema" in refused.error_message
    assert ServerError(_schema(reader).error_code) is ServerError.TOPIC_NOT_FOUND


@pytest.mark.parametrize("subject", ["reader", "writer"])
def test_a_consumer_does_not_change_a_topic_without_schema(
    guarded: GuardedBrokers, raw: RawClients, subject: str
) -> None:
    broker = guarded(manifests=MANIFESTS)
    client = wire_as(broker, raw, subject)
    request_id = client.next_request_id()
    client.say(
        pb.CommandSubscribe(
            topic=TOPIC,
            subscription="s",
            sub_type=pb.CommandSubscribe.SHARED,
            consumer_id=1,
            request_id=request_id,
            schema=pb.Schema(name="n", type=pb.Schema.INT32, schema_data=b""),
        )
    )
    client.answer(pb.CommandSuccess, request_id)
    if subject == "reader":
        assert ServerError(_schema(client).error_code) is ServerError.TOPIC_NOT_FOUND
    else:  # it may produce, too: then it brings the first schema, as in Pulsar
        assert _schema(client).schema.type == pb.Schema.INT32


def _schema(client: RawClient) -> pb.CommandGetSchemaResponse:
    request_id = client.next_request_id()
    client.say(pb.CommandGetSchema(request_id=request_id, topic=TOPIC))
    return client.answer(pb.CommandGetSchemaResponse, request_id)
