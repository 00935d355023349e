"""A candidate for a topic that writes through the sidecar of its pod, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from bench.pods.notes import Notes, arguments

PAYLOAD = bytes(128)

SIDECAR = ("127.0.0.1", 6680)
REQUEST_SECONDS = 70.0
POLL_SECONDS = 0.05


def compete(pace_seconds: float, notes: Notes) -> None:
    """Wait until the sidecar leads, then publish at a pace until it refuses. SIGTERM ends the process at once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    sidecar = http.client.HTTPConnection(*SIDECAR, timeout=REQUEST_SECONDS)
    while not _ask(sidecar, "GET", "/leadership")[1]["connected"]:
        time.sleep(POLL_SECONDS)
    notes.add("asking")
    standing: dict[str, Any] = {"session": None}
    while standing["session"] is None:
        _, standing = _ask(sidecar, "GET", "/leadership?until=leading&timeoutSeconds=60")
    notes.add("granted")
    session = {"Onewriter-Session": standing["session"]}
    while _ask(sidecar, "POST", "/publish", PAYLOAD, session)[0] == http.HTTPStatus.OK:
        notes.add("appended")
        time.sleep(pace_seconds)


def _ask(
    sidecar: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    sidecar.request(method, path, body, dict(headers or {}))
    answer = sidecar.getresponse()
    return answer.status, json.loads(answer.read())


def main() -> None:
    """Compete for the topic of the pod's sidecar."""
    given = arguments(main.__doc__).parse_args()
    with Notes(given.notes) as notes:
        compete(given.pace_seconds, notes)


if __name__ == "__main__":
    main()
