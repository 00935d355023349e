"""Probes and metrics of a sidecar that only relays; one that leads has them beside its API (http.py)."""

from __future__ import annotations

from aiohttp import web

from onewriter._errors import ConfigurationError
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.routes import METRICS, PROBE, SidecarRoutes
from onewriter.sidecar.settings import Settings
from onewriter_http.limits import Limits
from onewriter_http.server import Server

PROBE_LIMITS = Limits(
    connections_max=256, connections_per_address_max=64, header_seconds=2.0, body_bytes_max=0
)
"""Limits of the port of probes and metrics."""


class ProbeServer:
    """Call ``start`` and ``stop`` once each. It is ready as long as it answers: the relay listens by then."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        application = web.Application(client_max_size=1)
        self.routes = SidecarRoutes(application.router)
        self.routes.add_get("/healthz", self._health, PROBE)
        self.routes.add_get("/readyz", self._readiness, PROBE)
        self.routes.add_get("/metrics", self._show_metrics, METRICS)
        self._server = Server(application, PROBE_LIMITS, self.routes, name=__name__)

    async def start(self, settings: Settings) -> None:
        """Listen, if there is a port. Raises ConfigurationError if it is in use."""
        if not settings.health_port:
            return
        try:
            await self._server.listen(settings.health_host, settings.health_port)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen at port {settings.health_port}: {error}"
            ) from error

    async def stop(self) -> None:
        """Close."""
        await self._server.stop()

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"healthy": True})

    async def _readiness(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"ready": True})

    async def _show_metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(
            body=self._metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )
