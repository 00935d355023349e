"""A fake broker with the HTTP interface that the operator uses; a test sets its topics.

``tests/cluster/test_operator_real_brokers.py`` checks the real broker against the same contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from aiohttp import web

from onewriter_core.api.desired import Reading, read_desired
from onewriter_core.errors import ConfigurationError

Json = dict[str, Any]

PING_SECONDS = 5.0

AT = "2026-01-01T00:00:00.000Z"


def status(epoch: int = 1, state: str = "Held", **more: Any) -> Json:
    """A topic's status, as ``GET /onewriter/v1/topics/...`` shows it."""
    found: Json = {
        "declared": True,
        "undivided": False,
        "served": True,
        "waitingReason": "",
        "broker": "broker-0/1",
        "epoch": epoch,
        "state": state,
        "holder": None,
        "holders": [],
        "waiters": [],
        "waiting": 0,
        "slots": [{"partition": None, "epoch": epoch, "ledger": epoch, "holder": None}],
        "durability": "Local",
        "transitions": [],
    }
    found |= more
    if found["holders"]:
        found["holder"] = found["holders"][0]
    found["waiting"] = len(found["waiters"])
    return found


def producer_group(
    name: str, claim: str | None = None, pod: str | None = None, **more: Any
) -> Json:
    """A producer that holds a topic or waits for it; the pod's uid is derived from its name."""
    return {
        "producerName": name,
        "claim": claim,
        "pod": pod,
        "podUID": f"uid-{pod}" if pod else None,
        "node": None,
        "address": "10.0.0.1:1234",
        "priority": 0,
        **more,
    }


def transition(
    epoch: int, cause: str, holder: Json | None, previous: Json | None, at: str = AT
) -> Json:
    """A transition."""
    holder, previous = _person(holder), _person(previous)
    if previous is not None:
        previous.pop("address", None)
    return {
        "epoch": epoch,
        "kind": "grant" if holder else "fence",
        "cause": cause,
        "at": at,
        "leaderlessMs": 12,
        "holder": holder,
        "previous": previous,
    }


def _person(found: Json | None) -> Json | None:
    """A producer as transitions show it, without its queue position."""
    if found is None:
        return None
    return {
        name: value for name, value in found.items() if name not in {"priority", "place", "since"}
    }


