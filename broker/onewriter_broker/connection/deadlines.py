"""Progress deadlines: the broker closes exclusive producers that publish less often than their
topic demands.

Only topics that declare a deadline are checked. Usually that is none of thousands.
"""

from __future__ import annotations

from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.api.manifests import DesiredState
from onewriter_core.topic.model import TransitionCause


class ProgressDeadlines:
    """The topics of one broker that declare a progress deadline."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._desired: DesiredState | None = None
        self._names: tuple[str, ...] = ()

    def check(self, now: float) -> None:
        """Close producers that have passed their deadline. Call this often, and after received
        bytes were handled.
        """
        desired = self._topics.desired
        if desired is not self._desired:
            self._desired = desired
            self._names = tuple(
                str(topic.topic_name)
                for topic in desired.topics
                if topic.spec.detection.progress_deadline_seconds
            )
        for name in self._names:
            topic = self._topics.loaded.get(name)
            if topic is not None:
                _close_late(topic, now)


def _close_late(topic: LoadedTopic, now: float) -> None:
    deadline = topic.progress_deadline_seconds
    for producer in list(topic.runner.producers.values()):
        is_writing = producer.is_active and producer.is_exclusive
        if not deadline or not is_writing:
            continue
        idle_seconds = producer.idle_seconds(now)
        if idle_seconds > deadline:
            producer.channel.producer_closed(producer)
            # Its client still answers pings. The sign of life that counts is its last message.
            topic.runner.gone(producer, TransitionCause.PROGRESS_DEADLINE, now - idle_seconds)
