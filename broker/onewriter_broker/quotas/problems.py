"""Where quotas refuse producers now, for the owners of the topics. No I/O.

A refusal lasts until a producer of the topic is admitted, but at least ``shown_seconds``, or until nothing was refused for
``kept_seconds``: a client that tries again must not change the report each time. The text of the first refusal stays for
the same reason. Clients decide what is refused, so the number of topics is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

TOPICS_MAX: Final = 1_000
"""Topics whose refusals are kept. The least recently refused is dropped first."""

SHOWN_SECONDS: Final = 60.0
"""A refusal is reported for this time after the last one, even if a producer was admitted since."""

KEPT_SECONDS: Final = 600.0
"""Time without another refusal after which one is no longer reported. Kubernetes restarts a container that keeps failing
after five minutes at most."""


@dataclass(frozen=True, slots=True)
class QuotaProblem:
    """A quota that is used up. ``since_ms``: Unix time of the first refusal. ``holds``: writers wait, too."""

    reason: str
    since_ms: int
    holds: bool = False


@dataclass(slots=True)
class _Refused:
    quota: str
    problem: QuotaProblem
    last: float
    is_admitted: bool = False
    """Whether a producer was admitted since the last refusal."""


class QuotaProblems:
    """The problems of one broker. ``now``: monotonic seconds."""

    def __init__(
        self,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        *,
        topics_max: int = TOPICS_MAX,
        shown_seconds: float = SHOWN_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self._now = now
        self._wall_ms = wall_ms
        self._topics_max = topics_max
        self._shown_seconds = shown_seconds
        self._kept_seconds = kept_seconds
        self._refused: OrderedDict[str, _Refused] = OrderedDict()
        self._full: dict[str, QuotaProblem] = {}

    def refused(self, topic: str, quota: str, reason: str) -> None:
        """Note that a producer was refused. ``quota`` distinguishes quotas; ``reason`` is the text for the client."""
        found = self._refused.pop(topic, None)
        if found is None or found.quota != quota or self._is_over(found):
            found = _Refused(quota, QuotaProblem(reason, self._wall_ms()), self._now())
        found.last, found.is_admitted = self._now(), False
        self._refused[topic] = found
        if len(self._refused) > self._topics_max:
            self._refused.popitem(last=False)

    def admitted(self, topic: str) -> None:
        """Note that a producer of the topic was admitted."""
        found = self._refused.get(topic)
        if found is not None:
            found.is_admitted = True

    def topics(self) -> Mapping[str, QuotaProblem]:
        """The topics at which producers are refused."""
        for topic in [name for name, found in self._refused.items() if self._is_over(found)]:
            del self._refused[topic]
        return {topic: found.problem for topic, found in sorted(self._refused.items())}

    def namespaces(self, full: Mapping[str, str]) -> Mapping[str, QuotaProblem]:
        """The namespaces that store as much as a quota allows. ``full``: they and the present texts."""
        self._full = {
            name: self._full.get(name) or QuotaProblem(text, self._wall_ms(), holds=True)
            for name, text in sorted(full.items())
        }
        return self._full

    def of(self, topic: str, namespace: str, full: Mapping[str, str]) -> QuotaProblem | None:
        """The problem of one topic that this broker serves; None if there is none."""
        return self.namespaces(full).get(namespace) or self.topics().get(topic)

    def _is_over(self, found: _Refused) -> bool:
        quiet_seconds = self._now() - found.last
        return quiet_seconds >= (self._shown_seconds if found.is_admitted else self._kept_seconds)
