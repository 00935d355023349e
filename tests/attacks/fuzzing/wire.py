"""Frames of the wire protocol: every command, its fields filled by the protocol's own description, some of them broken."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from tests.attacks.fuzzing import values

from onewriter_core.wire.encoding import encode_ack, encode_flow, encode_send_header
from onewriter_core.wire.messages import build_batch, build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId

_BASE = pb.BaseCommand.DESCRIPTOR
TYPES = {each.name: each.number for each in _BASE.enum_types_by_name["Type"].values}
COMMANDS = [field for field in _BASE.fields if field.message_type is not None]
"""The fields of a command's envelope, one for each command, our own from 1000 on among them."""

FRAME_BYTES_MAX = 1_200_000
"""The largest frame that is sent; the protocol's own limit is tested elsewhere."""

_DEPTH_MAX = 4


def hello(token: str = "") -> bytes:
    """The CONNECT that begins a connection."""
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = "fuzz"
    command.connect.protocol_version = 20
    if token:
        command.connect.auth_method_name = "token"
        command.connect.auth_data = token.encode()
    return _framed(command.SerializeToString())


def frames(random: Random, number: int) -> Iterator[bytes]:
    """This number of frames. The first ones open producers and consumers, so that later ones find some."""
    for position in range(number):
        if position < 2 and random.random() < 0.7:
            yield _opening(random, position)
            continue
        match random.choices(("command", "send", "ack", "flow", "garbage"), (60, 20, 12, 5, 3))[0]:
            case "command":
                yield _command(random)
            case "send":
                yield _send(random)
            case "ack":
                yield _ack(random)
            case "flow":
                yield encode_flow(random.choice((0, 1, 9)), values.number(random, 32))
            case _:
                yield random.randbytes(random.choice((1, 4, 8, 60)))


def _framed(command: bytes, rest: bytes = b"", lie: int = 0) -> bytes:
    """A frame around a command; ``lie`` is added to its lengths."""
    total = max(4 + len(command) + len(rest) + lie, 0) & 0xFFFFFFFF
    return struct.pack(">II", total, max(len(command) + lie, 0)) + command + rest


def _opening(random: Random, identifier: int) -> bytes:
    """A PRODUCER or SUBSCRIBE that is mostly in order."""
    topic = "persistent://public/default/fuzzed"
    if random.random() < 0.1:
        topic = values.text(random)
    if random.random() < 0.5:
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = 1
        command.producer.request_id = 1 + identifier
        command.producer.producer_access_mode = random.choice(pb.ProducerAccessMode.values())
        for _ in range(random.choice((0, 0, 1, 40))):
            pair = command.producer.metadata.add()
            pair.key, pair.value = random.choice(values.PROPERTIES), values.text(random)
    else:
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic = topic
        command.subscribe.subscription = random.choice(("fuzz", "other"))
        command.subscribe.sub_type = random.choice(pb.CommandSubscribe.SubType.values())
        command.subscribe.consumer_id = 1
        command.subscribe.request_id = 1 + identifier
        command.subscribe.durable = random.random() < 0.5
    return _framed(command.SerializeToString())


def _command(random: Random) -> bytes:
    """Any command, filled at random; its type mostly fits."""
    field = random.choice(COMMANDS)
    command = pb.BaseCommand()
    fitting = TYPES.get(field.name.upper())
    is_fitting = fitting is not None and random.random() < 0.95
    chosen: Any = fitting if is_fitting else random.choice(list(TYPES.values()))
    command.type = chosen
    target = getattr(command, field.name)
    target.SetInParent()
    _fill(random, target, 0)
    data = values.mutated(random, command.SerializePartialToString(), 0.3)[:FRAME_BYTES_MAX]
    rest = random.randbytes(random.choice((1, 8, 200))) if random.random() < 0.05 else b""
    lie = random.choice((-3, 1, 2**20, 2**31)) if random.random() < 0.01 else 0
    return _framed(data, rest, lie)


