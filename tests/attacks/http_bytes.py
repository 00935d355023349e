"""Requests as raw bytes, including ones that no HTTP library sends, and their responses."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

ANSWER_SECONDS_MAX = 60.0
"""For an answer: a busy machine is slow."""


@dataclass(frozen=True)
class Raw:
    """An answer: its status (0: the connection was closed without one), and its bytes."""

    status: int
    data: bytes


def connected(url: str) -> socket.socket:
    """A connection to a server."""
    where = urlsplit(url)
    address = (str(where.hostname), int(where.port or 80))
    return socket.create_connection(address, timeout=ANSWER_SECONDS_MAX)


def answer(connection: socket.socket) -> Raw:
    """What comes until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            data += chunk
    status = data[9:12]
    return Raw(int(status) if status.isdigit() else 0, data)


def send(url: str, data: bytes) -> Raw:
    """The answer to bytes; they should ask for the connection to be closed."""
    with connected(url) as connection:
        with contextlib.suppress(ConnectionError):  # closed already: an answer may be there
            connection.sendall(data)
        return answer(connection)


def request(
    method: str, path: str, *headers: str, body: bytes = b"", host: str = "localhost"
) -> bytes:
    """A request whose connection is closed after the answer."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body
