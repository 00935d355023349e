"""A load generator on a bare socket: frames are built before the clock starts, answers only counted.

A stock client on this machine is often slower than the broker it loads; this one costs little
enough that the broker is the limit. It speaks just enough of Pulsar's protocol (docs/wire.md) to
look a topic up, publish unbatched messages and read a topic from its start. It has its own tiny
codec on purpose: a measurement must not lean on the code that it measures.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import google_crc32c

CONNECT, CONNECTED, SUBSCRIBE, PRODUCER, SEND, SEND_RECEIPT = 2, 3, 4, 5, 6, 7
MESSAGE, FLOW, SUCCESS, PRODUCER_SUCCESS, PING, PONG = 9, 11, 13, 17, 18, 19
LOOKUP, LOOKUP_RESPONSE = 23, 24
ACTIVE_CONSUMER_CHANGE = 31

ANSWER_TIMEOUT_SECONDS = 30.0
LOOKUP_REDIRECTS_MAX = 5
RECEIVE_BYTES = 1 << 20
READ_PERMITS = 10_000
"""Messages a reader lets the broker send ahead; topped up when half of them have come."""

_ONLY_COUNTED = frozenset({SEND_RECEIPT, MESSAGE})
_FRAME_BYTES_MIN = 10
_LOOKUP_CONNECT, _LOOKUP_FAILED = 1, 2
_EARLIEST = 2**64 - 1
_MAGIC_CHECKSUM = b"\x0e\x01"

Fields = dict[int, int | bytes]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode(fields: Sequence[tuple[int, int | bytes | str]]) -> bytes:
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value)]
        else:
            data = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | 2), _varint(len(data)), data]
    return b"".join(parts)


def _read_varint(data: bytes, index: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[index]
        index += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, index


def decode(data: bytes) -> Fields:
    """The fields of one protobuf message; of a repeated one the last."""
    fields: Fields = {}
    index = 0
    while index < len(data):
        key, index = _read_varint(data, index)
        if key & 7 == 0:
            fields[key >> 3], index = _read_varint(data, index)
        elif key & 7 == 2:
            length, index = _read_varint(data, index)
            fields[key >> 3] = data[index : index + length]
            index += length
        elif key & 7 == 1:
            index += 8
        else:
            raise ValueError(f"a protobuf field of wire type {key & 7}")
    return fields


def encode_command(kind: int, fields: Sequence[tuple[int, int | bytes | str]]) -> bytes:
    command = _encode([(1, kind), (kind, _encode(fields))])
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


PONG_FRAME = encode_command(PONG, ())


def _send_frame(producer: int, name: str, sequence: int, payload: bytes) -> bytes:
    """One SEND with its message, checksum included, as the stock clients write it."""
    fields = ((1, name), (2, sequence), (3, time.time_ns() // 1_000_000))
    metadata = _encode(fields)
    message = len(metadata).to_bytes(4, "big") + metadata + payload
    checksum = int(google_crc32c.value(message)).to_bytes(4, "big")
    command = _encode([(1, SEND), (SEND, _encode([(1, producer), (2, sequence)]))])
    size = 4 + len(command) + 2 + 4 + len(message)
    return b"".join(
        (
            size.to_bytes(4, "big"),
            len(command).to_bytes(4, "big"),
            command,
            _MAGIC_CHECKSUM,
            checksum,
            message,
        )
    )


@dataclass(frozen=True, slots=True)
class Login:
    """How a client comes to a broker with TLS and tokens: whom it trusts, and what it shows."""

    authorities: Path
    token: str


class RawConnection:
    """A connected socket with the frames received on it that nobody looked at yet."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._received = bytearray()
        self._frames: deque[tuple[int, bytes]] = deque()

    @classmethod
    def open(cls, service_url: str, login: Login | None = None) -> Self:
        """Connect and shake hands; raises OSError, ConnectionError among them."""
        target = urlsplit(service_url)
        connected = socket.create_connection(
            (target.hostname, target.port or 6650), ANSWER_TIMEOUT_SECONDS
        )
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields: list[tuple[int, int | bytes | str]] = [(1, "onewriter-bench"), (4, 20)]
        if login is not None:
            context = ssl.create_default_context(cafile=str(login.authorities))
            connected = context.wrap_socket(connected, server_hostname=target.hostname)
            fields += [(3, login.token), (5, "token")]
        connection = cls(connected)
        try:
            connection.ask(CONNECT, fields, answer=CONNECTED)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        self.socket.close()

    def ask(
        self, kind: int, fields: Sequence[tuple[int, int | bytes | str]], *, answer: int
    ) -> Fields:
        """Send a command and return the fields of its answer; any other answer is an error."""
        self.socket.sendall(encode_command(kind, fields))
        while True:
            while self._frames:
                received, command = self._frames.popleft()
                if received == answer:
                    body = decode(command)[answer]
                    assert isinstance(body, bytes)
                    return decode(body)
                _refuse_unexpected(received, command)
            self._receive()

    def count(self, kind: int) -> int:
        """Wait for frames and return how many of this kind came; any other kind is an error."""
        self._receive()
        counted = 0
        while self._frames:
            received, command = self._frames.popleft()
            if received == kind:
                counted += 1
            else:
                _refuse_unexpected(received, command)
        return counted

    def open_producers(
        self, topics: Sequence[str], *, first_id: int = 1, access_mode: int = 0
    ) -> None:
        """Ask for a producer of each topic and wait until each is answered: granted or queued."""
        numbered = list(enumerate(topics, first_id))
        for number, topic in numbered:
            fields: list[tuple[int, int | bytes | str]] = [
                *((1, topic), (2, number), (3, number), (10, access_mode))
            ]
            self.socket.sendall(encode_command(PRODUCER, fields))
        answered = 0
        while answered < len(numbered):
            self._receive()
            while self._frames:
                received, command = self._frames.popleft()
                if received != PRODUCER_SUCCESS:
                    _refuse_unexpected(received, command)
                answered += received == PRODUCER_SUCCESS

    def answer_pings(self) -> None:
        """Read what has come without waiting for more; anything but pings is an error."""
        self.socket.setblocking(False)
        try:
            self._receive()
        except BlockingIOError:
            return
        finally:
            self.socket.settimeout(ANSWER_TIMEOUT_SECONDS)
        while self._frames:
            _refuse_unexpected(*self._frames.popleft())

    def _receive(self) -> None:
        """Read once from the socket and queue the frames that are whole; pings are answered."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        received = self._received
        received += data
        taken = 0
        while len(received) - taken >= _FRAME_BYTES_MIN:
            end = taken + 4 + int.from_bytes(received[taken : taken + 4], "big")
            if end > len(received):
                break
            # Every broker writes the required type first: its tag, then one byte below 128.
            kind = received[taken + 9]
            if kind == PING:
                self.socket.sendall(PONG_FRAME)
            elif kind in _ONLY_COUNTED:
                self._frames.append((kind, b""))
            else:
                command_size = int.from_bytes(received[taken + 4 : taken + 8], "big")
                self._frames.append((kind, bytes(received[taken + 8 : taken + 8 + command_size])))
            taken = end
        del received[:taken]


def _refuse_unexpected(kind: int, command: bytes) -> None:
    if kind != ACTIVE_CONSUMER_CHANGE:
        raise ConnectionError(f"unexpected command {kind}: {command[:200]!r}")


def _connect_to_owner(service_url: str, topic: str, login: Login | None) -> RawConnection:
    """Connect to the broker that owns the topic, found by lookup as clients do it."""
    url, authoritative = service_url, 0
    for _ in range(LOOKUP_REDIRECTS_MAX):
        connection = RawConnection.open(url, login)
        try:
            answer = connection.ask(
                LOOKUP, [(1, topic), (2, 1), (3, authoritative)], answer=LOOKUP_RESPONSE
            )
            address = answer.get(1 if login is None else 2)
            if not isinstance(address, bytes) or answer.get(3) == _LOOKUP_FAILED:
                raise ConnectionError(f"lookup of {topic} failed: {answer}")
        except BaseException:
            connection.close()
            raise
        owner = address.decode()
        if answer.get(3) == _LOOKUP_CONNECT and owner == url:
            return connection
        connection.close()
        if answer.get(3) == _LOOKUP_CONNECT:
            return RawConnection.open(owner, login)
        url, authoritative = owner, int(answer.get(5) == 1)
    raise ConnectionError(f"lookup of {topic}: more than {LOOKUP_REDIRECTS_MAX} redirects")


class ProducersConnection(RawConnection):
    """A connection with a producer of each of some topics, which publishes to all of them in rounds."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self._names: list[str] = []
        self._sequence = 0

    def produce_to(self, topics: Sequence[str]) -> None:
        """Create the producers, with the ids 1, 2, ..."""
        for number, topic in enumerate(topics, 1):
            fields: list[tuple[int, int | bytes | str]] = [(1, topic), (2, number), (3, number)]
            name = self.ask(PRODUCER, fields, answer=PRODUCER_SUCCESS)[2]
            assert isinstance(name, bytes)
            self._names.append(name.decode())

    def publish(self, messages: int, rounds: int, message_bytes: int) -> None:
        """Send ``messages`` messages to every topic in each round, and wait for all receipts of the round.

        All frames are built before the first one is sent.
        """
        payload = bytes(message_bytes)
        sent = messages * len(self._names)
        built = []
        for _ in range(rounds):
            frames = [
                _send_frame(number, name, self._sequence + at, payload)
                for number, name in enumerate(self._names, 1)
                for at in range(messages)
            ]
            self._sequence += messages
            built.append(b"".join(frames))
        for frames_of_round in built:
            self.socket.sendall(frames_of_round)
            received = 0
            while received < sent:
                received += self.count(SEND_RECEIPT)


