"""Hand-written decoders for the commands of the data path. A table of fields would be several times slower.

Each decoder accepts the usual shape of its command and returns None for anything else, also for damaged bytes. Then
commands.decode_command uses protobuf, which is authoritative. A property test compares both.

A command is ``08 <type> <field tag> <length> <fields>``. A decoder that reads
beyond the end gets an IndexError, and returns None for it too. commands.py checks the type.
"""

from __future__ import annotations

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.values import (
    INT32_MAX,
    INT64_MAX,
    UINT64_MAX,
    Ack,
    Delivery,
    Flow,
    MessageId,
    Send,
    SendReceipt,
)


class _Unusual(Exception):
    """The command does not have the usual shape; protobuf has to decode it."""


def _varint(data: bytearray, position: int) -> tuple[int, int]:
    """The number at ``position``, which has more than one byte, and the position after it."""
    byte = data[position + 1]
    if byte < 0x80:
        return data[position] & 0x7F | byte << 7, position + 2
    value = data[position] & 0x7F | (byte & 0x7F) << 7
    byte = data[position + 2]
    if byte < 0x80:
        return value | byte << 14, position + 3
    value |= (byte & 0x7F) << 14
    position += 3
    shift = 21
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UINT64_MAX:
                raise _Unusual
            return value, position
        shift += 7
        if shift > 63:
            raise _Unusual


def _fields_start(data: bytearray) -> int:
    """The position of the sub-message's fields. The sub-message must end with the command."""
    length = data[3]
    start = 4
    if length >= 0x80:
        length, start = _varint(data, 3)
    if start + length != len(data):
        raise _Unusual
    return start


def _signed(value: int, limit: int) -> int:
    """The signed number of a varint, at most ``limit``."""
    if value > INT64_MAX:
        value -= 2**64
    if not ~limit <= value <= limit:
        raise _Unusual
    return value


def decode_send(data: bytearray) -> Send | None:
    """A SEND command of the usual shape, else None."""
    try:
        end = len(data)
        if data[2] != 0x32 or data[3] != end - 4 or end > 0x83 or data[4] != 0x08:
            return None
        producer_id = data[5]
        position = 6
        if producer_id >= 0x80:
            producer_id, position = _varint(data, 5)
        if data[position] != 0x10:
            return None
        sequence_id = data[position + 1]
        position += 2
        if sequence_id >= 0x80:
            sequence_id, position = _varint(data, position - 1)
        num_messages, highest_sequence_id, is_chunk = 1, 0, False
        while position < end:
            tag = data[position]
            value = data[position + 1]
            position += 2
            if value >= 0x80:
                value, position = _varint(data, position - 1)
            if tag == 0x18:
                num_messages = value if value <= INT32_MAX else _signed(value, INT32_MAX)
            elif tag == 0x30:
                highest_sequence_id = value
            elif tag == 0x38:
                is_chunk = value != 0
            else:
                return None
    except (IndexError, _Unusual):
        return None
    return Send(producer_id, sequence_id, num_messages, highest_sequence_id, is_chunk)


def decode_flow(data: bytearray) -> Flow | None:
    """A FLOW command of the usual shape, else None."""
    try:
        if data[2] != 0x5A:
            return None
        position = _fields_start(data)
        consumer_id = permits = -1
        end = len(data)
        while position < end:
            tag = data[position]
            value = data[position + 1]
            position += 2
            if value >= 0x80:
                value, position = _varint(data, position - 1)
            if tag == 0x08:
                consumer_id = value
            elif tag == 0x10 and value <= 0xFFFF_FFFF:
                permits = value
            else:
                return None
    except (IndexError, _Unusual):
        return None
    return Flow(consumer_id, permits) if consumer_id >= 0 and permits >= 0 else None


ACK_LENGTH_MAX = 16 * 1024
"""Bytes of an ACK whose ids are decoded at once. protobuf decodes a longer one, and its ids are read in steps."""


def decode_ack(data: bytearray) -> Ack | None:
    """An ACK command of the usual shape, else None."""
    try:
        if data[2] != 0x52 or len(data) > ACK_LENGTH_MAX:
            return None
        position = _fields_start(data)
        consumer_id = ack_type = -1
        request_id: int | None = None
        message_ids: list[MessageId] = []
        end = len(data)
        while position < end:
            tag = data[position]
            value = data[position + 1]
            position += 2
            if value >= 0x80:
                value, position = _varint(data, position - 1)
            if tag == 0x1A:
                message_ids.append(_message_id(data, position, position + value))
                position += value
            elif tag == 0x08:
                consumer_id = value
            elif tag == 0x10 and value <= 1:
                ack_type = value
            elif tag == 0x40:
                request_id = value
            else:
                return None
    except (IndexError, _Unusual):
        return None
    if consumer_id < 0 or ack_type < 0:
        return None
    return Ack(consumer_id, ack_type, tuple(message_ids), request_id)


