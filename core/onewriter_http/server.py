"""An aiohttp application that is served within limits. All HTTP servers of the project use it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from aiohttp import hdrs, web

from onewriter_http.connections import (
    SWEEP_SECONDS,
    BodyLate,
    Connection,
    Table,
    hide_server,
)
from onewriter_http.limits import Limits
from onewriter_http.logs import RequestLog
from onewriter_http.routes import Routes

BACKLOG: Final = 1_024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Failed = Callable[[int, str], web.Response]
"""Builds the response for a status and a reason."""


def failed(status: int, reason: str) -> web.Response:
    """The error response of most servers of the project."""
    return web.json_response({"reason": reason}, status=status)


class Server:
    """Serves an application at any number of addresses. Call ``stop`` once.

    ``routes`` contains the rule of each route. Raises RuntimeError for a route without a rule. ``failure`` builds the
    error responses of the server itself. ``is_stream`` selects requests with an endless body: their handler limits
    their time.
    """

    def __init__(
        self,
        application: web.Application,
        limits: Limits,
        routes: Routes[Any],
        *,
        name: str,
        failure: Failed = failed,
        is_stream: Callable[[web.Request], bool] = lambda _: False,
    ) -> None:
        routes.require_complete(application)
        self._limits = limits
        self._failure = failure
        self._is_stream = is_stream
        self.log = RequestLog(name)
        self.table = Table(limits, self.log)

        @web.middleware
        async def limited(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._limited(request, handler)

        application.middlewares.insert(0, limited)
        application.on_response_prepare.append(hide_server)
        self._runner = web.AppRunner(
            application, access_log=None, handle_signals=False, shutdown_timeout=limits.stop_seconds
        )
        self._servers: list[asyncio.AbstractServer] = []
        self._sweeping: asyncio.TimerHandle | None = None

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, **options: Any
    ) -> asyncio.AbstractServer:
        """Listen at an address. Raises OSError if the address is in use."""
        loop = asyncio.get_running_loop()
        if tls is not None:
            options["ssl"] = tls
        if "ssl" in options:
            options.setdefault("ssl_handshake_timeout", self._limits.handshake_seconds)
        factory = await self._factory()
        server = await loop.create_server(factory, host, port, backlog=BACKLOG, **options)
        self._servers.append(server)
        return server

    async def listen_unix(self, path: Path) -> None:
        """Listen at a unix socket. Raises OSError."""
        loop = asyncio.get_running_loop()
        factory = await self._factory()
        self._servers.append(await loop.create_unix_server(factory, str(path), backlog=BACKLOG))

    def close(self) -> None:
        """Stop listening. Connections stay open."""
        for server in self._servers:
            server.close()

    async def stop(self) -> None:
        """Stop listening, wait for requests in progress, close."""
        self.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._runner.cleanup()

    async def _factory(self) -> Callable[[], asyncio.BaseProtocol]:
        if self._runner.server is None:
            await self._runner.setup()
            self._sweep()
        manager = self._runner.server
        assert manager is not None  # noqa: S101 - set up above
        return lambda: Connection(manager, self.table)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.table.sweep(loop.time())
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)

    # ------------------------------------------------------------ requests

    async def _limited(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if any(each.strip().lower() != "identity" for each in _encodings(request)):
            return self._ended(415, "only Content-Encoding identity is accepted")
        with self._body_deadline(request):
            try:
                return await handler(request)
            except BodyLate:
                return self._ended(408, "the body did not arrive in time")

    def _ended(self, status: int, reason: str) -> web.Response:
        """A response after which the connection is closed, its body unread."""
        answer = self._failure(status, reason)
        answer.force_close()
        return answer

    @contextlib.contextmanager
    def _body_deadline(self, request: web.Request) -> Iterator[None]:
        if request.content.is_eof() or self._is_stream(request):
            yield
            return
        seconds = self._limits.seconds_for_body(request.content_length)

        def late() -> None:
            if not request.content.is_eof():
                request.content.set_exception(BodyLate())

        timer = asyncio.get_running_loop().call_later(seconds, late)
        try:
            yield
        finally:
            timer.cancel()


def _encodings(request: web.Request) -> Iterator[str]:
    for value in request.headers.getall(hdrs.CONTENT_ENCODING, []):
        yield from value.split(",")
