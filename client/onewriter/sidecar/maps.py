"""The open shared maps of a sidecar, bounded in number; the least recently used one is closed first.

::

    use ──▶ opening ──▶ open, used ◀──▶ open, unused ──▶ closing: another map needs the place,
               │                                         or it no longer follows its log
               └──▶ gone: it cannot be opened, and all waiting requests fail
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import structlog

from onewriter._errors import Closed, OnewriterError, Unavailable
from onewriter.sidecar.errors import Failure
from onewriter.sidecar.limits import DEFAULT_LIMITS
from onewriter.sidecar.metrics import Metrics
from onewriter.state import SharedMap

Map = SharedMap[bytes, bytes]

log = structlog.get_logger(__name__)


class _OpenMap:
    """One map, and the task that enters and leaves it."""

    def __init__(self, shared: Map, troubled_seconds: float) -> None:
        self.shared = shared
        self._troubled_seconds = troubled_seconds
        self.users = 0
        self.since = asyncio.get_running_loop().time()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left = asyncio.Event()
        self.is_leaving = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_spent(self) -> bool:
        """Whether the map should be opened again."""
        if self.users or not self.opened.done() or self.shared.state.trouble is None:
            return False
        return asyncio.get_running_loop().time() - self.since >= self._troubled_seconds

    def leave(self) -> None:
        """Close the map after its accepted writes are complete."""
        self.is_leaving = True
        self.left.set()
        if self.task is not None and not self.opened.done():
            self.task.cancel()


class Maps:
    """Enter it with ``async with``; ``use`` maps by the full names of their topics.

    ``open_map`` returns a map that is not entered yet. A request waits ``timeout_seconds`` for a map that is being
    opened; opening continues after that. At the end all maps are closed within ``stop_seconds``.
    """

    def __init__(
        self,
        open_map: Callable[[str], Map],
        metrics: Metrics,
        *,
        maps_max: int,
        timeout_seconds: float,
        stop_seconds: float,
        troubled_seconds: float = DEFAULT_LIMITS.troubled_seconds,
    ) -> None:
        self._troubled_seconds = troubled_seconds
        self._open_map = open_map
        self._metrics = metrics
        self._maps_max = maps_max
        self._timeout_seconds = timeout_seconds
        self._stop_seconds = stop_seconds
        self._maps: dict[str, _OpenMap] = {}
        """The maps, the least recently used one first."""
        self._changing = asyncio.Lock()
        self._tasks = asyncio.TaskGroup()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closed = True
        tasks = [each.task for each in self._maps.values() if each.task is not None]
        for each in self._maps.values():
            each.leave()
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, traceback)
            return
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._stop_seconds)
            for task in late:
                task.cancel()
        # The task group would wrap the caller's error; pass on its own cancellation only.
        await self._tasks.__aexit__(None, None, None)

    @asynccontextmanager
    async def use(self, topic: str) -> AsyncIterator[Map]:
        """Yield the map of a topic and keep it open meanwhile. Raises Failure, or the error of opening it."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                entry = await self._take(topic)
                try:
                    await asyncio.shield(entry.opened)
                except BaseException:
                    entry.users -= 1
                    raise
        except TimeoutError as error:
            raise Unavailable(f"the map of {topic} is still being read") from error
        try:
            yield entry.shared
        finally:
            entry.users -= 1

    # ------------------------------------------------------------ inside

    async def _take(self, topic: str) -> _OpenMap:
        entry = self._maps.get(topic)
        if entry is None or entry.is_leaving or entry.is_spent:
            async with self._changing:
                entry = await self._renewed(topic)
                entry.users += 1
        else:
            entry.users += 1
        self._maps[topic] = self._maps.pop(topic)  # now the most recently used one
        return entry

    async def _renewed(self, topic: str) -> _OpenMap:
        """Return the open map, or open it in a free place. Raises Failure."""
        entry = self._maps.get(topic)
        if entry is not None and not entry.is_leaving and not entry.is_spent:
            return entry
        if entry is not None:
            await self._close(entry)
        if len(self._maps) >= self._maps_max:
            unused = next((each for each in self._maps.values() if not each.users), None)
            if unused is None:
                raise Failure(429, "too-many", f"all of {self._maps_max} maps are being used")
            await self._close(unused)
        if self._is_closed:
            raise Closed("the sidecar stops")
        entry = self._maps[topic] = _OpenMap(self._open_map(topic), self._troubled_seconds)
        entry.task = self._tasks.create_task(self._run(topic, entry))
        self._metrics.maps_open.set(len(self._maps))
        return entry

    @staticmethod
    async def _close(entry: _OpenMap) -> None:
        entry.leave()
        if entry.task is not None:
            await asyncio.wait([entry.task])

    async def _run(self, topic: str, entry: _OpenMap) -> None:
        try:
            async with entry.shared:
                entry.opened.set_result(None)
                await entry.left.wait()
        except OnewriterError as error:
            log.warning("map.ended", topic=topic, reason=str(error))
            _fail(entry, error)
        except Exception:
            log.exception("map.defect", topic=topic)
            _fail(entry, Closed("a defect: the sidecar's log has the details"))
        finally:
            _fail(entry, Closed("it was closed before it was open"))
            if self._maps.get(topic) is entry:
                del self._maps[topic]
            self._metrics.maps_open.set(len(self._maps))


def _fail(entry: _OpenMap, error: OnewriterError) -> None:
    """Fail the requests that wait for the map, if there are any."""
    if not entry.opened.done():
        entry.opened.set_exception(error)
        entry.opened.exception()
