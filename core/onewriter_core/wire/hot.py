"""The commands of the data path, coded by hand: SEND, ACK, FLOW and what answers them.

Each decoder knows the usual shape of its command and returns None for anything else, also for
damage: commands.decode_command then asks protobuf, whose word counts. A property test holds both
to the same answers. Everything that is not sent per message is in commands.py and replies.py.

The file is long because it unrolls by hand what a table would do several times slower, and because
values, decoders and encoders of one command are read together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onewriter_core.errors import ServerError
from onewriter_core.ids import Position

_UINT64_MAX = 2**64 - 1
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


@dataclass(slots=True)
class MessageId:
    """Pulsar's MessageIdData. Treat as immutable, like all values of this module.

    ``ledger`` and ``entry`` are unsigned as on the wire. ``partition`` and ``batch_index``: -1 for
    none. ``ack_set``: 64-bit words, a set bit is a message of the batch that is not acknowledged.
    """

    ledger: int
    entry: int
    partition: int = -1
    batch_index: int = -1
    ack_set: tuple[int, ...] = ()
    batch_size: int | None = None
    first_chunk: MessageId | None = None

    @property
    def position(self) -> Position:
        """The entry that it names."""
        return Position(self.ledger, self.entry)


EARLIEST_ID = MessageId(_UINT64_MAX, _UINT64_MAX)
"""How clients write "before everything" (-1, -1); also the last message id of an empty topic."""
LATEST_ID = MessageId(_INT64_MAX, _INT64_MAX)
"""How clients write "after everything"."""


@dataclass(slots=True)
class Send:
    """A producer's entry; its bytes are the frame's payload."""

    producer_id: int
    sequence_id: int
    num_messages: int = 1
    highest_sequence_id: int = 0
    is_chunk: bool = False
    marker: bool = False
    txnid_least: int = 0
    txnid_most: int = 0
    message_id: MessageId | None = None


@dataclass(slots=True)
class Ack:
    """A consumer's acknowledgement; ``ack_type`` is 0 for individual, 1 for cumulative.

    With a ``request_id`` the client waits for an ACK_RESPONSE.
    """

    consumer_id: int
    ack_type: int
    message_ids: tuple[MessageId, ...] = ()
    request_id: int | None = None
    validation_error: int | None = None
    properties: tuple[tuple[str, int], ...] = ()
    txnid_least: int = 0
    txnid_most: int = 0


@dataclass(slots=True)
class Flow:
    """A consumer allows ``permits`` more messages (messages, not entries)."""

    consumer_id: int
    permits: int


@dataclass(slots=True)
class SendReceipt:
    """The broker stored an entry at ``message_id``."""

    producer_id: int
    sequence_id: int
    message_id: MessageId | None = None
    highest_sequence_id: int = 0


@dataclass(slots=True)
class Delivery:
    """Pulsar's MESSAGE: an entry for a consumer; its bytes are the frame's payload."""

    consumer_id: int
    message_id: MessageId
    redelivery_count: int = 0
    ack_set: tuple[int, ...] = ()
    consumer_epoch: int | None = None


# ---- decoding ----------------------------------------------------------------------------------
#
# A command is `08 <type> <field tag> <length> <fields>`. Reading beyond its end is an IndexError,
# which means "not the usual shape" like any other surprise. commands.py checks the type.


class _Unusual(Exception):
    """Leave it to protobuf."""


def _varint(data: bytearray, position: int) -> tuple[int, int]:
    """The number at ``position``, which has more than one byte, and the position behind it."""
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
            if value > _UINT64_MAX:
                raise _Unusual
            return value, position
        shift += 7
        if shift > 63:
            raise _Unusual


def _fields_start(data: bytearray) -> int:
    """Where the sub-message's fields begin; it must end with the command."""
    length = data[3]
    start = 4
    if length >= 0x80:
        length, start = _varint(data, 3)
    if start + length != len(data):
        raise _Unusual
    return start


def _signed(value: int, limit: int) -> int:
    """A varint as the signed number it encodes, at most ``limit``."""
    if value > _INT64_MAX:
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
                num_messages = value if value <= _INT32_MAX else _signed(value, _INT32_MAX)
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


