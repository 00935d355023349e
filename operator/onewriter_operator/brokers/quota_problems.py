"""The quotas that refuse producers, by topic and namespace, from the reports of all brokers. No I/O.

Brokers count most quotas for themselves, so a namespace may be at its limit at one broker only: this concerns the topics
that this broker serves. A broker of an earlier version reports nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from onewriter_core.ids import InvalidTopicName, TopicName
from onewriter_core.json_values import Json, mapping, text
from onewriter_operator.plan.facts import QuotaProblem


@dataclass(frozen=True, slots=True)
class _Report:
    topics: dict[str, QuotaProblem] = field(default_factory=dict)
    namespaces: dict[str, QuotaProblem] = field(default_factory=dict)


class QuotaReports:
    """The quotas of one installation, by the reports of its brokers."""

    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}

    def put(self, broker: str, line: Json) -> tuple[set[str], set[str]]:
        """Take in a broker's report; the topics and the namespaces whose problems have changed."""
        before = self._reports.get(broker, _Report())
        after = _Report(_problems(line.get("topics")), _problems(line.get("namespaces")))
        self._reports[broker] = after
        return (
            _changed(before.topics, after.topics),
            _changed(before.namespaces, after.namespaces),
        )

    def lose(self, broker: str) -> None:
        """Drop the report of a broker that cannot be followed."""
        self._reports.pop(broker, None)

    def problem(self, topic: str, served_by: str) -> QuotaProblem | None:
        """The problem of a topic; ``served_by``: the broker that serves it, empty if none does."""
        served = self._reports.get(served_by)
        if served is not None and served.namespaces:
            found = served.namespaces.get(_namespace(topic))
            if found is not None:
                return found
        reports = [each for _, each in sorted(self._reports.items()) if topic in each.topics]
        return reports[0].topics[topic] if reports else None


def topics_of(namespaces: Container[str], topics: Iterable[str]) -> list[str]:
    """The topics of some namespaces."""
    return [topic for topic in topics if _namespace(topic) in namespaces]


def _namespace(topic: str) -> str:
    try:
        return TopicName.parse(topic).namespace_name
    except InvalidTopicName:
        return ""


def _problems(found: object) -> dict[str, QuotaProblem]:
    return {
        name: QuotaProblem(
            text(each.get("reason")), text(each.get("since")), each.get("holds") is True
        )
        for name, each in mapping(found).items()
        if isinstance(each, dict)
    }


def _changed(before: dict[str, QuotaProblem], after: dict[str, QuotaProblem]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
