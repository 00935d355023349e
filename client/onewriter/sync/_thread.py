"""A client's thread: its event loop, and how every other thread has something done in it."""

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

LOOK_SECONDS = 1.0
"""A signal that comes just as a thread begins to wait does not wake it: it looks so often."""


class Thread:
    """An event loop in a thread of its own, and the client that lives in it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._is_stopping = False
        self._running: set[concurrent.futures.Future[Any]] = set()
        """One for each thread that is in ``call``."""
        self._thread = threading.Thread(target=self._run, name="onewriter-client", daemon=True)

    @property
    def is_own(self) -> bool:
        """Whether whoever asks runs in it: a callback."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Open the client."""
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Close the client and wait until its thread has ended."""
        with self._lock:
            was_stopping, self._is_stopping = self._is_stopping, True
            # The loop cannot be closed before its own thread has had the lock, see _live.
            if self._loop is not None and self._stop is not None and not was_stopping:
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it in the loop and wait. Whatever interrupts the waiting cancels it."""
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
        """Run what does not wait in the loop; callbacks, which are there already, may call it."""
        if self.is_own:
            return work()

        async def run() -> Result:
            return work()

        return self.call(run())

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """As ``call``, for what the end of the client does as well: then wait for that."""
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
            await asyncio.sleep(0)  # calls taken before that become tasks, which are cancelled

    def _fail_running(self) -> None:
        """The loop is closed: what it has not answered, it never will."""
        with self._lock:
            running = list(self._running)
        for each in running:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was answered
                each.set_exception(Closed("the client was closed"))


def _result(running: concurrent.futures.Future[Result]) -> Result:
    while True:
        try:
            return running.result(LOOK_SECONDS)
        except TimeoutError:
            if running.done():  # it is the call's own
                raise
