"""Runs kopf in a thread and an event loop of its own, and carries its events into the operator's loop.

kopf takes over its loop: when it ends it cancels every task that began after it, and in a main thread
it handles the signals. In a loop of its own it can do neither to the operator.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import kopf
import structlog
import uvloop
from kubernetes.aio import client

from onewriter_core.json_values import Json
from onewriter_operator import handlers

STOP_SECONDS: Final = 5.0
"""Longest wait for the end of kopf, which holds no state."""

WAITING_MAX: Final = 10_000
"""Events in the channel; at the bound kopf waits, and with it the API server."""

FULL_SECONDS: Final = 0.05
"""Interval at which kopf's thread checks for room."""

BATCH_MAX: Final = 500
"""Events that are taken in at a time, before other tasks run."""

Intake = Callable[[str, Json], None]
"""Takes the type of a watch event and the object, in the loop that owns the store."""

log = structlog.get_logger(__name__)


class EngineFailed(Exception):
    """kopf ended by itself: no watch is left, so the process must end."""


class Handover:
    """Carries events from kopf's thread into another loop: in order, bounded, without losing one.

    Only one thread may deliver. A delivery into an empty queue schedules ``take_in``, and ``take_in``
    schedules itself until the queue is empty: so a queue with events always has a scheduled call.
    """

    def __init__(
        self,
        intake: Intake,
        loop: asyncio.AbstractEventLoop,
        *,
        waiting_max: int = WAITING_MAX,
        full_seconds: float = FULL_SECONDS,
        batch_max: int = BATCH_MAX,
    ) -> None:
        self._waiting_max = waiting_max
        self._full_seconds = full_seconds
        self._batch_max = batch_max
        self._intake = intake
        self._loop = loop
        self._waiting: deque[tuple[str, Json]] = deque()

    async def deliver(self, kind: str, document: Json) -> None:
        """Hand one event over; called in the delivering thread's loop."""
        while len(self._waiting) >= self._waiting_max:  # noqa: ASYNC110 - another thread makes room
            await asyncio.sleep(self._full_seconds)
        self._waiting.append((kind, document))
        # One call for many events: each call wakes the other loop and waits for the interpreter lock.
        if len(self._waiting) == 1:
            self._loop.call_soon_threadsafe(self.take_in)

    def take_in(self) -> None:
        """Take in the queued events; called in the receiving loop."""
        for _ in range(self._batch_max):
            try:
                event = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._intake(*event)
            except Exception:
                # A defect that one object triggers must not hold back all others.
                log.exception("event.not_taken_in", type=event[0])
        self._loop.call_soon(self.take_in)


class Engine:
    """Watches until it is stopped."""

    def __init__(
        self,
        intake: Intake,
        configuration: client.Configuration | None,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._intake = intake
        self._configuration = configuration
        self._namespaces = tuple(namespaces)
        self._stop = threading.Event()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Watch until cancelled. Raises EngineFailed when kopf gives up."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        handover = Handover(self._intake, loop)

        def work() -> None:
            try:
                uvloop.run(self._watch(handover.deliver))
            except BaseException as error:  # noqa: BLE001 - handed over to who waits for this thread
                self._error = error
            loop.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=work, name="kopf", daemon=True)
        thread.start()
        try:
            await ended.wait()
        finally:
            self._stop.set()
            await asyncio.to_thread(thread.join, STOP_SECONDS)
        raise EngineFailed(f"kopf has ended: {self._error!r}") from self._error

    async def _watch(self, deliver: handlers.Deliver) -> None:
        try:
            await kopf.operator(
                registry=handlers.registry(deliver, self._configuration),
                settings=handlers.settings(),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stop,
            )
        finally:
            # kopf waits for the flag in a thread of the loop's executor, and the loop does not close before
            # this thread ends. Without this, an engine that failed would never report it.
            self._stop.set()
