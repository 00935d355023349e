"""``/map``: keys and values of shared maps, with conditional requests of HTTP, and changes as events.

Values are bytes; an ETag is the hash of a value. A condition is evaluated by the write itself, on the state directly
before it, so it holds against all writers of the map.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import heapq
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote

from aiohttp import web
from aiohttp.helpers import ETAG_ANY, ETag

from onewriter._errors import OnewriterError
from onewriter.sidecar.admission import Admission
from onewriter.sidecar.errors import Failure, of_sharing
from onewriter.sidecar.limits import DEFAULT_LIMITS, SidecarLimits
from onewriter.sidecar.maps import Map, Maps
from onewriter.sidecar.metrics import Metrics
from onewriter.sidecar.routes import OWN_POD, SidecarRoutes
from onewriter.sidecar.settings import Settings
from onewriter.sidecar.streams import EventStreams, NextEvent, event, wants_events
from onewriter.state import Change, WatchOverflow, WrongType, json_values
from onewriter.state.map_content import MapContent
from onewriter_core.ids import InvalidTopicName, TopicName

KEYS_PER_PAGE = 1_000
"""Default number of keys per page; the query ``limit`` overrides it."""

KEYS_PER_PAGE_MAX = 10_000
KEY_BYTES_MAX = 4_096

JSON = "application/json"

_JSON = json_values()

_ETAG = r'(?:W/)?"[!\x23-\x7e\x80-\xff]+"'
_CONDITION = re.compile(rf"\*|{_ETAG}(?:\s*,\s*{_ETAG})*")

_Changes = AsyncIterator[Change[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Condition:
    """If-Match and If-None-Match of one request; None: the header is absent."""

    match: tuple[ETag, ...] | None
    none_match: tuple[ETag, ...] | None

    @classmethod
    def of(cls, request: web.Request) -> Condition:
        """Parse the headers. Raises Failure for an invalid list of ETags, which must not count as no condition."""
        for name in ("If-Match", "If-None-Match"):
            for given in request.headers.getall(name, ()):
                if not _CONDITION.fullmatch(given):
                    reason = f'{name} is * or a list of "ETags"'
                    raise Failure(400, "bad-condition", reason)
            if len(request.headers.getall(name, ())) > 1:
                raise Failure(400, "bad-condition", f"{name} is there twice")
        return cls(request.if_match, request.if_none_match)

    def holds(self, value: bytes | None) -> bool:
        """Whether the condition holds for a key with this value; None: the key does not exist."""
        if self.match is not None and not _matches(self.match, value):
            return False
        return self.none_match is None or not _matches(self.none_match, value)


def _matches(tags: Sequence[ETag], value: bytes | None) -> bool:
    if value is None:
        return False
    if any(tag.value == ETAG_ANY for tag in tags):
        return True
    present = etag_of(value)
    return any(tag.value == present and not tag.is_weak for tag in tags)


def etag_of(value: bytes) -> str:
    """Return the ETag of a value, a hash of its bytes, without quotes."""
    return hashlib.sha256(value).hexdigest()[:32]


class MapRoutes:
    """Answers requests for /map."""

    def __init__(
        self,
        settings: Settings,
        maps: Maps,
        streams: EventStreams,
        metrics: Metrics,
        limits: SidecarLimits = DEFAULT_LIMITS,
    ) -> None:
        self._page_bytes_max = limits.page_bytes_max
        self._settings = settings
        self._maps = maps
        self._streams = streams
        self._metrics = metrics
        self._admission = Admission(
            settings.requests_max, settings.message_bytes_max, limits.bodies_bytes_max
        )

    def add_routes(self, routes: SidecarRoutes) -> None:
        """Register the routes."""
        routes.add_get("/map/{topic:[^/]+}", self._list, OWN_POD)
        routes.add_get("/map/{topic:[^/]+}/{key:.+}", self._get, OWN_POD)
        routes.add_put("/map/{topic:[^/]+}/{key:.+}", self._put, OWN_POD)
        routes.add_delete("/map/{topic:[^/]+}/{key:.+}", self._delete, OWN_POD)

    # ------------------------------------------------------------ reading

    async def _list(self, request: web.Request) -> web.StreamResponse:
        """Answer with a page of keys in order, or with the events of all keys."""
        topic = self._topic(request)
        if wants_events(request):
            return await self._watch(request, topic, None)
        after, limit = _after(request), _limit(request)
        has_values = _flag(request, "values")
        with self._counted("list"):
            async with self._maps.use(topic) as shared:
                version, content = await shared.state.snapshot(latest=_flag(request, "latest"))
        # A snapshot never changes, so another thread can read it without blocking the event loop.
        page = await asyncio.to_thread(
            _page, content, after, limit, has_values, self._page_bytes_max
        )
        return web.json_response({"topic": topic, "version": version, "size": len(content), **page})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        topic, key = self._topic(request), _key(request)
        if wants_events(request):
            return await self._watch(request, topic, key)
        condition = Condition.of(request)
        with self._counted("get"):
            async with self._maps.use(topic) as shared:
                value = await shared.get(key, latest=_flag(request, "latest"))
            if value is None:
                raise Failure(404, "no-such-key", "it has no value")
        headers = {"ETag": f'"{etag_of(value)}"', "Cache-Control": "no-cache"}
        if condition.match is not None and not _matches(condition.match, value):
            raise _unmet(value)
        if not condition.holds(value):
            return web.Response(status=304, headers=headers)
        if JSON not in request.headers.get("Accept", ""):
            return web.Response(
                body=value, content_type="application/octet-stream", headers=headers
            )
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Failure(406, "not-json", "the value is not JSON") from error
        return web.Response(body=value, content_type=JSON, headers=headers)

    # ------------------------------------------------------------ writing

    async def _put(self, request: web.Request) -> web.Response:
        topic, key = self._topic(request), _key(request)
        condition = Condition.of(request)
        with self._counted("put"), self._admission.admit(request.content_length):
            value = _value(await self._admission.body(request), request.content_type)
            previous = await self._change(topic, key, value, condition)
        return web.json_response(
            {"stored": True, "created": previous is None, "etag": f'"{etag_of(value)}"'},
            status=201 if previous is None else 200,
            headers={"ETag": f'"{etag_of(value)}"'},
        )

    async def _delete(self, request: web.Request) -> web.Response:
        topic, key = self._topic(request), _key(request)
        condition = Condition.of(request)
        with self._counted("delete"), self._admission.admit(0):
            previous = await self._change(topic, key, None, condition)
            if previous is None:
                raise Failure(404, "no-such-key", "it had no value")
        return web.json_response({"stored": True, "etag": f'"{etag_of(previous)}"'})

    async def _change(
        self, topic: str, key: bytes, value: bytes | None, condition: Condition
    ) -> bytes | None:
        """Set or remove a key if the condition holds, and return its previous value. Raises Failure."""
        previous: bytes | None = None
        is_met = False

        def changed(present: bytes | None) -> bytes | None:
            # If the condition does not hold, the value stays. The answer follows after the earlier writes are
            # stored, because the condition was evaluated on their result.
            nonlocal previous, is_met
            previous, is_met = present, condition.holds(present)
            return value if is_met else present

        async with self._maps.use(topic) as shared:
            await shared.update(key, changed)
        if not is_met:
            raise _unmet(previous)
        return previous

    # ------------------------------------------------------------ following

    async def _watch(
        self, request: web.Request, topic: str, key: bytes | None
    ) -> web.StreamResponse:
        """Send every change as an event, or only those of one key."""
        initial = _flag(request, "initial")
        with _failing():
            async with self._maps.use(topic) as shared, shared.watch(initial=initial) as changes:
                return await self._streams.serve(request, _follow(shared, changes, key))

    # ------------------------------------------------------------ inside

    def _topic(self, request: web.Request) -> str:
        """Return the full name of the map's topic. Raises Failure."""
        try:
            name = TopicName.parse(request.match_info["topic"])
            led = TopicName.parse(self._settings.topic)
        except InvalidTopicName as error:
            raise Failure(400, "bad-topic", str(error)) from error
        if name.base == led.base:
            raise Failure(400, "bad-topic", "the sidecar leads it: a map has a topic of its own")
        return str(name)

    @contextmanager
    def _counted(self, operation: str) -> Iterator[None]:
        """Count the result of one request, and convert its errors to failures."""
        with self._metrics.sharing(operation), _failing():
            yield


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except OnewriterError as error:
        raise of_sharing(error) from error


