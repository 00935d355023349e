"""Server-sent events: streams with pings, bounded in number over all paths, that end with the sidecar."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from onewriter.sidecar.errors import Failure
from onewriter.sidecar.limits import DEFAULT_LIMITS
from onewriter.sidecar.metrics import Metrics

WRITE_SECONDS = 10.0
"""A client that does not read for this time is disconnected."""

RETRY_MILLISECONDS = 500
"""Delay after which an EventSource reconnects."""

NextEvent = Callable[[], Awaitable[bytes | None]]
"""Returns the next event; None ends the stream. The call is cancelled and repeated at each ping."""


def wants_events(request: web.Request) -> bool:
    """Whether a request asks for a stream of events."""
    return "text/event-stream" in request.headers.get("Accept", "")


def event(name: str, data: Any, *, number: int | None = None) -> bytes:
    """Encode one event; ``number`` is its id."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


class EventStreams:
    """The open streams. ``stop`` ends them, each after the events that are ready."""

    def __init__(
        self,
        streams_max: int,
        metrics: Metrics,
        *,
        ping_seconds: float = DEFAULT_LIMITS.ping_seconds,
    ) -> None:
        self._ping_seconds = ping_seconds
        self._streams_max = streams_max
        self._metrics = metrics
        self._waits: dict[object, asyncio.Timeout | None] = {}
        self._is_stopping = False

    def stop(self) -> None:
        """End all streams; none waits for further events."""
        self._is_stopping = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits.values():
            if wait is not None:
                wait.reschedule(now)

    async def serve(self, request: web.Request, next_event: NextEvent) -> web.StreamResponse:
        """Answer a request with events until there are no more. Raises Failure for too many streams."""
        if len(self._waits) >= self._streams_max:
            raise Failure(429, "too-many", f"{self._streams_max} streams are open")
        stream = object()
        self._waits[stream] = None
        self._metrics.event_streams.set(len(self._waits))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        try:
            await response.prepare(request)
            await _write(response, f"retry: {RETRY_MILLISECONDS}\n\n".encode())
            while (event := await self._next(stream, next_event)) is not None:
                await _write(response, event)
        except (ConnectionError, TimeoutError):
            response.force_close()  # the client has disconnected, or does not read
        finally:
            del self._waits[stream]
            self._metrics.event_streams.set(len(self._waits))
        return response

    async def _next(self, stream: object, next_event: NextEvent) -> bytes | None:
        """Return the next event or, after ``ping_seconds`` without one, a comment."""
        try:
            async with asyncio.timeout(0 if self._is_stopping else self._ping_seconds) as wait:
                self._waits[stream] = wait
                try:
                    return await next_event()
                finally:
                    self._waits[stream] = None
        except TimeoutError:
            return None if self._is_stopping else b": still there\n\n"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(data)
