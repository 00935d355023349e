"""A pod that writes a counter through its sidecar, using only the standard library.

Every line that it prints is JSON: ``leads``, ``wrote`` (acknowledged, with its position), ``refused``. On port 8080
it states its name. With TURN_SECONDS it hands the topic over this long after it was granted.
"""

import http.client
import json
import os
import signal
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

POD = os.environ["POD"]
PROCESS = uuid.uuid4().hex[:8]
TURN_SECONDS = float(os.environ.get("TURN_SECONDS", "0"))
INTERVAL_SECONDS = float(os.environ.get("INTERVAL_SECONDS", "0.1"))

MACHINE_CLOCK = 5
"""Linux' CLOCK_REALTIME_COARSE, which clock.c does not shift: tests compare the times of all pods."""

SIDECAR = ("127.0.0.1", 6680)
RELEASE_KEY = Path("/dev/shm/onewriter-release-key")  # noqa: S108 - its permissions protect it
REQUEST_SECONDS = 40
RETRY_SECONDS = 0.2


def report(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "pod": POD, **facts}), flush=True)


class Writer:
    """Requests a session, publishes under it until it is refused, and starts again."""

    def __init__(self) -> None:
        self.session = ""
        self.term = 0
        self.number = 1
        self.since = 0.0
        self.asked_key = ""
        self.asked_at = 0.0
        self.connection = http.client.HTTPConnection(*SIDECAR, timeout=REQUEST_SECONDS)

    def run(self) -> None:
        while True:
            try:
                _, found = self.ask("GET", "/leadership?until=leading&timeoutSeconds=30")
                if found["session"] is not None:
                    self.lead(found["session"])
            except (OSError, http.client.HTTPException):
                self.connection.close()  # an unanswered request is repeated with its key
                time.sleep(RETRY_SECONDS)

    def lead(self, session: str) -> None:
        if session != self.session:
            self.session, self.term, self.number = session, self.term + 1, 1
            self.since = time.monotonic()
            report("leads", term=self.term, session=session)
        while self.publish():
            time.sleep(INTERVAL_SECONDS)
            if TURN_SECONDS and time.monotonic() - self.since > TURN_SECONDS:
                self.release()
        self.session = ""

    def release(self) -> None:
        """Hand the topic over, with the key that the sidecar's user and group can read."""
        key = f"Bearer {RELEASE_KEY.read_text().strip()}"
        status, answer = self.ask("POST", "/release", headers={"Authorization": key})
        if status != 200:
            raise RuntimeError(f"the sidecar refused a release: {answer}")

    def publish(self) -> bool:
        """Publish the next line; return whether the session continues."""
        line = {
            "pod": POD,
            "process": PROCESS,
            "term": self.term,
            "grant": self.session,
            "number": self.number,
        }
        key = f"{PROCESS}-{self.term}-{self.number}"
        headers = {"Onewriter-Session": self.session, "Idempotency-Key": key}
        if self.asked_key != key:
            self.asked_key, self.asked_at = key, time.monotonic()
        status, answer = self.ask("POST", "/publish", json.dumps(line), headers)
        if status == 200:
            took_ms = round((time.monotonic() - self.asked_at) * 1000)
            position = f"{answer['ledger']}-{answer['entry']}"
            at_ms = time.clock_gettime_ns(MACHINE_CLOCK) // 1_000_000
            report("wrote", **line, position=position, tookMs=took_ms, atMs=at_ms)
            self.number += 1
        elif status == 409:
            report("refused", term=self.term, reason=answer["error"], stored=answer["stored"])
            return False
        elif answer["stored"] is None:
            # The result stays unknown; the next lines belong to a new term, so that it is no gap.
            report("unknown", **line, reason=answer["error"])
            self.term, self.number = self.term + 1, 1
        return True

    def ask(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        self.connection.request(method, path, body, headers or {})
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())


class WhoIsThere(BaseHTTPRequestHandler):
    """Answers with its name and whether it leads."""

    writer: Writer

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        leads = bool(self.writer.session)
        self.wfile.write(json.dumps({"pod": POD, "leads": leads}).encode())

    def log_message(self, *_: Any) -> None:
        """Probes are not logged."""


def main() -> None:
    ended = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)
    writer = WhoIsThere.writer = Writer()
    server = ThreadingHTTPServer(("", 8080), WhoIsThere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=writer.run, daemon=True).start()
    signal.sigwait(ended)
    os._exit(0)  # the sidecar releases the topic


if __name__ == "__main__":
    main()
