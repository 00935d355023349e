"""``/own``: ownerships that the sidecar keeps for an application in any language.

A repeated request for a resource that the sidecar owns returns the same generation, so a restarted container can
continue. A lost ownership is shown until it is requested again or deleted, and readers of the events are notified
at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from onewriter._client import Client
from onewriter._errors import ConfigurationError, Fenced, OnewriterError, Unavailable
from onewriter._own.own import GENERATION_FIRST, Ownership, Ownerships
from onewriter._signal import Signal
from onewriter.sidecar.errors import Failure
from onewriter.sidecar.limits import DEFAULT_LIMITS, SidecarLimits
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.release_key import ReleaseKey
from onewriter.sidecar.routes import OWN_POD, WITH_KEY, SidecarRoutes
from onewriter.sidecar.streams import EventStreams, event, wants_events

POLL_SECONDS_MAX = 60.0
"""Longest wait of ``?until=lost``."""

_Key = tuple[str, str]
"""Group and resource."""


@dataclass(frozen=True, slots=True)
class _Owned:
    """An ownership, and the set of ownerships of its request."""

    ownership: Ownership
    owned_with: Ownerships


class _Watcher:
    """One event stream: the ownerships whose change it has not sent yet. It sends their latest state."""

    def __init__(self, group: str | None, resource: str | None, present: Iterable[_Key]) -> None:
        self._group = group
        self._resource = resource
        self.changed: dict[_Key, None] = {}
        self.news = Signal()
        for key in present:
            self.notify(key)

    def notify(self, key: _Key) -> None:
        """Record that an ownership has changed."""
        if self.is_of(key):
            self.changed[key] = None
            self.news.notify()

    def is_of(self, key: _Key) -> bool:
        """Whether the stream includes this ownership."""
        return self._group in {None, key[0]} and self._resource in {None, key[1]}


class OwnershipRoutes:
    """Answers requests for /own with one client, which must be open. Call ``release`` at the end."""

    def __init__(
        self,
        client: Client,
        streams: EventStreams,
        metrics: Metrics,
        release_key: ReleaseKey,
        limits: SidecarLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._release_key = release_key
        self._client = client
        self._streams = streams
        self._owned: dict[_Key, _Owned] = {}
        self._changing = asyncio.Lock()
        """Held during a request: two simultaneous requests could depose each other."""
        self._watchers: dict[_Watcher, None] = {}
        self._news = Signal()
        metrics.ownerships.set_function(
            lambda: sum(each.ownership.is_owned for each in self._owned.values())
        )

    def add_routes(self, routes: SidecarRoutes) -> None:
        """Register the routes."""
        routes.add_get("/own", self._show, OWN_POD)
        routes.add_post("/own", self._own, OWN_POD)
        routes.add_delete("/own", self._release, WITH_KEY)

    async def release(self) -> None:
        """Release all resources, so that the next owners need not depose this one."""
        async with self._changing:
            await self._give_up(list(self._owned))

    # ------------------------------------------------------------ requests

    async def _own(self, request: web.Request) -> web.Response:
        """Acquire the resources that are not owned yet; answer with one item per resource, in order."""
        body = await _body(request)
        group, identity = _text(body, "group"), _text(body, "identity")
        wanted = _resources(body)
        async with self._changing:
            missing = [
                (name, generation)
                for name, generation in wanted
                if not self._serves((group, name), generation)
            ]
            fresh = sum((group, name) not in self._owned for name, _ in missing)
            if len(self._owned) + fresh > (most := self._limits.ownerships_max):
                raise Failure(429, "too-many", f"a sidecar keeps {most} ownerships")
            answered = await self._ask(group, identity, missing) if missing else {}
            kept = {name: self._owned[group, name].ownership for name, _ in wanted}
            return _answer(list((kept | answered).values()))

    async def _ask(
        self, group: str, identity: str, missing: list[tuple[str, int]]
    ) -> dict[str, Ownership]:
        """Request these resources; return the answers. A refusal does not replace an ownership that continues."""
        try:
            owned = await self._client.own(group or None, missing, identity=identity)
        except ConfigurationError as error:
            raise Failure(400, "bad-request", str(error)) from error
        for each in owned:
            key = group, each.resource
            present = self._owned.get(key)
            if not each.is_owned and present is not None and present.ownership.is_owned:
                continue
            self._owned[key] = _Owned(each, owned)
            if each.is_owned:
                self._notify(key)
            each.lost.call(partial(self._ended, key))
        return {each.resource: each for each in owned}

    def _serves(self, key: _Key, generation: int) -> bool:
        """Whether the resource is owned already, with at least the requested generation."""
        present = self._owned.get(key)
        if present is None or not present.ownership.is_owned:
            return False
        return 0 < generation <= present.ownership.generation

    async def _release(self, request: web.Request) -> web.Response:
        """Release resources, and forget them."""
        self._release_key.check(request)
        body = await _body(request)
        group = _text(body, "group")
        named = [(group, name) for name, _ in _resources(body)]
        async with self._changing:
            found = [key for key in named if key in self._owned]
            await self._give_up(found)
        return web.json_response({"released": [name for _, name in found]})

    async def _give_up(self, keys: list[_Key]) -> None:
        by_set: dict[int, tuple[Ownerships, list[Ownership]]] = {}
        for key in keys:
            owned = self._owned.pop(key)
            _, these = by_set.setdefault(id(owned.owned_with), (owned.owned_with, []))
            these.append(owned.ownership)
            self._notify(key)
        for owned_with, these in by_set.values():
            await owned_with.release(these)

    # ------------------------------------------------------------ showing

    async def _show(self, request: web.Request) -> web.StreamResponse:
        """Answer with all ownerships, or those of ``group`` and ``resource``; ``until=lost`` waits for a loss."""
        query = request.query
        watcher = _Watcher(query.get("group"), query.get("resource"), ())
        if wants_events(request):
            return await self._events(request)
        shown = [each for key, each in self._owned.items() if watcher.is_of(key)]
        until = query.get("until")
        if until not in {None, "lost"}:
            raise Failure(400, "bad-query", "until is lost")
        if until is not None:
            await self._until_lost(shown, query.get("timeoutSeconds", "30"))
        ownerships = [each.ownership for each in shown]
        if query.get("verified") != "true":
            return _answer(ownerships)
        return _answer(ownerships, verified=await _verify(shown, self._limits.own_check_seconds))

    async def _until_lost(self, shown: list[_Owned], seconds: str) -> None:
        try:
            limit = min(float(seconds), POLL_SECONDS_MAX)
        except ValueError as error:
            raise Failure(400, "bad-query", "timeoutSeconds is a number") from error
        try:
            async with asyncio.timeout(limit):
                await self._news.until(lambda: any(not each.ownership.is_owned for each in shown))
        except TimeoutError:
            return  # the answer is the current state

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the current ownerships, then every change at once."""
        query = request.query
        watcher = _Watcher(query.get("group"), query.get("resource"), self._owned)
        self._watchers[watcher] = None

        async def next_event() -> bytes | None:
            await watcher.news.until(lambda: bool(watcher.changed))
            if len(watcher.changed) > self._limits.changes_max:
                return None  # the reader is too slow; its next stream begins with the current state
            key = next(iter(watcher.changed))
            del watcher.changed[key]
            return event("ownership", self._view(key))

        try:
            return await self._streams.serve(request, next_event)
        finally:
            del self._watchers[watcher]

    def _notify(self, key: _Key) -> None:
        """Wake the waiting requests and streams."""
        self._news.notify()
        for watcher in self._watchers:
            if len(watcher.changed) <= self._limits.changes_max:
                watcher.notify(key)

    def _ended(self, key: _Key, _reason: OnewriterError) -> None:
        self._notify(key)

    def _view(self, key: _Key) -> dict[str, Any]:
        found = self._owned.get(key)
        if found is not None:
            return _view(found.ownership)
        return _forgotten(key)


