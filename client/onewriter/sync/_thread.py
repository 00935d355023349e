"""A client's thread with its event loop, and calls from other threads into it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from onewriter._client import Client as AsyncClient
from onewriter._errors import Closed

Result = TypeVar("Result")

POLL_SECONDS = 1.0
"""Interval at which a waiting thread wakes, because a signal at the begin of a wait does not interrupt it."""


class Thread:
    """A thread with an event loop, and the client in it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._is_stopping = False
        self._running: set[concurrent.futures.Future[Any]] = set()
        """The futures of the threads that are in ``call``."""
        self._thread = threading.Thread(target=self._run, name="onewriter-client", daemon=True)

    @property
    def is_own(self) -> bool:
        """Whether the caller runs in this thread, which means that it is a callback."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Open the client."""
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Close the client and wait until its thread has ended."""
        with self._lock:
            was_stopping, self._is_stopping = self._is_stopping, True
            # The loop cannot be closed before its own thread has held the lock, see _live.
            if self._loop is not None and self._stop is not None and not was_stopping:
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop and wait for its result. An interrupt of the wait cancels it."""
        if self.is_own:
            work.close()
            raise Closed("a callback must not call what blocks")
        with self._lock:
            if self._loop is None or self._is_stopping:
                work.close()
                raise Closed("the client is not open")
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._running.add(running)
        try:
            return _result(running)
        except concurrent.futures.CancelledError:
            raise Closed("the client was closed") from None
        except BaseException:
            running.cancel()
            raise
        finally:
            with self._lock:
                self._running.discard(running)

    def run(self, work: Callable[[], Result]) -> Result:
        """Run a function that does not wait in the loop. Callbacks, which run there already, may call it."""
        if self.is_own:
            return work()

        async def run() -> Result:
            return work()

        return self.call(run())

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """As ``call``; if the client is closing, which includes the operation, wait for its end instead."""
        try:
            self.call(work)
        except Closed:
            if not self._is_stopping or self.is_own:
                raise
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            self._fail_running()

    async def _live(self) -> None:
        try:
            async with self._client:
                self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
                self._started.set_result(None)
                await self._stop.wait()
        finally:
            with self._lock:
                self._is_stopping = True
            await asyncio.sleep(0)  # earlier calls become tasks, which are then cancelled

    def _fail_running(self) -> None:
        """Fail the calls that have no result, because the loop is closed."""
        with self._lock:
            running = list(self._running)
        for each in running:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it has a result
                each.set_exception(Closed("the client was closed"))


def _result(running: concurrent.futures.Future[Result]) -> Result:
    while True:
        try:
            return running.result(POLL_SECONDS)
        except TimeoutError:
            if running.done():  # the call itself raised TimeoutError
                raise
