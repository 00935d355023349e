"""Searches for the single inputs of a peer, by wire or HTTP, that hold a broker's event loop longest.

A broker runs in this process, over a store in memory. Every callback of its event loop is timed, in processor
time of its thread. Inputs are made from the protocol's description: each command of a client, each of its
fields filled until the command is as large as it may be (and once more than that), besides lists of ids in
several orders, schemas of several shapes, messages with large metadata, and reads that are full of one small
command. Each size that takes longer than the one before is followed until it may not grow any more. Every HTTP route
that takes a body gets JSON of several shapes, as large as the route allows; staging, publishing, schemas and the desired
state also get bodies that are in order.

``make worst-inputs`` prints the ten worst and fails if one of them takes GOAL_SECONDS or more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from onewriter_broker.desired import BODY_BYTES_MAX as DESIRED_BYTES_MAX
from onewriter_broker.http.onewriter.publish_body import PARTS_MAX
from onewriter_broker.http.onewriter.staging import PUBLISH_BODY_BYTES_MAX
from onewriter_broker.http.site import BODY_BYTES_MAX
from onewriter_broker.topic.publish.staging import PART_BYTES_MAX
from onewriter_core.errors import ProtocolError
from onewriter_core.log_format.staged_rows import MAGIC, PART_FRAMES_MAX
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.command_limits import HANDSHAKE_LENGTH_MAX, LENGTHS_MAX
from onewriter_core.wire.commands import class_of, encode_command, type_name
from onewriter_core.wire.connection import FROM_CLIENT
from onewriter_core.wire.encoding import encode_ack, encode_flow, encode_send_header, encode_varint
from onewriter_core.wire.frames import COMMAND_LENGTH_MAX, SLAB_LENGTH_MAX
from onewriter_core.wire.messages import build_batch, build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId
from onewriter_testing.in_process import InProcessBroker, in_process_broker

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


# ------------------------------------------------------------ HTTP bodies


@dataclass(frozen=True)
class Body:
    """``make`` gives a request's body for a size in bytes; ``{variables}`` of the path are filled."""

    method: str
    path: str
    shape: str
    make: Callable[[int], bytes]
    most: int
    headers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}: {self.shape}"


