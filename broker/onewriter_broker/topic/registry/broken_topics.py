"""Topics that a broken key in the store keeps from being served, until a person repairs it.

Such a topic is closed; whoever asks for it is refused with the reason. Its keys are looked at again
by whoever asks, but not at the clients' pace. What this broker knows of it is remembered while it
holds the bucket, for the topic to be served again: a state that was overwritten is written anew, and
acknowledged entries that were are told as a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.ids import Position, TopicName

LOOK_SECONDS = 2.0
"""Between two looks at the keys of one topic."""

TOPICS_MAX = 10_000
"""Broken topics remembered; one beyond is looked at whenever somebody asks, as if never served."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """What this broker knows of a log: its state as last written, each ledger's last entry."""

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
        """The topic cannot be served. ``logs``: those that this broker served until now."""
        key = str(base)
        known = self._topics.pop(key, None)
        if known is None or str(known.error) != str(error):
            log.error("topic.broken", topic=key, reason=str(error))
        broken = _Broken(error, self._now() + LOOK_SECONDS, known.logs if known else {})
        broken.logs |= {each.name: _Known(dict(each.state), each.kept_ends) for each in logs}
        self._topics[key] = broken
        while len(self._topics) > TOPICS_MAX:
            del self._topics[next(iter(self._topics))]

    def reason(self, base: TopicName) -> str:
        """What is broken; empty: nothing that is known."""
        broken = self._topics.get(str(base))
        return "" if broken is None else str(broken.error)

    def check(self, base: TopicName) -> None:
        """Raises BrokenKey while it is too early to look at the topic's keys again."""
        broken = self._topics.get(str(base))
        if broken is not None and self._now() < broken.look_at:
            raise BrokenKey(str(broken.error)) from broken.error

    def recall(self, base: TopicName, topic_log: TopicLog) -> None:
        """Tell a log that was just read what is known of it; nobody else has written to it since.

        Its next fence writes a missing state anew and reports the acknowledged entries that are gone.
        """
        broken = self._topics.get(str(base))
        known = None if broken is None else broken.logs.get(topic_log.name)
        if known is None:
            return
        topic_log.recall(known.state, known.ends)

    def served(self, base: TopicName) -> None:
        """The topic is served (again)."""
        if self._topics.pop(str(base), None) is not None:
            log.info("topic.repaired", topic=str(base))

    def forget(self, is_gone: Callable[[TopicName], bool]) -> None:
        """Forget the topics that somebody else serves now."""
        for name in [name for name in self._topics if is_gone(TopicName.parse(name))]:
            del self._topics[name]
