"""Probes and metrics."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from onewriter_broker.http.routes import Open, Routes, on_installation
from onewriter_broker.http.site import Site
from onewriter_core.authorization import Action

ALIVE: Final = "/healthz"
READY: Final = "/readyz"
METRICS: Final = "/metrics"


class MetricsPage:
    """The metrics as text, collected in steps and rendered in a thread, once at a time.

    Requests that arrive meanwhile share the next page.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._making = asyncio.Lock()
        self._begun_at = float("-inf")
        self._text = b""

    async def text(self) -> bytes:
        """A page whose figures are at least as recent as the request."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._making:
            if self._begun_at <= asked_at:
                self._begun_at = loop.time()
                snapshot = await self._site.metrics.snapshot()
                # Rendering only uses copied data, so it can run beside the event loop.
                self._text = await asyncio.to_thread(self._site.metrics.render, snapshot)
            return self._text


def add_routes(router: Routes, site: Site, metrics_page: MetricsPage | None = None) -> None:
    """See docs/http.md, "Health" and "Metrics". Several ports share ``metrics_page``."""
    page = metrics_page or MetricsPage(site)

    async def alive(request: web.Request) -> web.Response:
        del request  # the answer itself shows that the event loop is responsive
        return web.json_response({"status": "ok"})

    async def ready(request: web.Request) -> web.Response:
        del request
        ownership = site.topics.ownership
        buckets = range(site.clients.settings.buckets)
        held = len(ownership.held())
        known = sum(ownership.owner_of(bucket) is not None for bucket in buckets)
        waiting = {
            str(bucket): reason
            for bucket in buckets
            if (reason := ownership.waiting_reason(bucket))
        }
        problems = []
        if not site.is_ready.is_set():
            problems.append("the broker does not listen yet")
        if not site.desired.is_known:
            problems.append(
                "the broker has no desired state of topics yet (PUT /onewriter/v1/desired)"
            )
        if site.membership.view() is None:
            problems.append("the store does not answer")
        if known == 0:
            problems.append("no bucket has a known owner")
        if ownership.waiting() and not ownership.served():
            problems.append("every bucket that this broker should serve waits")
        report = {
            "ready": not problems,
            "problems": problems,
            "buckets": {"all": len(buckets), "held": held, "owned": known, "waiting": waiting},
        }
        return web.json_response(report, status=503 if problems else 200)

    async def metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=await page.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    router.add_get(ALIVE, alive, Open("probes have no token"))
    router.add_get(READY, ready, Open("probes have no token"))
    router.add_get(METRICS, metrics, on_installation(Action.OBSERVE))