def decode_ack(data: bytearray) -> Ack | None:
    """An ACK command of the usual shape, else None."""
    try:
        if data[2] != 0x52:
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
                ack_set.append(_signed(value, _INT64_MAX))
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
            partition = _signed(value, _INT32_MAX)
        elif tag == 0x20:
            batch_index = _signed(value, _INT32_MAX)
        elif tag == 0x28:
            ack_set.append(_signed(value, _INT64_MAX))
        elif tag == 0x30:
            batch_size = _signed(value, _INT32_MAX)
        else:
            raise _Unusual
    if position != end or ledger < 0 or entry < 0:
        raise _Unusual
    return MessageId(ledger, entry, partition, batch_index, tuple(ack_set), batch_size)


# ---- encoding ----------------------------------------------------------------------------------

# Varints by table, 14 bits at a time: _LAST ends a number, _MORE continues it (a receipt
# takes about half the time of going byte by byte, for 1.5 MB).
_TABLE_BITS = 14
_TABLE_MASK = (1 << _TABLE_BITS) - 1
_TWO_TABLES_MASK = (1 << 2 * _TABLE_BITS) - 1
_VARINT_LENGTH_MAX = 10
_LAST = tuple(
    bytes((low,)) if low < 0x80 else bytes((low & 0x7F | 0x80, low >> 7))
    for low in range(1 << _TABLE_BITS)
)
_MORE = tuple(bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(1 << _TABLE_BITS))
_LENGTHS = struct.Struct(">II")


def encode_varint(value: int) -> bytes:
    """An unsigned number as protobuf writes it; ValueError outside 0..2**64-1."""
    if 0 <= value <= _TABLE_MASK:
        return _LAST[value]
    if not 0 <= value <= _UINT64_MAX:
        raise ValueError(f"not an unsigned 64-bit number: {value}")
    result = _MORE[value & _TABLE_MASK]
    value >>= _TABLE_BITS
    while value > _TABLE_MASK:
        result += _MORE[value & _TABLE_MASK]
        value >>= _TABLE_BITS
    return result + _LAST[value]


def encode_frame(type_and_tag: bytes, body: bytes, payload_length: int = 0) -> bytes:
    """A frame up to its payload of ``payload_length`` bytes, which the caller writes after it.

    ``type_and_tag`` is `08 <type> <field tag>`, ``body`` the serialized sub-message.
    """
    command = type_and_tag + encode_varint(len(body)) + body
    length = len(command)
    return _LENGTHS.pack(4 + length + payload_length, length) + command


# A receipt's body is at most 57 bytes, so its length alone decides the twelve bytes before it.
_RECEIPT_HEAD = tuple(
    _LENGTHS.pack(8 + length, 4 + length) + b"\x08\x07\x3a" + _LAST[length] for length in range(64)
)


def encode_send_receipt(
    producer_id: int, sequence_id: int, ledger: int, entry: int, highest_sequence_id: int = 0
) -> bytes:
    """A whole SEND_RECEIPT frame; all numbers unsigned."""
    ledger_bytes = encode_varint(ledger)
    entry_bytes = encode_varint(entry)
    body = b"".join(
        (
            b"\x08",
            encode_varint(producer_id),
            b"\x10",
            encode_varint(sequence_id),
            b"\x1a",
            _LAST[len(ledger_bytes) + len(entry_bytes) + 2],
            b"\x08",
            ledger_bytes,
            b"\x10",
            entry_bytes,
        )
    )
    if highest_sequence_id:
        body += b"\x20" + encode_varint(highest_sequence_id)
    return _RECEIPT_HEAD[len(body)] + body


