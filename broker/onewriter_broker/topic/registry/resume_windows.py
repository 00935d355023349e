"""Resume windows: how long a topic is reserved for its holder after its broker changed.

After a change of the broker or an unload, all clients must connect again. During the window the holder in the marker
has precedence over waiters. A holder that merely disconnects has no such window.

The window gives clients time to connect again. The time in which the broker itself makes them wait does not count:

* The window of a topic begins when the topic is loaded, if the load began within the window of its bucket.
* A load that takes longer than LATE_SECONDS, or that fails, shows that requests wait, perhaps those of other holders, in
  the broker or in their clients. No window ends while such a load is under way, and all windows that
  were open when it began last a whole window longer than it.

Late loads extend the window of a bucket by at most LATE_SECONDS_MAX. The windows decide only who gets a topic, not
whether a write is valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onewriter_core.ids import TopicName

LATE_SECONDS = 0.5
"""A load that takes longer is late. On an idle machine a load takes a few milliseconds."""

LATE_SECONDS_MAX = 30.0
"""Upper limit of the time by which late loads extend the window of a bucket."""


@dataclass(slots=True, eq=False)
class _Window:
    """The window of a bucket. ``latest``: late loads do not extend it further."""

    until: float
    latest: float


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """One load of a topic. ``is_in_window``: the holder could still resume the topic when the load began."""

    base: str
    began_at: float
    is_in_window: bool


class ResumeWindows:
    """The windows of one broker's topics. ``now`` returns monotonic seconds."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._of_buckets: dict[int, _Window] = {}
        self._of_topics: dict[str, float] = {}
        self._loads: dict[Load, None] = {}
        """Loads that are under way, the oldest first."""

    def bucket_acquired(self, bucket: int) -> None:
        """Begin the window of a bucket that another broker served until now."""
        self._of_buckets[bucket] = self._whole()

    def let_in(self) -> None:
        """Begin the windows of all buckets again, because clients can connect only from now on."""
        self._of_buckets = {bucket: self._whole() for bucket in self._of_buckets}

    def _whole(self) -> _Window:
        until = self._now() + self._seconds
        return _Window(until, until + LATE_SECONDS_MAX)

    def no_producer_could_resume(self, seconds: float) -> None:
        """Extend the windows by the ``seconds`` of an outage of the store that ends now.

        A load needs the store. A window that ended during the outage would give the topic to the first
        producer that connects.
        """
        now = self._now()
        for window in self._of_buckets.values():
            if window.until > now - seconds:
                window.until = min(window.until + seconds, now + self._seconds)
                window.latest += seconds
        for topic, until in self._of_topics.items():
            if until > now - seconds:
                self._of_topics[topic] = min(until + seconds, now + self._seconds)

    def unloaded(self, base: TopicName) -> None:
        """Begin the window of a topic that this broker unloaded."""
        now = self._now()
        self._of_topics = {name: until for name, until in self._of_topics.items() if until > now}
        self._of_topics[str(base)] = now + self._seconds

    def load_began(self, bucket: int, base: TopicName) -> Load:
        """Note that a topic of the bucket is being loaded. Call ``load_done`` or ``load_failed`` afterwards."""
        load = Load(str(base), self._now(), self.until(bucket, base) is not None)
        self._loads[load] = None
        return load

    def load_done(self, load: Load) -> float | None:
        """Note that the topic is loaded, and return until when its holder has precedence over waiters.

        None: it has none. From now on the topic's partitions have the deadline.
        """
        self._ended(load, is_late=self._now() - load.began_at > LATE_SECONDS)
        self._of_topics.pop(load.base, None)
        return self._now() + self._seconds if load.is_in_window else None

    def load_failed(self, load: Load, *, is_retried: bool) -> None:
        """Note that the topic could not be loaded. ``is_retried``: its clients try again after a pause."""
        self._ended(load, is_late=is_retried)

    def _ended(self, load: Load, *, is_late: bool) -> None:
        del self._loads[load]
        if not is_late:
            return
        until = self._now() + self._seconds
        for window in self._of_buckets.values():
            if window.until > load.began_at:
                window.until = max(window.until, min(until, window.latest))

    def until(self, bucket: int, base: TopicName | None = None) -> float | None:
        """Until when a returning holder has precedence over waiters. None: no longer.

        Without a topic: until when the bucket's other resources are reserved for their owners.
        """
        now = self._now()
        until = self._of_topics.get(str(base), 0.0)
        window = self._of_buckets.get(bucket)
        if window is not None:
            until = max(until, self._until(window, now))
        return until if until > now else None

    def _until(self, window: _Window, now: float) -> float:
        oldest = next(iter(self._loads), None)
        if oldest is None or now - oldest.began_at <= LATE_SECONDS:
            return window.until
        if oldest.began_at >= window.until:
            return window.until
        return max(window.until, min(now + self._seconds, window.latest))
