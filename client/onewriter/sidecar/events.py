"""``GET /leadership`` as JSON, as a long poll, and as server-sent events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from onewriter._leadership import Phase, Standing
from onewriter.sidecar.candidate import Candidate
from onewriter.sidecar.errors import Failure

POLL_SECONDS_MAX = 60.0
"""The longest that ``?until=leading`` waits."""

PING_SECONDS = 5.0
"""Between two comments of an event stream that has nothing to tell."""

EVENTS_MAX = 64
"""Events that wait for a slow reader; with more it is cut off, and begins anew with the present."""

WRITE_SECONDS = 10.0

RETRY_MILLISECONDS = 500
"""After which a browser's EventSource comes again."""


class Leading:
    """Handles /leadership. ``stop`` ends the streams."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._streams: dict[asyncio.Queue[Standing | None], None] = {}
        candidate.listeners[self._tell] = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request. Raises Failure."""
        if "text/event-stream" in request.headers.get("Accept", ""):
            return await self._events(request)
        until = request.query.get("until")
        if until is not None:
            await self._wait(until, request.query.get("timeoutSeconds", "30"))
        is_verified = await self._candidate.verify()
        return web.json_response(
            {**self._candidate.view(self._candidate.standing), "verified": is_verified}
        )

    def stop(self) -> None:
        """Tell every stream its end."""
        for queue in list(self._streams):
            self._offer(queue, None)

    async def _wait(self, until: str, seconds: str) -> None:
        if until not in {phase.value for phase in Phase}:
            names = ", ".join(phase.value for phase in Phase)
            raise Failure(400, "bad-query", f"until={until!r} is none of {names}")
        try:
            limit = min(float(seconds), POLL_SECONDS_MAX)
        except ValueError as error:
            raise Failure(400, "bad-query", "timeoutSeconds is a number") from error
        leadership = self._candidate.leadership
        try:
            async with asyncio.timeout(limit):
                while (standing := leadership.standing).phase.value != until:
                    await leadership.change(standing.version)
        except TimeoutError:
            return  # it is answered as it is

    async def _events(self, request: web.Request) -> web.StreamResponse:
        settings = self._candidate.settings
        if len(self._streams) >= settings.event_streams_max:
            raise Failure(429, "too-many", f"{settings.event_streams_max} streams are open")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        queue: asyncio.Queue[Standing | None] = asyncio.Queue(EVENTS_MAX)
        self._streams[queue] = None
        self._candidate.metrics.event_streams.set(len(self._streams))
        try:
            await _write(response, f"retry: {RETRY_MILLISECONDS}\n\n".encode())
            await _write(response, self._event(self._candidate.standing))
            while queue in self._streams:
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        standing = await queue.get()
                except TimeoutError:
                    await _write(response, b": still there\n\n")
                    continue
                if standing is None:
                    break
                await _write(response, self._event(standing))
        except (ConnectionError, TimeoutError):
            response.force_close()  # its reader has gone, or does not read
        finally:
            self._streams.pop(queue, None)
            self._candidate.metrics.event_streams.set(len(self._streams))
        return response

    def _tell(self, standing: Standing) -> None:
        for queue in list(self._streams):
            self._offer(queue, standing)

    def _offer(self, queue: asyncio.Queue[Standing | None], standing: Standing | None) -> None:
        if queue.full():
            self._streams.pop(queue, None)  # its handler finds itself cut off
        else:
            queue.put_nowait(standing)

    def _event(self, standing: Standing) -> bytes:
        data: dict[str, Any] = self._candidate.view(standing)
        return f"id: {standing.version}\nevent: leadership\ndata: {json.dumps(data)}\n\n".encode()


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(data)
