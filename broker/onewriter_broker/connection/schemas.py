"""Schemas on the wire: sent by producers and consumers, requested, and created on request.

A schema whose type says everything (text, numbers, times) is stored like one with a definition, so
that one topic never has two types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from onewriter_broker.connection.clients import Clients
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.schemas.rules import (
    NOT_KEPT,
    KeptSchema,
    Schema,
    has_definition,
)
from onewriter_broker.topic.schemas.topic_schemas import TopicSchemas, find, kept_in
from onewriter_core.authorization import Action
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

_VERSION = struct.Struct(">Q")
"""Clients expect eight bytes in a schema version."""

BROKER_SUBJECT = ""
"""The broker itself, which does not compare schemas."""

LOGS_READ_MAX = 64
"""Logs of a topic of another broker that are searched for its schemas."""


class WithSchema(Protocol):
    """A command that may bring a schema."""

    @property
    def schema(self) -> pb.Schema: ...


def schema_of(command: WithSchema) -> Schema | None:
    """The schema that a command brings; None if it brings none that would be stored."""
    schema = command.schema
    return None if schema.type in NOT_KEPT else Schema.from_wire(schema)


def schemas_of(clients: Clients, topic: LoadedTopic, client: str) -> TopicSchemas:
    """The schemas of a topic that this broker serves, on behalf of ``client``."""
    checks = clients.schema_checks
    return TopicSchemas(topic, clients.topics.namespaces, clients.wall_ms, checks, client)


async def version_for_producer(
    clients: Clients, topic: LoadedTopic, command: pb.CommandProducer, client: str
) -> bytes:
    """The version of a producer's schema, which is stored from now on; empty if it brings none.

    Raises Refused (INCOMPATIBLE_SCHEMA), Undecided and Unavailable.
    """
    schema, schemas = schema_of(command), schemas_of(clients, topic, client)
    if schema is None:
        schemas.check_without()
        return b""
    return _VERSION.pack(await schemas.add(schema))


async def check_consumer(
    clients: Clients,
    topic: LoadedTopic,
    partition: int,
    command: pb.CommandSubscribe,
    identity: Identity,
    client: str,
) -> None:
    """Check that a consumer's schema is compatible with the topic's. A consumer that may produce
    may also add the first schema.

    Raises as ``version_for_producer``.
    """
    schema = schema_of(command)
    if schema is not None:
        may_add = clients.authorization.allows(identity, Action.CREATE_SCHEMA, topic.name)
        await schemas_of(clients, topic, client).check_consumer(schema, partition, may_add=may_add)


class SchemaRequests:
    """The schema requests of one connection. ``client``: the subject that they count for."""

    def __init__(self, clients: Clients, client: str, write: Callable[[bytes], None]) -> None:
        self._clients = clients
        self._client = client
        self._write = write

    async def find(self, command: pb.CommandGetSchema) -> None:
        """GET_SCHEMA."""
        self._write(await found(self._clients, command))

    async def make(self, command: pb.CommandGetOrCreateSchema) -> None:
        """GET_OR_CREATE_SCHEMA."""
        self._write(await made(self._clients, command, self._client))


async def found(clients: Clients, command: pb.CommandGetSchema) -> bytes:
    """Answer GET_SCHEMA, which clients send to any broker, for one version or the latest."""
    reply = pb.CommandGetSchemaResponse(request_id=command.request_id)
    try:
        name = TopicName.parse(command.topic)
        version, kept = _number(command.schema_version), None
        if version is None or version >= 0:
            kept = find(await kept_of(clients, name.base), version)
        schema = _of_type(version) if kept is None else kept.schema
        if schema is None:
            raise Refused(ServerError.TOPIC_NOT_FOUND, "Topic not found or no-schema")
        number = version or 0 if kept is None else kept.version
        reply.schema.CopyFrom(_on_wire(name, schema))
        reply.schema_version = _VERSION.pack(number)
    except (OnewriterError, InvalidTopicName, ValueError) as error:
        code = error.code if isinstance(error, Refused) else ServerError.METADATA_ERROR
        reply.ClearField("schema")
        reply.error_code, reply.error_message = replies.wire_code(code), str(error)
    return encode_command(reply)


async def made(clients: Clients, command: pb.CommandGetOrCreateSchema, client: str) -> bytes:
    """Answer GET_OR_CREATE_SCHEMA, which a producer sends to the topic's broker."""
    reply = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    schema = schema_of(command)
    try:
        name = TopicName.parse(command.topic)
        if schema is None:
            reply.schema_version = b""
        else:
            topic = await clients.topics.serve_existing(name.base)
            version = await schemas_of(clients, topic, client).add(schema)
            reply.schema_version = _VERSION.pack(version)
    except (OnewriterError, InvalidTopicName) as error:
        code = error.code if isinstance(error, Refused) else ServerError.SERVICE_NOT_READY
        reply.error_code, reply.error_message = replies.wire_code(code), str(error)
    return encode_command(reply)


async def kept_of(clients: Clients, base: TopicName) -> list[KeptSchema]:
    """The schemas of a topic, whichever broker serves it. Raises Undecided, ValueError."""
    topics = clients.topics
    topic = topics.loaded.get(str(base))
    if topic is not None:
        return schemas_of(clients, topic, BROKER_SUBJECT).kept
    entry = await topics.entry_of(base)
    for name in [] if entry is None else entry.log_names(base)[:LOGS_READ_MAX]:
        kept = kept_in(await clients.store.read_state(name))
        if kept:
            return kept
    return []


def _number(version: bytes) -> int | None:
    """The version that a client names; None if it wants the latest. Raises Refused."""
    if not version:
        return None
    if len(version) != _VERSION.size:
        raise Refused(ServerError.TOPIC_NOT_FOUND, "a schema version has eight bytes")
    return int(_VERSION.unpack(version)[0])


def _of_type(version: int | None) -> Schema | None:
    """Before schemas were stored, the type of a schema without a definition was its version."""
    if version is None or version not in pb.Schema.Type.values():
        return None
    schema = Schema(version)
    return None if has_definition(schema) else schema


def _on_wire(name: TopicName, schema: Schema) -> pb.Schema:
    return pb.Schema(
        name=f"{name.namespace_name}/{name.base.local}",
        schema_data=schema.data,
        type=pb.Schema.Type.ValueType(schema.kind),
        properties=[pb.KeyValue(key=key, value=value) for key, value in schema.properties.items()],
    )
