"""Schemas of the stock Python client, and in the admin API."""

from __future__ import annotations

import json
from typing import Any

import pulsar
import pytest
from pulsar import InitialPosition, MessageId
from pulsar.schema import (
    AvroSchema,
    Integer,
    JsonSchema,
    Record,
    String,
    StringSchema,
)
from tests.integration.conftest import StockClients
from tests.integration.http_calls import ADMIN, PERSISTENT, Http

from onewriter_testing.processes import LocalBrokers

RECEIVE_MS = 60_000
"""Time limit for expected messages: a machine may be slow, and a failing test may take that long."""
NAMESPACE = "/admin/v2/namespaces/public/default"


class Point(Record):  # type: ignore[misc]  # the client ships no types
    """The first version."""

    _avro_namespace = "shapes"
    x = Integer()
    y = Integer()


class PointAndName(Record):  # type: ignore[misc]
    """A compatible second version: the new field has a default."""

    _avro_namespace = "shapes"
    x = Integer()
    y = Integer()
    name = String(required_default=True)


class Other(Record):  # type: ignore[misc]
    """An incompatible version: it requires a field that was never written."""

    _avro_namespace = "shapes"
    z = Integer(required=True)


for later in (PointAndName, Other):
    later.__name__ = "Point"  # Avro distinguishes records by their names


@pytest.fixture
def client(broker: LocalBrokers, stock: StockClients) -> Any:
    return stock(broker.service_url)


@pytest.fixture
def http(broker: LocalBrokers) -> Http:
    return Http(broker.http_url)


def schemas(topic: str) -> str:
    return f"{ADMIN}/schemas/public/default/{topic}"


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
def test_records_go_through_and_versions_count(
    client: Any, http: Http, topic: str, schema: Any
) -> None:
    producer = client.create_producer(topic, schema=schema(Point))
    producer.send(Point(x=1, y=2))
    again = client.create_producer(topic, schema=schema(Point))
    again.send(Point(x=3, y=4))
    newer = client.create_producer(topic, schema=schema(PointAndName))
    newer.send(PointAndName(x=5, y=6, name="five"))
    consumer = client.subscribe(
        topic, "s", schema=schema(PointAndName), initial_position=InitialPosition.Earliest
    )
    found = [consumer.receive(RECEIVE_MS).value() for _ in range(3)]
    assert [(point.x, point.y) for point in found] == [(1, 2), (3, 4), (5, 6)]
    assert found[2].name == "five"
    status, body = http("GET", schemas(topic) + "/schema")
    assert (status, body["version"]) == (200, 1)
    assert body["type"] == ("JSON" if schema is JsonSchema else "AVRO")
    assert [field["name"] for field in json.loads(body["data"])["fields"]] == ["x", "y", "name"]
    assert http("GET", schemas(topic) + "/schema/0")[1]["version"] == 0
    assert len(http("GET", schemas(topic) + "/schemas")[1]["getSchemaResponses"]) == 2


def test_a_schema_that_does_not_fit_is_refused(client: Any, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(Point)).send(Point(x=1, y=2))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(Point))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(Other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic)  # bytes need no schema check, as in Pulsar
    client.subscribe(topic, "s")


def test_a_consumer_brings_the_first_schema_and_not_to_what_is_written_without(
    client: Any, http: Http, topic: str
) -> None:
    client.subscribe(topic, "s", schema=JsonSchema(Point))
    assert http("GET", schemas(topic) + "/schema")[1]["type"] == "JSON"
    other = topic + "-bytes"
    client.create_producer(other).send(b"bytes")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(other, "s", schema=JsonSchema(Point))
    client.subscribe(other, "s", schema=StringSchema())


