"""The sidecar's HTTP: the API on loopback and a unix socket, probes and metrics where they are asked."""

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
from onewriter.sidecar.events import Leading
from onewriter.sidecar.publishing import SESSION_HEADER, Publishing, answer_of
from onewriter.sidecar.streams import EventStreams

KEEP_ALIVE_SECONDS = 60.0
STOP_SECONDS = 2.0
"""How long a stopping server waits for requests under way."""

SOCKET_MODE = 0o660
"""Owner and group of the unix socket may use it."""

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Use ``start`` and ``stop`` once each. ``more``: what else the API answers."""

    def __init__(
        self, candidate: Candidate, streams: EventStreams, more: Sequence[web.RouteDef] = ()
    ) -> None:
        self._candidate = candidate
        self._more = more
        self._streams = streams
        self._leading = Leading(candidate, streams)
        self._publishing = Publishing(candidate)
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        """Listen. Raises ConfigurationError when an address is taken."""
        settings = self._candidate.settings
        api = await self._runner(self._api())
        if settings.port:
            await _listen(web.TCPSite(api, settings.host, settings.port))
        if settings.socket is not None:
            path = settings.socket
            await _listen(web.UnixSite(api, str(path)))
            await asyncio.to_thread(path.chmod, SOCKET_MODE)
        if settings.health_port:
            probes = await self._runner(self._probes())
            await _listen(web.TCPSite(probes, settings.health_host, settings.health_port))
        log.info(
            "sidecar.listening",
            port=settings.port,
            socket=None if settings.socket is None else str(settings.socket),
            health_port=settings.health_port,
        )

    async def stop(self) -> None:
        """Take no more requests, end the streams, close."""
        self._leading.stop()
        self._streams.stop()
        for runner in self._runners:
            await runner.cleanup()
        if self._candidate.settings.socket is not None:
            await asyncio.to_thread(_remove, self._candidate.settings.socket)

    # ------------------------------------------------------------ inside

    async def _runner(self, application: web.Application) -> web.AppRunner:
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            shutdown_timeout=STOP_SECONDS,
        )
        await runner.setup()
        self._runners.append(runner)
        return runner

    def _api(self) -> web.Application:
        limit = max(
            self._candidate.settings.message_bytes_max,
            self._candidate.settings.resume_info_bytes_max,
        )
        application = web.Application(client_max_size=limit, middlewares=[_guarded])
        application.add_routes(
            [
                web.post("/publish", self._publishing.handle),
                web.get("/leadership", self._leading.handle),
                web.get("/resume-info", self._show_resume_info),
                web.put("/resume-info", self._put_resume_info),
                web.post("/release", self._release),
                web.post("/rejoin", self._rejoin),
                *self._more,
            ]
        )
        return self._with_probes(application)

    def _probes(self) -> web.Application:
        return self._with_probes(web.Application(middlewares=[_guarded]))

    def _with_probes(self, application: web.Application) -> web.Application:
        application.add_routes(
            [
                web.get("/healthz", self._health),
                web.get("/readyz", self._readiness),
                web.get("/metrics", self._metrics),
            ]
        )
        return application

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
            raise Failure(400, "bad-resume-info", f"it is no JSON: {error}") from error
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
            raise Failure(404, "no-resume-info", "nobody has PUT any")
        return web.Response(body=info.content, content_type=info.content_type)

    async def _release(self, request: web.Request) -> web.Response:
        rejoin = request.query.get("rejoin", "true")
        if rejoin not in {"true", "false"}:
            raise Failure(400, "bad-query", "rejoin is true or false")
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


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every answer is JSON, and no page in a browser may use what needs no password."""
    try:
        if "Origin" in request.headers:
            raise Failure(403, "browser", "pages in a browser may not use a sidecar")
        return await handler(request)
    except Failure as failure:
        return _failed(failure)
    except web.HTTPException as error:
        return _failed(Failure(error.status, "http", error.reason))
    except (ConnectionError, asyncio.CancelledError):
        raise  # the client has gone, or the sidecar stops
    except Exception:
        log.exception("http.defect", method=request.method, path=request.path)
        return _failed(
            Failure(500, "defect", "internal error; the log has the details", stored=None)
        )


def _failed(failure: Failure) -> web.Response:
    headers = {"Retry-After": "1"} if failure.status in {429, 503} else None
    return web.json_response(failure.body, status=failure.status, headers=headers, dumps=json.dumps)


async def _listen(site: web.BaseSite) -> None:
    try:
        await site.start()
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {site.name}: {error}") from error


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
