"""HTTP requests of commands to a broker: with a time-out, with redirects, errors as exceptions.

The calls block: a command sends a request, prints the answer and ends.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urljoin, urlsplit

from onewriter_core.errors import ConfigurationError, Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import InvalidTopicName, TopicName

TIMEOUT_SECONDS: Final = 40.0
"""Slightly longer than a broker takes for any request."""

REDIRECTS_MAX: Final = 5

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Broker:
    """The HTTP interface of one broker. Redirects lead to the other brokers.

    ``route`` maps an address that a broker advertises to the address to connect to. ``ca_file`` contains the
    certificate authorities for HTTPS; None: those of the system.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        route: Callable[[str], str] = lambda url: url,
        *,
        ca_file: Path | None = None,
    ) -> None:
        if urlsplit(url).scheme not in {"http", "https"}:
            raise ConfigurationError(f"--http-url: {url!r} is not an http:// or https:// address")
        self.url = url.rstrip("/")
        self._token = token
        self._route = route
        self._ca_file = ca_file

    def get(self, path: str, **query: str | int | None) -> dict[str, Any]:
        """Send a GET. Raises Refused, Unavailable or Undecided with the broker's message."""
        return self._ask("GET", path + _query(query), None)

    def delete(self, path: str, **query: str | int | None) -> dict[str, Any]:
        """Send a DELETE. Raises the same as ``get``."""
        return self._ask("DELETE", path + _query(query), None)

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a POST. Raises the same as ``get``."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        url = self.url + path
        for _ in range(REDIRECTS_MAX):
            request = urllib.request.Request(url, data=body, method=method)  # noqa: S310 - http(s), checked
            request.add_header("Content-Type", "application/json")
            if self._token:
                request.add_header("Authorization", f"Bearer {self._token}")
            status, location, text = self._open(request, url)
            if status not in {302, 307, 308}:
                return _judged(status, text)
            url = self._route(urljoin(url, location))
            if urlsplit(url).scheme not in {"http", "https"}:
                break
        raise Unavailable(f"the brokers redirected the request from {self.url} too often; retry")

    def _open(self, request: urllib.request.Request, url: str) -> tuple[int, str, str]:
        try:
            with self._opener(url).open(request, timeout=TIMEOUT_SECONDS) as answer:
                return answer.status, "", answer.read(ANSWER_BYTES_MAX).decode()
        except urllib.error.HTTPError as error:
            with error:
                location = error.headers.get("Location", "")
                return error.code, location, error.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise ConfigurationError(
                    f"the certificate of {_origin(url)} is not trusted: {error.reason.verify_message};"
                    " name its authority (--ca-file, ONEWRITER_TLS_CA_FILE)"
                ) from error
            raise Unavailable(
                f"no broker answers at {_origin(url)} ({error.reason}); --http-url names another one"
            ) from error
        except (OSError, ValueError) as error:
            raise Undecided(
                f"the connection to {_origin(url)} ended during the request: {error}"
            ) from error

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        parts = urlsplit(url)
        if parts.hostname in _LOOPBACK:  # no proxy can reach a server on this machine
            handlers.append(urllib.request.ProxyHandler({}))
        if parts.scheme == "https" and self._ca_file is not None:
            try:
                context = ssl.create_default_context(cafile=str(self._ca_file))
            except OSError as error:
                raise ConfigurationError(
                    f"--ca-file: {self._ca_file} cannot be used: {error}"
                ) from error
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)


def _query(given: Mapping[str, str | int | None]) -> str:
    """The query after the path. It omits fields that are None, not empty texts."""
    named = {name: str(value) for name, value in given.items() if value is not None}
    return f"?{urlencode(named)}" if named else ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Do not follow redirects: the caller does, because a redirected request keeps its body."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _judged(status: int, text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text) if text else {}
    except ValueError:
        answer = None
    if status < 300 and isinstance(answer, dict):
        return answer
    if not isinstance(answer, dict) or (status >= 300 and "reason" not in answer):
        raise Unavailable(f"this is not a onewriter broker: it answers HTTP {status}")
    reason = str(answer["reason"])
    match status:
        case 400:
            raise ConfigurationError(reason)
        case 401:
            raise Refused(ServerError.AUTHENTICATION_ERROR, f"{reason} (--token)")
        case 429 | 503:
            raise Unavailable(reason)
        case _ if status >= 500:
            raise Undecided(reason)
        case _:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, reason)


def topic_path(text: str) -> str:
    """The path of a topic. Accepts a short or a full name. Raises ConfigurationError."""
    try:
        name = TopicName.parse(text).base
    except InvalidTopicName as error:
        raise ConfigurationError(str(error)) from error
    parts = (quote(part, safe="") for part in (name.tenant, name.namespace, name.local))
    return "/onewriter/v1/topics/" + "/".join(parts)
