"""A command's type and size are judged before it is decoded."""

from __future__ import annotations

import pytest

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.command_limits import (
    HANDSHAKE_LENGTH_MAX,
    LENGTHS_MAX,
    UNCHECKED_LENGTH_MAX,
    check_length,
)
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.connection import FROM_CLIENT, State
from onewriter_core.wire.encoding import encode_varint
from onewriter_core.wire.frames import COMMAND_LENGTH_MAX
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.server import ServerConnection

CONNECT = encode_command(pb.CommandConnect(client_version="test"))


def producer(pairs: int) -> bytes:
    metadata = [pb.KeyValue(key="k", value="v")] * pairs
    return encode_command(
        pb.CommandProducer(topic="t", producer_id=1, request_id=1, metadata=metadata)
    )


def connected() -> ServerConnection:
    server = ServerConnection()
    server.feed(CONNECT)
    server.connected("test")
    return server


@pytest.fixture
def undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(data: bytearray) -> None:
        raise AssertionError(f"{len(data)} bytes were decoded")

    monkeypatch.setattr("onewriter_core.wire.connection.decode_command", decode)


@pytest.mark.usefixtures("undecodable")
@pytest.mark.parametrize("pairs", [0, 100])
def test_before_connect_other_commands_are_not_decoded(pairs: int) -> None:
    with pytest.raises(ProtocolError, match="PRODUCER is not expected while opened"):
        ServerConnection().feed(producer(pairs))


@pytest.mark.usefixtures("undecodable")
def test_a_command_after_connect_is_not_decoded_before_connected() -> None:
    server = ServerConnection()
    server._enter(State.CONNECTING)
    with pytest.raises(ProtocolError, match="PRODUCER is not expected while connecting"):
        server.feed(producer(100))


@pytest.mark.usefixtures("undecodable")
def test_a_large_frame_before_connected_is_refused_by_its_length() -> None:
    server = ServerConnection()
    with pytest.raises(ProtocolError, match=f"at most {HANDSHAKE_LENGTH_MAX}"):
        server.feed(producer(20_000)[:100])


def test_connect_may_carry_the_largest_token() -> None:
    server = ServerConnection()
    ((command, _),) = server.feed(
        encode_command(pb.CommandConnect(client_version="test", auth_data=b"t" * 16 * 1024))
    )
    assert isinstance(command, pb.CommandConnect)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08",
        b"\x08\x02\x12",
        b"\x12\x00\x08\x02",  # the type behind its content
        b"\x08\x02\x12\x00\x08\x05",  # another type at the end counts, for protobuf
        b"\x08\x02\x12\x00\x2a\x00",  # something behind the content
        b"\x08\x02\x2a\x00",  # content of another type
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\x00",
    ],
)
def test_a_command_that_hides_its_type_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        ServerConnection().feed(frame(content))


def frame(command: bytes) -> bytes:
    size = len(command)
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + command


@pytest.mark.usefixtures("undecodable")
def test_a_command_larger_than_its_type_may_be_is_not_decoded() -> None:
    server = in_connected()
    with pytest.raises(ProtocolError, match="PRODUCER of"):
        server.feed(producer(80_000))


@pytest.mark.usefixtures("undecodable")
def test_a_command_of_brokers_is_not_decoded() -> None:
    names = encode_varint(5000)
    body = b"\x0a" + names + b"x" * 5000
    content = b"\x08\x21" + b"\x8a\x02" + encode_varint(len(body)) + body
    server = in_connected()
    with pytest.raises(ProtocolError):
        server.feed(frame(content))


def in_connected() -> ServerConnection:
    """A connection that is connected, though nothing can be decoded."""
    server = ServerConnection()
    server._enter(State.CONNECTED)
    return server


@pytest.mark.parametrize("number", sorted(FROM_CLIENT))
def test_every_type_has_a_bound(number: int) -> None:
    most = LENGTHS_MAX.get(number, 8 * 1024)
    assert UNCHECKED_LENGTH_MAX < most <= COMMAND_LENGTH_MAX
    check_length(number, most)
    with pytest.raises(ProtocolError):
        check_length(number, most + 1)


def test_ordinary_commands_pass() -> None:
    server = connected()
    ((command, _),) = server.feed(producer(1_000))
    assert isinstance(command, pb.CommandProducer)
    assert len(command.metadata) == 1_000


@pytest.mark.parametrize("kind", [pb.CommandOwn, pb.CommandDisown])
def test_an_owner_may_name_a_thousand_resources_in_one_request(
    kind: type[pb.CommandOwn | pb.CommandDisown],
) -> None:
    resources = [pb.OwnedResource(name=f"{number:0200}", generation=1) for number in range(1_000)]
    ((command, _),) = connected().feed(encode_command(kind(request_id=1, resources=resources)))
    assert isinstance(command, kind)
    assert len(command.resources) == len(resources)
