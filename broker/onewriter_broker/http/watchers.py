"""The watchers of this broker's topics, and the topics that changed since each watcher was last notified."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from onewriter_core.ids import TopicName

WATCHERS_MAX: Final = 16
"""Concurrent watchers: the replicas of an operator, and a few people."""


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
    """One watcher. ``woken`` is set while there is something to send, or when the watch ends."""

    def __init__(self, names: Iterable[str]) -> None:
        self.woken = asyncio.Event()
        self.is_ended = False
        self._changed = dict.fromkeys(names)

    def changed(self, name: str) -> None:
        """Record that a topic changed."""
        self._changed[name] = None
        self.woken.set()

    def take(self) -> list[str]:
        """The changed topics in order of their change. They count as sent."""
        names = list(self._changed)
        self._changed.clear()
        self.woken.clear()
        return names

    def end(self) -> None:
        """End the watch."""
        self.is_ended = True
        self.woken.set()


class Watchers:
    """All watchers of one broker."""

    def __init__(self, intervals: WatchIntervals = WatchIntervals()) -> None:
        self.intervals = intervals
        self._watchers: dict[Watcher, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether no further watcher may join."""
        return len(self._watchers) >= WATCHERS_MAX

    def join(self, names: Iterable[str]) -> Watcher:
        """Start to watch. The existing topics count as changed."""
        watcher = Watcher(names)
        self._watchers[watcher] = None
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Watch no longer."""
        self._watchers.pop(watcher, None)

    def changed(self, name: TopicName) -> None:
        """Record that a topic changed, or whether this broker serves it."""
        if self._watchers:
            text = str(name.base)
            for watcher in self._watchers:
                watcher.changed(text)

    def end(self) -> None:
        """The broker stops."""
        for watcher in self._watchers:
            watcher.end()
