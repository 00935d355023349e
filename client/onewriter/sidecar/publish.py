"""``POST /publish``: one message, or a stream of messages with a stream of answers."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog
from aiohttp import web

from onewriter._message import MessageId
from onewriter._signal import Signal
from onewriter.sidecar.admission import Admission
from onewriter.sidecar.candidate import Candidate, SidecarMessage
from onewriter.sidecar.errors import Failure
from onewriter.sidecar.idempotency import IdempotencyKeys
from onewriter.sidecar.messages import (
    LENGTH_PREFIXED,
    NDJSON,
    length_prefixed,
    lines,
    message_of_headers,
)

SESSION_HEADER = "Onewriter-Session"
KEY_HEADER = "Idempotency-Key"

STREAM_WINDOW_MAX = 256
"""Largest number of a stream's messages without an answer; above it, the stream is not read."""

GUARD_QUERY = "guard"
"""The query that names another topic to publish to, under the guard of the led topic."""

WRITE_SECONDS = 30.0
"""A client that does not read its answers for this time is disconnected."""

log = structlog.get_logger(__name__)

_Publish = tuple[int, "asyncio.Task[MessageId | Failure]"]
"""The size of a message in bytes, and its result."""

_FRAMINGS = {NDJSON: lines, LENGTH_PREFIXED: length_prefixed}


def is_publish_stream(request: web.Request) -> bool:
    """Whether the body is a stream of messages, which has no time limit."""
    return request.path == "/publish" and request.content_type in _FRAMINGS


class PublishRoutes:
    """Answers requests for /publish, bounded in requests, streams and bytes."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._remembered = IdempotencyKeys()
        self._admission = Admission(
            candidate.settings.requests_max,
            candidate.settings.message_bytes_max,
            candidate.limits.bodies_bytes_max,
        )
        self._streams = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request. Raises Failure."""
        if request.content_type in _FRAMINGS:
            return await self._stream(request)
        return web.json_response(await self._one(request))

    # ------------------------------------------------------------ one

    async def _one(self, request: web.Request) -> dict[str, Any]:
        session = request.headers.get(SESSION_HEADER)
        guarded = request.query.get(GUARD_QUERY)
        with self._admission.admit(request.content_length):
            content = await self._admission.body(request)
            message = message_of_headers(content, request.headers)
            key = request.headers.get(KEY_HEADER)
            message_id = await self._publish(session, message, key, guarded)
        return answer_of(message_id, session or "")

    async def _publish(
        self, session: str | None, message: SidecarMessage, key: str | None, guarded: str | None
    ) -> MessageId:
        if key is None or session is None:
            return await self._candidate.publish(session, message, guarded)
        described = f"{message.key or ''}{'' if guarded is None else f'@{guarded}'}"
        fingerprint = zlib.crc32(message.content, zlib.crc32(described.encode()))
        return await self._remembered.once(
            session, key, fingerprint, lambda: self._candidate.publish(session, message, guarded)
        )

    # ------------------------------------------------------------ a stream

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        settings = self._candidate.settings
        if self._streams >= settings.streams_max:
            raise _busy(f"{settings.streams_max} streams are open")
        session = request.headers.get(SESSION_HEADER)
        self._candidate.term_of(session)  # an invalid session gets status 409, not an error line
        self._streams += 1
        try:
            return await self._answer_stream(request, session or "")
        finally:
            self._streams -= 1

    async def _answer_stream(self, request: web.Request, session: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-store"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = _Stream(self._candidate, session, request.query.get(GUARD_QUERY))
        framing = _FRAMINGS[request.content_type]
        messages = framing(request.content.iter_any(), self._candidate.settings.message_bytes_max)
        try:
            async with asyncio.TaskGroup() as tasks, aclosing(stream.answers()) as answers:
                reading = tasks.create_task(stream.read(messages, tasks))
                async for some in answers:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await response.write(some)
                reading.cancel()
            if stream.has_failed:
                response.force_close()  # the rest of the body stays unread
            await response.write_eof()
        except* (ConnectionError, TimeoutError):
            log.info("stream.cut_off", reason="its client does not read the answers")
            response.force_close()
        return response


class _Stream:
    """One stream: it publishes the messages in order, and returns the answers in the same order."""

    def __init__(self, candidate: Candidate, session: str, guarded: str | None) -> None:
        self.has_failed = False
        self._candidate = candidate
        self._session = session
        self._guarded = guarded
        self._under_way: asyncio.Queue[_Publish | Failure | None] = asyncio.Queue(STREAM_WINDOW_MAX)
        self._bytes = 0
        self._bytes_fell = Signal()
        self._published = 0
        self._failed = 0

    async def read(
        self, messages: AsyncGenerator[SidecarMessage, None], tasks: asyncio.TaskGroup
    ) -> None:
        """Publish all messages; stop at the first invalid or failed one."""
        try:
            async with aclosing(messages):
                async for message in messages:
                    size = len(message.content)
                    await self._bytes_fell.until(lambda size=size: self._has_space(size))  # type: ignore[misc]
                    if self.has_failed:
                        break
                    self._bytes += size
                    publish = tasks.create_task(self._publish(message))
                    await self._under_way.put((size, publish))
        except Failure as failure:
            await self._under_way.put(failure)
        await self._under_way.put(None)

    def _has_space(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._candidate.limits.stream_bytes_max

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """Yield one line per message and one at the end; lines that are ready together are joined."""
        answers: list[dict[str, Any]] = []
        while (item := await self._under_way.get()) is not None:
            answers.append(await self._answer(item))
            if self._under_way.empty() or len(answers) >= STREAM_WINDOW_MAX:
                yield _lines(answers)
                answers.clear()
        answers.append({"end": True, "published": self._published, "failed": self._failed})
        yield _lines(answers)

    async def _answer(self, item: _Publish | Failure) -> dict[str, Any]:
        if isinstance(item, Failure):
            ending: MessageId | Failure = item
            self.has_failed = True
        else:
            size, publish = item
            ending = await publish
            self._bytes -= size
            self._bytes_fell.notify()
        if isinstance(ending, Failure):
            self._failed += 1
            return ending.body
        self._published += 1
        return answer_of(ending, self._session)

    async def _publish(self, message: SidecarMessage) -> MessageId | Failure:
        if self.has_failed:
            return Failure(503, "not-sent", "an earlier message of the stream failed")
        try:
            return await self._candidate.publish(self._session, message, self._guarded)
        except Failure as failure:
            self.has_failed = True
            return failure


def answer_of(message_id: MessageId, session: str) -> dict[str, Any]:
    """Return the answer for a stored message."""
    return {
        "messageId": str(message_id),
        "ledger": message_id.ledger,
        "entry": message_id.entry,
        "epoch": int(session.partition("-")[0]),
        "stored": True,
    }


def _busy(reason: str) -> Failure:
    return Failure(429, "too-many", reason)


def _lines(contents: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(content).encode() + b"\n" for content in contents)
