"""Probes and metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from onewriter_broker.http.peers import READINESS
from onewriter_broker.http.routes import Open, Routes, on_installation
from onewriter_broker.http.site import Site
from onewriter_broker.ownership.store_access import StoreAccess
from onewriter_core.authorization import Action

ALIVE: Final = "/healthz"
READY: Final = READINESS
METRICS: Final = "/metrics"


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """What decides whether clients should connect to this broker.

    ``owners``: the number of buckets with a known owner. ``serves``: whether this broker serves a bucket without a
    problem, ``waits``: whether it should serve one but cannot.
    """

    is_listening: bool
    is_desired_known: bool
    access: StoreAccess
    owners: int
    serves: bool
    waits: bool


def problems_of(facts: ReadinessFacts) -> list[str]:
    """Why clients should not connect to this broker; empty if it is ready.

    If no broker reaches the store, the store's problem makes no broker unready (ownership/store_access.py). Buckets
    that wait for the store are not counted then, nor just after its return.
    """
    found = []
    if not facts.is_listening:
        found.append("the broker does not listen yet")
    if not facts.is_desired_known:
        found.append("the broker has no desired state of topics yet (PUT /onewriter/v1/desired)")
    if facts.access in {StoreAccess.NEVER, StoreAccess.LOST_ALONE}:
        found.append("the store does not answer")
    if facts.owners == 0:
        found.append("no bucket has a known owner")
    is_counted = facts.access in {StoreAccess.REACHED, StoreAccess.LOST_ALONE}
    if facts.waits and not facts.serves and is_counted:
        found.append("every bucket that this broker should serve waits")
    return found


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
        access = site.store_access
        problems = problems_of(
            ReadinessFacts(
                is_listening=site.is_ready.is_set(),
                is_desired_known=site.desired.is_known,
                access=access.access,
                owners=known,
                serves=bool(ownership.served()),
                waits=bool(ownership.waiting()),
            )
        )
        report = {
            "ready": not problems,
            "problems": problems,
            "store": {"reachable": access.is_reached, "access": access.access.value},
            "buckets": {"all": len(buckets), "held": held, "owned": known, "waiting": waiting},
        }
        return web.json_response(report, status=503 if problems else 200)

    async def metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=await page.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    router.add_get(ALIVE, alive, Open("probes have no token"))
    router.add_get(READY, ready, Open("probes have no token"))
    router.add_get(METRICS, metrics, on_installation(Action.OBSERVE))