def test_strategies_are_followed(client: Any, http: Http, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(PointAndName))
    path = f"{PERSISTENT}/{topic}/schemaCompatibilityStrategy"
    assert http("PUT", path, "ALWAYS_INCOMPATIBLE")[0] == 204
    assert "Warning" not in http.headers
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Point))
    assert http("PUT", path, "ALWAYS_COMPATIBLE")[0] == 204
    client.create_producer(topic, schema=AvroSchema(Point))
    assert http("PUT", path, "BACKWARD")[0] == 204
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Other))
    assert http("PUT", path, "FORWARD")[0] == 204
    assert http("PUT", path, "no such strategy")[0] == 412


def test_schemas_can_be_required_and_kept_from_changing(
    client: Any, http: Http, topic: str
) -> None:
    client.create_producer(topic, schema=AvroSchema(Point))
    assert http("POST", f"{PERSISTENT}/{topic}/schemaValidationEnforced", body=True)[0] == 204
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)
    client.create_producer(topic, schema=AvroSchema(Point))
    try:
        assert http("POST", f"{NAMESPACE}/isAllowAutoUpdateSchema", body=False)[0] == 204
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=AvroSchema(PointAndName))
        client.create_producer(topic, schema=AvroSchema(Point))
    finally:
        assert http("POST", f"{NAMESPACE}/isAllowAutoUpdateSchema", body=True)[0] == 204


def test_the_admin_api_sets_tries_and_deletes(client: Any, http: Http, topic: str) -> None:
    path = schemas(topic)
    assert http("GET", path + "/schema")[0] == 404
    point = {"type": "AVRO", "schema": json.dumps(Point.schema()), "properties": {"a": "b"}}
    assert http("POST", path + "/schema", point) == (200, {"version": {"version": 0}})
    assert http("POST", path + "/schema", point) == (200, {"version": {"version": 0}})
    assert http("GET", path + "/schema")[1]["properties"] == {"a": "b"}
    assert http("POST", path + "/version", point) == (200, {"version": 0})
    other = {"type": "AVRO", "schema": json.dumps(Other.schema()), "properties": {}}
    assert http("POST", path + "/compatibility", other) == (
        200,
        {"compatibility": False, "schemaCompatibilityStrategy": "FULL"},
    )
    assert http("POST", path + "/schema", other)[0] == 409
    assert http("POST", path + "/schema", {"type": "AVRO", "schema": "{"})[0] == 409
    assert http("POST", path + "/schema", {"type": "none such"})[0] == 422
    assert http("DELETE", path + "/schema") == (200, {"version": 1})
    assert http("GET", path + "/schema")[0] == 404
    assert http("GET", path + "/schema/0")[0] == 200  # messages refer to it
    assert http("POST", path + "/schema", other) == (200, {"version": {"version": 2}})
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Point))


def test_a_schema_outlives_the_broker_s_memory_and_not_its_topic(
    client: Any, http: Http, topic: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Point))
    producer.send(Point(x=1, y=2))
    assert http("PUT", f"{PERSISTENT}/{topic}/unload")[0] == 204
    assert http("GET", schemas(topic) + "/schema")[1]["version"] == 0
    reader = client.create_reader(topic, MessageId.earliest, schema=AvroSchema(Point))
    assert reader.read_next(RECEIVE_MS).value().y == 2
    reader.close()
    producer.close()
    assert http("DELETE", f"{PERSISTENT}/{topic}?force=true")[0] == 204
    assert http("GET", schemas(topic) + "/schema")[0] == 404
    client.create_producer(topic, schema=JsonSchema(Point))


def test_all_partitions_have_the_same_schema(client: Any, http: Http, topic: str) -> None:
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 3)[0] == 204
    producer = client.create_producer(topic, schema=AvroSchema(Point))
    for number in range(9):
        producer.send(Point(x=number, y=0), partition_key=f"{number}")
    assert len(http("GET", schemas(topic) + "/schemas")[1]["getSchemaResponses"]) == 1
    consumer = client.subscribe(
        topic, "s", schema=AvroSchema(Point), initial_position=InitialPosition.Earliest
    )
    assert sorted(consumer.receive(RECEIVE_MS).value().x for _ in range(9)) == list(range(9))
