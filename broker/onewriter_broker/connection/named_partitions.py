"""Decides whether a producer of a partition competes for that partition alone or for its whole
topic. No I/O.

A client asks for the number of partitions of the name that its user gave, and then opens producers,
consumers or readers of it. For the partitions of a partitioned topic it does not ask. So a question
about ``orders-partition-1`` counts for the next producer or consumer of that name on the same
connection, and only for that one: later, the same connection may open a producer of all of
``orders``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from onewriter_core.ids import InvalidTopicName, TopicName

NAMES_MAX: Final = 10_000
"""Partitions that a connection asked about without opening anything yet."""

PRODUCERS_MAX: Final = 10_000
"""Producers of single partitions that are remembered per connection."""


class NamedPartitions:
    """The partitions that one connection asked for by name."""

    def __init__(self, *, names_max: int = NAMES_MAX, producers_max: int = PRODUCERS_MAX) -> None:
        self._names_max = names_max
        self._producers_max = producers_max
        self._requests: Counter[str] = Counter()
        self._producers: dict[tuple[int, str], None] = {}

    def metadata_requested(self, topic: str) -> None:
        """The client requests how many partitions ``topic`` has."""
        name = _partition(topic)
        if name and (name in self._requests or len(self._requests) < self._names_max):
            self._requests[name] += 1

    def consumer_opened(self, topic: str) -> None:
        """The client opens a consumer or reader of ``topic``."""
        if self._requests:
            self._follow(_partition(topic))

    def competes_alone(self, producer_id: int, name: TopicName) -> bool:
        """Whether a producer that is opened now competes for its partition alone.

        A client that retries a refused producer sends the same id, without a request before it.
        """
        key = producer_id, str(name)
        has_requested = self._follow(key[1])
        if has_requested and key not in self._producers:
            if len(self._producers) >= self._producers_max:
                del self._producers[next(iter(self._producers))]
            self._producers[key] = None
        return key in self._producers

    def _follow(self, name: str) -> bool:
        """Consume one request about ``name``; False if there is none."""
        if name not in self._requests:
            return False
        self._requests[name] -= 1
        if not self._requests[name]:
            del self._requests[name]
        return True


def _partition(topic: str) -> str:
    """The full name of a partition; empty for any other name. The command itself refuses invalid
    names.
    """
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName:
        return ""
    return "" if name.partition is None else str(name)
