"""Resume windows: how long a topic is reserved for its holder after its broker changed.

After a change of the broker or an unload, all clients must connect again. During the window the holder in the marker
has precedence over waiters. A holder that merely disconnects has no such window.
"""

from __future__ import annotations

from collections.abc import Callable

from onewriter_core.ids import TopicName


class ResumeWindows:
    """The windows of one broker's topics. ``now`` returns monotonic seconds."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._of_buckets: dict[int, float] = {}
        self._of_topics: dict[str, float] = {}

    def bucket_acquired(self, bucket: int) -> None:
        """Begin the window of a bucket that another broker served until now."""
        self._of_buckets[bucket] = self._now() + self._seconds

    def let_in(self) -> None:
        """Begin the windows of all buckets again, because clients can connect only from now on."""
        until = self._now() + self._seconds
        self._of_buckets = dict.fromkeys(self._of_buckets, until)

    def no_producer_could_resume(self, seconds: float) -> None:
        """Extend the windows by the ``seconds`` of an outage of the store that ends now.

        A load needs the store. A window that ended during the outage would give the topic to the first
        producer that connects.
        """
        now = self._now()
        for bucket, until in self._of_buckets.items():
            if until > now - seconds:
                self._of_buckets[bucket] = min(until + seconds, now + self._seconds)
        for topic, until in self._of_topics.items():
            if until > now - seconds:
                self._of_topics[topic] = min(until + seconds, now + self._seconds)

    def unloaded(self, base: TopicName) -> None:
        """Begin the window of a topic that this broker unloaded."""
        now = self._now()
        self._of_topics = {name: until for name, until in self._of_topics.items() if until > now}
        self._of_topics[str(base)] = now + self._seconds

    def loaded(self, base: TopicName) -> None:
        """Drop the window of a topic after its load. Its partitions have the deadline."""
        self._of_topics.pop(str(base), None)

    def until(self, bucket: int, base: TopicName | None = None) -> float | None:
        """Until when a returning holder has precedence over waiters. None: no longer.

        Without a topic: until when the bucket's other resources are reserved for their owners.
        """
        until = max(self._of_buckets.get(bucket, 0.0), self._of_topics.get(str(base), 0.0))
        return until if until > self._now() else None
