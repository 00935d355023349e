"""Limits of simultaneous requests with a body, and of the bytes of their bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from onewriter.sidecar.errors import Failure
from onewriter.sidecar.limits import DEFAULT_LIMITS

READ_SECONDS = 30.0
"""Time limit for receiving a body."""


class Admission:
    """The limits of one kind of request."""

    def __init__(
        self,
        requests_max: int,
        body_bytes_max: int,
        bodies_bytes_max: int = DEFAULT_LIMITS.bodies_bytes_max,
    ) -> None:
        self._bodies_bytes_max = bodies_bytes_max
        self._requests_max = requests_max
        self._body_bytes_max = body_bytes_max
        self._requests = 0
        self._bytes = 0

    @contextmanager
    def admit(self, length: int | None) -> Iterator[None]:
        """Admit one request; ``length`` is that of its body, None if unknown. Raises Failure."""
        if length is not None and length > self._body_bytes_max:
            raise too_large(self._body_bytes_max)
        held = self._body_bytes_max if length is None else length
        if self._requests >= self._requests_max:
            raise _busy(f"{self._requests_max} requests are under way")
        if self._bytes + held > self._bodies_bytes_max:
            raise _busy(f"{self._bodies_bytes_max} bytes are under way")
        self._requests += 1
        self._bytes += held
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes -= held

    async def body(self, request: web.Request) -> bytes:
        """Receive the body of an admitted request. Raises Failure."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise too_large(self._body_bytes_max) from error
        except TimeoutError as error:
            raise Failure(
                408, "too-slow", f"the request body did not arrive within {READ_SECONDS:g} s"
            ) from error
        if len(body) > self._body_bytes_max:
            raise too_large(self._body_bytes_max)
        return body


def too_large(bytes_max: int) -> Failure:
    """Return the failure for a message or a value above the limit."""
    return Failure(413, "too-large", f"a message or value has at most {bytes_max} bytes")


def _busy(reason: str) -> Failure:
    return Failure(429, "too-many", reason)
