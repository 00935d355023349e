"""HTTP to the brokers, blocking: tokens, TLS, redirects to owners, and patience with what is away.

A request is repeated while no broker answers or serves it, with growing pauses, until the patience is
over; only what may be repeated is asked through here (each request of the pipeline may). What a
broker refuses is an error at once.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from onewriter_core.ids import Position
from onewriter_pipeline.errors import (
    Away,
    Conflict,
    Damaged,
    Invalid,
    NotAllowed,
    NotFound,
    PipelineError,
    Trimmed,
)

CONNECT_SECONDS: Final = 5.0
"""Until a broker has accepted a connection."""

READ_SECONDS: Final = 70.0
"""Without a byte of an answer; a broker takes at most half of that for any request."""

PATIENCE_SECONDS: Final = 60.0
"""How long a request is repeated while nobody serves it."""

BUSY_SECONDS: Final = 600.0
"""The same while brokers answer that they serve as many as they can."""

PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 2.0
"""Between two attempts: the first pause, and what they grow to."""

REDIRECTS_MAX: Final = 5
"""From one broker to the next, for one request."""

OWNERS_MAX: Final = 4_096
"""Topics whose owner is remembered."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an answer that is no stream."""

READ_BYTES: Final = 1024 * 1024
"""What one read of a stream takes at most."""

BUSY: Final = 429
_AGAIN: Final = frozenset({BUSY, 502, 503, 504})
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_REDIRECT: Final = frozenset({302, 307, 308})