def _rows(size: int) -> bytes:
    """A staged part full of the smallest rows that protobuf has to read."""
    row = (pb.SingleMessageMetadata(properties=[pb.KeyValue(key="k", value="v")] * 3), b"")
    messages = build_batch([row] * ROWS_PER_FRAME)
    frame = struct.pack("<II", 4 + len(messages), ROWS_PER_FRAME) + messages
    return MAGIC + frame * max(1, (size - len(MAGIC)) // len(frame))


def _frames(size: int) -> bytes:
    """A staged part full of frames of one row."""
    messages = build_batch([(pb.SingleMessageMetadata(), b"")])
    frame = struct.pack("<II", 4 + len(messages), 1) + messages
    return MAGIC + frame * min(PART_FRAMES_MAX, max(1, (size - len(MAGIC)) // len(frame)))


def _parts(size: int) -> bytes:
    """A publish that names as many parts as fit."""
    count = max(1, min(PARTS_MAX, size // 110))
    parts = [
        {"key": f"app/1/{number}/a", "rows": 1, "bytes": 20, "checksum": "0" * 32}
        for number in range(count)
    ]
    return json.dumps({"epoch": 1, "parts": parts}).encode()


def _desired(size: int) -> bytes:
    """As many topics with claims as fit."""
    count = max(1, size // 420)
    topics = [
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ExclusiveTopic",
            "metadata": {"name": f"t{number}", "namespace": "default"},
            "spec": {"access": {"consumers": {"subjects": ["reader"]}}},
        }
        for number in range(count)
    ]
    claims = [
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ProducerClaim",
            "metadata": {"name": f"t{number}", "namespace": "default"},
            "spec": {"topicRef": {"name": f"t{number}"}, "subject": {"tokenSubject": "w"}},
        }
        for number in range(count)
    ]
    return json.dumps({"topics": topics, "claims": claims}).encode()


def _schema(size: int) -> bytes:
    fields = [{"name": f"f{number}", "type": ["null", "int"]} for number in range(size // 70)]
    text = json.dumps({"type": "record", "name": "r", "fields": fields})
    return json.dumps({"type": "AVRO", "schema": text, "properties": {}}).encode()


def _keys(size: int) -> bytes:
    return json.dumps({f"k{number}": [] for number in range(size // 14)}).encode()


SHAPES: tuple[tuple[str, Callable[[int], bytes]], ...] = (
    ("one text", lambda size: b'"' + b"x" * (size - 2) + b'"'),
    ("escapes", lambda size: b'"' + b"\\u00e9" * ((size - 2) // 6) + b'"'),
    ("one number", lambda size: b"1" * size),
    ("a list of lists", lambda size: b"[" + b"[]," * ((size - 4) // 3) + b"[]]"),
    ("lists in lists", lambda size: b"[" * (size // 2) + b"]" * (size // 2)),
    ("many keys", _keys),
    ("a list of texts", lambda size: b"[" + b'"a",' * ((size - 5) // 4) + b'"a"]'),
    ("topics", lambda size: json.dumps({"topics": ["a"] * (size // 6)}).encode()),
)
"""Of JSON."""

_STAGED = "/onewriter/v1/topics/{tenant}/{namespace}/{topic}/staged/{app}/{version}"


def bodies(broker: InProcessBroker) -> Iterator[Body]:
    """For each route that takes a body the largest ones."""
    routes = {
        (route.method, route.resource.canonical)
        for route, _ in broker._broker.http.routes  # noqa: SLF001
        if route.resource is not None and route.method in {"POST", "PUT"}
    }
    for method, path in sorted(routes):
        for shape, make in SHAPES:
            yield Body(method, path, shape, make, BODY_BYTES_MAX)
    part = f"{_STAGED}/{{part}}/{{attempt}}"
    yield Body("PUT", part, "rows", _rows, PART_BYTES_MAX)
    yield Body("PUT", part, "frames", _frames, PART_BYTES_MAX)
    yield Body("POST", f"{_STAGED}/publish", "parts", _parts, PUBLISH_BODY_BYTES_MAX)
    yield Body("POST", f"{_STAGED}/discard", "parts", _parts, PUBLISH_BODY_BYTES_MAX)
    for shape, make in SHAPES:
        yield Body("POST", f"{_STAGED}/publish", f"large, {shape}", make, PUBLISH_BODY_BYTES_MAX)
        yield Body("PUT", DESIRED_PATH, f"large, {shape}", make, DESIRED_BYTES_MAX)
    for schemas in ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",):
        yield Body("POST", schemas, "a record", _schema, SCHEMA_BODY_BYTES)
    yield Body("PUT", DESIRED_PATH, "topics and claims", _desired, DESIRED_BYTES_MAX)


DESIRED_PATH = "/onewriter/v1/desired"
ROWS_PER_FRAME = 1_000
SCHEMA_BODY_BYTES = 60 * 1024
"""With a definition as large as one may be."""
FILLED = {
    "app": "app",
    "tenant": "public",
    "namespace": "default",
    "topic": "bodies",
    "version": "1",
}


# ------------------------------------------------------------ the search


class Search:
    """Sends inputs to one broker, each on a connection of its own."""

    def __init__(self, broker: InProcessBroker, meter: Meter) -> None:
        host, _, port = broker.service_url.removeprefix("pulsar://").partition(":")
        self._address = (host, int(port))
        self._http_address = (host, int(broker.http_url.rpartition(":")[2]))
        self.answers: Counter[str] = Counter()
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

    def ask(self, each: Body) -> None:
        """One request with the largest body."""
        path = re.sub(r"\{(\w+)\}", lambda found: FILLED.get(found[1], "a1"), each.path)
        content = each.make(each.most)
        lines = [f"{each.method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        data = "\r\n".join([*lines, *each.headers, "", ""]).encode() + content
        self._meter.reset()
        answer = b""
        with contextlib.closing(socket.create_connection(self._http_address)) as connected:
            connected.settimeout(ANSWER_SECONDS_MAX)
            with contextlib.suppress(OSError):  # refused while it was still being sent
                connected.sendall(data)
            with contextlib.suppress(OSError):
                while more := connected.recv(1 << 20):
                    answer = answer or more[:12]
        time.sleep(0.02)  # for what runs beside the connection
        self.tried += 1
        self.answers[answer[9:12].decode("ascii", "replace")] += 1
        name = f"{each.name} ({answer[9:12].decode('ascii', 'replace')})"
        self.found.append(Found(self._meter.longest, name, len(content), self._meter.callback))
        if self._meter.longest > GOAL_SECONDS / 3:
            print(f"{self._meter.longest * 1000:8.1f} ms  {name}", file=sys.stderr, flush=True)

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
        self._receive(pb.CommandConnected)
        self._is_connected = True

    def prepare(self) -> None:
        """A producer and a consumer that holds many messages, both with the id 1."""
        self.send(encode_command(pb.CommandProducer(topic=TOPIC, request_id=1, producer_id=1)))
        self._receive(pb.CommandProducerSuccess)
        subscribe = pb.CommandSubscribe(
            consumer_id=1,
            subscription="worst",
            sub_type=pb.CommandSubscribe.SHARED,
            initial_position=pb.CommandSubscribe.EARLIEST,
            topic=TOPIC,
            request_id=1,
        )
        self.send(encode_command(subscribe) + encode_flow(1, 10 * MESSAGES))
        self._receive(pb.CommandSuccess)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # refused while it was still being sent
            self._socket.sendall(data)

    def settle(self) -> None:
        """Wait until everything was handled, or the connection was closed."""
        if not self._is_connected:
            self._receive(pb.CommandConnected)
            return
        self.send(encode_command(pb.CommandPing()))
        self._receive(pb.CommandPong)
        time.sleep(0.02)  # for what runs beside the connection

    def _receive(self, kind: type) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                data = self._socket.recv(1 << 20)
                received = self._wire.feed(data) if data else []
            except (OSError, ProtocolError):
                return
            if not data or any(isinstance(command, kind) for command, _ in received):
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
        for body in bodies(broker):
            if options.only in body.name:
                search.ask(body)
    worst = sorted(search.found, reverse=True)[:SHOWN]
    answers = ", ".join(f"{count} times {status}" for status, count in search.answers.most_common())
    print(f"HTTP answered {answers or 'nothing'}")
    print(f"{search.tried} inputs; the {len(worst)} that held the event loop longest (CPU time):")
    for found in worst:
        print(f"{found.seconds * 1000:8.1f} ms  {found.size:>9} bytes  {found.name}")
        print(f"             {found.callback}")
    return int(bool(worst) and worst[0].seconds >= GOAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
