"""The HTTP servers of one broker: their ports, their checks, and the routing of requests.

Each request is checked in this order: the limits of ``onewriter_http`` (connections, slow requests,
compressed bodies), requests from pages of other sites, identity and rights, a place among the concurrent
requests of all identities, time. An error in a handler becomes status 500 and a log line, and affects no
other request.

Probes and metrics can have a separate port with separate limits. Load on the main port then does not affect
the kubelet or Prometheus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from onewriter_broker.auth.authentication import PEER
from onewriter_broker.desired import BODY_BYTES_MAX as DESIRED_BYTES_MAX
from onewriter_broker.http import health
from onewriter_broker.http.onewriter import (
    acknowledged,
    blocks,
    brokers,
    bulk,
    desired,
    ownerships,
    staging,
    watch,
)
from onewriter_broker.http.onewriter import topics as onewriter_topics
from onewriter_broker.http.pulsar import (
    cluster,
    compaction,
    lookup,
    messages,
    namespaces,
    policies,
    schemas,
    subscriptions,
)
from onewriter_broker.http.pulsar import topics as pulsar_topics
from onewriter_broker.http.routes import Open, Routes, Rule, check
from onewriter_broker.http.shares import Capacity, Shares
from onewriter_broker.http.site import (
    BODY_BYTES_MAX,
    EXPIRES,
    IDENTITY,
    Answerable,
    Site,
    failure,
    status_of,
)
from onewriter_broker.http.watchers import WATCHERS_MAX
from onewriter_broker.quotas.book import subject_of
from onewriter_core.authorization import Role
from onewriter_core.errors import Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import Identity
from onewriter_http.addresses import network_of
from onewriter_http.browsers import Browsers, is_loopback
from onewriter_http.limits import PROBE_LIMITS, Limits
from onewriter_http.scrape_token import ScrapeToken
from onewriter_http.server import Server

LIMITS: Final = Limits(body_bytes_max=DESIRED_BYTES_MAX)
"""Limits of the main port. Most bodies are smaller: see BODY_BYTES_MAX."""

REQUESTS: Final = Capacity(places=256, each=32, kept=16, waiting=256)
"""Concurrent requests, without streams."""

WATCHES: Final = Capacity(places=WATCHERS_MAX, each=2, kept=4, waiting=16)

BLOCK_STREAMS: Final = Capacity(places=blocks.STREAMS_MAX, each=4, kept=2, waiting=64)

REQUEST_SECONDS: Final = 30.0
"""A request that takes longer is answered with 504. Its effect is then unknown."""

SCRAPER: Final = "metrics token"
"""The subject of a caller with the token of ``metrics_token_file``."""

_BEARER: Final = "bearer "
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves a Site on the ports of the settings. Call ``start`` and ``stop`` once each."""

    def __init__(self, site: Site, *, limits: Limits = LIMITS) -> None:
        settings = site.clients.settings
        self._site = site
        self._requests = Shares(REQUESTS, "requests")
        self._streams = {
            watch.PATH: Shares(WATCHES, "watches"),
            blocks.PATH: Shares(BLOCK_STREAMS, "streams of blocks"),
        }
        self._browsers = Browsers(
            {settings.host, settings.advertised_host}, checks_host=is_loopback(settings.host)
        )
        self._scrape_token = ScrapeToken(settings.metrics_token_file)
        self._metrics = health.MetricsPage(site)
        main, probes = self._application(), self._probe_application()
        self._main = Server(main, limits, self.routes, name=__name__, failure=failure)
        self._probes = Server(
            probes, PROBE_LIMITS, self.probe_routes, name=__name__, failure=failure
        )

    def _application(self) -> web.Application:
        application = web.Application(
            client_max_size=BODY_BYTES_MAX, middlewares=[_middleware(self._guarded)]
        )
        self.routes = Routes(application.router)
        health.add_routes(self.routes, self._site, self._metrics)
        for module in (
            cluster,
            compaction,
            namespaces,
            policies,
            schemas,
            pulsar_topics,
            messages,
            subscriptions,
            lookup,
            onewriter_topics,
            brokers,
            ownerships,
            staging,
            acknowledged,
            desired,
            watch,
            bulk,
            blocks,
        ):
            module.add_routes(self.routes, self._site)
        return application

    def _probe_application(self) -> web.Application:
        application = web.Application(
            client_max_size=1, middlewares=[_middleware(self._guarded_probe)]
        )
        self.probe_routes = Routes(application.router)
        health.add_routes(self.probe_routes, self._site, self._metrics)
        return application

    async def start(self) -> None:
        """Listen. Raises OSError if a port is in use."""
        settings, certificate = self._site.clients.settings, self._site.certificate
        if settings.probe_port:
            await self._probes.listen(settings.host, settings.probe_port)
        await self._main.listen(settings.plain_host, settings.http_port)
        if certificate is not None:
            options = certificate.server_options()
            await self._main.listen(settings.host, settings.https_port, **options)

    async def stop(self) -> None:
        """Accept no more requests, let those in progress end, and close."""
        self._main.close()
        self._site.watchers.end()
        await self._main.stop()
        await self._probes.stop()

    # ------------------------------------------------------------ guards

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        rule = self.routes.rule_of(request)
        if isinstance(rule, Open):
            return await self._answer(request, handler)
        refusal = self._browsers.refusal(request.headers)
        if refusal is not None:
            return failure(403, refusal)
        resource = request.match_info.route.resource
        stream = None if resource is None else self._streams.get(resource.canonical)

        async def admitted(request: web.Request) -> web.StreamResponse:
            identity = await self._admit(request, rule)
            key = subject_of(identity, f"{request.remote}:0")
            principal = self._site.clients.authorization.principal(identity)
            # A pipeline reads many logs concurrently, from all executors under one identity.
            is_privileged = principal.is_administrator or (
                stream is not None and principal.has(Role.PIPELINE)
            )
            shares = stream or self._requests
            async with shares.place(key, is_privileged=is_privileged):
                return await handler(request)

        return await self._answer(request, admitted, None if stream else REQUEST_SECONDS)

    async def _guarded_probe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        async def admitted(request: web.Request) -> web.StreamResponse:
            rule = self.probe_routes.rule_of(request)
            if not isinstance(rule, Open):
                await self._admit(request, rule)
            return await handler(request)

        return await self._answer(request, admitted)

    async def _answer(
        self, request: web.Request, handler: Handler, seconds: float | None = REQUEST_SECONDS
    ) -> web.StreamResponse:
        """The handler's response, or the response for its exception."""
        try:
            async with asyncio.timeout(seconds):
                return await handler(request)
        except Undecided as error:
            # After a timeout, a read has no effect; the effect of a change is unknown.
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
            raise  # the client is gone, or the broker stops
        except Exception as error:  # noqa: BLE001 - logged, without its text
            route = request.match_info.route.resource
            path = "" if route is None else route.canonical
            self._main.log.defect("http.defect", error, method=request.method, path=path)
            return failure(500, "internal error; the broker's log has the details")

    async def _admit(self, request: web.Request, rule: Rule | None) -> Identity:
        """Prove the caller's identity and check its rights; raises Refused, InvalidTopicName, Unavailable.

        ``rule`` None: no route matches, and the answer is 404 or 405.
        """
        if request.path == health.METRICS and self._scrape_token.opens(request):
            return Identity(SCRAPER)
        scheme_and_token = request.headers.get("Authorization", "")
        if scheme_and_token[: len(_BEARER)].lower() == _BEARER:
            method, data = "token", scheme_and_token[len(_BEARER) :].strip()
        elif scheme_and_token:
            raise Refused(ServerError.AUTHENTICATION_ERROR, "only Bearer tokens are known here")
        else:
            method, data = "none", ""
        PEER.set(network_of(request.remote or ""))
        authenticator = self._site.clients.authenticator
        proof = await authenticator.authenticate(method, data.encode("utf-8", "replace"))
        if proof.may_only_resume:
            raise Unavailable("the identity cannot be verified now; retry later")
        request[IDENTITY], request[EXPIRES] = proof.identity, proof.expires_at
        if rule is not None:
            check(rule, request, proof.identity, self._site.clients.authorization)
        return proof.identity


def _middleware(guard: Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]) -> Any:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await guard(request, handler)

    return guarded


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
