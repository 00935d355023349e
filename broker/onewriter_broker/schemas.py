"""Schemas: none is kept yet, so what needs keeping is refused in plain words.

A schema without a definition (bytes, text, numbers, times, "whatever the topic has") needs nothing
of a broker: the clients agree on it among themselves, and are told that the topic has none. One
with a definition (JSON, Avro, Protocol Buffers, key and value) promises its readers that the broker
checks and finds versions; letting it in would leave them to misread messages.
"""

from __future__ import annotations

from typing import Protocol

from onewriter_core.errors import Refused, ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


class WithSchema(Protocol):
    """A command that may bring a schema."""

    @property
    def schema(self) -> pb.Schema: ...


def check_schema(command: WithSchema) -> None:
    """Refuse (Refused, INCOMPATIBLE_SCHEMA) a schema that would have to be kept."""
    schema = command.schema
    if schema.schema_data:
        kind = pb.Schema.Type.Name(schema.type)
        raise Refused(
            ServerError.INCOMPATIBLE_SCHEMA,
            f"schemas with a definition ({kind}) are not kept here yet: send bytes or text, and "
            "encode in the application",
        )


def found(command: pb.CommandGetSchema) -> bytes:
    """Answer GET_SCHEMA: the topic has none."""
    return encode_command(
        pb.CommandGetSchemaResponse(
            request_id=command.request_id,
            error_code=replies.wire_code(ServerError.TOPIC_NOT_FOUND),
            error_message="no schema is kept",
        )
    )


def made(command: pb.CommandGetOrCreateSchema) -> bytes:
    """Answer GET_OR_CREATE_SCHEMA: an empty version, which says that the topic has no schema.

    Any other error than INCOMPATIBLE_SCHEMA would make the Java client ask again for ever.
    """
    try:
        check_schema(command)
    except Refused as refused:
        return encode_command(
            pb.CommandGetOrCreateSchemaResponse(
                request_id=command.request_id,
                error_code=replies.wire_code(refused.code),
                error_message=refused.message,
            )
        )
    return encode_command(
        pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id, schema_version=b"")
    )