class FakeBroker:
    """One broker. Set its topics with ``serve`` and ``drop``; its ``desired`` is the state that it received."""

    def __init__(self, name: str = "broker-0") -> None:
        self.name = name
        self.incarnation = f"{name}/1"
        self.url = ""
        self.served: dict[str, Json] = {}
        self.stored: dict[str, Json] = {}
        self.entries: dict[str, int] = {}
        self.kept: set[str] = set()
        self.revision: str | None = None
        self.desired: Reading | None = None
        self.bodies: list[Json] = []
        self.calls: list[tuple[str, str]] = []
        self.fences: list[tuple[str, int | None]] = []
        self.handovers: list[tuple[str, int | None, str | None]] = []
        self.deletions: list[tuple[str, bool]] = []
        self.refuse_put: list[str] | None = None
        self.is_down = False
        self.buckets: Json | None = None
        self.report: Json | None = None
        self.quotas: Json | None = None
        self.connected: set[str] = set()
        self.elsewhere: set[str] = set()
        self.members: dict[str, list[bool]] | None = {}
        self._watchers: list[asyncio.Queue[Json | None]] = []
        self._runner: web.AppRunner | None = None

    # ------------------------------------------------------------ what a test does

    def serve(self, topic: str, found: Json | None = None) -> None:
        """Serve a topic, or change its status."""
        self.served[topic] = found if found is not None else status()
        self._report({"type": "TOPIC", "topic": topic, "status": self.served[topic]})

    def drop(self, topic: str) -> None:
        """Stop serving a topic."""
        self.served.pop(topic, None)
        self._report({"type": "GONE", "topic": topic})

    def report_buckets(self, served: list[int], waiting: dict[str, str]) -> None:
        """Report some of 64 buckets as served and some as waiting."""
        self.buckets = {"type": "BUCKETS", "count": 64, "served": served, "waiting": waiting}
        self._report(self.buckets)

    def report_quotas(self, topics: Json, namespaces: Json | None = None) -> None:
        """Report topics and namespaces whose producers a quota refuses."""
        self.quotas = {"type": "QUOTAS", "topics": topics, "namespaces": namespaces or {}}
        self._report(self.quotas)

    def report_broker(self, **store: Any) -> None:
        """Report a reachable store, with these changes."""
        found = {
            "url": "redis://store:6379",
            "topology": "Single",
            "reachable": True,
            "durability": "Local",
            "memoryBytesUsed": 0,
            "memoryBytesMax": 1024**3,
            "full": False,
            "faults": [],
            "refusesWrites": False,
        }
        certificates = [{"name": "broker", "notAfter": "2126-01-01T00:00:00.000Z"}]
        self.report = {
            "type": "BROKER",
            "version": "0.1.0",
            "store": found | store,
            "certificates": certificates,
        }
        self._report(self.report)

    def cut(self) -> None:
        """End every stream."""
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def reset(self) -> None:
        """Drop all topics and all prepared failures."""
        for topic in list(self.served):
            self.drop(topic)
        self.stored.clear()
        self.entries.clear()
        self.kept.clear()
        self.connected.clear()
        self.refuse_put, self.is_down = None, False

    def forget(self) -> None:
        """Forget all received requests."""
        for reported in (self.bodies, self.calls, self.fences, self.handovers, self.deletions):
            reported.clear()

    def topics(self) -> list[str]:
        """The Pulsar topics in its desired state."""
        if self.desired is None:
            return []
        return sorted(str(topic.topic_name) for topic in self.desired.state.topics)

    def claims(self) -> list[str]:
        """The claims in its desired state."""
        if self.desired is None:
            return []
        return sorted(str(claim.metadata) for claim in self.desired.state.claims)

    # ------------------------------------------------------------ the server

    @contextlib.asynccontextmanager
    async def running(
        self, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[FakeBroker]:
        app = web.Application(client_max_size=64 * 1024 * 1024, middlewares=[self._gate()])
        app.router.add_put("/onewriter/v1/desired", self._put)
        app.router.add_get("/onewriter/v1/desired", self._get)
        app.router.add_get("/onewriter/v1/watch", self._watch)
        app.router.add_get("/onewriter/v1/brokers", self._list_members)
        topic = "/onewriter/v1/topics/{tenant}/{namespace}/{topic}"
        app.router.add_post("/onewriter/v1/topics", self._look_up)
        app.router.add_get(topic, self._topic)
        app.router.add_post(topic + "/fence", self._fence)
        app.router.add_post(topic + "/handover", self._handover)
        pulsar = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
        app.router.add_get(pulsar + "/internalStats", self._stats)
        app.router.add_get(pulsar + "/partitions", self._partitions)
        app.router.add_delete(pulsar, self._delete)
        app.router.add_delete(pulsar + "/partitions", self._delete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        assert self._runner.addresses
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.cut()
            await self._runner.cleanup()

    def _gate(self) -> Any:
        @web.middleware
        async def gate(request: web.Request, handler: Any) -> web.StreamResponse:
            self.calls.append((request.method, request.path))
            if self.is_down:
                return web.json_response({"reason": "down"}, status=503)
            found: web.StreamResponse = await handler(request)
            return found

        return gate

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.refuse_put is not None:
            return web.json_response({"errors": self.refuse_put}, status=400)
        try:
            self.desired = read_desired(body, self.desired)
        except ConfigurationError as error:
            return web.json_response({"errors": str(error).splitlines()}, status=400)
        self.revision = self.desired.revision
        self.bodies.append(json.loads(body))
        return web.json_response(
            {
                "revision": self.revision,
                "topics": len(self.desired.state.topics),
                "claims": len(self.desired.state.claims),
                "warnings": [],
            }
        )

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response({"revision": self.revision, "topics": 0, "claims": 0})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        for topic, found in self.served.items():
            queue.put_nowait({"type": "TOPIC", "topic": topic, "status": found})
        if self.report is not None:
            queue.put_nowait(self.report)
        if self.buckets is not None:
            queue.put_nowait(self.buckets)
        if self.quotas is not None:
            queue.put_nowait(self.quotas)
        queue.put_nowait({"type": "SYNCED", "broker": self.incarnation, "revision": self.revision})
        self._watchers.append(queue)
        try:
            while (line := await self._next(queue)) is not None:
                await response.write(json.dumps(line).encode() + b"\n")
        finally:
            self._watchers.remove(queue)
        return response

    @staticmethod
    async def _next(queue: asyncio.Queue[Json | None]) -> Json | None:
        try:
            async with asyncio.timeout(PING_SECONDS):
                return await queue.get()
        except TimeoutError:
            return {"type": "PING"}

    async def _look_up(self, request: web.Request) -> web.Response:
        requests = (await request.json())["topics"]
        known = dict.fromkeys(self.topics(), status(0, "Idle")) | self.stored | self.served
        return web.json_response(
            {
                "topics": {
                    name: {
                        "declared": name in self.topics(),
                        "epoch": known[name]["epoch"],
                        "undivided": known[name]["undivided"],
                    }
                    for name in requests
                    if name in known and name not in self.elsewhere
                },
                "elsewhere": [name for name in requests if name in self.elsewhere],
            }
        )

    async def _topic(self, request: web.Request) -> web.Response:
        name = _name(request)
        is_declared = name in self.topics()
        found = self.served.get(name) or self.stored.get(name)
        if found is None and not is_declared:
            return web.json_response({"reason": f"topic {name} does not exist"}, status=404)
        found = found or status(0, "Idle", slots=[])
        return web.json_response(found | {"declared": is_declared})

    async def _fence(self, request: web.Request) -> web.Response:
        name, body = _name(request), await request.json()
        self.fences.append((name, body.get("ifEpoch")))
        if name not in self.served:
            raise web.HTTPTemporaryRedirect("http://127.0.0.1:1/elsewhere")
        current = self.served[name]["epoch"]
        if body.get("ifEpoch") not in {None, current}:
            return web.json_response({"reason": f"the epoch is {current}"}, status=412)
        return web.json_response({"topic": name, "oldEpoch": current, "epoch": current})

    async def _handover(self, request: web.Request) -> web.Response:
        name, body = _name(request), await request.json()
        if name not in self.served:
            raise web.HTTPTemporaryRedirect("http://127.0.0.1:1/elsewhere")
        self.handovers.append((name, body.get("ifEpoch"), body.get("to")))
        current = self.served[name]["epoch"]
        if body.get("ifEpoch") not in {None, current}:
            return web.json_response({"reason": f"the epoch is {current}"}, status=412)
        if not self.served[name]["waiters"]:
            return web.json_response({"reason": "no producer is waiting"}, status=409)
        return web.json_response({"topic": name, "oldEpoch": current, "epoch": current + 1})

    async def _list_members(self, request: web.Request) -> web.Response:
        """Each broker's processes, and whether they are alive; without names for None."""
        del request
        if self.members is None:
            return web.json_response({"brokers": [{"alive": True}]})
        found = [
            {"name": name, "alive": alive, "more": "ignored"}
            for name, processes in self.members.items()
            for alive in processes
        ]
        return web.json_response({"brokers": found})

    async def _stats(self, request: web.Request) -> web.Response:
        name = _name(request)
        if name not in self.entries:
            return web.json_response({"reason": "no such topic"}, status=404)
        return web.json_response({"numberOfEntries": self.entries[name]})

    async def _partitions(self, request: web.Request) -> web.Response:
        return web.json_response({"partitions": 0, "deleted": False})

    async def _delete(self, request: web.Request) -> web.Response:
        name = _name(request)
        force = request.query.get("force") == "true"
        if name in self.connected and not force:
            return web.json_response({"reason": "Topic has 1 connected producers"}, status=412)
        if request.query.get("onlyIfEmpty") == "true" and name in self.kept:
            return web.json_response({"reason": "Topic has entries"}, status=409)
        self.deletions.append((name, force))
        self.stored.pop(name, None)
        self.entries.pop(name, None)
        if name in self.served:
            self.drop(name)
        return web.Response(status=204)

    def _report(self, line: Json) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(line)


class ThreadedBroker:
    """A FakeBroker in its own loop and thread, for tests that block."""

    def __init__(self, name: str = "broker-0") -> None:
        self.fake = FakeBroker(name)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._running = self.fake.running()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._running.__aenter__(), self._loop).result(30)
        return self

    def __exit__(self, *error: object) -> None:
        leaving = self._running.__aexit__(None, None, None)
        asyncio.run_coroutine_threadsafe(leaving, self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    @property
    def url(self) -> str:
        return self.fake.url

    def do(self, action: Callable[[], Any]) -> Any:
        """Run a function in the broker's loop; its result."""

        async def done() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(30)

    def serve(self, topic: str, found: Json | None = None) -> None:
        self.do(lambda: self.fake.serve(topic, found))

    def drop(self, topic: str) -> None:
        self.do(lambda: self.fake.drop(topic))


def _name(request: web.Request) -> str:
    found = request.match_info
    return f"persistent://{found['tenant']}/{found['namespace']}/{found['topic']}"
