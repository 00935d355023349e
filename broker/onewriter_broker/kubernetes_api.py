"""The Kubernetes API as a broker needs it: single requests with a ServiceAccount's token.

It is written over aiohttp, which the broker loads anyway, instead of the official client. That client adds
0.2 to 0.4 s and 10 to 20 MB to every start of a broker, and a failover waits for the start. A broker asks for
three things (its anchor object, TokenReview, the cluster's public keys). Each is one request with one
response, without watches, patches or discovery.

The token and the CA are files that the kubelet replaces at run time. They are read again periodically, and at
once when the API server rejects the token.
"""

from __future__ import annotations

import json
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from onewriter_core.errors import ConfigurationError, Unavailable

ACCOUNT_DIRECTORY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The token, the API server's CA and the namespace's name in every pod."""

FILES_SECONDS: Final = 10.0
"""Interval between two checks of the files of the token and the CA."""

CONNECTIONS_MAX: Final = 16
"""Connections to the API server; further requests wait for one."""

FILE_BYTES_MAX: Final = 1024 * 1024
"""Size of the files of the token and the CA."""

PAUSE_SECONDS_MAX: Final = 10.0
"""The longest pause that the broker keeps if the API server asks for one (429, 503 with Retry-After)."""

ACCEPTED: Final = "application/json, application/jwk-set+json"
"""Objects, and the one document that has another media type."""

_OVERLOADED: Final = frozenset({429, 503})
_NOT_PERMITTED: Final = frozenset({401, 403})
_UNAUTHORIZED: Final = 401
_SERVER_ERRORS: Final = 500


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Limits of one request to the API server."""

    request_seconds: float = 5.0
    """Duration of a request, including its connection."""
    connect_seconds: float = 2.0
    response_bytes_max: int = 4 * 1024 * 1024
    """A longer response is not read. An object has at most 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The address of the API server, and the files of the client. ``namespace`` is that of the client."""

    url: str
    ca_file: Path
    token_file: Path
    namespace: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the API server, including the client's errors (4xx).

    ``document`` is the object, or a Status; empty if the response was not a JSON object.
    """

    status: int
    document: Mapping[str, Any]

    @property
    def is_done(self) -> bool:
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """The reason in a Status."""
        return str(self.document.get("message") or f"status {self.status}")[:500]


def in_cluster(environment: Mapping[str, str], directory: Path = ACCOUNT_DIRECTORY) -> ApiServer:
    """The API server of the pod in which this process runs. Raises ConfigurationError."""
    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST"),
        environment.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise ConfigurationError(
            "KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod; name the API server"
            " by kubernetes_url, kubernetes_ca_file, kubernetes_token_file and kubernetes_namespace"
        )
    try:
        namespace = (directory / "namespace").read_text().strip()
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename}: {error.strerror}; does the pod mount its ServiceAccount's token?"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    return ApiServer(
        f"https://{shown}:{port}", directory / "ca.crt", directory / "token", namespace
    )


class KubernetesApi:
    """Sends requests to one API server; call ``close`` once at the end.

    ``now`` is a monotonic clock in seconds, ``wall_seconds`` the wall clock of this machine.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        limits: ApiLimits = ApiLimits(),
        now: Callable[[], float] = time.monotonic,
        wall_seconds: Callable[[], float] = lambda: time.time_ns() / 1e9,
    ) -> None:
        self.server = server
        self._wall_seconds = wall_seconds
        self._server_ahead: float | None = None
        """By how much the API server's clock is ahead of ``now``, by its last response."""
        self._limits = limits
        self._now = now
        self._session: aiohttp.ClientSession | None = None
        self._token = ""
        self._ca = ""
        self._reloaded_at = -math.inf
        self._not_before = -math.inf
        self._is_closed = False

    async def get(self, path: str) -> Answer:
        """Read an object in its present state (without resourceVersion: a quorum read). As ``send``."""
        return await self.send("GET", path)

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Send one request; returns the response.

        Raises Unavailable if there is no response, if the server has an error or asks for a pause, and if it
        rejects this ServiceAccount. A change may have happened then.
        """
        if self._is_closed:
            raise Unavailable("the connection to the API server was closed")
        pause = self._not_before - self._now()
        if pause > 0:
            raise Unavailable(f"the API server asked for a pause, {pause:.1f} s more")
        await self._reload_files()
        answer = await self._exchange(method, path, body)
        if answer.status == _UNAUTHORIZED and self._token_changed():
            answer = await self._exchange(method, path, body)
        if answer.status in _NOT_PERMITTED:
            raise Unavailable(f"the API server refuses {method} {path}: {answer.reason}")
        return answer

    def unix_seconds(self) -> float:
        """The time of the API server's clock, to the second; of this machine's before the first response.

        The API server issues tokens, so they expire by its clock. A change of the machine's wall clock has no effect.
        """
        if self._server_ahead is None:
            return self._wall_seconds()
        return self._now() + self._server_ahead

    async def close(self) -> None:
        """Close the connections; later requests raise Unavailable."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        session = self._connected()
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": ACCEPTED}
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with session.request(
                method, self.server.url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                retry_after = response.headers.get("Retry-After", "")
                self._compare_clocks(response.headers.get("Date", ""))
                answer = Answer(response.status, _document(await self._content(response)))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the API server does not answer: {reason}") from error
        if answer.status in _OVERLOADED and retry_after.isdecimal():
            self._not_before = self._now() + min(float(retry_after), PAUSE_SECONDS_MAX)
        if answer.status in _OVERLOADED or answer.status >= _SERVER_ERRORS:
            raise Unavailable(f"Kubernetes API server error {answer.status}: {answer.reason}")
        return answer

    def _compare_clocks(self, date: str) -> None:
        """Take in the time of a response. A server that states none that can be read changes nothing."""
        try:
            stated = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._server_ahead = stated - self._now()

    def _connected(self) -> aiohttp.ClientSession:
        """The session, for the CA that was last read."""
        if self._session is None:
            try:
                context = ssl.create_default_context(cadata=self._ca)
            except (ssl.SSLError, ValueError) as error:
                raise Unavailable(f"{self.server.ca_file}: no CA certificate: {error}") from error
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=context),
                timeout=aiohttp.ClientTimeout(
                    total=self._limits.request_seconds, connect=self._limits.connect_seconds
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _reload_files(self) -> None:
        """Read the token and the CA, unless they were just read. They are small files in memory.

        A new CA replaces all connections; requests under way fail with the old ones.
        """
        if self._now() - self._reloaded_at < FILES_SECONDS:
            return
        token, ca = _read(self.server.token_file), _read(self.server.ca_file)
        self._token, self._reloaded_at = token, self._now()
        if ca != self._ca:
            self._ca = ca
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        """The body; empty when it is too long."""
        content = bytearray()
        async for chunk in response.content.iter_chunked(64 * 1024):
            content += chunk
            if len(content) > self._limits.response_bytes_max:
                return b""
        return bytes(content)

    def _token_changed(self) -> bool:
        """Whether the file contains another token now."""
        before = self._token
        self._token = _read(self.server.token_file)
        return self._token != before


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX)
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror or error}") from error
    return content.decode("ascii", "replace").strip()


def _document(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
