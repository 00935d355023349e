"""Hand-written encoders for the frames of the data path: SEND, ACK, FLOW and their answers.

A frame with an entry is encoded up to the entry, so that the entry is written without a copy. Receipts and messages,
which brokers send in runs, have an encoder for a whole run: it encodes the constant part once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from onewriter_core.errors import ServerError
from onewriter_core.wire.values import UINT64_MAX, MessageId

# Varints by table, 14 bits at a time: _LAST ends a number, _MORE continues it. A receipt takes about half the time
# of an encoder that handles single bytes; the tables take 1.5 MB.
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
    """An unsigned number as a varint. Raises ValueError outside 0..2**64-1."""
    if 0 <= value <= _TABLE_MASK:
        return _LAST[value]
    if not 0 <= value <= UINT64_MAX:
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


# A receipt's body has at most 57 bytes, so the twelve bytes before it depend only on its length.
_RECEIPT_HEAD = tuple(
    _LENGTHS.pack(8 + length, 4 + length) + b"\x08\x07\x3a" + _LAST[length] for length in range(64)
)


def encode_send_receipt(
    producer_id: int, sequence_id: int, ledger: int, entry: int, highest_sequence_id: int = 0
) -> bytes:
    """A whole SEND_RECEIPT frame. All numbers are unsigned."""
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

    The same bytes as encode_send_receipt for each, in half the time: the constant part of the run is encoded once.
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
        # The usual numbers without a call, which would take most of the time.
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
    """A MESSAGE frame up to the stored entry of ``entry_length`` bytes, which the caller writes after it.

    ``ack_set`` has signed 64-bit words as in MessageId. It is encoded beside the id, where consumers expect it.
    """
    message_id = _encode_message_id(ledger, entry, partition, batch_index, batch_size)
    body = b"\x08" + encode_varint(consumer_id) + b"\x12" + _LAST[len(message_id)] + message_id
    if redelivery_count:
        body += b"\x18" + encode_varint(redelivery_count)
    for word in ack_set:
        body += b"\x20" + encode_varint(word & UINT64_MAX)
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

    ``runs`` are consecutive entries of a ledger: the position of the first one, their concatenated bytes, and the length
    of each. The same bytes as encode_message_header for each without its other options, in a third of the time: the
    constant part of a run is encoded once.
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
    """A MESSAGE command up to the entry's number, for each possible length of this number."""
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
    """A SEND frame up to the entry of ``entry_length`` bytes, which the caller writes after it."""
    body = b"\x08" + encode_varint(producer_id) + b"\x10" + encode_varint(sequence_id)
    if num_messages != 1:
        body += b"\x18" + encode_varint(num_messages & UINT64_MAX)
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
        message_id += b"\x18" + encode_varint(partition & UINT64_MAX)
    if batch_index != -1:
        message_id += b"\x20" + encode_varint(batch_index & UINT64_MAX)
    for word in ack_set:
        message_id += b"\x28" + encode_varint(word & UINT64_MAX)
    if batch_size is not None:
        message_id += b"\x30" + encode_varint(batch_size & UINT64_MAX)
    return message_id
