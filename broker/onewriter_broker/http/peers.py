"""Requests that this broker sends to another broker on behalf of a caller, with the caller's credentials.

If the installation serves TLS, requests are sent over HTTPS only: the other broker's certificate must be
signed by an authority of ``tls_ca_file`` and name the host that the broker advertises. If the connection
cannot be verified, neither the request nor the credentials are sent.
"""

from __future__ import annotations

import json
from typing import Final

import aiohttp

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.settings import Settings
from onewriter_broker.tls import Authorities, over_tls
from onewriter_core.errors import OnewriterError, Unavailable

FORWARD_SECONDS: Final = 20.0
"""Time limit of one request to another broker."""

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Bytes that are read of another broker's response, which contains the reason of a refusal."""

REASON_LENGTH_MAX: Final = 200

READINESS: Final = "/readyz"
"""The path at which a broker says whether it is ready (http/health.py)."""

READINESS_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are read of another broker's readiness, which gives the reason for each of its waiting buckets."""


class PeerRefused(OnewriterError):
    """Another broker refused the request with this status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Peers:
    """The other brokers of this installation, over HTTP."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._authorities = Authorities(settings.tls_ca_file)

    def url_of(self, owner: Addresses) -> str:
        """The URL at which another broker accepts requests of brokers: HTTPS if TLS is served."""
        if self._settings.tls_cert_file is None:
            return owner.http_url
        return over_tls(owner, self._settings).http_url

    async def ask(self, owner: Addresses, method: str, path: str, credentials: str) -> None:
        """Send one request, with the caller's ``Authorization`` unless it is empty.

        Raises PeerRefused, Unavailable.
        """
        url = self.url_of(owner)
        headers = {"Authorization": credentials} if credentials else {}
        try:
            async with (
                await self._session(url) as session,
                session.request(
                    method, url + path, headers=headers, allow_redirects=False
                ) as answer,
            ):
                if answer.status < 300:
                    return
                if answer.status < 400:
                    raise Unavailable(f"the topic has left the broker at {url}; retry")
                raise PeerRefused(answer.status, _reason(await _text(answer)))
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or f"no answer within {FORWARD_SECONDS:g} s"
            raise Unavailable(f"the broker at {url} did not answer: {reason}") from error

    async def reaches_store(self, other: Addresses) -> bool | None:
        """Whether another broker reaches the store, ready or not. None if it does not answer, or does not report
        it, like brokers of an earlier version.
        """
        url = self.url_of(other)
        try:
            async with (
                await self._session(url) as session,
                session.get(url + READINESS, allow_redirects=False) as answer,
            ):
                text = await _text(answer, READINESS_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OnewriterError):
            return None
        try:
            found = json.loads(text)["store"]["reachable"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(found, bool) else None

    async def _session(self, url: str) -> aiohttp.ClientSession:
        """A session for one request. Raises Unavailable if the authorities cannot be read."""
        is_secure = url.startswith("https:")
        context = await self._authorities.context() if is_secure else True
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=FORWARD_SECONDS),
            connector=aiohttp.TCPConnector(ssl=context),
        )


async def _text(answer: aiohttp.ClientResponse, bytes_max: int = ANSWER_BYTES_MAX) -> str:
    """The beginning of a response's body."""
    found = bytearray()
    async for piece in answer.content.iter_any():
        found += piece[: bytes_max - len(found)]
        if len(found) == bytes_max:
            break
    return found.decode("utf-8", "replace")


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["reason"])[:REASON_LENGTH_MAX]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text[:REASON_LENGTH_MAX]
