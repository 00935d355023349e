"""HTTP calls like those of a script: status and JSON. Redirects are followed only on request."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.integration.raw import RawProducer

ADMIN = "/admin/v2"
PERSISTENT = "/admin/v2/persistent/public/default"
OWN = "/onewriter/v1/topics/public/default"

CALL_SECONDS_MAX = 120.0
"""Time limit for an answer: a machine may be slow, and a call that waits for an event takes a minute."""


RETRY_SECONDS_MAX = 240.0
"""Time in which a call is repeated that the broker cannot answer yet."""

_NOT_YET = frozenset({429, 503})


def epoch_of(producer: RawProducer) -> int:
    """Return the topic epoch of a granted exclusive producer."""
    assert producer.epoch is not None
    return producer.epoch


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)


class Http:
    """One broker's HTTP port."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._token = token
        self.location = ""
        self.headers: Mapping[str, str] = {}
        """The headers of the last successful answer."""

    def __call__(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        """Return status and body, parsed if it is JSON, else as text. ``bytes`` are sent unchanged."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=raw, method=method)  # noqa: S310 - http
        request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with _OPENER.open(request, timeout=CALL_SECONDS_MAX) as answer:
                self.headers = answer.headers
                return answer.status, _read(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                self.location = error.headers.get("Location", "")
                return error.code, _read(error.read())

    def patiently(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        """As a call, repeated while the broker answers that it is to be repeated, as a client does.

        A broker that is ready may still wait for one of its buckets. Returns the last answer.
        """
        deadline = time.monotonic() + RETRY_SECONDS_MAX
        while True:
            found = self(method, path, body, **headers)
            if found[0] not in _NOT_YET or time.monotonic() > deadline:
                return found
            time.sleep(0.05)


def _read(raw: bytes) -> Any:
    text = raw.decode()
    try:
        return json.loads(text)
    except ValueError:
        return text
