"""Topics that the broker cannot serve because of a broken key in the store, until a person repairs it.

The broker closes such a topic and rejects requests for it with the reason. A request causes another check of
the keys, at a limited rate. While the broker holds the bucket, it remembers what it knows of the topic, in
order to serve it again. It then writes an overwritten state again, and reports overwritten acknowledged entries
as a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.ids import Position, TopicName

RETRY_SECONDS = 2.0
"""Time between two checks of the keys of one topic."""

TOPICS_MAX = 10_000
"""Broken topics that are remembered. Each request for a further one checks its keys, as if it had never been served."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """What this broker knows of a log: its state as last written, and the last entry of each ledger."""

    state: dict[str, str]
    ends: list[Position]


@dataclass(slots=True)
class _Broken:
    error: BrokenKey
    look_at: float
    logs: dict[TopicName, _Known] = field(default_factory=dict)


class BrokenTopics:
    """The broken topics of one broker, by base name."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._topics: dict[str, _Broken] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def found(self, base: TopicName, error: BrokenKey, logs: Iterable[TopicLog] = ()) -> None:
        """Note that the topic cannot be served. ``logs``: those that this broker served until now."""
        key = str(base)
        known = self._topics.pop(key, None)
        if known is None or str(known.error) != str(error):
            log.error("topic.broken", topic=key, reason=str(error))
        broken = _Broken(error, self._now() + RETRY_SECONDS, known.logs if known else {})
        broken.logs |= {each.name: _Known(dict(each.state), each.kept_ends) for each in logs}
        self._topics[key] = broken
        while len(self._topics) > TOPICS_MAX:
            del self._topics[next(iter(self._topics))]

    def reason(self, base: TopicName) -> str:
        """The reason why a topic is broken. Empty: none is known."""
        broken = self._topics.get(str(base))
        return "" if broken is None else str(broken.error)

    def check(self, base: TopicName) -> None:
        """Raise BrokenKey if it is too early for another check of the topic's keys."""
        broken = self._topics.get(str(base))
        if broken is not None and self._now() < broken.look_at:
            raise BrokenKey(str(broken.error)) from broken.error

    def recall(self, base: TopicName, topic_log: TopicLog) -> None:
        """Pass what is known of a log to it after its state was read.

        No other broker has written to the log since. The next fence writes a missing state again and reports
        the acknowledged entries that are gone.
        """
        broken = self._topics.get(str(base))
        known = None if broken is None else broken.logs.get(topic_log.name)
        if known is None:
            return
        topic_log.restore(known.state, known.ends)

    def served(self, base: TopicName) -> None:
        """Note that the topic is served, or served again."""
        if self._topics.pop(str(base), None) is not None:
            log.info("topic.repaired", topic=str(base))

    def forget(self, is_gone: Callable[[TopicName], bool]) -> None:
        """Forget the topics that another broker serves now."""
        for name in [name for name in self._topics if is_gone(TopicName.parse(name))]:
            del self._topics[name]
