"""A queue of keys to reconcile: each key once, one reconcile at a time per key, with retries.

The rules, all bounded:

* a queued key is not added again; a key that changes during its reconcile is reconciled once more;
* a reconcile that raises is repeated after an exponential, jittered delay, or as ``RetryLater`` says;
* a reconcile may request a repetition; otherwise every key is reconciled again at the jittered resync
  interval, so that a missed event is not lost for ever;
* two reconciles of one key are at least ``spacing_seconds`` apart, so that a flapping object costs
  little, and as far apart as a firm ``RetryLater`` says, even if the key changes.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from onewriter_core.kubernetes.kinds import Key

KEYS_MAX: Final = 100_000
"""Keys in one queue; further ones are refused and counted."""

BACKOFF_SECONDS_MIN: Final = 0.2
BACKOFF_SECONDS_MAX: Final = 120.0
BACKOFF_DOUBLINGS_MAX: Final = 16

LATER_SECONDS_MAX: Final = 300.0
"""Longest delay that a reconcile can request."""

RESOLUTION_SECONDS: Final = 0.001
"""A key that is due within this time is due now."""

SPACING_SECONDS: Final = 0.1
"""Least time between two reconciles of one key."""

log = structlog.get_logger(__name__)


class RetryLater(Exception):
    """The reconcile could not be completed; ``after_seconds`` overrides the queue's own delay.

    ``is_firm``: the server asked for this delay, so a change of the key does not shorten it.
    """

    def __init__(
        self, reason: str, after_seconds: float | None = None, *, is_firm: bool = False
    ) -> None:
        super().__init__(reason)
        self.after_seconds = after_seconds
        self.is_firm = is_firm


Reconcile = Callable[[Key], Awaitable[float | None]]
"""Reconciles one object. Returns the seconds until the next reconcile; None: the resync interval. It is
repeated if it raises RetryLater or any other exception."""


class Observer(Protocol):
    """Receives the results of reconciles."""

    def reconciled(self, key: Key, seconds: float, result: str) -> None:
        """A reconcile ended: ``result`` is "ok", "later" or "error"."""


@dataclass(slots=True)
class _Entry:
    """The state of one key.

    ``due``: time of the next reconcile, None while the key is in line. ``free_at``: the earliest time
    of the next reconcile.
    """

    due: float | None = None
    is_in_line: bool = False
    is_running: bool = False
    is_dirty: bool = False
    failures: int = 0
    free_at: float = field(default=-1e9)


class WorkQueue:
    """A queue of keys."""

    def __init__(
        self,
        reconcile: Reconcile,
        *,
        workers: int,
        resync_seconds: float,
        observer: Observer | None = None,
        spacing_seconds: float = SPACING_SECONDS,
        randomness: random.Random | None = None,
        keys_max: int = KEYS_MAX,
    ) -> None:
        self._keys_max = keys_max
        self._reconcile = reconcile
        self._workers = workers
        self._resync_seconds = resync_seconds
        self._observer = observer
        self._spacing = spacing_seconds
        self._random = randomness or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._entries: dict[Key, _Entry] = {}
        self._line: deque[Key] = deque()
        self._later: list[tuple[float, Key]] = []
        self._changed = asyncio.Event()
        self._ready = asyncio.Semaphore(0)
        self.refused = 0

    # ------------------------------------------------------------ interface

    @property
    def depth(self) -> int:
        """Keys in line for a reconcile now."""
        return len(self._line)

    def add(self, key: Key) -> None:
        """Reconcile the key soon."""
        self._add_after(key, 0.0)

    async def run(self) -> None:
        """Reconcile keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._promote())
            for _ in range(self._workers):
                group.create_task(self._work())

    # ------------------------------------------------------------ inside

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _add_after(self, key: Key, seconds: float) -> None:
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._keys_max:
                self.refused += 1
                log.error("workqueue.full", key=str(key), keys=len(self._entries))
                return
            entry = self._entries[key] = _Entry()
        now = self._now()
        due = max(now + seconds, entry.free_at)
        if entry.is_in_line:
            return
        if entry.is_running and seconds <= 0:
            entry.is_dirty = True
            return
        if due <= now + RESOLUTION_SECONDS:
            self._into_line(key, entry)
        elif entry.due is None or due < entry.due:
            entry.due = due
            heapq.heappush(self._later, (due, key))
            self._discard_stale()
            self._changed.set()

    def _discard_stale(self) -> None:
        """Bound the stale entries of keys that were reconciled earlier than planned."""
        if len(self._later) > 2 * len(self._entries) + 64:
            self._later = [
                (entry.due, key) for key, entry in self._entries.items() if entry.due is not None
            ]
            heapq.heapify(self._later)

    def _into_line(self, key: Key, entry: _Entry) -> None:
        entry.due = None
        entry.is_in_line = True
        self._line.append(key)
        self._ready.release()

    async def _promote(self) -> None:
        """Put keys into the line when they are due."""
        while True:
            now = self._now()
            while self._later and self._later[0][0] <= now + RESOLUTION_SECONDS:
                due, key = heapq.heappop(self._later)
                entry = self._entries.get(key)
                if entry is None or entry.due != due:
                    continue  # reconciled earlier, or dropped
                entry.due = None
                if entry.is_running:
                    entry.is_dirty = True
                else:
                    self._into_line(key, entry)
            self._changed.clear()
            timeout = self._later[0][0] - now if self._later else None
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _work(self) -> None:
        while True:
            await self._ready.acquire()
            key = self._line.popleft()
            entry = self._entries[key]
            entry.is_in_line = False
            entry.is_running = True
            entry.due = None
            try:
                after = await self._run_once(key, entry)
            finally:
                entry.is_running = False
                entry.free_at = max(entry.free_at, self._now() + self._spacing)
            self._schedule_next(key, entry, after)

    def _schedule_next(self, key: Key, entry: _Entry, after: float | None) -> None:
        if entry.is_dirty:
            entry.is_dirty = False
            self._add_after(key, 0.0)
        elif after is not None:
            self._add_after(key, after)
        else:
            del self._entries[key]

    async def _run_once(self, key: Key, entry: _Entry) -> float | None:
        """Reconcile a key; the delay of the next reconcile, None for never."""
        started = self._now()
        result = "ok"
        try:
            wanted = await self._reconcile(key)
        except RetryLater as later:
            result = "later"
            log.info("reconcile.later", key=str(key), kind=key.kind, reason=str(later))
            entry.failures = min(entry.failures + 1, BACKOFF_DOUBLINGS_MAX)
            if later.after_seconds is None:
                return self._backoff(entry.failures)
            seconds = min(later.after_seconds, LATER_SECONDS_MAX)
            if later.is_firm:
                entry.free_at = self._now() + seconds
            return seconds
        except Exception:
            # A defect in one reconcile must not stop the others; it is logged, counted and repeated.
            result = "error"
            log.exception("reconcile.failed", key=str(key), kind=key.kind)
            entry.failures = min(entry.failures + 1, BACKOFF_DOUBLINGS_MAX)
            return self._backoff(entry.failures)
        else:
            entry.failures = 0
            if wanted is not None and wanted < 0:
                return None
            resync = self._resync_seconds * self._random.uniform(0.9, 1.1)
            return resync if wanted is None else min(wanted, resync)
        finally:
            if self._observer is not None:
                self._observer.reconciled(key, self._now() - started, result)

    def _backoff(self, failures: int) -> float:
        doubled: float = BACKOFF_SECONDS_MIN * 2 ** (failures - 1)
        return min(doubled, BACKOFF_SECONDS_MAX) * self._random.uniform(0.5, 1.0)


GONE: Final = -1.0
"""Result of a reconcile whose object is gone: there is no next one."""
