"""The operator's own plain HTTP: metrics for Prometheus, probes for the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from onewriter_operator.metrics import Metrics


class Web:
    """A server for ``/metrics``, ``/healthz`` and ``/readyz``.

    ``problems`` says why this replica should get no requests; none: it is ready. That it does not
    lead is no problem: admission is served by every replica.
    """

    def __init__(
        self,
        metrics: Metrics,
        problems: Callable[[], list[str]],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._problems = problems
        self._refresh = refresh
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._read)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, request: web.Request) -> web.Response:
        del request  # that the event loop comes round to this is the answer
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        del request
        problems = self._problems()
        report = {"ready": not problems, "problems": problems}
        return web.json_response(report, status=503 if problems else 200)

    async def _read(self, request: web.Request) -> web.Response:
        del request
        self._refresh()
        text = await asyncio.to_thread(self._metrics.render)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
