"""Probes and metrics: is the process alive, may it get clients, how is it doing."""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from onewriter_broker.http.site import Site


def add_routes(router: web.UrlDispatcher, site: Site) -> None:
    """See docs/http.md, "Health"."""

    async def alive(request: web.Request) -> web.Response:
        del request  # that the event loop comes round to this is the answer
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
                "nobody has said yet what is wanted of topics (PUT /onewriter/v1/desired)"
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
        snapshot = site.metrics.snapshot()
        # Rendering is pure work on what was copied: beside the event loop.
        text = await asyncio.to_thread(site.metrics.render, snapshot)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    router.add_get("/healthz", alive)
    router.add_get("/readyz", ready)
    router.add_get("/metrics", metrics)