def encode_send_receipts(
    producer_id: int, ledger: int, first_entry: int, sequence_ids: Iterable[tuple[int, int]]
) -> bytes:
    """The SEND_RECEIPT frames of consecutive entries, given as (sequence id, highest one).

    The same bytes as encode_send_receipt for each, at half the cost: what does not change within
    the run is encoded once.
    """
    front = b"\x08" + encode_varint(producer_id) + b"\x10"
    ledger_bytes = encode_varint(ledger)
    middles = tuple(
        b"\x1a" + _LAST[len(ledger_bytes) + length + 2] + b"\x08" + ledger_bytes + b"\x10"
        for length in range(_VARINT_LENGTH_MAX + 1)
    )
    fixed = len(front) + len(middles[0])
    parts: list[bytes] = []
    entry = first_entry
    for sequence_id, highest_sequence_id in sequence_ids:
        # The usual numbers without a call: the encoder costs more than what it returns.
        if 0 <= sequence_id <= _TABLE_MASK:
            sequence_bytes = _LAST[sequence_id]
        elif _TABLE_MASK < sequence_id <= _TWO_TABLES_MASK:
            sequence_bytes = _MORE[sequence_id & _TABLE_MASK] + _LAST[sequence_id >> _TABLE_BITS]
        else:
            sequence_bytes = encode_varint(sequence_id)
        if entry <= _TABLE_MASK:
            entry_bytes = _LAST[entry]
        elif entry <= _TWO_TABLES_MASK:
            entry_bytes = _MORE[entry & _TABLE_MASK] + _LAST[entry >> _TABLE_BITS]
        else:
            entry_bytes = encode_varint(entry)
        entry += 1
        length = len(entry_bytes)
        middle = middles[length]
        length += fixed + len(sequence_bytes)
        if highest_sequence_id:
            entry_bytes += b"\x20" + encode_varint(highest_sequence_id)
            length = fixed + len(sequence_bytes) + len(entry_bytes)
        parts += (_RECEIPT_HEAD[length], front, sequence_bytes, middle, entry_bytes)
    return b"".join(parts)


def encode_message_header(
    consumer_id: int,
    ledger: int,
    entry: int,
    entry_length: int,
    *,
    redelivery_count: int = 0,
    partition: int = -1,
    batch_index: int = -1,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
    batch_size: int | None = None,
) -> bytes:
    """A MESSAGE frame up to the stored entry of ``entry_length`` bytes, to be written after it.

    ``ack_set`` are signed 64-bit words as in MessageId; it goes beside the id, where consumers
    look for it.
    """
    message_id = _encode_message_id(ledger, entry, partition, batch_index, batch_size)
    body = b"\x08" + encode_varint(consumer_id) + b"\x12" + _LAST[len(message_id)] + message_id
    if redelivery_count:
        body += b"\x18" + encode_varint(redelivery_count)
    for word in ack_set:
        body += b"\x20" + encode_varint(word & _UINT64_MAX)
    if consumer_epoch is not None:
        body += b"\x28" + encode_varint(consumer_epoch)
    return encode_frame(b"\x08\x09\x4a", body, entry_length)


def encode_messages(
    consumer_id: int,
    runs: Iterable[tuple[tuple[int, int], memoryview, Iterable[int]]],
    consumer_epoch: int | None = None,
    partition: int = -1,
) -> list[bytes | memoryview]:
    """MESSAGE frames as buffers to be written one after the other: header, entry, header, ...

    ``runs`` are consecutive entries of a ledger: the first one's position, their bytes one behind
    the other, the length of each. The same bytes as encode_message_header for each without its
    other options, at a third of the cost: what does not change within a run is encoded once.
    """
    consumer_bytes = b"\x08" + encode_varint(consumer_id) + b"\x12"
    partition_bytes = b"" if partition < 0 else b"\x18" + encode_varint(partition)
    epoch_bytes = b"" if consumer_epoch is None else b"\x28" + encode_varint(consumer_epoch)
    tail_bytes = partition_bytes + epoch_bytes
    parts: list[bytes | memoryview] = []
    heads: list[bytes] = []
    current_ledger = -1
    for (ledger, first), payload, lengths in runs:
        if ledger != current_ledger:
            current_ledger = ledger
            heads = _message_heads(consumer_bytes, ledger, len(partition_bytes), len(epoch_bytes))
        start = 0
        for entry, size in enumerate(lengths, first):
            if entry <= _TABLE_MASK:
                entry_bytes = _LAST[entry]
            elif entry <= _TWO_TABLES_MASK:
                entry_bytes = _MORE[entry & _TABLE_MASK] + _LAST[entry >> _TABLE_BITS]
            else:
                entry_bytes = encode_varint(entry)
            command = heads[len(entry_bytes)] + entry_bytes + tail_bytes
            length = len(command)
            stop = start + size
            parts.append(_LENGTHS.pack(4 + length + size, length) + command)
            parts.append(payload[start:stop])
            start = stop
    return parts


