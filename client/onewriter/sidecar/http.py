"""The sidecar's HTTP server: the API on loopback and a unix socket, probes and metrics on a separate port."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from onewriter._errors import ConfigurationError
from onewriter.sidecar.candidate import Candidate, ResumeInfo
from onewriter.sidecar.errors import Failure
from onewriter.sidecar.leadership import LeadershipRoutes
from onewriter.sidecar.probes import PROBE_LIMITS
from onewriter.sidecar.publish import (
    SESSION_HEADER,
    PublishRoutes,
    answer_of,
    is_publish_stream,
)
from onewriter.sidecar.release_key import ReleaseKey, is_tcp
from onewriter.sidecar.routes import METRICS, OWN_POD, PROBE, WITH_KEY, AddRoutes, SidecarRoutes
from onewriter.sidecar.streams import EventStreams
from onewriter_http.browsers import Browsers
from onewriter_http.limits import Limits
from onewriter_http.server import Server

SOCKET_MODE = 0o660
"""Permissions of the unix socket: its owner and its group may use it."""

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """The HTTP server; call ``start`` and ``stop`` once each. ``further_routes`` registers further routes of the API."""

    def __init__(
        self,
        candidate: Candidate,
        streams: EventStreams,
        release_key: ReleaseKey,
        further_routes: Sequence[AddRoutes] = (),
    ) -> None:
        self._candidate = candidate
        self._further_routes = further_routes
        self._streams = streams
        self._leading = LeadershipRoutes(candidate, streams)
        self._publishing = PublishRoutes(candidate)
        self._release_key = release_key
        self._servers: list[Server] = []
        self._browsers = Browsers(checks_host=True, allows_same_origin=False)

    async def start(self) -> None:
        """Listen. Raises ConfigurationError if an address is in use."""
        settings = self._candidate.settings
        await asyncio.to_thread(self._release_key.create)
        if settings.release_without_key:
            log.warning("sidecar.release_without_key", until="0.3")
        limits = Limits(body_bytes_max=self._body_bytes_max)
        api = self._server(*self._api(), limits)
        if settings.port:
            await _listen(api.listen(settings.host, settings.port), settings.port)
        if settings.socket is not None:
            path = settings.socket
            await _listen(api.listen_unix(path), path)
            await asyncio.to_thread(path.chmod, SOCKET_MODE)
        if settings.health_port:
            probes = self._server(*self._probes(), PROBE_LIMITS)
            await _listen(
                probes.listen(settings.health_host, settings.health_port), settings.health_port
            )
        log.info(
            "sidecar.listening",
            port=settings.port,
            socket=None if settings.socket is None else str(settings.socket),
            health_port=settings.health_port,
        )

    async def stop(self) -> None:
        """Accept no more requests, end the streams, and close."""
        self._leading.stop()
        self._streams.stop()
        for server in self._servers:
            await server.stop()
        await asyncio.to_thread(self._release_key.remove)
        if self._candidate.settings.socket is not None:
            await asyncio.to_thread(_remove, self._candidate.settings.socket)

    # ------------------------------------------------------------ inside

    def _server(
        self, application: web.Application, routes: SidecarRoutes, limits: Limits
    ) -> Server:
        server = Server(
            application,
            limits,
            routes,
            name=__name__,
            failure=_refused,
            is_stream=is_publish_stream,
        )
        self._servers.append(server)
        return server

    @property
    def _body_bytes_max(self) -> int:
        settings = self._candidate.settings
        return max(settings.message_bytes_max, settings.resume_info_bytes_max)

    def _api(self) -> tuple[web.Application, SidecarRoutes]:
        application = web.Application(
            client_max_size=self._body_bytes_max, middlewares=[self._middleware(self._browsers)]
        )
        routes = SidecarRoutes(application.router)
        routes.add_post("/publish", self._publishing.handle, OWN_POD)
        routes.add_get("/leadership", self._leading.handle, OWN_POD)
        routes.add_get("/resume-info", self._show_resume_info, OWN_POD)
        routes.add_put("/resume-info", self._put_resume_info, OWN_POD)
        routes.add_post("/release", self._release, WITH_KEY)
        routes.add_post("/rejoin", self._rejoin, OWN_POD)
        for add_routes in self._further_routes:
            add_routes(routes)
        self._add_probes(routes)
        return application, routes

    def _probes(self) -> tuple[web.Application, SidecarRoutes]:
        application = web.Application(client_max_size=1, middlewares=[self._middleware(None)])
        routes = SidecarRoutes(application.router)
        self._add_probes(routes)
        return application, routes

    def _middleware(self, browsers: Browsers | None) -> Any:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler, browsers)

        return guarded

    async def _guarded(
        self, request: web.Request, handler: Handler, browsers: Browsers | None
    ) -> web.StreamResponse:
        """Return every error as JSON, and reject pages in browsers, because most of the API has no credentials."""
        try:
            if browsers is not None:
                refusal = browsers.refusal(request.headers, checks_host=is_tcp(request))
                if refusal is not None:
                    raise Failure(403, "browser", refusal)
            return await handler(request)
        except Failure as failure:
            return _failed(failure)
        except web.HTTPException as error:
            return _failed(Failure(error.status, "http", error.reason))
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client has disconnected, or the sidecar stops
        except Exception as error:  # noqa: BLE001 - logged, without its text
            resource = request.match_info.route.resource
            path = "" if resource is None else resource.canonical
            self._servers[0].log.defect("http.defect", error, method=request.method, path=path)
            return _failed(
                Failure(500, "defect", "internal error; the log has the details", stored=None)
            )

    def _add_probes(self, routes: SidecarRoutes) -> None:
        routes.add_get("/healthz", self._health, PROBE)
        routes.add_get("/readyz", self._readiness, PROBE)
        routes.add_get("/metrics", self._metrics, METRICS)

    async def _put_resume_info(self, request: web.Request) -> web.Response:
        limit = self._candidate.settings.resume_info_bytes_max
        if request.content_length is not None and request.content_length > limit:
            raise Failure(413, "too-large", f"resume info has at most {limit} bytes")
        content = await request.read()
        if len(content) > limit:
            raise Failure(413, "too-large", f"resume info has at most {limit} bytes")
        info = ResumeInfo(content, request.content_type)
        try:
            info.as_metadata()
        except (ValueError, RecursionError) as error:
            raise Failure(400, "bad-resume-info", f"the body is not JSON: {error}") from error
        session = request.headers.get(SESSION_HEADER)
        message_id = await self._candidate.put_resume_info(info, session)
        answer: dict[str, Any] = {"published": None}
        if message_id is not None and session is not None:
            answer["published"] = answer_of(message_id, session)
        return web.json_response(answer)

    async def _show_resume_info(self, request: web.Request) -> web.Response:
        del request
        info = self._candidate.resume_info
        if info is None:
            raise Failure(404, "no-resume-info", "no resume info was stored (PUT /resume-info)")
        return web.Response(body=info.content, content_type=info.content_type)

    async def _release(self, request: web.Request) -> web.Response:
        self._release_key.check(request)
        rejoin = request.query.get("rejoin", "true")
        if rejoin not in {"true", "false"}:
            raise Failure(400, "bad-query", "rejoin must be true or false")
        await self._candidate.release(rejoin=rejoin == "true")
        return web.json_response(self._candidate.view(self._candidate.standing))

    async def _rejoin(self, request: web.Request) -> web.Response:
        del request
        self._candidate.candidacy.rejoin()
        return web.json_response(self._candidate.view(self._candidate.standing))

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"healthy": True})

    async def _readiness(self, request: web.Request) -> web.Response:
        del request
        standing = self._candidate.standing
        is_ready = self._candidate.is_ready
        body = {
            "ready": is_ready,
            "readyWhen": self._candidate.settings.ready_when,
            "phase": standing.phase.value,
            "connected": standing.is_connected,
            "trouble": standing.trouble,
        }
        return web.json_response(body, status=200 if is_ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(
            body=self._candidate.metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def _refused(status: int, reason: str) -> web.Response:
    return _failed(Failure(status, "http", reason))


def _failed(failure: Failure) -> web.Response:
    headers = {}
    if failure.status in {429, 503}:
        headers["Retry-After"] = "1"
    elif failure.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response(failure.body, status=failure.status, headers=headers, dumps=json.dumps)


async def _listen(listening: Awaitable[object], where: object) -> None:
    try:
        await listening
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {where}: {error}") from error


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