@dataclass(frozen=True, slots=True)
class RawPublish:
    """A finished run: how long it took, and each message's way to its receipt."""

    messages: int
    seconds: float
    latencies_ms: tuple[float, ...]


def publish(
    service_url: str,
    topic: str,
    *,
    messages: int,
    in_flight: int,
    message_bytes: int = 1024,
    login: Login | None = None,
) -> RawPublish:
    """Publish unbatched messages, at most ``in_flight`` without a receipt at any time.

    All frames are kept in memory: about 1.1 KB for each message of 1 KiB. Raises ConnectionError
    when the broker answers anything but receipts.
    """
    payload = bytes(message_bytes)
    with closing(_connect_to_owner(service_url, topic, login)) as connection:
        name = connection.ask(PRODUCER, [(1, topic), (2, 1), (3, 2)], answer=PRODUCER_SUCCESS)[2]
        assert isinstance(name, bytes)
        frames = [_send_frame(1, name.decode(), number, payload) for number in range(messages)]
        sent_at: deque[float] = deque()
        latencies: list[float] = []
        sent = 0
        started = time.perf_counter()
        while len(latencies) < messages:
            burst = min(in_flight - len(sent_at), messages - sent)
            if burst:
                sent_at.extend([time.perf_counter()] * burst)
                connection.socket.sendall(b"".join(frames[sent : sent + burst]))
                sent += burst
            receipts = connection.count(SEND_RECEIPT)
            now = time.perf_counter()
            latencies.extend((now - sent_at.popleft()) * 1000 for _ in range(receipts))
        return RawPublish(messages, time.perf_counter() - started, tuple(latencies))


def read_from_start(
    service_url: str, topic: str, *, messages: int, login: Login | None = None
) -> float:
    """Seconds in which a reader got the topic's first ``messages`` unbatched messages.

    The clock starts with the first permits, after the subscription stands.
    """
    with closing(_connect_to_owner(service_url, topic, login)) as connection:
        start = _encode([(1, _EARLIEST), (2, _EARLIEST)])
        connection.ask(
            SUBSCRIBE,
            [
                (1, topic),
                (2, f"bench-reader-{time.monotonic_ns()}"),
                (3, 0),  # type: Exclusive
                (4, 1),  # consumer id
                (5, 2),  # request id
                (8, 0),  # not durable
                (9, start),
            ],
            answer=SUCCESS,
        )
        started = time.perf_counter()
        received = 0
        permits = READ_PERMITS
        connection.socket.sendall(encode_command(FLOW, [(1, 1), (2, permits)]))
        while received < messages:
            arrived = connection.count(MESSAGE)
            received += arrived
            permits -= arrived
            if permits <= READ_PERMITS // 2:
                connection.socket.sendall(
                    encode_command(FLOW, [(1, 1), (2, READ_PERMITS - permits)])
                )
                permits = READ_PERMITS
        return time.perf_counter() - started