def _follow(shared: Map, changes: _Changes, key: bytes | None) -> NextEvent:
    """Return the source of a map's change events; the last event is the reason of the end."""
    is_over = False

    async def next_event() -> bytes | None:
        nonlocal is_over
        if is_over:
            return None
        try:
            while True:
                change = await _next_change(shared, changes)
                if key is None or change.key == key:
                    return event("change", _change_view(change), number=change.version)
        except StopAsyncIteration:
            return None
        except OnewriterError as error:
            is_over = True
            name = "overflow" if isinstance(error, WatchOverflow) else "trouble"
            return event(name, {"reason": str(error)})

    return next_event


async def _next_change(shared: Map, changes: _Changes) -> Change[bytes, bytes]:
    trouble = shared.state.trouble
    if trouble is None:
        return await anext(changes)
    try:
        async with asyncio.timeout(0):  # changes that have arrived already
            return await anext(changes)
    except TimeoutError:
        raise trouble from None


def _key(request: web.Request) -> bytes:
    key = request.match_info["key"].encode()
    if len(key) > KEY_BYTES_MAX:
        raise Failure(400, "bad-key", f"a key has at most {KEY_BYTES_MAX} bytes")
    return key


def _flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "false")
    if text not in {"true", "false"}:
        raise Failure(400, "bad-query", f"{name} is true or false")
    return text == "true"


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(KEYS_PER_PAGE))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= KEYS_PER_PAGE_MAX:
        raise Failure(400, "bad-query", f"limit is a number from 1 to {KEYS_PER_PAGE_MAX}")
    return int(text)


