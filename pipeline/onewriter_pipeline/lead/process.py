"""The leader process of one driver: it leads topics for the driver's queries, and ends with the driver.

``python -m onewriter_pipeline.lead FOLDER PID STARTED`` listens on FOLDER/socket, which only this user can access,
and writes a line to stdout when it is ready. It ends when the driver has ended, or after a minute without topics to
lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

from onewriter_pipeline.errors import Damaged, PipelineError
from onewriter_pipeline.lead.driver import Process
from onewriter_pipeline.lead.requests import (
    BEGIN,
    END,
    LEAD,
    LINE_BYTES_MAX,
    READY,
    SOCKET,
    STATUS,
    LeaderRequest,
    answered,
    encoded,
    failed,
)
from onewriter_pipeline.lead.topics import Topics

POLL_SECONDS: Final = 0.5
"""Interval of the checks whether the driver runs, and whether uses have ended."""

PROCESS_IDLE_SECONDS: Final = 60.0
"""How long the process continues without topics to lead, so that the driver's next write finds it."""

CONNECTIONS_MAX: Final = 256
"""Limit of concurrent requests."""

REQUEST_SECONDS: Final = 10.0
"""Time limit for receiving a complete request."""

log = logging.getLogger("onewriter")


class Server:
    """Answers the driver's data sources."""

    def __init__(
        self, topics: Topics, driver: Process, *, idle_seconds: float = PROCESS_IDLE_SECONDS
    ) -> None:
        self._topics = topics
        self._driver = driver
        self._idle_seconds = idle_seconds
        self._requests = 0

    async def run(self, path: Path, ready: asyncio.Event | None = None) -> None:
        """Serve until the driver has ended or the process is idle; then release all topics."""
        server = await asyncio.start_unix_server(self._serve, str(path), limit=LINE_BYTES_MAX)
        if ready is not None:
            ready.set()
        try:
            async with server:
                await self._until_over()
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            await self._topics.close()

    async def _until_over(self) -> None:
        now = asyncio.get_running_loop().time
        used_at = now()
        while self._driver.is_running():
            await self._topics.sweep()
            if self._requests or not self._topics.is_idle:
                used_at = now()
            elif now() - used_at >= self._idle_seconds:
                return
            await asyncio.sleep(POLL_SECONDS)
        log.info("the driver has ended; its topics are released")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request on one connection."""
        try:
            if self._requests >= CONNECTIONS_MAX:
                return
            self._requests += 1
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    line = await reader.readline()
                answer = await self._answered(line, reader)
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
            finally:
                self._requests -= 1
        except (
            OSError,
            TimeoutError,
            ValueError,
        ):  # the client closed the connection, or sent no line
            log.debug("a request was cut short", exc_info=True)
        finally:
            writer.close()

    async def _answered(self, line: bytes, reader: asyncio.StreamReader) -> bytes | None:
        """The answer; None if the client closed the connection, which ends any waiting."""
        loop = asyncio.get_running_loop()
        answering = loop.create_task(self._answer(line))
        leaving = loop.create_task(reader.read(1))
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            leaving.cancel()
            return answering.result()
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering
        return None

    async def _answer(self, line: bytes) -> bytes:
        try:
            request = LeaderRequest.of(line)
        except (ValueError, TypeError, KeyError) as error:
            return failed(Damaged(f"invalid request to the leader process: {error}"))
        try:
            match request.what:
                case what if what == BEGIN:
                    return answered(await self._topics.begin(request))
                case what if what == LEAD:
                    return answered(await self._topics.lead(request))
                case what if what == END:
                    await self._topics.end(request)
                    return encoded({})
                case what if what == STATUS:
                    return encoded({"pid": os.getpid(), **self._topics.status()})
                case what:
                    return failed(Damaged(f"unknown request to the leader process: {what[:60]!r}"))
        except PipelineError as error:
            return failed(error)
        except Exception as error:
            log.exception("a request failed")
            return failed(PipelineError(f"the leader process failed: {error!r}"))


async def serve(folder: Path, driver: Process) -> None:
    """Serve in a folder until the driver has ended."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    serving = loop.create_task(Server(Topics(), driver).run(folder / SOCKET, ready))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    starting = loop.create_task(ready.wait())
    await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    if not ready.is_set():
        await serving  # raises the error that prevents it from listening
    sys.stdout.write(f"{READY.decode()}\n")
    sys.stdout.flush()
    sys.stdout.close()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    if not driver.is_running():
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the process."""
    folder, pid, started = sys.argv[1:4]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    asyncio.run(serve(Path(folder), Process(int(pid), started)))
