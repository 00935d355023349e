"""Schemas: none is kept yet, so what needs keeping is refused in plain words.

A schema that is all in its type (bytes, text, numbers, times) needs nothing of a broker: its
version is its type, and whoever asks for a version is told the type again. One with a definition
(JSON, Avro, Protocol Buffers, key and value) promises its readers that the broker checks and finds
versions; letting it in would leave them to misread messages.
"""

from __future__ import annotations

import struct
from typing import Protocol

from onewriter_core.errors import Refused, ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

_VERSION = struct.Struct(">Q")
"""Clients expect eight bytes in a schema version."""


_WITH_DEFINITION = frozenset(
    {
        pb.Schema.JSON,
        pb.Schema.PROTOBUF,
        pb.Schema.AVRO,
        pb.Schema.KEY_VALUE,
        pb.Schema.PROTOBUF_NATIVE,
        pb.Schema.EXTERNAL,
    }
)
"""Not told by the data: the Python client sends the word "null" with a schema that has none."""


class WithSchema(Protocol):
    """A command that may bring a schema."""

    @property
    def schema(self) -> pb.Schema: ...


def check_schema(command: WithSchema) -> None:
    """Refuse (Refused, INCOMPATIBLE_SCHEMA) a schema that would have to be kept."""
    schema = command.schema
    if schema.type in _WITH_DEFINITION:
        kind = pb.Schema.Type.Name(schema.type)
        raise Refused(
            ServerError.INCOMPATIBLE_SCHEMA,
            f"schemas with a definition ({kind}) are not kept here yet: send bytes or text, and "
            "encode in the application",
        )


def found(command: pb.CommandGetSchema) -> bytes:
    """Answer GET_SCHEMA: the type that the version names; a topic as such has no schema."""
    version = command.schema_version
    if len(version) == _VERSION.size:
        (number,) = _VERSION.unpack(version)
        if number in pb.Schema.Type.values():
            kind = pb.Schema.Type.ValueType(number)
            name = pb.Schema.Type.Name(kind)
            return encode_command(
                pb.CommandGetSchemaResponse(
                    request_id=command.request_id,
                    schema=pb.Schema(name=name, schema_data=b"", type=kind),
                    schema_version=version,
                )
            )
    return encode_command(
        pb.CommandGetSchemaResponse(
            request_id=command.request_id,
            error_code=replies.wire_code(ServerError.TOPIC_NOT_FOUND),
            error_message="no such schema is kept",
        )
    )


def made(command: pb.CommandGetOrCreateSchema) -> bytes:
    """Answer GET_OR_CREATE_SCHEMA with the version that names the type.

    Any other error than INCOMPATIBLE_SCHEMA would make the Java client ask again for ever.
    """
    reply = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    try:
        check_schema(command)
    except Refused as refused:
        reply.error_code = replies.wire_code(refused.code)
        reply.error_message = refused.message
    else:
        reply.schema_version = _VERSION.pack(command.schema.type)
    return encode_command(reply)
