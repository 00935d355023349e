"""The connections of one HTTP server: bounded in number and in the time that a request may take to arrive.

A connection is *arriving* until the headers of its next request are complete, *busy* while the server handles a
request, and *idle* between requests. If the table is full, a new connection replaces the one that has been arriving
longest, else the one that has been idle longest. So incomplete requests never block other clients: an honest request
is complete within milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestHandler

from onewriter_http.addresses import address_of
from onewriter_http.limits import Limits
from onewriter_http.logs import RequestLog

SWEEP_SECONDS: Final = 0.5
"""The interval at which deadlines are checked."""

MALFORMED: Final = '{"reason": "malformed HTTP request"}'


class BodyLate(web.HTTPRequestTimeout):
    """The body of a request did not arrive within its time."""


class Table:
    """All connections of one server."""

    def __init__(self, limits: Limits, log: RequestLog) -> None:
        self.limits = limits
        self.log = log
        self._arriving: dict[Connection, float] = {}
        """The time since which each connection arrives, longest first."""
        self._idle: dict[Connection, None] = {}
        """Idle connections, longest first."""
        self._addresses: dict[str, int] = {}
        self._open: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, address: str, now: float) -> bool:
        """Accept a new connection, possibly instead of another one; False: it must be closed."""
        if self._addresses.get(address, 0) >= self.limits.connections_per_address_max:
            if not self._evict(address):
                return False
        elif len(self._open) >= self.limits.connections_max and not self._evict():
            return False
        self._open[connection] = address
        self._addresses[address] = self._addresses.get(address, 0) + 1
        self._arriving[connection] = now
        return True

    def remove(self, connection: Connection) -> None:
        """The connection has ended."""
        address = self._open.pop(connection, None)
        if address is None:
            return
        left = self._addresses[address] - 1
        if left:
            self._addresses[address] = left
        else:
            del self._addresses[address]
        self._arriving.pop(connection, None)
        self._idle.pop(connection, None)

    def arriving(self, connection: Connection, now: float) -> None:
        """A part of its next request has arrived."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._arriving.setdefault(connection, now)

    def busy(self, connection: Connection) -> None:
        """A request's headers are complete."""
        self._arriving.pop(connection, None)
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Its last request is answered."""
        if connection in self._open:
            self._arriving.pop(connection, None)
            self._idle[connection] = None

    def sweep(self, now: float) -> None:
        """Close connections whose headers are late."""
        late = []
        for connection, since in self._arriving.items():
            if now - since < self.limits.header_seconds:
                break
            late.append(connection)
        self._close(late)

    def _evict(self, address: str | None = None) -> bool:
        """Close the connection that has been arriving or idle longest, of one address if it is given."""
        for candidates in (self._arriving, self._idle):
            for connection in candidates:
                if address is None or self._open[connection] == address:
                    self._close([connection])
                    return True
        return False

    def _close(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            self.remove(connection)
            connection.abort()


class Connection(RequestHandler):
    """One connection in the table of its server. Logs no byte that a client sent."""

    def __init__(self, manager: web.Server, table: Table) -> None:
        limits = table.limits
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_seconds,
            lingering_time=limits.linger_seconds,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # as web.AppRunner passes it on
        )
        self._table = table

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = address_of(transport.get_extra_info("peername"))
        if self._table.admit(self, address, self._loop.time()):
            super().connection_made(transport)
        else:
            transport.abort()  # type: ignore[attr-defined]  # every transport of a stream has it

    def connection_lost(self, exc: BaseException | None) -> None:
        self._table.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            return  # rejected or aborted
        super().data_received(data)
        if self._messages or self._request_in_progress:
            self._table.busy(self)
        elif data:
            self._table.arriving(self, self._loop.time())

    def abort(self) -> None:
        """Close at once, and discard unsent data."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            async with asyncio.timeout(self._table.limits.answer_seconds):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self.abort()
            return resp, True
        finally:
            if not self._messages:
                self._table.idle(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer input that is not HTTP, and unexpected exceptions of a handler."""
        del message  # the text quotes the request
        if status >= 500:
            self._table.log.write(logging.ERROR, "http.failed", exc, status=str(status))
        else:
            self._table.log.write(logging.INFO, "http.malformed", status=str(status))
        if request.writer.output_size > 0:
            raise ConnectionError("a response is already being sent")
        text = MALFORMED if status < 500 else '{"reason": "internal error"}'
        answer = _Unnamed(status=status, text=text, content_type="application/json")
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """An exception that ended the connection."""
        del args
        error = kw.get("exc_info")
        if isinstance(error, BodyLate):
            return  # the request was answered; the connection is closed because its body is unread
        self._table.log.write(
            logging.WARNING,
            "http.connection_failed",
            error if isinstance(error, BaseException) else None,
        )


class _Unnamed(web.Response):
    """A response without the library's name and version."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall(hdrs.SERVER, None)


async def hide_server(_request: web.Request, response: web.StreamResponse) -> None:
    """For the signal on_response_prepare: remove the library's name and version."""
    response.headers.popall(hdrs.SERVER, None)