@dataclass(frozen=True, slots=True)
class Access:
    """How brokers are reached; safe to pickle, and its repr shows no token.

    ``url``: one address, or several with commas between, http:// or https://. ``token_file`` is read
    for each request, since it may be renewed. ``ca_file`` names the authorities that are trusted
    (empty: those of the system); ``verify`` = False trusts everybody.
    """

    url: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    patience_seconds: float = PATIENCE_SECONDS

    def addresses(self) -> list[str]:
        """The brokers' addresses; raises Invalid."""
        found = [each.strip().rstrip("/") for each in self.url.split(",") if each.strip()]
        for each in found:
            if urlsplit(each).scheme not in {"http", "https"} or not urlsplit(each).netloc:
                raise Invalid(f"{each!r} is no http:// or https:// address of a broker")
        if not found:
            raise Invalid("no address of a broker is given")
        return found

    def headers(self) -> dict[str, str]:
        """What proves who asks; raises Invalid for a token file that cannot be read."""
        token = self.token
        if self.token_file:
            try:
                token = Path(self.token_file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise Invalid(f"the token file {self.token_file} cannot be read: {error}") from None
        return {"Authorization": f"Bearer {token}"} if token else {}


class Connection:
    """Connections to brokers, kept open between requests. Not for several threads at once."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._addresses = access.addresses()
        self._owners: dict[str, str] = {}
        tls: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED" if access.verify else "CERT_NONE"}
        if access.ca_file:
            tls["ca_certs"] = access.ca_file
        if access.certificate_file:
            tls["cert_file"] = access.certificate_file
            tls["key_file"] = access.key_file or None
        if not access.verify:
            tls["assert_hostname"] = False
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        self._pool = urllib3.PoolManager(retries=False, timeout=timeout, **tls)

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def ask(
        self,
        method: str,
        path: str,
        *,
        owner: str = "",
        query: Mapping[str, str | int | None] | None = None,
        body: Mapping[str, object] | bytes | None = None,
    ) -> dict[str, Any]:
        """A broker's answer, an object. ``owner``: requests with the same one go to the same broker.

        Repeated until it is decided: the request must be one that may be. Raises PipelineError.
        """
        patience = Patience(self._access.patience_seconds)
        while True:
            with patience.trying():
                answer = self._send(method, path, owner, query, body)
                try:
                    text = answer.read(ANSWER_BYTES_MAX)
                finally:
                    answer.release_conn()
                return _judged(answer.status, text)
            self._owners.pop(owner, None)

    def stream(
        self, path: str, *, owner: str = "", query: Mapping[str, str | int | None] | None = None
    ) -> Iterator[bytes]:
        """The bytes of a long answer, as they arrive. One attempt.

        Raises Broken when it may be tried again, else PipelineError.
        """
        try:
            answer = self._send("GET", path, owner, query, None)
            if answer.status != 200:
                try:
                    text = answer.read(ANSWER_BYTES_MAX)
                finally:
                    answer.release_conn()
                _judged(answer.status, text)
                raise Damaged(f"a broker answers HTTP {answer.status}")
        except (HTTPError, OSError) as error:
            self._owners.pop(owner, None)
            raise Broken(_told(error)) from error
        except Broken:
            self._owners.pop(owner, None)
            raise
        is_over = False
        try:
            yield from answer.stream(READ_BYTES, decode_content=False)
            is_over = True
        except (HTTPError, OSError) as error:
            raise Broken(_told(error)) from error
        finally:
            if is_over:
                answer.release_conn()
            else:  # whoever reads no further leaves a connection that cannot be used again
                self._owners.pop(owner, None)
                answer.close()

    def _send(
        self,
        method: str,
        path: str,
        owner: str,
        query: Mapping[str, str | int | None] | None,
        body: Mapping[str, object] | bytes | None,
    ) -> BaseHTTPResponse:
        """An answer's head, from the broker that redirects lead to. Raises HTTPError, Broken."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        base = self._owners.get(owner, self._addresses[0])
        url = base + target
        headers = self._access.headers()
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        for _ in range(REDIRECTS_MAX):
            try:
                answer = self._pool.request(
                    method,
                    url,
                    body=data,
                    headers=headers,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            except (HTTPError, OSError) as error:
                if _UNTRUSTED in str(error):  # that does not pass
                    raise Invalid(
                        f"the certificate of {_origin(url)} is not trusted: {error}"
                    ) from error
                if base == self._addresses[0]:  # the next attempt asks another one
                    self._addresses.append(self._addresses.pop(0))
                raise
            if answer.status not in _REDIRECT:
                self._remember(owner, url)
                return answer
            answer.drain_conn()
            answer.release_conn()
            url = urljoin(url, answer.headers.get("Location", ""))
            if urlsplit(url).scheme not in {"http", "https"}:
                raise Broken("a broker sends to what is no http address")
        raise Broken("one broker sends to the next")

    def _remember(self, owner: str, url: str) -> None:
        if owner:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            self._owners[owner] = _origin(url)


class Broken(Exception):
    """An attempt that failed and may be repeated; the message says why.

    ``is_busy``: the broker serves as many others as it can, and will serve this one in its turn.
    """

    def __init__(self, why: str, *, is_busy: bool = False) -> None:
        super().__init__(why)
        self.is_busy = is_busy


class Patience:
    """How often and for how long something is tried again; ``renew`` it with each progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Begin anew."""
        self._began_at = time.monotonic()
        self._pause = PAUSE_SECONDS

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """One attempt. One that is Broken ends in a pause; raises Away when patience is over."""
        try:
            yield
        except (Broken, HTTPError, OSError) as error:
            why = str(error) if isinstance(error, Broken) else _told(error)
            is_busy = isinstance(error, Broken) and error.is_busy
            seconds = max(self._seconds, BUSY_SECONDS) if is_busy else self._seconds
            if time.monotonic() + self._pause > self._began_at + seconds:
                raise Away(f"no broker served this within {seconds:g} s: {why}") from error
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _told(error: Exception) -> str:
    """What went wrong with a connection, in its own words."""
    reason = getattr(error, "reason", None)
    return str(reason if isinstance(reason, Exception) else error) or type(error).__name__


def _judged(status: int, text: bytes) -> dict[str, Any]:
    """An answer, as an object or as an error. Raises Broken where it may be asked again."""
    answer: object = None
    with contextlib.suppress(ValueError):
        answer = json.loads(text) if text else {}
    if status < 300 and isinstance(answer, dict):
        return answer
    if not isinstance(answer, dict) or "reason" not in answer:
        if status in _AGAIN:
            raise Broken(f"it answers HTTP {status}")
        raise Damaged(f"that is no onewriter broker: it answers HTTP {status}")
    raise failure(status, str(answer["reason"]), answer)


def failure(status: int, reason: str, details: Mapping[str, object]) -> PipelineError | Broken:
    """The error that an answer's status means; Broken where it may be asked again."""
    match status:
        case 401 | 403:
            return NotAllowed(reason)
        case 404:
            return NotFound(reason)
        case 409 | 412:
            return Conflict(reason)
        case 410:
            return Trimmed(reason, _position(details, "first"), _position(details, "trimmed"))
        case _ if status in _AGAIN:
            return Broken(reason, is_busy=status == BUSY)
        case _ if status >= 500:
            return Damaged(reason)
        case _:
            return Invalid(reason)


def position_of(text: str) -> Position:
    """A position as brokers write it, ``ledger:entry``; raises Invalid."""
    ledger, _, entry = text.partition(":")
    if not (ledger.isascii() and ledger.isdecimal() and entry.isascii() and entry.isdecimal()):
        raise Invalid(f"{text[:60]!r} is no position: they are written <ledger>:<entry>")
    return Position(int(ledger), int(entry))


def _position(details: Mapping[str, object], name: str) -> Position | None:
    text = details.get(name)
    return position_of(text) if isinstance(text, str) else None
