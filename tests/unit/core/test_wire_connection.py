"""What may be said when: every state against every command, and both ends talking to each other."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.commands import BROKER_REQUEST_ID, class_of, encode_command, type_name
from onewriter_core.wire.connection import (
    FROM_BROKER,
    FROM_CLIENT,
    TRANSITIONS,
    Connection,
    State,
)
from onewriter_core.wire.encoding import (
    encode_ack,
    encode_flow,
    encode_message_header,
    encode_send_header,
    encode_send_receipt,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.server import ServerConnection
from onewriter_core.wire.values import Delivery, MessageId, Send, SendReceipt

ENTRY = b"\x00\x00\x00\x00content"


def connected_pair() -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(), ServerConnection()
    server.feed(client.connect("test"))
    client.feed(server.connected("onewriter"))
    return client, server


def peers_in(state: State) -> tuple[ClientConnection, ServerConnection]:
    """Both ends in one state, brought there by talking."""
    client, server = ClientConnection(), ServerConnection()
    if state is State.OPENED:
        return client, server
    server.feed(client.connect("test"))
    if state is State.CHALLENGED:
        client.feed(server.challenge("onewriter", "token"))
    if state is State.CONNECTED:
        client.feed(server.connected("onewriter"))
    if state is State.CLOSED:
        client.feed(server.refuse(ServerError.AUTHENTICATION_ERROR, "no"))
    return client, server


def frame_of(number: int) -> bytes:
    """A frame of any type with its required fields filled."""
    match number:
        case pb.BaseCommand.SEND:
            return encode_send_header(1, 2, len(ENTRY)) + ENTRY
        case pb.BaseCommand.SEND_RECEIPT:
            return encode_send_receipt(1, 2, 3, 4)
        case pb.BaseCommand.MESSAGE:
            return encode_message_header(1, 2, 3, len(ENTRY)) + ENTRY
        case pb.BaseCommand.ACK:
            return encode_ack(1, 0, [MessageId(2, 3)])
        case pb.BaseCommand.FLOW:
            return encode_flow(1, 2)
        case _:
            return encode_command(filled(class_of(number)()))


def filled(message: Message) -> Message:
    for field in message.DESCRIPTOR.fields:
        if field.is_required and field.message_type is not None:
            filled(getattr(message, field.name))
        elif field.is_required:
            setattr(message, field.name, field.default_value)
    return message


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("number", pb.BaseCommand.Type.values(), ids=type_name)
@pytest.mark.parametrize("side", ["broker", "client"])
def test_every_state_against_every_command(state: State, number: int, side: str) -> None:
    client, server = peers_in(state)
    connection: Connection = server if side == "broker" else client
    expected = FROM_CLIENT if side == "broker" else FROM_BROKER
    target = TRANSITIONS.get((state, number)) if number in expected else None
    assert connection.state is state
    if state is State.CLOSED:
        assert connection.feed(frame_of(number)) == []
    elif target is None:
        complaint = f"{type_name(number)} is not expected while {state.value}"
        with pytest.raises(ProtocolError, match=complaint):
            connection.feed(frame_of(number))
        assert connection.state is State.CLOSED
    else:
        [(command, _)] = connection.feed(frame_of(number))
        assert type(command) is class_of(number)
        assert connection.state is target


def test_the_table_has_no_dead_ends_and_nothing_leaves_closed() -> None:
    assert {target for _, target in TRANSITIONS.items()} | {State.OPENED} == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.CLOSED}
    assert {number for _, number in TRANSITIONS} == FROM_CLIENT | FROM_BROKER
    assert set(pb.BaseCommand.Type.values()) == FROM_CLIENT | FROM_BROKER


def test_a_conversation_from_connect_to_delivery() -> None:
    client, server = ClientConnection(), ServerConnection()
    assert server.protocol_version == 0
    [(connect, _)] = server.feed(client.connect("test", protocol_version=13))
    assert server.peer is connect
    assert server.protocol_version == 13
    [(connected, _)] = client.feed(server.connected("onewriter"))
    assert connected == pb.CommandConnected(
        server_version="onewriter",
        protocol_version=13,
        max_message_size=5_242_880,
        feature_flags=pb.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True),
        onewriter_extensions=1,
    )
    assert server.extensions_version == 1

    request_id = client.next_request_id()
    request = pb.CommandProducer(topic="orders", producer_id=7, request_id=request_id)
    assert server.feed(client.encode(request)) == [(request, None)]
    assert client.feed(replies.producer_success(request_id, "p", topic_epoch=4)) == [
        (
            pb.CommandProducerSuccess(
                request_id=request_id,
                producer_name="p",
                last_sequence_id=-1,
                schema_version=b"",
                topic_epoch=4,
                producer_ready=True,
            ),
            None,
        )
    ]

    [(send, entry)] = server.feed(encode_send_header(7, 0, len(ENTRY)) + ENTRY)
    assert send == Send(7, 0)
    assert bytes(entry or b"") == ENTRY
    [(receipt, _)] = client.feed(encode_send_receipt(7, 0, 3, 1))
    assert receipt == SendReceipt(7, 0, MessageId(3, 1))
    [(delivery, entry)] = client.feed(encode_message_header(1, 3, 1, len(ENTRY)) + ENTRY)
    assert delivery == Delivery(1, MessageId(3, 1))
    assert bytes(entry or b"") == ENTRY
    assert client.next_request_id() == request_id + 1


def test_a_stock_client_receives_no_onewriter_commands() -> None:
    server = ServerConnection()
    server.feed(encode_command(pb.CommandConnect(client_version="Pulsar", protocol_version=20)))
    assert server.extensions_version == 0
    reader = ClientConnection()
    reader.connect("test")
    [(connected, _)] = reader.feed(server.connected("onewriter"))
    assert isinstance(connected, pb.CommandConnected)
    assert not connected.HasField("onewriter_extensions")


def test_credentials_may_be_requested_before_and_during_a_connection() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.feed(client.connect("test", auth_method="token", auth_data=b"stale"))
    [(challenge, _)] = client.feed(server.challenge("onewriter", "token"))
    assert isinstance(challenge, pb.CommandAuthChallenge)
    [(response, _)] = server.feed(client.auth_response("test", "token", b"fresh"))
    assert isinstance(response, pb.CommandAuthResponse)
    assert response.response.auth_data == b"fresh"
    client.feed(server.connected("onewriter"))
    client.feed(server.challenge("onewriter", "token"))
    server.feed(client.auth_response("test", "token", b"fresher"))
    assert client.state is server.state is State.CONNECTED


def test_a_refused_client_gets_the_reason_and_nothing_else_is_read() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.feed(client.connect("test"))
    [(error, _)] = client.feed(server.refuse(ServerError.AUTHENTICATION_ERROR, "who are you"))
    assert error == pb.CommandError(
        request_id=BROKER_REQUEST_ID,
        error=pb.AUTHENTICATION_ERROR,
        message="who are you",
    )
    assert client.state is server.state is State.CLOSED
    assert server.feed(replies.PING) == []


def test_a_send_or_delivery_without_its_entry_is_refused() -> None:
    client, server = connected_pair()
    with pytest.raises(ProtocolError, match="SEND without a payload"):
        server.feed(encode_send_header(1, 2, 0))
    with pytest.raises(ProtocolError, match="MESSAGE without a payload"):
        client.feed(encode_message_header(1, 2, 3, 0))
    assert client.state is server.state is State.CLOSED


def test_the_good_commands_before_a_bad_one_are_delivered() -> None:
    _, server = connected_pair()
    stream = replies.PING + b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x63\x08\x63" + replies.PING
    buffer = server.get_buffer()
    buffer[: len(stream)] = stream
    received = server.buffer_updated(len(stream))
    assert next(received) == (pb.CommandPing(), None)
    with pytest.raises(ProtocolError, match="unknown command 99"):
        next(received)
    assert list(server.buffer_updated(0)) == []


def test_back_pressure_stops_and_continues_where_it_stopped() -> None:
    _, server = connected_pair()
    stream = replies.PING + replies.PONG + replies.PING
    buffer = server.get_buffer()
    buffer[: len(stream)] = stream
    assert next(server.buffer_updated(len(stream))) == (pb.CommandPing(), None)
    assert server.buffered_bytes == len(replies.PONG + replies.PING)
    assert [type(command) for command, _ in server.received()] == [pb.CommandPong, pb.CommandPing]


def test_closing_ends_the_commands_being_handled() -> None:
    _, server = connected_pair()
    stream = replies.PING * 3
    buffer = server.get_buffer()
    buffer[: len(stream)] = stream
    seen = 0
    for _ in server.buffer_updated(len(stream)):
        seen += 1
        server.close()
    assert seen == 1


def test_a_pipelining_client_is_served_once_it_is_connected() -> None:
    client, server = ClientConnection(), ServerConnection()
    stream = client.connect("hasty") + replies.PING
    buffer = server.get_buffer()
    buffer[: len(stream)] = stream
    next(server.buffer_updated(len(stream)))
    server.connected("onewriter")
    assert list(server.received()) == [(pb.CommandPing(), None)]


def test_our_own_mistakes_are_loud() -> None:
    client, server = ClientConnection(), ServerConnection()
    with pytest.raises(RuntimeError, match="CONNECTED cannot be sent while opened"):
        server.connected("onewriter")
    with pytest.raises(RuntimeError, match="PING cannot be sent while opened"):
        client.encode(pb.CommandPing())
    with pytest.raises(RuntimeError, match="CommandSuccess is not a client's to send"):
        client.encode(pb.CommandSuccess(request_id=1))
