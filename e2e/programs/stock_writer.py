"""A pod that writes a counter with the stock Pulsar client as long as it may.

Every line that it prints is JSON: ``leads``, ``wrote`` (acknowledged, with its position), ``refused``, and
``turnedAway`` if its request ended before it could lead. On port 8080 it states its name. With TURN_SECONDS it
releases the topic this long after it was granted.
"""

import json
import os
import signal
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pulsar

FOR_EVER_SECONDS = 2**31 - 1
"""The underlying C++ client gives up a waiting producer after its operation time-out."""

POD = os.environ["POD"]
PROCESS = uuid.uuid4().hex[:8]
TURN_SECONDS = float(os.environ.get("TURN_SECONDS", "0"))
INTERVAL_SECONDS = float(os.environ.get("INTERVAL_SECONDS", "0.1"))

MACHINE_CLOCK = 5
"""Linux' CLOCK_REALTIME_COARSE, which clock.c does not shift: tests compare the times of all pods."""


def report(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "pod": POD, **facts}), flush=True)


def took_ms(since: float) -> int:
    return round((time.monotonic() - since) * 1000)


def now_ms() -> int:
    return time.clock_gettime_ns(MACHINE_CLOCK) // 1_000_000


def identity() -> dict[str, Any]:
    """The options of a client that connects to the brokers itself."""
    return {
        "tls_trust_certs_file_path": os.environ["CA_FILE"],
        "tls_validate_hostname": True,
        "authentication": pulsar.AuthenticationToken(Path(os.environ["TOKEN_FILE"]).read_text),
    }


class Writer:
    """Leads, writes, loses the topic, and starts again. ``producer`` is set while it leads."""

    def __init__(self) -> None:
        self.producer: pulsar.Producer | None = None
        self.client = pulsar.Client(
            # A relay in the pod is reached without TLS and without a token.
            os.environ.get("SERVICE_URL") or os.environ["ONEWRITER_SERVICE_URL"],
            operation_timeout_seconds=FOR_EVER_SECONDS,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
            **(identity() if "TOKEN_FILE" in os.environ else {}),
        )

    def run(self) -> None:
        term = 0
        while True:
            try:
                self.producer = self.client.create_producer(
                    os.environ["TOPIC"],
                    access_mode=pulsar.ProducerAccessMode.WaitForExclusive,
                    batching_enabled=False,
                    send_timeout_millis=0,  # only an answer ends a send
                )
                term += 1
                report("leads", term=term, producer=self.producer.producer_name())
                self.write(self.producer, term)
            except pulsar.PulsarException as error:
                event = "turnedAway" if self.producer is None else "refused"
                report(event, term=term, reason=type(error).__name__)
                self.producer = None
                time.sleep(INTERVAL_SECONDS)

    def write(self, producer: pulsar.Producer, term: int) -> None:
        line = {"pod": POD, "process": PROCESS, "term": term, "grant": f"{PROCESS}-{term}"}
        number, since = 0, time.monotonic()
        while not TURN_SECONDS or time.monotonic() - since < TURN_SECONDS:
            number += 1
            line["number"] = number
            started = time.monotonic()
            found = producer.send(json.dumps(line).encode())
            position = f"{found.ledger_id()}-{found.entry_id()}"
            report("wrote", **line, position=position, tookMs=took_ms(started), atMs=now_ms())
            time.sleep(INTERVAL_SECONDS)
        self.producer = None
        producer.close()


class WhoIsThere(BaseHTTPRequestHandler):
    """Answers with its name and whether it leads."""

    writer: Writer

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        leads = self.writer.producer is not None
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
    if writer.producer is not None:
        writer.producer.close()
    os._exit(0)  # a waiting producer blocks in the C++ client and cannot be cancelled


if __name__ == "__main__":
    main()
