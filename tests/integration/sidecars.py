"""Real sidecars for tests: processes on free ports, controlled by signals, and their HTTP interface."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.forked import fork
from tests.integration.http_calls import Http

from onewriter.sidecar.cli import sidecar
from onewriter_testing.ports import free_ports

SECONDS_MAX = 120.0


class SessionOver(Exception):
    """A sidecar has refused all of a stream, because its session had ended. The text is the sidecar's answer."""


def _main() -> None:
    sidecar(args=[], prog_name="onewriter sidecar")


class Sidecar:
    """One process. ``with`` starts it; at the end it is stopped as by SIGTERM, or killed."""

    def __init__(
        self, directory: Path, url: str, topic: str, name: str, **settings: object
    ) -> None:
        self.name = name
        self.topic = topic
        self.port = free_ports(1)
        self.http = Http(f"http://127.0.0.1:{self.port}")
        self.log_path = directory / f"{name}.log"
        self.key_path = directory / f"{name}.key"
        chosen = {
            "topic": topic,
            "service_url": url,
            "port": self.port,
            "identity": name,
            "release_key_file": self.key_path,
        } | settings
        self._environment = {
            f"ONEWRITER_SIDECAR_{key.upper()}": str(value) for key, value in chosen.items()
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return fork(_main, log=self.log_path, environment=self._environment)

    def restart(self) -> None:
        """Start again after it ended, like the container of the same pod."""
        self.process = self._start()

    # ------------------------------------------------------------ requests

    def standing(self) -> dict[str, Any]:
        status, body = self.http("GET", "/leadership")
        assert status == 200, body
        return dict(body)

    def serving(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            with contextlib.suppress(OSError):
                self.standing()
                return
            assert time.monotonic() < deadline, f"{self.name} does not answer:\n{self.log}"
            time.sleep(0.01)

    def until(self, phase: str, *, connected: bool = True) -> dict[str, Any]:
        """Wait until it is in this phase; return its status then."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            with contextlib.suppress(OSError):
                _, body = self.http("GET", f"/leadership?until={phase}&timeoutSeconds=5")
                if body["phase"] == phase and body["connected"] is connected:
                    return dict(body)
            assert time.monotonic() < deadline, f"{self.name} is not {phase}:\n{self.log}"
            time.sleep(0.01)

    def lead(self) -> str:
        """Wait until it leads; return the session."""
        return str(self.until("leading")["session"])

    def publish(self, content: bytes, session: str, **headers: str) -> tuple[int, Any]:
        return self.http("POST", "/publish", content, Onewriter_Session=session, **headers)

    def release(self, *, rejoin: bool = True) -> tuple[int, Any]:
        """Request a release with the key that the process has written."""
        path = f"/release?rejoin={str(rejoin).lower()}"
        return self.http("POST", path, Authorization=self._authorization)

    def disown(self, group: str, *resources: str) -> tuple[int, Any]:
        """Request the release of owned resources, with the same key."""
        body = {"group": group, "resources": resources}
        return self.http("DELETE", "/own", body, Authorization=self._authorization)

    @property
    def _authorization(self) -> str:
        return f"Bearer {self.key_path.read_text().strip()}"

    def stream(self, contents: list[bytes], session: str) -> list[Any]:
        """Send a length-prefixed stream; return the lines of the answer. Raises SessionOver."""
        body = b"".join(len(each).to_bytes(4, "big") + each for each in contents)
        kind = "application/vnd.onewriter.messages"
        request = (
            f"POST /publish HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Onewriter-Session: {session}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS_MAX) as link:
            link.sendall(request + body)
            received = b"".join(iter(lambda: link.recv(65536), b""))
        head, _, rest = received.partition(b"\r\n\r\n")
        if b" 409 " in head.splitlines()[0]:
            raise SessionOver(rest.decode())
        assert b" 200 " in head.splitlines()[0], received[:500]
        return [json.loads(line) for line in _unchunked(rest).splitlines()]

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    # ------------------------------------------------------------ life cycle

    def signal(self, which: signal.Signals) -> None:
        self.process.send_signal(which)

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.terminate()
        return self.process.wait(SECONDS_MAX)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Events(threading.Thread):
    """A reader of leadership events. ``seen`` holds the events received."""

    def __init__(self, sidecar: Sidecar) -> None:
        super().__init__(daemon=True)
        self.seen: list[dict[str, Any]] = []
        self._link = socket.create_connection(("127.0.0.1", sidecar.port), timeout=SECONDS_MAX)
        self._link.sendall(
            b"GET /leadership HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        )
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError), self._link.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    standing = json.loads(line.removeprefix(b"data: "))
                    self.seen.append(standing)

    def phases(self) -> list[tuple[str, bool]]:
        return [(standing["phase"], standing["connected"]) for standing in self.seen]

    def close(self) -> None:
        self._link.close()


@contextlib.contextmanager
def sidecars(
    directory: Path, url: str, topic: str, *names: str, **settings: object
) -> Iterator[list[Sidecar]]:
    """Run a sidecar of one topic for each name. Each is queued before the next one starts."""
    with contextlib.ExitStack() as stack:
        found: list[Sidecar] = []
        for name in names:
            sidecar = Sidecar(directory, url, topic, name, **settings)
            stack.callback(_end, sidecar)
            sidecar.until("leading" if not found else "queueing")
            found.append(sidecar)
        yield found


def _end(sidecar: Sidecar) -> None:
    if sidecar.process.poll() is None:
        sidecar.signal(signal.SIGCONT)
        sidecar.process.terminate()
        try:
            sidecar.process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            sidecar.kill()


def _unchunked(body: bytes) -> bytes:
    """Return the content of a chunked HTTP body."""
    content = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        content += rest[:length]
        body = rest[length + 2 :]
        if length == 0:
            break
    return content
