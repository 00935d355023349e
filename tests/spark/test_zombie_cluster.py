"""A frozen executor whose task wakes behind the commit: its rows are in the topic once all the same.

Two executors, each a Java process with Python processes. The first attempt of a task is held while it
hands in its rows, and its executor's Java is stopped: Spark takes it for lost, tries the task again on
the other executor, and commits. Then the zombie goes on, and its rows arrive.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest
import urllib3
from tests.integration.conftest import StockClients
from tests.spark.standalone import is_alive, kill_all, standalone, wait_until
from tests.spark.stored import stored
from tests.spark.zombie_write import ROWS, ROWS_MORE

from onewriter_broker.testing import LocalBrokers

ROOT = Path(__file__).resolve().parent.parent.parent
FIRST_PART = re.compile(r"/staged/job/0/0\.0/")
HELD_SECONDS_MAX = 65.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class HoldingProxy:
    """Between tasks and a broker: the first time that the first partition hands in rows, it is held."""

    def __init__(self, target: str) -> None:
        self.held, self.released = threading.Event(), threading.Event()
        self.answers: list[int] = []
        """What the broker said to each hand-in of the first partition, in order."""
        proxy, pool = self, urllib3.PoolManager(retries=False)

        class Handler(BaseHTTPRequestHandler):
            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                watched = self.command == "PUT" and FIRST_PART.search(self.path) is not None
                if watched and not proxy.held.is_set():
                    proxy.held.set()
                    proxy.released.wait(HELD_SECONDS_MAX)
                said = pool.request(
                    self.command, target + self.path, body=body, headers=dict(self.headers)
                )
                if watched:
                    proxy.answers.append(said.status)
                with contextlib.suppress(ConnectionError):  # the zombie may be gone
                    self.send_response(said.status)
                    self.send_header("Content-Type", said.headers.get("Content-Type", ""))
                    self.send_header("Content-Length", str(len(said.data)))
                    self.end_headers()
                    self.wfile.write(said.data)

            do_GET = do_PUT = do_POST = do_DELETE = forward  # noqa: N815 - the base's names

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._pool = pool

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._pool.clear()
        self._thread.join()


@contextlib.contextmanager
def driver(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program that writes; killed at the end with all that it started."""
    command = [sys.executable, "-m", "tests.spark.zombie_write", *words]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    with process:
        try:
            yield process
        finally:
            kill_all(process)


def heard(process: subprocess.Popen[bytes], log: Path) -> bytes:
    """The program's next line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, log.read_text()[-4000:]
    return line


def test_rows_of_a_task_that_wakes_behind_the_commit_are_there_once(
    broker: LocalBrokers, topic: str, stock: StockClients, tmp_path: Path
) -> None:
    log = tmp_path / "driver.log"
    traces = tmp_path / "attempts"
    traces.mkdir()
    with (
        HoldingProxy(broker.http_url) as proxy,
        standalone(tmp_path) as cluster,
        driver(log, cluster.url, proxy.url, topic, str(traces)) as process,
    ):
        wait_until(lambda: proxy.held.is_set() or process.poll() is not None, 120)
        assert proxy.held.is_set(), log.read_text()[-4000:]
        frozen = int((traces / "0").read_text())
        assert frozen in cluster.executors()
        os.kill(frozen, signal.SIGSTOP)
        assert heard(process, log) == b"committed\n"
        assert (traces / "1").read_text() != str(frozen)
        client = stock(broker.service_url)
        assert stored(client, topic) == list(range(ROWS))
        assert proxy.answers == [200]
        proxy.released.set()
        os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: len(proxy.answers) == 2)
        assert stored(client, topic) == list(range(ROWS))
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert heard(process, log) == b"committed\n"
        assert stored(client, topic) == list(range(ROWS + ROWS_MORE))
        assert process.wait(60) == 0
    wait_until(lambda: not is_alive(frozen))
