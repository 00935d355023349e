"""Bytes to commands and back, and all that a peer can get wrong in between."""

from __future__ import annotations

import pytest
from google.protobuf.message import EncodeError

from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.ids import Position
from onewriter_core.wire import commands
from onewriter_core.wire.commands import (
    ACK_SET_WORDS_MAX,
    decode_command,
    encode_command,
    queue_priority,
)
from onewriter_core.wire.encoding import encode_ack, encode_varint
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import (
    EARLIEST_ID,
    LATEST_ID,
    Ack,
    Delivery,
    Flow,
    MessageId,
    Send,
    SendReceipt,
)

PRODUCER = bytes.fromhex("0805 2a07 0a0174 1001 1802")
"""By hand: type 5, field 5 of 7 bytes: topic "t", producer 1, request 2."""


def producer_with(fields: str) -> bytes:
    extra = bytes.fromhex(fields)
    return b"\x08\x05\x2a" + bytes([7 + len(extra)]) + PRODUCER[4:] + extra


@pytest.mark.parametrize(
    ("written", "command"),
    [
        ("0806 3204 0802 1005", Send(2, 5)),
        ("0806 320b 0802 1005 1803 30e807 3801", Send(2, 5, 3, 1000, is_chunk=True)),
        ("0806 3206 0802 1005 4001", Send(2, 5, marker=True)),
        # The same fields in an order, or with numbers, that nobody writes but protobuf accepts.
        ("0806 3204 1005 0802", Send(2, 5)),
        ("0806 3206 0802 1005 0803", Send(3, 5)),
        ("0806 3206 0802 1803 1005", Send(2, 5, 3)),
        ("0806 320a 0802 1005 1883 808080 7f", Send(2, 5, 3 - 2**28)),
        ("3204 0802 1005 0806", Send(2, 5)),
        ("0806 3204 0802 1005 3204 0803 1006", Send(3, 6)),
        ("0809 4a10 0802 1206 0807 1008 1801 1204 0803 1009", Delivery(2, MessageId(3, 9, 1))),
        (
            "0807 3a12 0802 1005 1a06 0807 1008 1801 1a04 0803 1009",
            SendReceipt(2, 5, MessageId(3, 9, 1)),
        ),
        ("080b 5a08 0802 1085 80808010", Flow(2, 5)),
        ("080a 520c 0802 1000 1a04 1008 0807 4005", Ack(2, 0, (MessageId(7, 8),), 5)),
        ("080a 520e 0802 1000 1a06 0807 1801 1008 4005", Ack(2, 0, (MessageId(7, 8, 1),), 5)),
        (
            "0806 3210 0802 1005 2001 2802 4a06 0807 1008 1801",
            Send(2, 5, txnid_least=1, txnid_most=2, message_id=MessageId(7, 8, 1)),
        ),
        ("0807 3a0c 0802 1005 1a04 0807 1008 2009", SendReceipt(2, 5, MessageId(7, 8), 9)),
        ("0807 3a04 0802 1005", SendReceipt(2, 5)),
        ("0809 4a08 0802 1204 0807 1008", Delivery(2, MessageId(7, 8))),
        (
            "0809 4a0e 0802 1204 0807 1008 1801 2006 2803",
            Delivery(2, MessageId(7, 8), 1, (6,), 3),
        ),
        ("080a 520c 0802 1000 1a04 0807 1008 4005", Ack(2, 0, (MessageId(7, 8),), 5)),
        ("080a 5204 0802 1001", Ack(2, 1)),
        (
            "080a 5211 0802 1001 2002 2a05 0a016b 1009 3003 3804",
            Ack(2, 1, (), None, 2, (("k", 9),), 3, 4),
        ),
        ("080b 5a05 0802 10e807", Flow(2, 1000)),
    ],
)
def test_hot_commands_written_by_hand(written: str, command: commands.Command) -> None:
    data = bytes.fromhex(written)
    assert decode_command(data) == command
    assert decode_command(memoryview(data)) == command
    assert commands.decode_by_protobuf(data) == command


def test_every_other_command_is_decoded_as_its_message() -> None:
    command = decode_command(PRODUCER)
    assert isinstance(command, pb.CommandProducer)
    assert (command.topic, command.producer_id, command.request_id) == ("t", 1, 2)
    assert encode_command(command) == (15).to_bytes(4) + (11).to_bytes(4) + PRODUCER


