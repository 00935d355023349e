"""Refused requests of each declared topic, for its owner: subject, missing right, count and last time.

Strangers decide what is refused, so everything is bounded: the topics (only declared ones, so invented names
use no memory), the entries of each topic, and the length of each text. The oldest are dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from onewriter_core.authorization import Action
from onewriter_core.ids import Identity, TopicName, escaped

PER_TOPIC_MAX: Final = 16
"""Pairs of subject and right that are kept for one topic. The least recently refused is dropped first."""

TOPICS_MAX: Final = 1_000
"""Topics whose refusals are kept: about 10 MB. The least recently refused is dropped first."""

TEXT_LENGTH_MAX: Final = 256
"""Characters of a subject and of a pod's uid."""


@dataclass(frozen=True, slots=True)
class RefusedRight:
    """One subject that lacks one right."""

    subject: str
    """Printable; empty for a client that did not prove who it is."""
    right: Action
    count: int
    last_ms: int
    pod_uid: str
    """Of the latest request."""


class TopicRefusals:
    """The refusals of one broker since it started."""

    def __init__(self, wall_ms: Callable[[], int], *, topics_max: int = TOPICS_MAX) -> None:
        self._wall_ms = wall_ms
        self._topics_max = topics_max
        self._topics: OrderedDict[str, OrderedDict[tuple[str, Action], RefusedRight]] = (
            OrderedDict()
        )

    def note(self, topic: TopicName, identity: Identity, right: Action) -> None:
        """Count one refusal at a declared topic."""
        name = str(topic.base)
        found = self._topics.setdefault(name, OrderedDict())
        self._topics.move_to_end(name)
        if len(self._topics) > self._topics_max:
            self._topics.popitem(last=False)
        subject = _shown(identity.subject)
        former = found.pop((subject, right), None)
        count = 1 if former is None else former.count + 1
        found[subject, right] = RefusedRight(
            subject, right, count, self._wall_ms(), _shown(identity.pod_uid)
        )
        if len(found) > PER_TOPIC_MAX:
            found.popitem(last=False)

    def of(self, topic: TopicName) -> Sequence[RefusedRight]:
        """The refusals at a topic, the latest first."""
        return tuple(reversed(self._topics.get(str(topic.base), OrderedDict()).values()))


def _shown(text: str) -> str:
    return escaped(text[:TEXT_LENGTH_MAX])[:TEXT_LENGTH_MAX]
