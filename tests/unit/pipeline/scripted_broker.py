"""A broker with scripted answers over real HTTP, on a free local port."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass
class Answer:
    """An answer. ``cut``: the connection is closed in the middle of a chunked answer."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


Script = Callable[[Request], Answer]


@dataclass
class ScriptedBroker:
    """The address, and the requests so far."""

    url: str
    requests: list[Request]


class _Quiet(ThreadingHTTPServer):
    """Prints nothing when clients close connections."""

    def handle_error(self, *_: Any) -> None:
        return


@contextmanager
def scripted_broker(script: Script) -> Iterator[ScriptedBroker]:
    """Serve until the end of the block."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(size)
            body = (data if self.command == "PUT" else json.loads(data)) if size else None
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            request = Request(self.command, parts.path, query, dict(self.headers), body)
            requests.append(request)
            answer = script(request)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if isinstance(answer.body, bytes):
                self._stream(answer.body, cut=answer.cut)
                return
            text = json.dumps(answer.body).encode()
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, data: bytes, *, cut: bool) -> None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            if cut:
                self.close_connection = True
                return
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: Any) -> None:
            return

    server = _Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield ScriptedBroker(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
