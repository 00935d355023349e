"""Who watches this broker's topics, and which of them changed since each was told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from onewriter_core.ids import TopicName

WATCHERS_MAX: Final = 16
"""Watchers at once: an operator's replicas, and a few people."""


@dataclass(frozen=True, slots=True)
class WatchIntervals:
    """How often a watch sends lines."""

    gather_seconds: float = 0.1
    """At most one line per topic in this time, with the latest state."""
    poll_seconds: float = 1.0
    """Polling interval for buckets that are served or wait."""
    ping_seconds: float = 5.0
    """Interval of the lines that only show that the broker is alive."""
    write_seconds: float = 10.0
    """A watcher that accepts nothing for this long is disconnected."""


class Watcher:
    """One of them. ``woken`` is set while there is something to tell, or nothing any more."""

    def __init__(self, names: Iterable[str]) -> None:
        self.woken = asyncio.Event()
        self.is_ended = False
        self._changed = dict.fromkeys(names)

    def changed(self, name: str) -> None:
        """A topic is not as it was told."""
        self._changed[name] = None
        self.woken.set()

    def take(self) -> list[str]:
        """The topics that changed, in that order; they count as told."""
        names = list(self._changed)
        self._changed.clear()
        self.woken.clear()
        return names

    def end(self) -> None:
        """There will be nothing more."""
        self.is_ended = True
        self.woken.set()


class Watchers:
    """All watchers of one broker."""

    def __init__(self, intervals: WatchIntervals = WatchIntervals()) -> None:
        self.intervals = intervals
        self._watchers: dict[Watcher, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether nobody else may join."""
        return len(self._watchers) >= WATCHERS_MAX

    def join(self, names: Iterable[str]) -> Watcher:
        """Watch from now on; what is there counts as changed."""
        watcher = Watcher(names)
        self._watchers[watcher] = None
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Watch no longer."""
        self._watchers.pop(watcher, None)

    def changed(self, name: TopicName) -> None:
        """Something of a topic changed, or whether it is served here."""
        if self._watchers:
            text = str(name.base)
            for watcher in self._watchers:
                watcher.changed(text)

    def end(self) -> None:
        """The broker stops."""
        for watcher in self._watchers:
            watcher.end()
