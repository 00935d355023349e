"""Searches for the single inputs of a wire peer that hold a broker's event loop longest.

A broker runs in this process, over a store in memory. Every callback of its event loop is timed, in processor
time of its thread. Inputs are made from the protocol's description: each command of a client, each of its
fields filled until the command is as large as it may be (and once more than that), besides lists of ids in
several orders, schemas of several shapes, messages with large metadata, and reads that are full of one small
command. Each size that takes longer than the one before is followed until it may not grow any more.

``make worst-inputs`` prints the ten worst and fails if one of them takes GOAL_SECONDS or more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from onewriter_broker.in_process import InProcessBroker, in_process_broker
from onewriter_core.errors import ProtocolError
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.command_limits import HANDSHAKE_LENGTH_MAX, LENGTHS_MAX
from onewriter_core.wire.commands import class_of, encode_command, type_name
from onewriter_core.wire.connection import FROM_CLIENT
from onewriter_core.wire.encoding import encode_ack, encode_flow, encode_send_header, encode_varint
from onewriter_core.wire.frames import COMMAND_LENGTH_MAX, SLAB_LENGTH_MAX
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId

GOAL_SECONDS = 0.1
"""What no single input may hold the event loop for, in processor time."""

SHOWN = 10
MESSAGES = 2_000
"""In the topic whose consumers acknowledge."""
SMALL_LENGTH_MAX = 8 * 1024
ANSWER_SECONDS_MAX = 60.0
TOPIC = "persistent://public/default/worst"
TEXTS = ("x", "é", "-partition-1")
"""What texts are filled with."""


# ------------------------------------------------------------ the event loop


class Meter:
    """The longest callback of one thread's event loop."""

    def __init__(self) -> None:
        self.thread = 0
        self.longest = 0.0
        self.callback = ""
        self._run = asyncio.events.Handle._run  # noqa: SLF001 - there is no other place to time it

    def reset(self) -> None:
        self.longest, self.callback = 0.0, ""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Time every callback meanwhile."""
        run, meter = self._run, self

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != meter.thread:
                run(handle)
                return
            callback = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001 - gone afterwards
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > meter.longest:
                meter.longest, meter.callback = took, repr(callback)[:200]

        asyncio.events.Handle._run = timed  # type: ignore[method-assign, assignment]  # noqa: SLF001
        try:
            yield
        finally:
            asyncio.events.Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001


# ------------------------------------------------------------ inputs


@dataclass(frozen=True)
class Input:
    """``make`` gives the bytes for a size in bytes. Before CONNECT it comes first on its connection."""

    name: str
    make: Callable[[int], bytes]
    most: int
    before_connect: bool = False


@dataclass(order=True)
class Found:
    seconds: float
    name: str
    size: int
    callback: str = field(compare=False)


def _minimal(descriptor: Any, message: Any) -> None:
    """Set what is required, and ids that mean something."""
    for each in descriptor.fields:
        if each.message_type is not None:
            if each.is_required:
                _minimal(each.message_type, getattr(message, each.name))
                getattr(message, each.name).SetInParent()
        elif each.name == "topic":
            setattr(message, each.name, TOPIC)
        elif each.name == "namespace":
            setattr(message, each.name, "public/default")
        elif each.is_required or each.name in {"consumer_id", "producer_id", "request_id"}:
            setattr(message, each.name, _value(each))


def _value(each: FieldDescriptor) -> Any:
    if each.type == FieldDescriptor.TYPE_STRING:
        return "x"
    if each.type == FieldDescriptor.TYPE_BYTES:
        return b"x"
    if each.enum_type is not None:
        return each.enum_type.values[0].number
    return 1


def _filled(
    kind: type[Message], path: tuple[FieldDescriptor, ...], text: str
) -> Callable[[int], bytes]:
    """A command of that class whose field at the end of ``path`` takes about as much as wanted."""

    def make(size: int) -> bytes:
        command: Any = kind()
        _minimal(kind.DESCRIPTOR, command)
        holder = command
        for each in path[:-1]:
            inner = getattr(holder, each.name)
            if each.is_repeated:
                inner = inner.add()
            _minimal(each.message_type, inner)
            holder = inner
        last = path[-1]
        if last.message_type is not None:
            sample = GetMessageClass(last.message_type)()
            _minimal(last.message_type, sample)
            count = max(1, size // (len(sample.SerializePartialToString()) + 2))
            getattr(holder, last.name).extend([sample] * count)
        elif last.is_repeated:
            value = _value(last)
            getattr(holder, last.name).extend([value] * max(1, size // 2))
        elif last.type == FieldDescriptor.TYPE_BYTES:
            setattr(holder, last.name, text.encode() * (size // len(text.encode())))
        else:
            setattr(holder, last.name, text * (size // len(text.encode())))
        return encode_command(command)

    return make


def _paths(
    descriptor: Any, before: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    """To every field that can grow."""
    for each in descriptor.fields:
        path = (*before, each)
        if each.message_type is not None:
            if each.is_repeated:
                yield path
            if each.message_type is not descriptor and len(path) < 4:
                yield from _paths(each.message_type, path)
        elif each.is_repeated or each.type in {
            FieldDescriptor.TYPE_STRING,
            FieldDescriptor.TYPE_BYTES,
        }:
            yield path


def _class_of(number: int) -> type[Message]:
    """Also of commands that are decoded by hand."""
    content: Any = pb.BaseCommand.DESCRIPTOR.fields_by_number[number].message_type
    return GetMessageClass(content)


def commands() -> Iterator[Input]:
    """Each command of a client, each of its fields filled."""
    for number in sorted(FROM_CLIENT):
        kind = _class_of(number)
        most = LENGTHS_MAX.get(number, SMALL_LENGTH_MAX)
        for path in _paths(kind.DESCRIPTOR):
            where = ".".join(each.name for each in path)
            is_text = path[-1].type == FieldDescriptor.TYPE_STRING and not path[-1].is_repeated
            for text in TEXTS if is_text else TEXTS[:1]:
                name = f"{type_name(number)} {where}" + (f" of {text!a}" if is_text else "")
                yield Input(name, _filled(kind, path, text), most)
            yield Input(
                f"{type_name(number)} {where} before CONNECT",
                _filled(kind, path, "x"),
                HANDSHAKE_LENGTH_MAX,
                before_connect=True,
            )


def reads() -> Iterator[Input]:
    """Reads that are full of one small command."""
    for number in sorted(FROM_CLIENT - {pb.BaseCommand.CONNECT}):
        if number in {pb.BaseCommand.SEND, pb.BaseCommand.ACK, pb.BaseCommand.FLOW}:
            continue
        kind = class_of(number)

        def make(size: int, kind: Any = kind) -> bytes:
            command = kind()
            _minimal(kind.DESCRIPTOR, command)
            frame = encode_command(command)
            return frame * max(1, size // len(frame))

        yield Input(f"a read full of {type_name(number)}", make, SLAB_LENGTH_MAX)
    entry = build_entry(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"")
    send = encode_send_header(1, 1, len(entry)) + entry
    yield Input("a read full of SEND", lambda size: send * (size // len(send)), SLAB_LENGTH_MAX)
    flow = encode_flow(1, 1)
    yield Input("a read full of FLOW", lambda size: flow * (size // len(flow)), SLAB_LENGTH_MAX)
    ack = encode_ack(1, 0, [MessageId(1, 5)])
    yield Input("a read full of ACK", lambda size: ack * (size // len(ack)), SLAB_LENGTH_MAX)


def acknowledgements(ledger: int) -> Iterator[Input]:
    """Lists of ids, of messages that are there and that are not."""

    def ids(numbers: Callable[[int], range], ack_set: int = 0) -> Callable[[int], bytes]:
        def make(size: int) -> bytes:
            words = (-1,) * ack_set
            each = 8 + 11 * ack_set
            return _ack(
                [MessageId(ledger, n, ack_set=words) for n in numbers(max(1, size // each))]
            )

        return make

    most = COMMAND_LENGTH_MAX - 1024
    yield Input("ACK ascending", ids(lambda n: range(1, n + 1)), most)
    yield Input("ACK descending", ids(lambda n: range(n, 0, -1)), most)
    yield Input("ACK every other one, descending", ids(lambda n: range(2 * n, 0, -2)), most)
    yield Input("ACK one id", ids(lambda n: range(5, 6) if n < 2 else range(5, 5 + n)), most)
    yield Input("ACK sets of 16 words", ids(lambda n: range(1, n + 1), 16), most)
    yield Input("ACK sets of 2048 words", ids(lambda n: range(1, n + 1), 2048), most)
    for name, numbers in (("ascending", 1), ("descending", -1)):

        def redeliver(size: int, step: int = numbers) -> bytes:
            wanted = [pb.MessageIdData(ledger_id=ledger, entry_id=n) for n in range(size // 8)][
                ::step
            ]
            return encode_command(
                pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=wanted)
            )

        yield Input(f"REDELIVER {name}", redeliver, most)

    def nested(size: int) -> bytes:
        depth = 90
        parts = []
        for number in range(max(1, size // (8 * depth))):
            inner = pb.MessageIdData(ledger_id=ledger, entry_id=number)
            for _ in range(depth):
                outer = pb.MessageIdData(ledger_id=ledger, entry_id=number)
                outer.first_chunk_message_id.CopyFrom(inner)
                inner = outer
            parts.append(inner)
        return encode_command(
            pb.CommandAck(
                consumer_id=1, ack_type=pb.CommandAck.AckType.Value("INDIVIDUAL"), message_id=parts
            )
        )

    yield Input("ACK of ids in ids", nested, most // 16)


def _ack(ids: list[MessageId]) -> bytes:
    pieces = []
    for each in ids:
        body = b"\x08" + encode_varint(each.ledger) + b"\x10" + encode_varint(each.entry)
        body += b"".join(b"\x28" + encode_varint(word & (2**64 - 1)) for word in each.ack_set)
        pieces.append(b"\x1a" + encode_varint(len(body)) + body)
    content = b"\x08\x01\x10\x00" + b"".join(pieces)
    command = b"\x08\x0a\x52" + encode_varint(len(content)) + content
    return struct.pack(">II", 4 + len(command), len(command)) + command


def schemas() -> Iterator[Input]:
    """Definitions of several shapes; each is followed by one that is compared with it."""

    def record(size: int, extra: int) -> object:
        fields = [{"name": f"f{n}", "type": ["null", "int"]} for n in range(size // 45 + extra)]
        return {"type": "record", "name": "r", "fields": fields}

    def union(size: int, extra: int) -> object:
        branches = [
            {"type": "record", "name": f"b{n}", "fields": [{"name": "x", "type": "int"}]}
            for n in range(size // 75 + extra)
        ]
        return {"type": "record", "name": "r", "fields": [{"name": "u", "type": branches}]}

    def nested(size: int, extra: int) -> object:
        inner: object = "int"
        for n in range(min(size // 70, 250) + extra):
            inner = {"type": "record", "name": f"n{n}", "fields": [{"name": "x", "type": inner}]}
        return inner

    def arrays(size: int, extra: int) -> object:
        inner: object = "int"
        for _ in range(min(size // 35, 450) + extra):
            inner = {"type": "array", "items": inner}
        return inner

    for name, shape in (
        ("record", record),
        ("union", union),
        ("nested", nested),
        ("arrays", arrays),
    ):

        def make(size: int, shape: Any = shape) -> bytes:
            return b"".join(
                encode_command(
                    pb.CommandGetOrCreateSchema(
                        request_id=1 + extra,
                        topic=TOPIC,
                        schema=pb.Schema(
                            name="s",
                            type=pb.Schema.AVRO,
                            schema_data=json.dumps(shape(size, extra)).encode(),
                        ),
                    )
                )
                for extra in range(3)
            )

        yield Input(f"schema: {name}", make, 64 * 1024)


def messages() -> Iterator[Input]:
    """Messages whose metadata is large, or which are large themselves."""

    def properties(size: int) -> bytes:
        pairs = [pb.KeyValue(key="k", value="v")] * (size // 8)
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, properties=pairs
        )
        entry = build_entry(metadata, b"x")
        return encode_send_header(1, 1, len(entry)) + entry

    def content(size: int) -> bytes:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        entry = build_entry(metadata, b"x" * size)
        return encode_send_header(1, 1, len(entry)) + entry

    yield Input("SEND with properties", properties, 5 * 1024 * 1024 - 1024)
    yield Input("SEND with content", content, 5 * 1024 * 1024 - 1024)


# ------------------------------------------------------------ the search


class Search:
    """Sends inputs to one broker, each on a connection of its own."""

    def __init__(self, broker: InProcessBroker, meter: Meter) -> None:
        host, _, port = broker.service_url.removeprefix("pulsar://").partition(":")
        self._address = (host, int(port))
        self._meter = meter
        self.found: list[Found] = []
        self.tried = 0

    def run(self, each: Input, *, is_quick: bool) -> None:
        """Try sizes up to the most; of sizes that take no time, only the largest."""
        sizes = [each.most - 64] if is_quick else [each.most // 16, each.most // 4, each.most - 64]
        sizes += [] if is_quick else [each.most + 1024]
        for size in sizes:
            seconds, callback = self.measure(each, size)
            self.tried += 1
            self.found.append(Found(seconds, each.name, size, callback))
            if seconds > GOAL_SECONDS / 3:
                print(f"{seconds * 1000:8.1f} ms  {each.name}", file=sys.stderr, flush=True)

    def measure(self, each: Input, size: int) -> tuple[float, str]:
        with contextlib.closing(socket.create_connection(self._address)) as connected:
            client = _Client(connected)
            if not each.before_connect:
                client.connect()
                client.prepare()
            data = each.make(size)
            self._meter.reset()
            client.send(data)
            client.settle()
            return self._meter.longest, self._meter.callback


class _Client:
    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(ANSWER_SECONDS_MAX)
        self._socket = connected
        self._wire = ClientConnection()
        self._is_connected = False

    def connect(self) -> None:
        self._socket.sendall(self._wire.connect("worst-inputs"))
        self._hear(pb.CommandConnected)
        self._is_connected = True

    def prepare(self) -> None:
        """A producer and a consumer that holds many messages, both with the id 1."""
        self.send(encode_command(pb.CommandProducer(topic=TOPIC, request_id=1, producer_id=1)))
        self._hear(pb.CommandProducerSuccess)
        subscribe = pb.CommandSubscribe(
            consumer_id=1,
            subscription="worst",
            sub_type=pb.CommandSubscribe.SHARED,
            initial_position=pb.CommandSubscribe.EARLIEST,
            topic=TOPIC,
            request_id=1,
        )
        self.send(encode_command(subscribe) + encode_flow(1, 10 * MESSAGES))
        self._hear(pb.CommandSuccess)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # refused while it was still being sent
            self._socket.sendall(data)

    def settle(self) -> None:
        """Wait until everything was handled, or the connection was closed."""
        if not self._is_connected:
            self._hear(pb.CommandConnected)
            return
        self.send(encode_command(pb.CommandPing()))
        self._hear(pb.CommandPong)
        time.sleep(0.02)  # for what runs beside the connection

    def _hear(self, kind: type) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                data = self._socket.recv(1 << 20)
                heard = self._wire.feed(data) if data else []
            except (OSError, ProtocolError):
                return
            if not data or any(isinstance(command, kind) for command, _ in heard):
                return


def _fill(broker: InProcessBroker) -> int:
    """Publish messages to the topic; the ledger that they lie in."""
    host, _, port = broker.service_url.removeprefix("pulsar://").partition(":")
    with contextlib.closing(socket.create_connection((host, int(port)))) as connected:
        client = _Client(connected)
        client.connect()
        client.prepare()
        entry = build_entry(
            pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x"
        )
        for number in range(MESSAGES):
            client.send(encode_send_header(1, number, len(entry)) + entry)
        client.settle()
    return 1


def main() -> int:
    """Search, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the largest size of each input")
    parser.add_argument("--only", default="", help="only inputs whose name contains this")
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    meter = Meter()
    with meter.installed(), in_process_broker() as broker:
        gc.freeze()  # as a broker's process does: what collecting costs is not the input's
        meter.thread = broker._thread.ident or 0  # noqa: SLF001
        ledger = _fill(broker)
        search = Search(broker, meter)
        makers = (
            commands(), reads(), acknowledgements(ledger), schemas(), messages(),
        )  # fmt: skip
        for maker in makers:
            for each in maker:
                if options.only in each.name:
                    search.run(each, is_quick=options.quick)
    worst = sorted(search.found, reverse=True)[:SHOWN]
    print(f"{search.tried} inputs; the {len(worst)} that held the event loop longest (CPU time):")
    for found in worst:
        print(f"{found.seconds * 1000:8.1f} ms  {found.size:>9} bytes  {found.name}")
        print(f"             {found.callback}")
    return int(bool(worst) and worst[0].seconds >= GOAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
