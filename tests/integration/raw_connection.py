"""One connection of the raw client: it writes to a broker and records what arrives.

Its own thread answers PINGs until ``freeze``, as stock clients do.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.commands import EXTENSIONS_VERSION
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

SECONDS_MAX = 120.0
"""Time limit for an expected answer: the machine may be slow, and a failing test may take that long."""

Kind = TypeVar("Kind")


class RefusedByBroker(Exception):
    """The broker answered a request with an error."""

    def __init__(self, code: int, text: str) -> None:
        self.code = ServerError(code)
        self.text = text
        super().__init__(f"{self.code.name}: {text}")


class RawConnection:
    """One connection. ``received`` holds all received commands that ``expect`` has not taken yet."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        token: str = "",
        connects: bool = True,
        window: int = 0,
        version: str = "raw-client",
        extensions_version: int = EXTENSIONS_VERSION,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._seconds_max = seconds_max
        self.received: list[tuple[Any, bytes]] = []
        self.is_closed = False
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._wire = ClientConnection()
        self._producer_ids = itertools.count(1)
        self._consumer_ids = itertools.count(1)
        self._reads = threading.Event()
        self._reads.set()
        self.socket = socket.socket()
        if window:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        try:
            self.socket.settimeout(seconds_max)
            self.socket.connect(address)
            self.socket.settimeout(None)
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if connects:
            try:
                self._connect(token, version, extensions_version)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, token: str, version: str, extensions_version: int) -> None:
        self.write(
            self._wire.connect(
                version,
                auth_method="token" if token else "none",
                auth_data=token.encode(),
                extensions_version=extensions_version,
            )
        )
        self.answer(pb.CommandConnected)

    # ------------------------------------------------------------ sending

    def write(self, data: bytes) -> None:
        """Send bytes unchanged."""
        with self._writing:  # PONGs come from another thread
            self.socket.sendall(data)

    def say(self, message: Message) -> None:
        """Send a command without waiting for an answer."""
        self.write(self._wire.encode(message))

    def next_request_id(self) -> int:
        return self._wire.next_request_id()

    def freeze(self) -> None:
        """Stop reading and answering PINGs. The socket stays open."""
        self._reads.clear()

    def thaw(self) -> None:
        self._reads.set()

    def close(self) -> None:
        self._reads.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self.socket.close()

    # ------------------------------------------------------------ receiving

    def expect(
        self,
        kind: type[Kind],
        where: Callable[[Kind], bool] = lambda _: True,
        *,
        seconds: float | None = None,
    ) -> Kind:
        """Take out and return the first command of that kind, received already or still to come."""
        return self.expect_with_payload(kind, where, seconds=seconds)[0]

    def expect_with_payload(
        self,
        kind: type[Kind],
        where: Callable[[Kind], bool] = lambda _: True,
        *,
        seconds: float | None = None,
    ) -> tuple[Kind, bytes]:
        seconds = self._seconds_max if seconds is None else seconds
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for index, (command, payload) in enumerate(self.received):
                    if isinstance(command, kind) and where(command):
                        del self.received[index]
                        return command, payload
                left = deadline - time.monotonic()
                if self.is_closed or left <= 0:
                    why = "the connection was closed" if self.is_closed else f"{seconds} s passed"
                    received = [type(command).__name__ for command, _ in self.received]
                    raise TimeoutError(f"no {kind.__name__}: {why}; heard {received}")
                self._changed.wait(left)

    def answer(self, kind: type[Kind], request_id: int | None = None) -> Kind:
        """Return the answer to a request. Raises RefusedByBroker if it is an error."""

        def fits(command: Any) -> bool:
            return isinstance(command, (kind, pb.CommandError)) and (
                request_id is None or command.request_id == request_id  # type: ignore[union-attr]  # such kinds have one
            )

        found: Any = self.expect(object, fits)
        if isinstance(found, pb.CommandError):
            raise RefusedByBroker(found.error, found.message)
        assert isinstance(found, kind)
        return found

    def has_received(
        self, kind: type[Kind], where: Callable[[Kind], bool] = lambda _: True
    ) -> bool:
        with self._changed:
            return any(isinstance(c, kind) and where(c) for c, _ in self.received)

    def wait_closed(self, seconds: float = SECONDS_MAX) -> None:
        """Wait until the broker has closed the connection."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_closed, seconds):
                raise TimeoutError(f"still open after {seconds} s; heard {self.received}")

    def wait_closed_or(self, kind: type[Kind], seconds: float = SECONDS_MAX) -> None:
        """Wait until the broker has sent such a command, or closed the connection."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self.is_closed or any(isinstance(c, kind) for c, _ in self.received),
                seconds,
            ):
                raise TimeoutError(f"neither closed nor {kind.__name__} after {seconds} s")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ProtocolError):
            while data := self.socket.recv(65536):
                self._reads.wait()
                self._take(data)
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        for command, payload in self._wire.feed(data):
            if isinstance(command, pb.CommandPing):
                self.say(pb.CommandPong())
                continue
            with self._changed:
                self.received.append((command, b"" if payload is None else bytes(payload)))
                self._changed.notify_all()

    def ping(self) -> None:
        """Make a round trip: afterwards the broker has processed everything sent before."""
        self.say(pb.CommandPing())
        self.expect(pb.CommandPong)