def _message_heads(
    consumer_bytes: bytes, ledger: int, partition_length: int, epoch_length: int
) -> list[bytes]:
    """A MESSAGE command up to the entry's number, for each length that this may have."""
    ledger_bytes = b"\x08" + encode_varint(ledger) + b"\x10"
    id_length = len(ledger_bytes) + partition_length
    return [
        b"\x08\x09\x4a"
        + encode_varint(len(consumer_bytes) + 1 + id_length + length + epoch_length)
        + consumer_bytes
        + _LAST[id_length + length]
        + ledger_bytes
        for length in range(_VARINT_LENGTH_MAX + 1)
    ]


def encode_send_header(
    producer_id: int,
    sequence_id: int,
    entry_length: int,
    *,
    num_messages: int = 1,
    highest_sequence_id: int = 0,
    is_chunk: bool = False,
) -> bytes:
    """A SEND frame up to the entry of ``entry_length`` bytes, to be written after it."""
    body = b"\x08" + encode_varint(producer_id) + b"\x10" + encode_varint(sequence_id)
    if num_messages != 1:
        body += b"\x18" + encode_varint(num_messages & _UINT64_MAX)
    if highest_sequence_id:
        body += b"\x30" + encode_varint(highest_sequence_id)
    if is_chunk:
        body += b"\x38\x01"
    return encode_frame(b"\x08\x06\x32", body, entry_length)


def encode_ack(
    consumer_id: int,
    ack_type: int,
    message_ids: Sequence[MessageId],
    request_id: int | None = None,
) -> bytes:
    """A whole ACK frame; ``ack_type`` is 0 for individual, 1 for cumulative."""
    body = b"\x08" + encode_varint(consumer_id) + b"\x10" + encode_varint(ack_type)
    for each in message_ids:
        message_id = _encode_message_id(
            each.ledger, each.entry, each.partition, each.batch_index, each.batch_size, each.ack_set
        )
        body += b"\x1a" + encode_varint(len(message_id)) + message_id
    if request_id is not None:
        body += b"\x40" + encode_varint(request_id)
    return encode_frame(b"\x08\x0a\x52", body)


def encode_flow(consumer_id: int, permits: int) -> bytes:
    """A whole FLOW frame."""
    body = b"\x08" + encode_varint(consumer_id) + b"\x10" + encode_varint(permits)
    return encode_frame(b"\x08\x0b\x5a", body)


def encode_ack_response(
    consumer_id: int, request_id: int, code: ServerError | None = None, message: str = ""
) -> bytes:
    """A whole ACK_RESPONSE frame; ``code`` None: acknowledged."""
    body = b"\x08" + encode_varint(consumer_id)
    if code is not None:
        text = message.encode()
        body += b"\x20" + encode_varint(code) + b"\x2a" + encode_varint(len(text)) + text
    body += b"\x30" + encode_varint(request_id)
    return encode_frame(b"\x08\x26\xb2\x02", body)


def _encode_message_id(
    ledger: int,
    entry: int,
    partition: int,
    batch_index: int,
    batch_size: int | None,
    ack_set: Sequence[int] = (),
) -> bytes:
    message_id = b"\x08" + encode_varint(ledger) + b"\x10" + encode_varint(entry)
    if partition != -1:
        message_id += b"\x18" + encode_varint(partition & _UINT64_MAX)
    if batch_index != -1:
        message_id += b"\x20" + encode_varint(batch_index & _UINT64_MAX)
    for word in ack_set:
        message_id += b"\x28" + encode_varint(word & _UINT64_MAX)
    if batch_size is not None:
        message_id += b"\x30" + encode_varint(batch_size & _UINT64_MAX)
    return message_id
