"""Blocking HTTP requests to the brokers: tokens, TLS, redirects to the owner, and retries.

A request is repeated with growing pauses while no broker answers or serves it, up to a time limit. So each request
must be safe to repeat; all requests of the pipeline are. An error answer of a broker is raised at once.
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
from onewriter_pipeline.brokers import connection_errors
from onewriter_pipeline.brokers.names import position_of
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
"""Time limit for a broker to accept a connection."""

READ_SECONDS: Final = 70.0
"""Time limit without a byte of an answer. A broker takes at most half of it for any request."""

PATIENCE_SECONDS: Final = 60.0
"""How long a request is repeated while no broker serves it."""

BUSY_SECONDS: Final = 600.0
"""The same while brokers answer that they are busy."""

PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 2.0
"""The first pause between two attempts, and the limit to which pauses grow."""

REDIRECTS_MAX: Final = 5
"""Redirects of one request."""

OWNERS_MAX: Final = 4_096
"""Topics whose owner is cached."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size limit of an answer that is not a stream."""

STREAM_READ_BYTES: Final = 1024 * 1024
"""Size limit of one read of a stream."""

BUSY: Final = 429
_AGAIN: Final = frozenset({BUSY, 502, 503, 504})
_REDIRECT: Final = frozenset({302, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLimits:
    """The times of requests: see the constants."""

    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS
    busy_seconds: float = BUSY_SECONDS
    pause_seconds: float = PAUSE_SECONDS
    pause_seconds_max: float = PAUSE_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the brokers. It can be pickled, and its repr shows no token.

    ``url``: one or several http:// or https:// addresses, separated by commas. ``token_file`` is read for each
    request, because it may be renewed. ``ca_file`` has the trusted authorities (empty: those of the system).
    ``verify`` = False trusts any certificate.
    """

    url: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    patience_seconds: float = PATIENCE_SECONDS
    limits: AccessLimits = field(default=AccessLimits(), repr=False)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Access:
        """The inverse of ``dataclasses.asdict``."""
        return cls(**{**document, "limits": AccessLimits(**document.get("limits", {}))})

    def patience(self, within: float | None = None) -> Patience:
        """The limits of one request's retries; ``within`` limits them further, also while brokers are busy."""
        if within is None:
            return Patience(self.patience_seconds, limits=self.limits)
        seconds = min(within, self.patience_seconds)
        return Patience(seconds, busy_seconds=within, limits=self.limits)

    def addresses(self) -> list[str]:
        """The brokers' addresses; raises Invalid."""
        found = [each.strip().rstrip("/") for each in self.url.split(",") if each.strip()]
        for each in found:
            if urlsplit(each).scheme not in {"http", "https"} or not urlsplit(each).netloc:
                raise Invalid(f"{each!r} is not an http:// or https:// address of a broker")
        if not found:
            raise Invalid("no address of a broker: set --admin-url, or the option admin.url")
        return found

    def headers(self) -> dict[str, str]:
        """The headers that authenticate the client. Raises Invalid, without showing the token, if the token cannot
        be read or sent.
        """
        token = self.token.strip()
        if self.token_file:
            try:
                token = Path(self.token_file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise Invalid(f"the token file {self.token_file} cannot be read: {error}") from None
        if not (token.isascii() and token.isprintable()):
            where = f"the token of the file {self.token_file}" if self.token_file else "the token"
            raise Invalid(f"{where} contains a line break or another invalid character")
        return {"Authorization": f"Bearer {token}"} if token else {}


class Connection:
    """Connections to brokers, kept open between requests. Not thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._addresses = access.addresses()
        self._owners: dict[str, str] = {}
        for file in (access.ca_file, access.certificate_file, access.key_file):
            _check_readable(file)
        tls: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED" if access.verify else "CERT_NONE"}
        if access.ca_file:
            tls["ca_certs"] = access.ca_file
        if access.certificate_file:
            tls["cert_file"] = access.certificate_file
            tls["key_file"] = access.key_file or None
        if not access.verify:
            tls["assert_hostname"] = False
        self._pool = urllib3.PoolManager(retries=False, **tls)

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
        within: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Request an object from a broker. Requests with the same ``owner`` go to the same broker.

        The request is repeated until it is decided, so it must be safe to repeat. ``within``: time limit in
        seconds, also while brokers are busy; by default the limits of the access. Raises PipelineError.
        """
        patience = self._access.patience()
        if within is not None:
            patience = self._access.patience(within)
        while True:
            with patience.trying(), self._passing_over(self._asked_first(owner)):
                answer, url = self._send(method, path, owner, query, body, within, headers)
                return _judged(answer.status, _text(answer, url), url)
            self._owners.pop(owner, None)

    def stream(
        self, path: str, *, owner: str = "", query: Mapping[str, str | int | None] | None = None
    ) -> Iterator[bytes]:
        """The bytes of a long answer, as they arrive. One attempt.

        Raises Broken if another attempt makes sense, otherwise PipelineError.
        """
        base = self._asked_first(owner)
        try:
            with self._passing_over(base):
                answer, url = self._send("GET", path, owner, query, None)
                if answer.status != 200:
                    _judged(answer.status, _text(answer, url), url)
                    raise Damaged(f"{_host(url)} answers HTTP {answer.status}")
        except Broken:
            self._owners.pop(owner, None)
            raise
        is_over = False
        try:
            yield from answer.stream(STREAM_READ_BYTES, decode_content=False)
            is_over = True
        except (HTTPError, OSError) as error:
            raise Broken(connection_errors.sentence(error, url)) from error
        finally:
            if is_over:
                answer.release_conn()
            else:  # a reader that stopped early leaves a connection that cannot be reused
                self._owners.pop(owner, None)
                self._pass_over(base)
                answer.close()

    def _send(
        self,
        method: str,
        path: str,
        owner: str,
        query: Mapping[str, str | int | None] | None,
        body: Mapping[str, object] | bytes | None,
        within: float | None = None,
        more_headers: Mapping[str, str] | None = None,
    ) -> tuple[BaseHTTPResponse, str]:
        """The head of an answer, and the address after redirects. Raises Broken, Invalid."""
        limits = self._access.limits
        seconds = limits.read_seconds if within is None else min(within, limits.read_seconds)
        connect_seconds = min(seconds, limits.connect_seconds)
        timeout = urllib3.Timeout(connect=connect_seconds, read=seconds)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        base = self._asked_first(owner)
        url = base + target
        headers = {**self._access.headers(), **(more_headers or {})}
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
                    timeout=timeout,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            except (HTTPError, OSError) as error:
                lasting = connection_errors.lasting(error, url)
                if lasting is not None:
                    raise Invalid(lasting) from error
                raise Broken(connection_errors.sentence(error, url)) from error
            if answer.status not in _REDIRECT:
                self._remember(owner, url)
                return answer, url
            answer.drain_conn()
            answer.release_conn()
            url = urljoin(url, answer.headers.get("Location", ""))
            if urlsplit(url).scheme not in {"http", "https"}:
                raise Broken(f"{_host(base)} redirects to an address that is not http")
        raise Broken(f"{_host(base)} redirects to another broker, which redirects again")

    def _asked_first(self, owner: str) -> str:
        """The first address to ask, before redirects."""
        return self._owners.get(owner, self._addresses[0])

    @contextlib.contextmanager
    def _passing_over(self, base: str) -> Iterator[None]:
        """If the block raises Broken, other than because a broker is busy, the next attempt uses another address."""
        try:
            yield
        except Broken as error:
            if not error.is_busy:
                self._pass_over(base)
            raise

    def _pass_over(self, base: str) -> None:
        if base == self._addresses[0]:
            self._addresses.append(self._addresses.pop(0))

    def _remember(self, owner: str, url: str) -> None:
        if owner:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            self._owners[owner] = _origin(url)


class Broken(Exception):
    """A failed attempt that may be repeated; the message says why.

    ``is_busy``: the broker is at its limit of concurrent requests, and will serve this one later.
    """

    def __init__(self, why: str, *, is_busy: bool = False) -> None:
        super().__init__(why)
        self.is_busy = is_busy


class Patience:
    """Limits the attempts and the total time of retries; ``renew`` it after each progress."""

    def __init__(
        self,
        seconds: float,
        *,
        busy_seconds: float | None = None,
        limits: AccessLimits = AccessLimits(),
    ) -> None:
        self._seconds = seconds
        longest = max(seconds, limits.busy_seconds)
        self._busy_seconds = longest if busy_seconds is None else busy_seconds
        self._limits = limits
        self.renew()

    def renew(self) -> None:
        """Restart the time limit and the pauses."""
        self._began_at = time.monotonic()
        self._pause = self._limits.pause_seconds

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Run one attempt. Broken ends in a pause, or in Away after the time limit."""
        try:
            yield
        except Broken as error:
            seconds = self._busy_seconds if error.is_busy else self._seconds
            if time.monotonic() + self._pause > self._began_at + seconds:
                raise Away(f"no broker served this within {seconds:g} s: {error}") from error
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, self._limits.pause_seconds_max)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _check_readable(file: str) -> None:
    """Raise Invalid if a named file cannot be read."""
    try:
        if file:
            Path(file).read_bytes()
    except OSError as error:
        raise Invalid(f"the TLS file {file} cannot be read: {error.strerror}") from None


def _text(answer: BaseHTTPResponse, url: str) -> bytes:
    """The body of a short answer. Raises Broken."""
    try:
        return answer.read(ANSWER_BYTES_MAX)
    except (HTTPError, OSError) as error:
        raise Broken(connection_errors.sentence(error, url)) from error
    finally:
        answer.release_conn()


def _judged(status: int, text: bytes, url: str) -> dict[str, Any]:
    """An answer as an object, or its error. Raises Broken if the request may be repeated."""
    answer: object = None
    with contextlib.suppress(ValueError):
        answer = json.loads(text) if text else {}
    if status < 300 and isinstance(answer, dict):
        return answer
    if not isinstance(answer, dict) or "reason" not in answer:
        if status in _AGAIN:
            raise Broken(f"{_host(url)} answers HTTP {status}")
        raise Damaged(f"{_host(url)} is not a onewriter broker: it answers HTTP {status}")
    raise failure(status, str(answer["reason"]), answer)


def failure(status: int, reason: str, details: Mapping[str, object]) -> PipelineError | Broken:
    """The error for the status of an answer; Broken if the request may be repeated."""
    match status:
        case 401:
            return NotAllowed(f"the brokers refuse the token (401): {reason}")
        case 403:
            return NotAllowed(f"the token does not allow this (403): {reason}")
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


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise Damaged if the block fails because an answer lacks a field or has an unexpected value."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, Invalid) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise Damaged(
            f"unexpected answer of a broker, perhaps of another version: {what}"
        ) from error


def _position(details: Mapping[str, object], name: str) -> Position | None:
    text = details.get(name)
    return position_of(text) if isinstance(text, str) else None