def test_every_type_has_a_message_of_its_number_and_name() -> None:
    for number in pb.BaseCommand.Type.values():
        assert number in pb.BaseCommand.DESCRIPTOR.fields_by_number
        assert commands.type_name(number) == pb.BaseCommand.Type.Name(number)
        assert commands.type_of(commands.class_of(number)) == number
    assert commands.type_name(99) == "99"
    assert [int(code) for code in pb.ServerError.values()] == [int(code) for code in ServerError]
    assert list(pb.ServerError.keys()) == [code.name for code in ServerError]


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", "a command without type"),
        ("0863", "unknown command 99"),
        ("0863 0862", "unknown command 98"),
        ("0840", "unknown command 64"),
        ("0812", "PING without its content"),
        ("0806", "SEND without its content"),
        ("0806 3202 0802", "SEND lacks sequence_id"),
        ("080a 5204 0802 1002", "ACK lacks ack_type"),
        ("080a 5202 0802", "ACK lacks ack_type"),
        ("080a 5208 0802 1000 1a02 0807", r"ACK lacks message_id\[0\].entry_id"),
        ("080a 520a 0802 1000 1a02 1008 4005", r"ACK lacks message_id\[0\].ledger_id"),
        ("080a 3204 0802 1005", "ACK without its content"),
        ("0807 3204 0802 1005", "SEND_RECEIPT without its content"),
        ("0809 3204 0802 1005", "MESSAGE without its content"),
        ("080b 3204 0802 1005", "FLOW without its content"),
        ("0809 4a02 0802", "MESSAGE lacks message_id"),
        ("0809 4a06 0802 1202 0807", "MESSAGE lacks message_id.entry_id"),
        ("0807 3a02 0802", "SEND_RECEIPT lacks sequence_id"),
        ("080b 5a02 0802", "FLOW lacks message_permits"),
        ("0806 32ff", "bytes that are not a command"),
        ("080a 520b 0802 1000 1a03 080710 4005", "bytes that are not a command"),
        ("0807 3a03 0802 10", "bytes that are not a command"),
        ("0809 4a03 0802 12", "bytes that are not a command"),
        ("080a 5203 0802 10", "bytes that are not a command"),
        ("080b 5a03 0802 10", "bytes that are not a command"),
        # The length's first byte alone would fit, but it goes on in the next.
        ("0806 3285 0801 1005 188001" + "1801" * 63, "bytes that are not a command"),
        ("ffffffffffffffffffffffffffff", "bytes that are not a command"),
    ],
)
def test_invalid_bytes_of_a_command_are_refused(written: str, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_command(bytes.fromhex(written))


def test_an_access_mode_of_the_future_does_not_read_as_shared() -> None:
    with pytest.raises(ProtocolError, match="unknown producer_access_mode 9"):
        decode_command(producer_with("5009"))


def test_text_that_is_not_utf8_is_refused_also_deep_inside() -> None:
    with pytest.raises(ProtocolError, match="producer_name is not UTF-8"):
        decode_command(producer_with("2201ff"))
    with pytest.raises(ProtocolError, match="KeyValue: value is not UTF-8"):
        decode_command(producer_with("3206 0a0161 1201ff"))
    names = pb.CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["ok", "no"])
    frame = encode_command(names)
    assert decode_command(frame[8:]) == names
    with pytest.raises(ProtocolError, match="topics is not UTF-8"):
        decode_command(frame[8:].replace(b"no", b"n\xff"))


def test_unknown_fields_survive() -> None:
    data = producer_with("7007 fa0703616263")
    command = decode_command(data)
    assert isinstance(command, pb.CommandProducer)
    assert encode_command(command)[8:] == data


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ("", None),
        ("7007", 7),
        ("7007 7009", 9),
        ("70ffffffffffffffffff01", -1),
        ("70ffffffff07", 2**31 - 1),
        ("7201 07", None),
        ("7805", None),
    ],
)
def test_a_queue_priority_is_read_from_an_unlisted_field(fields: str, priority: int | None) -> None:
    command = decode_command(producer_with(fields))
    assert isinstance(command, pb.CommandProducer)
    assert queue_priority(command) == priority


def test_the_queue_priority_field_is_renumberable() -> None:
    command = decode_command(producer_with("7007 c83e05"))
    assert isinstance(command, pb.CommandProducer)
    assert queue_priority(command, 1001) == 5


def test_a_message_id_goes_to_protobuf_and_back() -> None:
    for message_id in (
        MessageId(1, 2),
        EARLIEST_ID,
        LATEST_ID,
        MessageId(1, 2, 3, 4, (-1, 5), 6, MessageId(7, 8)),
    ):
        message = commands.message_id_to_proto(message_id)
        assert commands.message_id_from_proto(message) == message_id
    assert not commands.message_id_to_proto(MessageId(1, 2)).HasField("partition")
    assert MessageId(1, 2).position == Position(1, 2)


def test_an_unencodable_command_raises() -> None:
    with pytest.raises(EncodeError):
        encode_command(pb.CommandSuccess())
    with pytest.raises(KeyError):
        encode_command(pb.MessageIdData(ledger_id=1, entry_id=2))
    for number in (-1, 2**64):
        with pytest.raises(ValueError, match="not an unsigned 64-bit number"):
            encode_varint(number)


def test_a_long_list_of_words_is_read_only_up_to_the_size_of_a_batch() -> None:
    words = tuple(range(-30_000, 30_000))
    frame = encode_ack(1, 0, [MessageId(1, 2, ack_set=words)])
    message_id = MessageId(1, 2, ack_set=words[:ACK_SET_WORDS_MAX])
    assert decode_command(frame[8:]) == Ack(1, 0, (message_id,))


def test_the_ids_of_a_large_acknowledgement_are_those_of_the_frame() -> None:
    ids = [MessageId(7, number, partition=3, batch_index=1) for number in range(5_000)]
    found = decode_command(encode_ack(1, 0, ids)[8:])
    assert isinstance(found, Ack)
    assert list(found.message_ids) == ids
    assert list(found.message_ids[10:20]) == ids[10:20]
