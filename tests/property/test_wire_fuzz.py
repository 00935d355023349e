"""Any bytes, in pieces of any size, produce commands or a ProtocolError and no other error."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.errors import ProtocolError
from onewriter_core.wire import messages, replies
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.commands import Command, decode_command, encode_command
from onewriter_core.wire.connection import Connection, Received, State
from onewriter_core.wire.encoding import encode_ack, encode_flow, encode_send_header, encode_varint
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.server import ServerConnection
from onewriter_core.wire.values import MessageId

ENTRY = messages.build_entry(
    pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=2),
    messages.build_batch(
        [
            (pb.SingleMessageMetadata(partition_key="a"), b"one"),
            (pb.SingleMessageMetadata(), b"two"),
        ]
    ),
)

FROM_A_CLIENT = (
    encode_send_header(1, 2, len(ENTRY), num_messages=2) + ENTRY,
    encode_ack(1, 0, [MessageId(3, 4, batch_index=1, ack_set=(5,))], 6),
    encode_flow(1, 1000),
    replies.PING,
    encode_command(
        pb.CommandProducer(
            topic="persistent://public/default/orders",
            producer_id=1,
            request_id=2,
            producer_access_mode=pb.WAIT_FOR_EXCLUSIVE,
            metadata=[pb.KeyValue(key="onewriter.queue-priority", value="7")],
        )
    ),
    encode_command(
        pb.CommandSubscribe(
            topic="orders",
            subscription="s",
            sub_type=pb.CommandSubscribe.SHARED,
            consumer_id=1,
            request_id=3,
            start_message_id=pb.MessageIdData(ledger_id=2**64 - 1, entry_id=2**64 - 1),
        )
    ),
)


def connected_server() -> ServerConnection:
    server = ServerConnection()
    server.feed(ClientConnection().connect("fuzz"))
    server.connected("onewriter")
    return server


def feed_in_pieces(connection: Connection, stream: bytes, cuts: list[int]) -> list[Received]:
    received: list[Received] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, stop in itertools.pairwise(edges):
        received += connection.feed(stream[start:stop])
    return received


frames = st.lists(st.sampled_from(FROM_A_CLIENT), min_size=1, max_size=8)
cuts = st.lists(st.integers(0, 10_000), max_size=20)


@given(frames, cuts)
def test_pieces_do_not_matter(sent: list[bytes], where: list[int]) -> None:
    stream = b"".join(sent)
    whole = connected_server().feed(stream)
    assert len(whole) == len(sent)
    assert feed_in_pieces(connected_server(), stream, where) == whole


@given(frames, cuts, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1))
def test_damage_gives_commands_or_a_protocol_error(
    sent: list[bytes], where: list[int], damage: list[tuple[int, int]]
) -> None:
    stream = bytearray(b"".join(sent))
    for position, byte in damage:
        stream[position % len(stream)] = byte
    server = connected_server()
    try:
        for command, payload in feed_in_pieces(server, bytes(stream), where):
            str(command)
            if payload is not None:
                read_everything(payload)
    except ProtocolError:
        assert server.state is State.CLOSED
    else:
        assert server.state is State.CONNECTED


@given(st.binary(max_size=400), cuts)
def test_noise_gives_commands_or_a_protocol_error(stream: bytes, where: list[int]) -> None:
    for connection in (ServerConnection(), connected_server(), ClientConnection()):
        try:
            feed_in_pieces(connection, stream, where)
        except ProtocolError:
            assert connection.state is State.CLOSED


@given(st.integers(0, 127), st.integers(0, 127), st.binary(max_size=60))
def test_noise_after_a_type_gives_a_command_or_a_protocol_error(
    number: int, field: int, body: bytes
) -> None:
    for tag in (number, field):
        data = (
            b"\x08"
            + encode_varint(number)
            + encode_varint(tag << 3 | 2)
            + encode_varint(len(body))
            + body
        )
        with contextlib.suppress(ProtocolError):
            assert isinstance(decode_command(data), Command)


def read_everything(payload: memoryview) -> None:
    """Read everything that broker and clients ever read of an entry."""
    with contextlib.suppress(ProtocolError):
        messages.entry_checksum_ok(payload)
    with contextlib.suppress(ProtocolError):
        summary = messages.summarize(payload)
        messages.parse_metadata(payload)
        list(messages.iterate_batch(messages.entry_payload(payload), summary.num_messages))


@given(st.binary(max_size=100), st.integers(0, 200), st.integers(0, 255))
def test_damaged_entries_are_read_or_refused(noise: bytes, position: int, byte: int) -> None:
    damaged = bytearray(ENTRY)
    damaged[position % len(damaged)] = byte
    for entry in (noise, b"\x0e\x01" + noise, bytes(damaged), bytes(damaged[: position + 1])):
        read_everything(memoryview(entry))