async def _verify(shown: list[_Owned], seconds: float) -> bool:
    """Let the brokers confirm each ownership or its loss; return whether they answered for all."""
    by_set: dict[int, tuple[Ownerships, list[Ownership]]] = {}
    for each in shown:
        _, these = by_set.setdefault(id(each.owned_with), (each.owned_with, []))
        these.append(each.ownership)
    questions = [owned_with.confirm(these) for owned_with, these in by_set.values()]
    try:
        async with asyncio.timeout(seconds):
            answers = await asyncio.gather(*questions, return_exceptions=True)
    except TimeoutError:
        return False
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Unavailable):
            raise answer
    return not any(answers)


def _answer(shown: list[Ownership], **facts: Any) -> web.Response:
    return web.json_response({"ownerships": [_view(each) for each in shown], **facts})


def _view(ownership: Ownership) -> dict[str, Any]:
    end = ownership.end
    return {
        "resource": ownership.resource,
        "group": ownership.group,
        "owned": end is None,
        "connected": ownership.is_attached,
        "generation": ownership.known_generation or None,
        "error": None if end is None else str(end),
        "currentGeneration": end.current_epoch if isinstance(end, Fenced) else None,
    }


def _forgotten(key: _Key) -> dict[str, Any]:
    """Return the view of a released resource."""
    return {
        "resource": key[1],
        "group": key[0],
        "owned": False,
        "connected": False,
        "generation": None,
        "error": "released",
        "currentGeneration": None,
    }


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise Failure(400, "bad-request", "the body is not JSON") from error
    if not isinstance(body, dict):
        raise Failure(400, "bad-request", "the body is not a JSON object")
    return body


def _text(body: dict[str, Any], name: str) -> str:
    found = body.get(name) or ""
    if not isinstance(found, str):
        raise Failure(400, "bad-request", f"{name} is text")
    return found


def _resources(body: dict[str, Any]) -> list[tuple[str, int]]:
    """Parse the resources: names, or ``{"name", "generation"}``. Raises Failure."""
    given = body.get("resources")
    if not isinstance(given, list) or not given:
        raise Failure(400, "bad-request", "resources is a list of at least one")
    found: dict[str, int] = {}
    for each in given:
        named = {"name": each} if isinstance(each, str) else each
        name = named.get("name") if isinstance(named, dict) else None
        generation = named.get("generation", GENERATION_FIRST) if isinstance(named, dict) else None
        if not isinstance(name, str) or type(generation) is not int or name in found:
            text = 'each resource is a name, or {"name": ..., "generation": ...}, named once'
            raise Failure(400, "bad-request", text)
        found[name] = generation
    return list(found.items())
