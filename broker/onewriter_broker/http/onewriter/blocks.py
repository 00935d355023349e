"""``GET .../blocks``: a range of a log as stored blocks, streamed (docs/http.md, "Blocks").

A stream keeps one read of the log in memory, plus what its reader has not accepted of it: the next part is
read when this one is in the socket. A reader that accepts nothing for a while is disconnected. A slow reader
costs others nothing. Errors after the head of the response are reported in the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from aiohttp import web

from onewriter_broker.http.metrics import BlockStreams
from onewriter_broker.http.onewriter import packed, positions
from onewriter_broker.http.onewriter.bulk import TOPIC_PATH, one_log
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import EXPIRES, Refusal, Site, flag
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.ranges import (
    EntriesMissing,
    Range,
    first_block,
    lacks,
    trimmed_of,
)
from onewriter_core.authorization import Action
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format import packed_stream

PATH: Final = TOPIC_PATH + "/blocks"

STREAMS_MAX: Final = 16
"""Concurrent streams. Further requests are answered with 429, and clients retry."""

BEGIN_SECONDS: Final = 30.0
"""Within this time, a stream has begun or is refused."""

WRITE_SECONDS: Final = 60.0
"""A reader that accepts nothing for this long is disconnected."""

log = structlog.get_logger(__name__)


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Blocks"."""
    figures = site.metrics.block_streams

    async def blocks(request: web.Request) -> web.StreamResponse:
        with one_more(figures):
            async with asyncio.timeout(BEGIN_SECONDS):
                topic_log, _, _ = await one_log(site, request)
                start, end = _requested_range(request)
                payload = request.query.get("payload", "").lower() != "false"
                publishers, is_stored = flag(request, "publishers"), flag(request, "stored")
                gone = await _gone(topic_log, start)
                if gone is not None:
                    return gone.answer()
                start = start or (await first_block(topic_log)).position
            response = web.StreamResponse(
                headers={"Content-Type": "application/octet-stream", "Cache-Control": "no-store"}
            )
            stream = BlockStream(
                *(topic_log, response, request.get(EXPIRES), figures),
                token_seconds=site.clients.token_seconds,
                payload=payload,
                publishers=publishers,
            )
            try:
                await response.prepare(request)
                await stream.run(Range(topic_log, start, end, is_stored=is_stored))
            except TimeoutError:
                figures.cut_off += 1
                log.warning("blocks.cut_off", address=request.remote, topic=str(topic_log.name))
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionError:
                log.debug("blocks.reader_gone", address=request.remote, topic=str(topic_log.name))
            return response

    router.add_get(PATH, blocks, on_topic(Action.CONSUME), allow_head=False)


@contextmanager
def one_more(streams: BlockStreams) -> Iterator[None]:
    """Count one more stream while the context is open; raises Refusal at the limit."""
    if streams.open >= STREAMS_MAX:
        raise Refusal(
            429, f"{STREAMS_MAX} block streams are open, which is the maximum; retry later"
        )
    streams.open += 1
    try:
        yield
    finally:
        streams.open -= 1


def _requested_range(request: web.Request) -> tuple[Position | None, Position | None]:
    start, end = positions.requested(request, "from"), positions.requested(request, "to")
    if start is not None and end is not None and end < start:
        raise Refusal(
            400, "to is before from: a range starts at a position and ends at a later one"
        )
    return start, end


# ------------------------------------------------------------ what is gone


class Gone:
    """The requested entries are no longer stored; the log begins at ``first`` now."""

    def __init__(self, topic_log: TopicLog, requested: Position, first: Position) -> None:
        trimmed = trimmed_of(topic_log)
        self.details = {"first": positions.shown(first)}
        if trimmed != EARLIEST:
            self.details["trimmed"] = positions.shown(trimmed)
        why = "was trimmed" if requested < trimmed else "is not in the store any more"
        self.reason = (
            f"{positions.shown(requested)} of {topic_log.name} {why}:"
            f" the log begins at {positions.shown(first)}"
        )

    def answer(self) -> web.Response:
        """As the response to a request."""
        return web.json_response({"reason": self.reason} | self.details, status=410)

    def frame(self) -> bytes:
        """As the end of a stream."""
        return packed.pack_error(410, self.reason, **self.details)


async def _gone(topic_log: TopicLog, requested: Position | None) -> Gone | None:
    """The response if the log does not go back that far. Raises Undecided."""
    if requested is None:
        return None
    first = (await first_block(topic_log)).position
    return Gone(topic_log, requested, first) if lacks(topic_log, requested, first) else None


# ------------------------------------------------------------ streaming


class BlockStream:
    """One reader's stream. ``expires_at``: the expiry of its proof of identity, in Unix seconds of the
    clock ``token_seconds``.

    ``payload``: whether to send the entries' bytes; ``publishers``: whether to name the publishers.
    """

    def __init__(
        self,
        topic_log: TopicLog,
        response: web.StreamResponse,
        expires_at: float | None,
        figures: BlockStreams,
        write_seconds: float = WRITE_SECONDS,
        *,
        token_seconds: Callable[[], float],
        payload: bool = True,
        publishers: bool = False,
    ) -> None:
        self._token_seconds = token_seconds
        self._log = topic_log
        self._response = response
        self._expires_at = expires_at
        self._figures = figures
        self._write_seconds = write_seconds
        self._payload = payload
        self._publishers = publishers

    async def run(self, blocks: Range) -> None:
        """Send the range. A read error becomes the last frame of the stream.

        Raises TimeoutError for a reader that accepts nothing, ConnectionError for one that is gone.
        """
        await self._write(packed_stream.HEAD)
        try:
            await self._send(blocks)
            last = packed.pack_end(blocks.end)
        except MalformedBlock as error:
            text = f"the log is damaged behind {positions.shown(blocks.at)}: {error}"
            last = packed.pack_error(500, text, at=positions.shown(blocks.at))
        except _Ended as ended:
            last = ended.frame
        except EntriesMissing as missing:
            last = Gone(self._log, missing.requested, missing.found).frame()
        except OnewriterError as error:
            last = packed.pack_error(503, str(error))
        await self._write(last)
        await self._response.write_eof()

    async def _send(self, blocks: Range) -> None:
        while data := await self._next(blocks):
            await self._write(data)

    async def _next(self, blocks: Range) -> bytes:
        """The frames of the next part; empty at the end."""
        at = blocks.at
        found = await blocks.read()
        first = found[0].position if found else at
        if lacks(self._log, at, first):
            raise _Ended(Gone(self._log, at, first).frame())
        if self._expires_at is not None and self._token_seconds() >= self._expires_at:
            raise _Ended(packed.pack_error(401, "the token has expired"))
        return packed.pack(found, payload=self._payload, publishers=self._publishers)

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(self._write_seconds):
            await self._response.write(data)
        self._figures.bytes += len(data)
        await asyncio.sleep(0)  # a fast reader of blocks in memory must not block the event loop


class _Ended(Exception):
    """The stream ends with this frame."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self.frame = frame