def _fill(random: Random, message: Any, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and random.random() < 0.55:
            continue
        if field.is_repeated:
            for _ in range(values.count(random) if depth < 2 else 1):
                if field.message_type is not None:
                    if depth < _DEPTH_MAX:
                        _fill(random, getattr(message, field.name).add(), depth + 1)
                else:
                    getattr(message, field.name).append(_value(random, field))
        elif field.message_type is not None:
            if depth < _DEPTH_MAX:
                target = getattr(message, field.name)
                target.SetInParent()
                _fill(random, target, depth + 1)
        else:
            setattr(message, field.name, _value(random, field))


def _value(random: Random, field: FieldDescriptor) -> Any:
    if field.name in {"producer_id", "consumer_id"}:
        return 1 if random.random() < 0.8 else values.number(random, 63)
    if field.name == "topic" and random.random() < 0.6:
        return "persistent://public/default/fuzzed"
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return random.randbytes(random.choice((0, 1, 16, 2000)))
        case FieldDescriptor.CPPTYPE_STRING:
            return values.text(random)
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            return random.choice([each.number for each in field.enum_type.values])
        case FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        case FieldDescriptor.CPPTYPE_INT32:
            return values.number(random, 31) * random.choice((1, 1, -1))
        case FieldDescriptor.CPPTYPE_INT64:
            return values.number(random, 62) * random.choice((1, 1, -1))
        case FieldDescriptor.CPPTYPE_UINT32:
            return values.number(random, 32)
        case FieldDescriptor.CPPTYPE_UINT64:
            return values.number(random, 64)
        case _:
            return 0


def _send(random: Random) -> bytes:
    """A SEND: a good entry, or one whose checksum, lengths, counts or compression lie."""
    metadata = pb.MessageMetadata(producer_name="fuzz", sequence_id=0, publish_time=1)
    payload = random.randbytes(random.choice((0, 1, 100, 5000)))
    many = random.choice((1, 1, 2, 50, 2**31 - 1))
    if random.random() < 0.3:
        rows = [
            (pb.SingleMessageMetadata(partition_key=values.text(random)), b"row") for _ in range(3)
        ]
        payload, metadata.num_messages_in_batch = build_batch(rows), 3
    if random.random() < 0.3:
        metadata.num_messages_in_batch = many
    if random.random() < 0.2:
        compression: Any = random.choice((0, 1, 2, 3, 4))
        metadata.compression = compression
        metadata.uncompressed_size = values.number(random, 32)
        payload = zlib.compress(bytes(random.choice((10, 100_000))))
    if random.random() < 0.2:
        metadata.uuid = "chunked"
        metadata.num_chunks_from_msg = random.choice((0, 2, 2**31 - 1))
        metadata.chunk_id = random.choice((0, 1, 2**31 - 1))
        metadata.total_chunk_msg_size = random.choice((0, 10, 2**31 - 1))
    for _ in range(random.choice((0, 0, 1, 30))):
        pair = metadata.properties.add()
        pair.key, pair.value = values.text(random), values.text(random)
    entry = values.mutated(random, build_entry(metadata, payload), 0.2)
    producer = 1 if random.random() < 0.9 else values.number(random, 63)
    header = encode_send_header(
        producer, values.number(random, 63), len(entry), num_messages=many & 0x7FFFFFFF
    )
    return header + entry


def _ack(random: Random) -> bytes:
    """An ACK of up to thousands of ids, rising, falling or at random."""
    number = random.choices((1, 3, 100, 5000), (60, 25, 12, 3))[0]
    ids = [MessageId(values.number(random, 40), index) for index in range(number)]
    match random.randrange(3):
        case 0:
            ids.reverse()
        case 1:
            random.shuffle(ids)
        case _:
            pass
    return encode_ack(1, random.choice((0, 1)), ids, random.choice((None, 5)))
