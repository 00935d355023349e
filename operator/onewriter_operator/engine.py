"""kopf in a thread and an event loop of its own; what it watches arrives in ours.

kopf takes over the loop that it runs in: at its end it cancels every task that began after it, and
in a main thread it claims the signals. In a loop of its own it can do neither to us.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import kopf
import structlog
from kubernetes.aio import client

from onewriter_operator import handlers
from onewriter_operator.documents import Json

STOP_SECONDS: Final = 5.0
"""kopf may take so long to end; it holds nothing that would be lost."""

Intake = Callable[[str, Json], None]
"""Takes the type of a watch event and the object, in the loop that owns the store."""

log = structlog.get_logger(__name__)


class EngineFailed(Exception):
    """kopf ended by itself: nothing is watched any more, so the process must not go on."""


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

        waiting: deque[tuple[str, Json]] = deque()

        def take_in() -> None:
            for _ in range(len(waiting)):
                self._intake(*waiting.popleft())

        def deliver(kind: str, document: Json) -> None:
            waiting.append((kind, document))
            # One call for many events: each wakes the other loop, and waits for the interpreter.
            if len(waiting) == 1:
                loop.call_soon_threadsafe(take_in)

        def work() -> None:
            try:
                asyncio.run(self._watch(deliver))
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
        await kopf.operator(
            registry=handlers.registry(deliver, self._configuration),
            settings=handlers.settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )
