"""The operator's plain HTTP server: metrics for Prometheus, probes for the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from onewriter_http.limits import PROBE_LIMITS
from onewriter_http.routes import Callers, For, Routes
from onewriter_http.scrape_token import ScrapeToken
from onewriter_http.server import Server, failed
from onewriter_operator.metrics import Metrics

PROBE: Final = For(Callers.PUBLIC, "the kubelet proves no identity; the answer names no object")
METRICS: Final = For(
    Callers.SCRAPER, "the answer names the topics and claims of all namespaces, and no message"
)


class Web:
    """A server for ``/metrics``, ``/healthz`` and ``/readyz``.

    ``problems`` returns why this replica should get no requests; empty: it is ready. A replica that
    does not lead is ready too, because every replica serves admission. ``metrics_token_file`` contains
    the token that ``/metrics`` requires; without a file it requires none.
    """

    def __init__(
        self,
        metrics: Metrics,
        problems: Callable[[], list[str]],
        refresh: Callable[[], None] = lambda: None,
        metrics_token_file: Path | None = None,
    ) -> None:
        self._metrics = metrics
        self._problems = problems
        self._refresh = refresh
        self._needs_token = metrics_token_file is not None
        self._scrape_token = ScrapeToken(metrics_token_file)
        self._making = asyncio.Lock()
        app = web.Application(client_max_size=1)
        self.routes: Routes[For] = Routes(app.router)
        self.routes.add_get("/healthz", self._alive, PROBE)
        self.routes.add_get("/readyz", self._ready, PROBE)
        self.routes.add_get("/metrics", self._read, METRICS)
        self._server = Server(app, PROBE_LIMITS, self.routes, name=__name__)

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        await self._server.listen(host, port)

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    async def _alive(self, request: web.Request) -> web.Response:
        del request  # the event loop is responsive if it runs this
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        del request
        problems = self._problems()
        report = {"ready": not problems, "problems": problems}
        return web.json_response(report, status=503 if problems else 200)

    async def _read(self, request: web.Request) -> web.Response:
        if self._needs_token and not self._scrape_token.opens(request):
            return failed(401, "/metrics needs the token for metrics (Authorization: Bearer)")
        async with self._making:  # one at a time
            self._refresh()
            text = await asyncio.to_thread(self._metrics.render)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
