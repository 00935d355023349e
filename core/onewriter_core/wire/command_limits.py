"""How large a command of a client may be, judged by its type before it is decoded.

Decoding costs time in proportion to a command's bytes, and a peer chooses them. So a command's type is
read first: it stands in front, as every Pulsar client writes it. A larger command than its type needs
is refused unread, and so is a type that may not come now.
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
"""Bytes of a command that every type may have: nothing of this size takes long to decode."""

_SMALL: Final = 8 * 1024
"""A few names and numbers."""
_PROPERTIES: Final = 64 * 1024
"""Names, at most 16 KiB of properties, and a filter or a pattern."""
_SCHEMA: Final = 96 * 1024
"""A schema has at most 64 KiB; names and properties stand beside it."""

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
    # Clients put as many ids into one of these as an application holds.
    pb.BaseCommand.ACK: COMMAND_LENGTH_MAX,
    pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: COMMAND_LENGTH_MAX,
    # An owner names as many resources in one of these as it has: the SDK a thousand.
    pb.BaseCommand.OWN: COMMAND_LENGTH_MAX,
    pb.BaseCommand.DISOWN: COMMAND_LENGTH_MAX,
    # It carries messages.
    pb.BaseCommand.PUBLISH_TOGETHER: COMMAND_LENGTH_MAX,
}
"""Bytes of a command by its BaseCommand.Type; every other type may have ``_SMALL``."""


def check_length(number: int, length: int) -> None:
    """Raise ProtocolError for a command of ``length`` bytes that is larger than its type may be."""
    most = LENGTHS_MAX.get(number, _SMALL)
    if length > most:
        name = pb.BaseCommand.Type.Name(pb.BaseCommand.Type.ValueType(number))
        raise ProtocolError(f"{name} of {length} bytes; at most {most} bytes are accepted")


def known_type(data: bytearray) -> int:
    """The type of an encoded command, without decoding the rest.

    Raises ProtocolError for a type that does not exist, and unless the command is its type followed
    by that type's content and nothing else: otherwise its type could be another one in the end.
    """
    number, _start = command_content(data)
    if number not in pb.BaseCommand.Type.values():
        raise ProtocolError(f"unknown command {number}")
    return number