def decode_send_receipt(data: bytearray) -> SendReceipt | None:
    """A SEND_RECEIPT command of the usual shape, else None."""
    try:
        if data[2] != 0x3A:
            return None
        position = _fields_start(data)
        producer_id = sequence_id = -1
        highest_sequence_id = 0
        message_id: MessageId | None = None
        end = len(data)
        while position < end:
            tag = data[position]
            value = data[position + 1]
            position += 2
            if value >= 0x80:
                value, position = _varint(data, position - 1)
            if tag == 0x08:
                producer_id = value
            elif tag == 0x10:
                sequence_id = value
            elif tag == 0x1A and message_id is None:
                message_id = _message_id(data, position, position + value)
                position += value
            elif tag == 0x20:
                highest_sequence_id = value
            else:
                return None
    except (IndexError, _Unusual):
        return None
    if producer_id < 0 or sequence_id < 0:
        return None
    return SendReceipt(producer_id, sequence_id, message_id, highest_sequence_id)


def decode_delivery(data: bytearray) -> Delivery | None:
    """A MESSAGE command of the usual shape, else None."""
    try:
        if data[2] != 0x4A:
            return None
        position = _fields_start(data)
        consumer_id = -1
        redelivery_count = 0
        message_id: MessageId | None = None
        ack_set: list[int] = []
        consumer_epoch: int | None = None
        end = len(data)
        while position < end:
            tag = data[position]
            value = data[position + 1]
            position += 2
            if value >= 0x80:
                value, position = _varint(data, position - 1)
            if tag == 0x08:
                consumer_id = value
            elif tag == 0x12 and message_id is None:
                message_id = _message_id(data, position, position + value)
                position += value
            elif tag == 0x18 and value <= 0xFFFF_FFFF:
                redelivery_count = value
            elif tag == 0x20:
                ack_set.append(_signed(value, INT64_MAX))
            elif tag == 0x28:
                consumer_epoch = value
            else:
                return None
    except (IndexError, _Unusual):
        return None
    if consumer_id < 0 or message_id is None:
        return None
    return Delivery(consumer_id, message_id, redelivery_count, tuple(ack_set), consumer_epoch)


def _message_id(data: bytearray, position: int, end: int) -> MessageId:
    ledger = entry = -1
    partition = batch_index = -1
    ack_set: list[int] = []
    batch_size: int | None = None
    if data[position] == 0x08:
        ledger = data[position + 1]
        position += 2
        if ledger >= 0x80:
            ledger, position = _varint(data, position - 1)
        if data[position] == 0x10:
            entry = data[position + 1]
            position += 2
            if entry >= 0x80:
                entry, position = _varint(data, position - 1)
            if position == end:
                return MessageId(ledger, entry)
    while position < end:
        tag = data[position]
        value = data[position + 1]
        position += 2
        if value >= 0x80:
            value, position = _varint(data, position - 1)
        if tag == 0x08:
            ledger = value
        elif tag == 0x10:
            entry = value
        elif tag == 0x18:
            partition = _signed(value, INT32_MAX)
        elif tag == 0x20:
            batch_index = _signed(value, INT32_MAX)
        elif tag == 0x28:
            ack_set.append(_signed(value, INT64_MAX))
        elif tag == 0x30:
            batch_size = _signed(value, INT32_MAX)
        else:
            raise _Unusual
    if position != end or ledger < 0 or entry < 0:
        raise _Unusual
    return MessageId(ledger, entry, partition, batch_index, tuple(ack_set), batch_size)


def command_content(data: bytearray) -> tuple[int, int]:
    """A command's type and the position of its content, which must end with the command.

    Raises ProtocolError for any other command.
    """
    try:
        if data[0] != 0x08:
            raise _Unusual
        number, position = _number(data, 1)
        tag, position = _number(data, position)
        length, position = _number(data, position)
    except (IndexError, _Unusual):
        raise ProtocolError("a command that does not begin with its type") from None
    if tag != number << 3 | 2 or position + length != len(data):
        raise ProtocolError("a command that is not its type followed by that type's content")
    return number, position


def _number(data: bytearray, position: int) -> tuple[int, int]:
    """The varint at ``position`` and the position after it."""
    if data[position] < 0x80:
        return data[position], position + 1
    return _varint(data, position)
