"""The hand-written codec agrees with protobuf, for all fields and in both directions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st

from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.wire.commands import (
    Command,
    decode_by_protobuf,
    decode_command,
    message_id_to_proto,
)
from onewriter_core.wire.encoding import (
    encode_ack,
    encode_ack_response,
    encode_flow,
    encode_message_header,
    encode_send_header,
    encode_send_receipt,
    encode_varint,
)
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

# Numbers of every varint length, including the limits of each.
uint64 = st.integers(0, 63).flatmap(lambda bits: st.integers(0, 2 ** (bits + 1) - 1))
uint32 = st.integers(0, 2**32 - 1)
int32 = st.one_of(st.integers(-3, 300), st.integers(-(2**31), 2**31 - 1))
int64 = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
words = st.lists(int64, max_size=4)


def optional(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), values)


message_ids: st.SearchStrategy[pb.MessageIdData] = st.deferred(
    lambda: st.builds(
        pb.MessageIdData,
        ledger_id=uint64,
        entry_id=uint64,
        partition=optional(int32),
        batch_index=optional(int32),
        ack_set=words,
        batch_size=optional(int32),
        first_chunk_message_id=st.one_of(st.none(), st.none(), message_ids),
    )
)
optional_ids = st.one_of(st.none(), message_ids)

sends = st.builds(
    pb.CommandSend,
    producer_id=uint64,
    sequence_id=uint64,
    num_messages=optional(int32),
    highest_sequence_id=optional(uint64),
    is_chunk=st.one_of(st.none(), st.booleans()),
    marker=st.one_of(st.none(), st.none(), st.booleans()),
    txnid_least_bits=st.one_of(st.none(), st.none(), uint64),
    txnid_most_bits=st.one_of(st.none(), st.none(), uint64),
    message_id=st.one_of(st.none(), st.none(), message_ids),
)
receipts = st.builds(
    pb.CommandSendReceipt,
    producer_id=uint64,
    sequence_id=uint64,
    message_id=optional_ids,
    highest_sequence_id=optional(uint64),
)
deliveries = st.builds(
    pb.CommandMessage,
    consumer_id=uint64,
    message_id=message_ids,
    redelivery_count=optional(uint32),
    ack_set=words,
    consumer_epoch=optional(uint64),
)
acks = st.builds(
    pb.CommandAck,
    consumer_id=uint64,
    ack_type=st.sampled_from(pb.CommandAck.AckType.values()),
    message_id=st.lists(message_ids, max_size=4),
    validation_error=st.one_of(
        st.none(), st.none(), st.sampled_from(pb.CommandAck.ValidationError.values())
    ),
    properties=st.lists(
        st.builds(pb.KeyLongValue, key=st.text(max_size=5), value=uint64), max_size=2
    ),
    txnid_least_bits=st.one_of(st.none(), st.none(), uint64),
    txnid_most_bits=st.one_of(st.none(), st.none(), uint64),
    request_id=optional(uint64),
)
flows = st.builds(pb.CommandFlow, consumer_id=uint64, message_permits=uint32)

FIELDS: dict[type[Message], tuple[int, str]] = {
    pb.CommandSend: (pb.BaseCommand.SEND, "send"),
    pb.CommandSendReceipt: (pb.BaseCommand.SEND_RECEIPT, "send_receipt"),
    pb.CommandMessage: (pb.BaseCommand.MESSAGE, "message"),
    pb.CommandAck: (pb.BaseCommand.ACK, "ack"),
    pb.CommandFlow: (pb.BaseCommand.FLOW, "flow"),
}


def in_base_command(message: Message) -> bytes:
    number, name = FIELDS[type(message)]
    base = pb.BaseCommand(type=pb.BaseCommand.Type.ValueType(number))
    getattr(base, name).CopyFrom(message)
    return base.SerializeToString()


def outcome(decode: Callable[[bytes], Command], data: bytes) -> Command | str:
    try:
        return decode(data)
    except ProtocolError as error:
        return str(error)


@given(st.one_of(sends, receipts, deliveries, acks, flows))
def test_decoding_agrees(message: Message) -> None:
    data = in_base_command(message)
    assert decode_command(data) == decode_by_protobuf(data)


@given(
    st.sampled_from(list(FIELDS.values())),
    st.lists(
        st.one_of(
            # Fields in any order, repeated, with unknown numbers, with any number of bytes.
            st.tuples(st.integers(1, 12), uint64).map(
                lambda field: encode_varint(field[0] << 3) + encode_varint(field[1])
            ),
            st.tuples(st.integers(1, 12), st.binary(max_size=6)).map(
                lambda field: (
                    encode_varint(field[0] << 3 | 2) + encode_varint(len(field[1])) + field[1]
                )
            ),
            message_ids.map(
                lambda message: (
                    b"\x1a" + encode_varint(message.ByteSize()) + message.SerializeToString()
                )
            ),
            st.binary(max_size=3),
        ),
        max_size=8,
    ).map(b"".join),
)
@example((6, "send"), b"\x08\x01" * 67)
@example((6, "send"), b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02\x10\x05")
@example((6, "send"), b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x10\x05")
def test_decoding_agrees_on_anything_shaped_like_a_command(
    field: tuple[int, str], body: bytes
) -> None:
    number, _ = field
    data = bytes([8, number, number << 3 | 2]) + encode_varint(len(body)) + body
    assert outcome(decode_command, data) == outcome(decode_by_protobuf, data)


@given(st.one_of(sends, receipts, deliveries, acks, flows), st.data())
def test_decoding_agrees_on_damage(message: Message, data: st.DataObject) -> None:
    damaged = bytearray(in_base_command(message))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    assert outcome(decode_command, bytes(damaged)) == outcome(decode_by_protobuf, bytes(damaged))


def command_of(frame: bytes, payload_length: int = 0) -> bytes:
    """Return the command in a frame, after checking the frame's lengths."""
    assert int.from_bytes(frame[:4]) == len(frame) - 4 + payload_length
    assert int.from_bytes(frame[4:8]) == len(frame) - 8
    return frame[8:]


