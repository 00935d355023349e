"""The HTTP server of one broker: its socket, its guards, and where each path goes.

Guards, in this order, for every request: too many at once, a page of another origin, who asks and
whether they may (routes.py), time. A defect in a handler is a 500 and a line in the log; it
takes nothing else down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.web_urldispatcher import SystemRoute

from onewriter_broker.http import (
    acknowledged,
    blocks,
    bulk,
    desired_api,
    health,
    onewriter_api,
    ownerships,
    pulsar_cluster,
    pulsar_compaction,
    pulsar_lookup,
    pulsar_messages,
    pulsar_namespaces,
    pulsar_policies,
    pulsar_schemas,
    pulsar_subscriptions,
    pulsar_topics,
    staging,
    watch,
)
from onewriter_broker.http.routes import Open, Routes, check
from onewriter_broker.http.site import (
    BODY_BYTES_MAX,
    EXPIRES,
    IDENTITY,
    Answerable,
    Refusal,
    Site,
    failure,
    status_of,
)
from onewriter_core.errors import Refused, ServerError, Unavailable, Undecided

CONNECTIONS_MAX: Final = 2_000
"""HTTP connections at once; more are closed as they come."""

REQUESTS_MAX: Final = 256
"""Requests worked on at once; more are answered 429."""

REQUEST_SECONDS: Final = 30.0
"""A request that takes longer is answered 504: what it asked for may or may not happen."""

KEEP_ALIVE_SECONDS: Final = 60.0

STOP_SECONDS: Final = 2.0
"""How long a stopping server waits for the requests under way."""

STREAMS: Final = frozenset({watch.PATH, blocks.PATH})
"""Answers that may take long; they are bounded in number, and see to slow readers themselves."""

_BEARER: Final = "bearer "
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves a Site on the settings' HTTP port; use ``start`` and ``stop`` once each."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._under_way = 0
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            shutdown_timeout=STOP_SECONDS,
        )
        self._sockets: list[asyncio.Server] = []

    def _application(self) -> web.Application:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[guarded])
        self._routes = Routes(application.router)
        for module in (
            health,
            pulsar_cluster,
            pulsar_compaction,
            pulsar_namespaces,
            pulsar_policies,
            pulsar_schemas,
            pulsar_topics,
            pulsar_messages,
            pulsar_subscriptions,
            pulsar_lookup,
            onewriter_api,
            ownerships,
            staging,
            acknowledged,
            desired_api,
            watch,
            bulk,
            blocks,
        ):
            module.add_routes(self._routes, self._site)
        self._routes.require_complete()
        return application

    async def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None  # noqa: S101 - set up above

        def connected() -> asyncio.BaseProtocol:
            if len(server.connections) >= CONNECTIONS_MAX:
                return _Refusing()
            return server()

        settings, certificate = self._site.clients.settings, self._site.certificate
        loop = asyncio.get_running_loop()
        self._sockets.append(
            await loop.create_server(connected, settings.host, settings.http_port, backlog=1024)
        )
        if certificate is not None:
            options = certificate.server_options()
            self._sockets.append(
                await loop.create_server(
                    connected, settings.host, settings.https_port, backlog=1024, **options
                )
            )

    async def stop(self) -> None:
        """Take no more requests, let those under way end, close."""
        for socket in self._sockets:
            socket.close()
        self._site.watchers.end()
        await self._runner.cleanup()

    # ------------------------------------------------------------ guards

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._under_way >= REQUESTS_MAX:
            return failure(429, f"{REQUESTS_MAX} requests are being worked on")
        self._under_way += 1
        try:
            await self._admit(request)
            async with asyncio.timeout(None if _is_stream(request) else REQUEST_SECONDS):
                return await handler(request)
        except Undecided as error:
            # What was read was not read; what was changed may or may not be.
            return failure(503 if request.method in _READING else 504, str(error))
        except Answerable as error:
            return failure(status_of(error), str(error))
        except TimeoutError:
            return failure(504, f"not decided within {REQUEST_SECONDS:g} s: it may or may not be")
        except web.HTTPRedirection:
            raise
        except web.HTTPException as error:
            return failure(error.status, _reason(error))
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client has gone, or the broker stops
        except Exception:
            log.exception("http.defect", method=request.method, path=request.path)
            return failure(500, "internal error; the broker's log has the details")
        finally:
            self._under_way -= 1

    async def _admit(self, request: web.Request) -> None:
        """Prove who asks, and that they may; raises Refused, Refusal, InvalidTopicName, Unavailable."""
        changes = request.method not in _READING
        origin = request.headers.get("Origin")
        if changes and origin is not None and urlsplit(origin).netloc != request.host:
            raise Refusal(403, "a page of another origin may not change anything here")
        route = request.match_info.route
        rule = self._routes.rule_of(route)
        if isinstance(rule, Open):
            return
        scheme_and_token = request.headers.get("Authorization", "")
        if scheme_and_token[: len(_BEARER)].lower() == _BEARER:
            method, data = "token", scheme_and_token[len(_BEARER) :].strip()
        elif scheme_and_token:
            raise Refused(ServerError.AUTHENTICATION_ERROR, "only Bearer tokens are known here")
        else:
            method, data = "none", ""
        authenticator = self._site.clients.authenticator
        proof = await authenticator.authenticate(method, data.encode("utf-8", "replace"))
        if proof.may_only_resume:
            raise Unavailable("the identity cannot be confirmed now: come again")
        request[IDENTITY], request[EXPIRES] = proof.identity, proof.expires_at
        if rule is not None:
            check(rule, request, proof.identity, self._site.clients.authorization)
        elif not isinstance(route, SystemRoute):  # of those the handler is the 404 or 405
            raise RuntimeError(f"no right is declared for {request.method} {request.path}")


def _is_stream(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical in STREAMS


class _Refusing(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
        else:  # uvloop's transports are no subclasses of asyncio's
            transport.close()


def _reason(error: web.HTTPException) -> str:
    match error.status:
        case 404:
            return "there is nothing at this path; docs/http.md lists what there is"
        case 405:
            return "this path does not know that method"
        case 413:
            return f"a body has at most {BODY_BYTES_MAX} bytes"
        case _:
            return error.reason
