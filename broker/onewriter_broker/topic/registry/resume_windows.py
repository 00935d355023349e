"""For how long a topic is kept for the holder that its broker lost sight of.

After a change of broker, or an unload, every client has to come again: for a while the marker's
holder comes before the waiters. A holder that merely disconnects has no such window.
"""

from __future__ import annotations

from collections.abc import Callable

from onewriter_core.ids import TopicName


class ResumeWindows:
    """The windows of one broker's topics; ``now`` gives monotonic seconds."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._of_buckets: dict[int, float] = {}
        self._of_topics: dict[str, float] = {}

    def bucket_acquired(self, bucket: int) -> None:
        """Its topics were served elsewhere until now."""
        self._of_buckets[bucket] = self._now() + self._seconds

    def let_in(self) -> None:
        """Only from now on can anybody come again: the windows of all buckets begin."""
        until = self._now() + self._seconds
        self._of_buckets = dict.fromkeys(self._of_buckets, until)

    def nobody_could_come(self, seconds: float) -> None:
        """For so long, until now, the store was away: what is left of the windows begins now.

        A load needs the store. A window that passed meanwhile would leave the topic to whoever
        happens to come first.
        """
        now = self._now()
        for bucket, until in self._of_buckets.items():
            if until > now - seconds:
                self._of_buckets[bucket] = min(until + seconds, now + self._seconds)
        for topic, until in self._of_topics.items():
            if until > now - seconds:
                self._of_topics[topic] = min(until + seconds, now + self._seconds)

    def unloaded(self, base: TopicName) -> None:
        """The topic was closed here."""
        now = self._now()
        self._of_topics = {name: until for name, until in self._of_topics.items() if until > now}
        self._of_topics[str(base)] = now + self._seconds

    def loaded(self, base: TopicName) -> None:
        """The topic is served again: what its window was is in its partitions."""
        self._of_topics.pop(str(base), None)

    def until(self, bucket: int, base: TopicName | None = None) -> float | None:
        """Until when a returning holder comes before the waiters; None when that has passed.

        Without a topic: until when the owners of the bucket's other resources are waited for.
        """
        until = max(self._of_buckets.get(bucket, 0.0), self._of_topics.get(str(base), 0.0))
        return until if until > self._now() else None