@given(uint64, uint64, uint64, uint64, uint64)
def test_a_receipt_is_encoded_as_protobuf_would(
    producer_id: int, sequence_id: int, ledger: int, entry: int, highest: int
) -> None:
    frame = encode_send_receipt(producer_id, sequence_id, ledger, entry, highest)
    message = pb.CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=pb.MessageIdData(ledger_id=ledger, entry_id=entry),
        highest_sequence_id=highest or None,
    )
    assert command_of(frame) == in_base_command(message)
    assert decode_command(command_of(frame)) == SendReceipt(
        producer_id, sequence_id, MessageId(ledger, entry), highest
    )


@given(
    consumer_id=uint64,
    ledger=uint64,
    entry=uint64,
    entry_length=st.integers(0, 2**24),
    redelivery_count=uint32,
    partition=int32,
    batch_index=int32,
    ack_set=words,
    consumer_epoch=optional(uint64),
    batch_size=optional(int32),
)
def test_a_delivery_is_encoded_as_protobuf_would(
    consumer_id: int,
    ledger: int,
    entry: int,
    entry_length: int,
    redelivery_count: int,
    partition: int,
    batch_index: int,
    ack_set: list[int],
    consumer_epoch: int | None,
    batch_size: int | None,
) -> None:
    header = encode_message_header(
        consumer_id,
        ledger,
        entry,
        entry_length,
        redelivery_count=redelivery_count,
        partition=partition,
        batch_index=batch_index,
        ack_set=ack_set,
        consumer_epoch=consumer_epoch,
        batch_size=batch_size,
    )
    message_id = MessageId(ledger, entry, partition, batch_index, (), batch_size)
    message = pb.CommandMessage(
        consumer_id=consumer_id,
        message_id=message_id_to_proto(message_id),
        redelivery_count=redelivery_count or None,
        ack_set=ack_set,
        consumer_epoch=consumer_epoch,
    )
    assert command_of(header, entry_length) == in_base_command(message)
    assert decode_command(command_of(header, entry_length)) == Delivery(
        consumer_id, message_id, redelivery_count, tuple(ack_set), consumer_epoch
    )


@given(uint64, uint64, st.integers(0, 2**24), int32, uint64, st.booleans())
def test_a_send_is_encoded_as_protobuf_would(
    producer_id: int,
    sequence_id: int,
    entry_length: int,
    num_messages: int,
    highest: int,
    is_chunk: bool,
) -> None:
    header = encode_send_header(
        producer_id,
        sequence_id,
        entry_length,
        num_messages=num_messages,
        highest_sequence_id=highest,
        is_chunk=is_chunk,
    )
    message = pb.CommandSend(
        producer_id=producer_id,
        sequence_id=sequence_id,
        num_messages=None if num_messages == 1 else num_messages,
        highest_sequence_id=highest or None,
        is_chunk=is_chunk or None,
    )
    assert command_of(header, entry_length) == in_base_command(message)
    assert decode_command(command_of(header, entry_length)) == Send(
        producer_id, sequence_id, num_messages, highest, is_chunk
    )


@given(
    uint64,
    st.sampled_from([0, 1]),
    st.lists(
        st.builds(
            MessageId, uint64, uint64, int32, int32, words.map(tuple), optional(int32), st.none()
        ),
        max_size=3,
    ),
    optional(uint64),
)
def test_an_acknowledgement_is_answered(
    consumer_id: int, ack_type: int, ids: list[MessageId], request_id: int | None
) -> None:
    command = command_of(encode_ack(consumer_id, ack_type, ids, request_id))
    expected = Ack(consumer_id, ack_type, tuple(ids), request_id)
    assert decode_command(command) == decode_by_protobuf(command) == expected


@given(uint64, uint32)
def test_permits_are_returned(consumer_id: int, permits: int) -> None:
    command = command_of(encode_flow(consumer_id, permits))
    assert decode_command(command) == decode_by_protobuf(command) == Flow(consumer_id, permits)


@given(uint64, uint64, st.one_of(st.none(), st.sampled_from(ServerError)), st.text(max_size=200))
def test_an_ack_response_is_encoded_as_protobuf_would(
    consumer_id: int, request_id: int, code: ServerError | None, message: str
) -> None:
    frame = encode_ack_response(consumer_id, request_id, code, message)
    expected = pb.CommandAckResponse(
        consumer_id=consumer_id,
        error=None if code is None else pb.ServerError.ValueType(code),
        message=None if code is None else message,
        request_id=request_id,
    )
    assert decode_command(command_of(frame)) == expected


@given(uint64)
def test_varints_are_canonical(number: int) -> None:
    encoded = encode_varint(number)
    assert [byte >= 0x80 for byte in encoded] == [True] * (len(encoded) - 1) + [False]
    assert sum((byte & 0x7F) << 7 * index for index, byte in enumerate(encoded)) == number
    assert len(encoded) == max(1, -(-number.bit_length() // 7))


@pytest.mark.parametrize("sentinel", [EARLIEST_ID, LATEST_ID])
def test_the_sentinels_survive_the_wire(sentinel: MessageId) -> None:
    command = command_of(encode_ack(1, 0, [sentinel]))
    assert decode_command(command) == Ack(1, 0, (sentinel,))
