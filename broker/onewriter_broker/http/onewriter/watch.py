"""``GET /onewriter/v1/watch``: every topic that this broker serves, and each change, as lines of JSON.

A watcher has a set of changed topics, not a queue of events. A slow reader gets each topic once, in its
latest state. So a watcher costs the broker only a set of names, is never more than one round behind, and is
disconnected if it accepts nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final

import structlog
from aiohttp import web

from onewriter_broker.http.onewriter import views
from onewriter_broker.http.onewriter.broker_report import BrokerReport
from onewriter_broker.http.onewriter.status import served_status
from onewriter_broker.http.routes import Routes, on_installation
from onewriter_broker.http.site import EXPIRES, Refusal, Site
from onewriter_broker.http.watchers import WATCHERS_MAX, Watcher
from onewriter_broker.topic.registry.declarations import why_not_promised
from onewriter_core.api.topic import Durability
from onewriter_core.authorization import Action
from onewriter_core.ids import TopicName

PATH: Final = "/onewriter/v1/watch"

TOPICS_PER_TICK: Final = 16
"""Topics that are sent in one tick of the event loop."""

log = structlog.get_logger(__name__)


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Watching"."""

    async def watch(request: web.Request) -> web.StreamResponse:
        if site.watchers.is_full:
            raise Refusal(429, f"{WATCHERS_MAX} are watching already")
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        watcher = site.watchers.join(site.topics.loaded)
        try:
            await response.prepare(request)
            await _Stream(site, watcher, response, request.get(EXPIRES)).run()
        except TimeoutError:
            log.warning("watcher.cut_off", address=request.remote)
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            log.debug("watcher.gone", address=request.remote)
        finally:
            site.watchers.leave(watcher)
        return response

    router.add_get(PATH, watch, on_installation(Action.OBSERVE))


class _Stream:
    """The lines of one watcher. ``expires_at``: the expiry of its proof of identity, in Unix seconds."""

    def __init__(
        self,
        site: Site,
        watcher: Watcher,
        response: web.StreamResponse,
        expires_at: float | None,
    ) -> None:
        self._site = site
        self._intervals = site.watchers.intervals
        self._watcher = watcher
        self._response = response
        self._expires_at = expires_at
        self._reported: set[str] = set()
        self._sent_buckets: dict[str, Any] = {}
        self._sent_quotas: dict[str, Any] = {}
        self._broker_report = BrokerReport(site)
        self._sent_report: dict[str, Any] = {}

    async def run(self) -> None:
        """Send the present state, then every change, until the broker stops or the proof expires.

        Raises TimeoutError, ConnectionError.
        """
        loop = asyncio.get_running_loop()
        await self._send_changes()
        await self._send_report()
        await self._send_buckets()
        await self._send_quotas()
        synced = {"broker": self._site.incarnation, "revision": self._site.desired.revision}
        await self._write([{"type": "SYNCED"} | synced])
        ping_at = loop.time() + self._intervals.ping_seconds
        while not self._watcher.is_ended and not self._is_expired():
            if loop.time() >= ping_at:
                await self._write([{"type": "PING"}])
                ping_at = loop.time() + self._intervals.ping_seconds
            await self._send_buckets()
            await self._send_quotas()
            await self._send_report()
            try:
                async with asyncio.timeout_at(
                    min(ping_at, loop.time() + self._intervals.poll_seconds)
                ):
                    await self._watcher.woken.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(self._intervals.gather_seconds)
            await self._send_changes()

    async def _send_changes(self) -> None:
        names = self._watcher.take()
        for start in range(0, len(names), TOPICS_PER_TICK):
            await self._write(map(self._line, names[start : start + TOPICS_PER_TICK]))
            await asyncio.sleep(0)

    async def _send_buckets(self) -> None:
        """Send the buckets that this broker serves, those that it waits for, and the durabilities of the store, if
        they have changed.
        """
        ownership, promises = self._site.topics.ownership, self._site.topics.promises
        found = {
            "type": "BUCKETS",
            "count": self._site.clients.settings.buckets,
            "served": sorted(ownership.served()),
            "waiting": {str(bucket): text for bucket, text in sorted(ownership.waiting().items())},
            "durabilities": {each.value: why_not_promised(each, promises) for each in Durability},
        }
        if found != self._sent_buckets:
            self._sent_buckets = found
            await self._write([found])

    async def _send_quotas(self) -> None:
        """Send the topics and namespaces whose producers a quota refuses, if they have changed."""
        problems = self._site.clients.quota_problems
        topics = problems.topics()
        namespaces = problems.namespaces(self._site.topics.shares.full_namespaces)
        found = {
            "type": "QUOTAS",
            "topics": {name: views.quota_problem(each) for name, each in topics.items()},
            "namespaces": {name: views.quota_problem(each) for name, each in namespaces.items()},
        }
        if found != self._sent_quotas:
            self._sent_quotas = found
            await self._write([found])

    async def _send_report(self) -> None:
        """Send what this broker reports about itself and its store, if it has changed."""
        found = await self._broker_report.line()
        if found != self._sent_report:
            self._sent_report = found
            await self._write([found])

    def _line(self, name: str) -> dict[str, Any]:
        topic = self._site.topics.loaded.get(name)
        if topic is not None:
            self._reported.add(name)
            seen = self._site.seen_of(self._site.topics.bucket_of(TopicName.parse(name)))
            status = served_status(self._site, topic, seen)
            return {"type": "TOPIC", "topic": name, "status": status}
        if name in self._reported:
            self._reported.discard(name)
            return {"type": "GONE", "topic": name}
        return {}

    async def _write(self, lines: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines if line)
        if text:
            async with asyncio.timeout(self._intervals.write_seconds):
                await self._response.write(text.encode())

    def _is_expired(self) -> bool:
        return (
            self._expires_at is not None and self._site.clients.token_seconds() >= self._expires_at
        )