def _after(request: web.Request) -> bytes:
    """Return the key after which a page begins, from the bytes of the URL, because it may not be text."""
    found = parse_qs(request.rel_url.raw_query_string, encoding="latin-1").get("after", [""])
    return found[0].encode("latin-1", "replace")


def _value(body: bytes, content_type: str) -> bytes:
    """Return the value to store: JSON in the SDK's format, other content unchanged. Raises Failure."""
    if content_type != JSON:
        return body
    try:
        return _JSON.dump(json.loads(body))
    except (ValueError, RecursionError, WrongType) as error:
        raise Failure(400, "not-json", f"the body is not JSON: {error}") from error


def _page(
    content: MapContent, after: bytes, limit: int, has_values: bool, bytes_max: int
) -> dict[str, Any]:
    """Return the first keys after ``after``, and the begin of the next page."""
    behind = (key for key in content.keys() if not after or key > after)  # noqa: SIM118 - no mapping
    keys = heapq.nsmallest(limit + 1, behind)
    entries: list[dict[str, Any]] = []
    size = 0
    for key in keys[:limit]:
        value = content.get(key) or b""
        size += len(value) if has_values else 0
        if entries and size > bytes_max:
            break
        named = _text(key, "key")
        entries.append(named | _value_view(value) if has_values else named)
    following = None if len(entries) == len(keys) else quote(keys[len(entries) - 1], safe="")
    return {"entries": entries, "next": following}


def _change_view(change: Change[bytes, bytes]) -> dict[str, Any]:
    view = _text(change.key, "key") | {"version": change.version}
    return view | ({"deleted": True} if change.value is None else _value_view(change.value))


def _value_view(value: bytes) -> dict[str, Any]:
    return _text(value, "content") | {"etag": f'"{etag_of(value)}"'}


def _text(content: bytes, name: str) -> dict[str, str]:
    """Return text unchanged, and other bytes as base64 under another name."""
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content).decode()}


def _unmet(present: bytes | None) -> Failure:
    etag = None if present is None else f'"{etag_of(present)}"'
    return Failure(412, "condition-failed", "the condition does not hold", etag=etag)
