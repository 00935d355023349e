"""A proxy between tasks and a broker that delays the first attempts of tasks to stage rows, at a chosen point."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Sequence
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import urllib3

HELD_SECONDS_MAX = 600.0
"""Longer than any test needs."""


class Point(Enum):
    """Where a task is while its request is delayed."""

    NOT_STAGED = "the task has to hand it in again when it is released"
    STAGED = "the broker has it, and the task hears of it when it is released"


class Hold:
    """Delays the first request of one partition of one version. Later requests pass."""

    def __init__(self, version: int, partition: int, point: Point) -> None:
        self._pattern = re.compile(rf"/staged/job/{version}/{partition}\.0/")
        self._taken = threading.Lock()
        self.point = point
        self.held, self._released = threading.Event(), threading.Event()
        self._answered = threading.Event()
        self.answers: list[int] = []
        """The broker's answers to the requests of the partition, in order."""

    def watches(self, method: str, path: str) -> bool:
        """Whether the request stages rows of this partition."""
        return method == "PUT" and self._pattern.search(path) is not None

    def is_first(self) -> bool:
        """True once."""
        return self._taken.acquire(blocking=False)

    def wait(self) -> None:
        """Delay the request."""
        self.held.set()
        self._released.wait(HELD_SECONDS_MAX)

    def release(self) -> None:
        """Let the request continue."""
        self._released.set()

    def release_and_answer(self) -> None:
        """Let the request continue, and wait until the broker has answered it. Its sender may be stopped."""
        self._released.set()
        assert self._answered.wait(HELD_SECONDS_MAX)

    def is_answered(self) -> None:
        """Note that the request was answered."""
        self._answered.set()


class HoldingProxy:
    """Runs while it is entered; tasks write to ``url``."""

    def __init__(self, target: str, holds: Sequence[Hold]) -> None:
        proxy, pool = self, urllib3.PoolManager(retries=False)

        class Handler(BaseHTTPRequestHandler):
            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                hold = next((each for each in holds if each.watches(self.command, self.path)), None)
                point = hold.point if hold is not None and hold.is_first() else None
                if hold is not None and point is Point.NOT_STAGED:
                    hold.wait()
                    self.answer(307, b"", "Location", proxy.url + self.path)
                    hold.is_answered()
                    return
                answer = pool.request(
                    self.command, target + self.path, body=body, headers=dict(self.headers)
                )
                if hold is not None:
                    hold.answers.append(answer.status)
                    if point is Point.STAGED:
                        hold.wait()
                self.answer(
                    answer.status,
                    answer.data,
                    "Content-Type",
                    answer.headers.get("Content-Type", ""),
                )
                if hold is not None and point is not None:
                    hold.is_answered()

            def answer(self, status: int, data: bytes, name: str, value: str) -> None:
                with contextlib.suppress(ConnectionError):  # the zombie may be gone
                    self.send_response(status)
                    self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = forward  # noqa: N815 - the base's names

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._pool, self._holds = pool, holds

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for hold in self._holds:
            hold.release()
        self._server.shutdown()
        self._server.server_close()
        self._pool.clear()
        self._thread.join()
