"""``GET /leadership`` as JSON, as a long poll, and as server-sent events."""

from __future__ import annotations

import asyncio

from aiohttp import web

from onewriter._lead.candidacy import Phase, Standing
from onewriter.sidecar.candidate import Candidate
from onewriter.sidecar.errors import Failure
from onewriter.sidecar.streams import EventStreams, event, wants_events

POLL_SECONDS_MAX = 60.0
"""Longest wait of ``?until=leading``."""

EVENTS_MAX = 64
"""Largest number of events that wait for a slow reader; above it, the stream is closed."""


class LeadershipRoutes:
    """Answers requests for /leadership. ``stop`` ends the streams."""

    def __init__(self, candidate: Candidate, streams: EventStreams) -> None:
        self._candidate = candidate
        self._streams = streams
        self._queues: dict[asyncio.Queue[Standing | None], None] = {}
        candidate.listeners[self._notify] = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request. Raises Failure."""
        if wants_events(request):
            return await self._events(request)
        until = request.query.get("until")
        if until is not None:
            await self._wait(until, request.query.get("timeoutSeconds", "30"))
        is_verified = await self._candidate.verify()
        return web.json_response(
            {**self._candidate.view(self._candidate.standing), "verified": is_verified}
        )

    def stop(self) -> None:
        """End all streams."""
        for queue in list(self._queues):
            self._offer(queue, None)

    async def _wait(self, until: str, seconds: str) -> None:
        if until not in {phase.value for phase in Phase}:
            names = ", ".join(phase.value for phase in Phase)
            raise Failure(400, "bad-query", f"until={until!r} is none of {names}")
        try:
            limit = min(float(seconds), POLL_SECONDS_MAX)
        except ValueError as error:
            raise Failure(400, "bad-query", "timeoutSeconds is a number") from error
        candidacy = self._candidate.candidacy
        try:
            async with asyncio.timeout(limit):
                while (standing := candidacy.standing).phase.value != until:
                    await candidacy.change(standing.version)
        except TimeoutError:
            return  # the answer is the current standing

    async def _events(self, request: web.Request) -> web.StreamResponse:
        queue: asyncio.Queue[Standing | None] = asyncio.Queue(EVENTS_MAX)
        queue.put_nowait(self._candidate.standing)
        self._queues[queue] = None

        async def next_event() -> bytes | None:
            if queue not in self._queues:
                return None  # the reader was too slow
            standing = await queue.get()
            return None if standing is None else self._event(standing)

        try:
            return await self._streams.serve(request, next_event)
        finally:
            self._queues.pop(queue, None)

    def _notify(self, standing: Standing) -> None:
        for queue in list(self._queues):
            self._offer(queue, standing)

    def _offer(self, queue: asyncio.Queue[Standing | None], standing: Standing | None) -> None:
        if queue.full():
            self._queues.pop(queue, None)  # the handler of the stream detects that and ends
        else:
            queue.put_nowait(standing)

    def _event(self, standing: Standing) -> bytes:
        return event("leadership", self._candidate.view(standing), number=standing.version)
