"""Lead a topic through the sidecar, with only Python's standard library.

One thread follows the leadership events, the other publishes while this process leads::

    onewriter sidecar --topic orders &
    python examples/sidecar/leader.py --name A

It also stores resume info: the next leader reads in the log who led before, and its progress.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

RETRY_SECONDS = 0.5


class Sidecar:
    """The few calls of the sidecar that this program needs."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """Status and JSON of one request. Raises OSError."""
        connection = http.client.HTTPConnection(*self._address, timeout=70)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def standings(self) -> Iterator[dict[str, Any]]:
        """Each change of leadership as it happens. Raises OSError when the sidecar goes."""
        connection = http.client.HTTPConnection(*self._address, timeout=30)
        try:
            connection.request("GET", "/leadership", headers={"Accept": "text/event-stream"})
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        finally:
            connection.close()


class Follower:
    """Follows the events in a thread; ``session`` is None while we do not lead."""

    def __init__(self, sidecar: Sidecar, name: str) -> None:
        self.session: str | None = None
        self.leads = threading.Event()
        self._sidecar = sidecar
        self._name = name
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            try:
                for standing in self._sidecar.standings():
                    self._take(standing)
            except (OSError, http.client.HTTPException):
                self._take({"session": None, "phase": "no sidecar"})
            time.sleep(RETRY_SECONDS)

    def _take(self, standing: dict[str, Any]) -> None:
        if standing["session"] != self.session:
            print(f"{self._name}: {standing['phase']} {standing['session'] or ''}", flush=True)
        self.session = standing["session"]
        if self.session is None:
            self.leads.clear()
        else:
            self.leads.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6680)
    parser.add_argument("--name", default="python")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two messages")
    options = parser.parse_args()
    sidecar = Sidecar(options.host, options.port)
    follower = Follower(sidecar, options.name)
    count = 0
    while True:
        follower.leads.wait()
        session = follower.session
        if session is not None and publish(sidecar, session, options.name, count + 1):
            count += 1
        time.sleep(options.interval)


def publish(sidecar: Sidecar, session: str, name: str, number: int) -> bool:
    """Publish one line under the session; whether it may be in the log."""
    line = f"{name} {number}".encode()
    try:
        status, answer = sidecar.call("POST", "/publish", line, Onewriter_Session=session)
        if status == 200:
            print(f"{name}: wrote {number} at {answer['messageId']}", flush=True)
            info = json.dumps({"lastWritten": number}).encode()
            sidecar.call("PUT", "/resume-info", info, Content_Type="application/json")
            return True
    except (OSError, http.client.HTTPException) as error:
        print(f"{name}: it is unknown whether {number} is in the log: {error}", flush=True)
        return True
    print(f"{name}: {status}, stored: {answer['stored']}: {answer['reason']}", flush=True)
    return answer["stored"] is not False


if __name__ == "__main__":
    main()
