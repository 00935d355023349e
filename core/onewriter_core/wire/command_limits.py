"""The size limits of a client's commands, checked by their type before a command is decoded.

The decoding time is proportional to the bytes of a command, and the peer chooses them. So the type is read first:
every Pulsar client writes it first. A command that is larger than the limit of its type, or whose type is not allowed
now, is rejected undecoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.decoding import command_content
from onewriter_core.wire.frames import COMMAND_LENGTH_MAX
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

HANDSHAKE_LENGTH_MAX: Final = 20 * 1024
"""Bytes of a frame before CONNECTED. A token has at most 16 KiB."""

UNCHECKED_LENGTH_MAX: Final = 4 * 1024
"""Bytes of a command of any type: a command of this size is decoded quickly."""

_SMALL: Final = 8 * 1024
"""A few names and numbers."""
_PROPERTIES: Final = 64 * 1024
"""Names, at most 16 KiB of properties, and a filter or a pattern."""
_SCHEMA: Final = 96 * 1024
"""A schema of at most 64 KiB, with names and properties."""

LENGTHS_MAX: Final[Mapping[int, int]] = {
    pb.BaseCommand.CONNECT: HANDSHAKE_LENGTH_MAX,
    pb.BaseCommand.AUTH_RESPONSE: HANDSHAKE_LENGTH_MAX,
    pb.BaseCommand.PRODUCER: _SCHEMA,
    pb.BaseCommand.SUBSCRIBE: _SCHEMA,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: _SCHEMA,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: _PROPERTIES,
    pb.BaseCommand.LOOKUP: _PROPERTIES,
    pb.BaseCommand.PARTITIONED_METADATA: _PROPERTIES,
    # An acknowledgement set names the messages of a large batch one by one.
    pb.BaseCommand.SEEK: _PROPERTIES,
    # Clients put all ids that an application holds into one of these.
    pb.BaseCommand.ACK: COMMAND_LENGTH_MAX,
    pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: COMMAND_LENGTH_MAX,
    # An owner names all its resources in one of these; the SDK at most a thousand.
    pb.BaseCommand.OWN: COMMAND_LENGTH_MAX,
    pb.BaseCommand.DISOWN: COMMAND_LENGTH_MAX,
    # It carries messages.
    pb.BaseCommand.PUBLISH_TOGETHER: COMMAND_LENGTH_MAX,
}
"""Bytes of a command by its BaseCommand.Type; ``_SMALL`` for all other types."""


def check_length(number: int, length: int) -> None:
    """Raise ProtocolError if ``length`` exceeds the limit of the command's type."""
    most = LENGTHS_MAX.get(number, _SMALL)
    if length > most:
        name = pb.BaseCommand.Type.Name(pb.BaseCommand.Type.ValueType(number))
        raise ProtocolError(f"{name} of {length} bytes; at most {most} bytes are accepted")


def known_type(data: bytearray) -> int:
    """The type of an encoded command, without decoding the rest.

    Raises ProtocolError for an unknown type, and if the command is not exactly its type and the content of this type:
    a later field could change the type.
    """
    number, _start = command_content(data)
    if number not in pb.BaseCommand.Type.values():
        raise ProtocolError(f"unknown command {number}")
    return number
