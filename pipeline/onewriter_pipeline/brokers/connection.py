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
from onewriter_pipeline.brokers import troubles
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

STREAM_READ_BYTES: Final = 1024 * 1024
"""What one read of a stream takes at most."""

BUSY: Final = 429
_AGAIN: Final = frozenset({BUSY, 502, 503, 504})
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
                raise Invalid(f"{each!r} is not an http:// or https:// address of a broker")
        if not found:
            raise Invalid("no address of a broker is given")
        return found

    def headers(self) -> dict[str, str]:
        """What proves who asks; raises Invalid, which shows no token, for one that cannot be read or sent."""
        token = self.token.strip()
        if self.token_file:
            try:
                token = Path(self.token_file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise Invalid(f"the token file {self.token_file} cannot be read: {error}") from None
        if not (token.isascii() and token.isprintable()):
            where = f"the token of the file {self.token_file}" if self.token_file else "the token"
            raise Invalid(f"{where} has a line break, or another character that no token has")
        return {"Authorization": f"Bearer {token}"} if token else {}


class Connection:
    """Connections to brokers, kept open between requests. Not for several threads at once."""

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
        """A broker's answer, an object. ``owner``: requests with the same one go to the same broker.

        Repeated until it is decided: the request must be one that may be. ``within``: seconds after which
        nothing is waited for any more, however busy brokers are; else the access says it. Raises
        PipelineError.
        """
        patience = Patience(self._access.patience_seconds)
        if within is not None:
            patience = Patience(min(within, self._access.patience_seconds), busy_seconds=within)
        while True:
            with patience.trying(), self._passing_over(self._asked_first(owner)):
                answer, url = self._send(method, path, owner, query, body, within, headers)
                return _judged(answer.status, _text(answer, url), url)
            self._owners.pop(owner, None)

    def stream(
        self, path: str, *, owner: str = "", query: Mapping[str, str | int | None] | None = None
    ) -> Iterator[bytes]:
        """The bytes of a long answer, as they arrive. One attempt.

        Raises Broken when it may be tried again, else PipelineError.
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
            raise Broken(troubles.told(error, url)) from error
        finally:
            if is_over:
                answer.release_conn()
            else:  # whoever reads no further leaves a connection that cannot be used again
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
        """An answer's head, and from where redirects have led to. Raises Broken, Invalid."""
        seconds = READ_SECONDS if within is None else min(within, READ_SECONDS)
        timeout = urllib3.Timeout(connect=min(seconds, CONNECT_SECONDS), read=seconds)
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
                lasting = troubles.lasting(error, url)
                if lasting is not None:
                    raise Invalid(lasting) from error
                raise Broken(troubles.told(error, url)) from error
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
        """Who is asked next, before redirects."""
        return self._owners.get(owner, self._addresses[0])

    @contextlib.contextmanager
    def _passing_over(self, base: str) -> Iterator[None]:
        """What is Broken in the block, other than by being busy, has the next attempt ask another address."""
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
    """An attempt that failed and may be repeated; the message says why.

    ``is_busy``: the broker serves as many others as it can, and will serve this one in its turn.
    """

    def __init__(self, why: str, *, is_busy: bool = False) -> None:
        super().__init__(why)
        self.is_busy = is_busy


class Patience:
    """How often and for how long something is tried again; ``renew`` it with each progress."""

    def __init__(self, seconds: float, *, busy_seconds: float | None = None) -> None:
        self._seconds = seconds
        self._busy_seconds = max(seconds, BUSY_SECONDS) if busy_seconds is None else busy_seconds
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
        except Broken as error:
            seconds = self._busy_seconds if error.is_busy else self._seconds
            if time.monotonic() + self._pause > self._began_at + seconds:
                raise Away(f"no broker served this within {seconds:g} s: {error}") from error
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _check_readable(file: str) -> None:
    """Raise Invalid for a file that is named and cannot be read."""
    try:
        if file:
            Path(file).read_bytes()
    except OSError as error:
        raise Invalid(f"the TLS file {file} cannot be read: {error.strerror}") from None


def _text(answer: BaseHTTPResponse, url: str) -> bytes:
    """All of a short answer. Raises Broken."""
    try:
        return answer.read(ANSWER_BYTES_MAX)
    except (HTTPError, OSError) as error:
        raise Broken(troubles.told(error, url)) from error
    finally:
        answer.release_conn()


def _judged(status: int, text: bytes, url: str) -> dict[str, Any]:
    """An answer, as an object or as an error. Raises Broken where it may be asked again."""
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
    """The error that an answer's status means; Broken where it may be asked again."""
    match status:
        case 401:
            return NotAllowed(f"the brokers want another token (401): {reason}")
        case 403:
            return NotAllowed(f"the token is not enough for this (403): {reason}")
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
    """What an answer lacks, or has otherwise than brokers write it, is Damaged: for the block that takes it apart."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, Invalid) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise Damaged(
            f"a broker of another version? It answers without what was expected: {what}"
        ) from error


def _position(details: Mapping[str, object], name: str) -> Position | None:
    text = details.get(name)
    return position_of(text) if isinstance(text, str) else None
