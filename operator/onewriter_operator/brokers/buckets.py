"""The buckets that no broker serves, and why, and the durabilities of the store, from the reports of all brokers. No I/O.

A broker reports the buckets that it serves and those that it should serve but does not. A bucket
counts as waiting if a broker has reported it for ``patience_seconds`` and no broker serves it: a
restart of the store must not rewrite the status of every topic twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.json_values import Json
from onewriter_operator.plan.facts import BucketFacts

PATIENCE_SECONDS: Final = 10.0
"""After this time the status of its topics shows a bucket that no broker serves."""

BUCKETS_MAX: Final = 65_536
"""Most buckets in a report."""


@dataclass(frozen=True, slots=True)
class _Report:
    count: int
    served: frozenset[int]
    waiting: Mapping[int, str]
    durabilities: Mapping[str, str]
    """The reason why the store does not provide a durability, empty if it does. Brokers of an earlier release report
    none."""


class Buckets:
    """The buckets of one installation, by the reports of its brokers."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._reports: dict[str, _Report] = {}
        self._since: dict[int, float] = {}
        self._reported: dict[int, str] = {}

    def put(self, broker: str, line: Json, now: float) -> set[int]:
        """Take in a broker's report; the buckets that counted as waiting and no longer wait, or all buckets if the
        durabilities of the store have changed.
        """
        count = int(line["count"])
        if not 0 < count <= BUCKETS_MAX:
            raise ValueError(f"a report of {count} buckets")
        waiting = {int(bucket): str(reason) for bucket, reason in line["waiting"].items()}
        durabilities = {
            str(name): str(reason) for name, reason in line.get("durabilities", {}).items()
        }
        is_known = any(report.durabilities == durabilities for report in self._reports.values())
        served = frozenset(map(int, line["served"]))
        self._reports[broker] = _Report(count, served, waiting, durabilities)
        ceased = self._ceased(now)
        return ceased if is_known or not durabilities else set(range(count))

    def lose(self, broker: str, now: float) -> set[int]:
        """Drop the report of a broker that cannot be followed; see ``put``."""
        self._reports.pop(broker, None)
        return self._ceased(now)

    def due(self, now: float) -> set[int]:
        """The buckets that began to count as waiting since the last call, or have another reason."""
        counted = {
            bucket: reason
            for bucket, reason in self._waiting().items()
            if now - self._since[bucket] >= self._patience_seconds
        }
        changed = {
            bucket for bucket, reason in counted.items() if self._reported.get(bucket) != reason
        }
        self._reported |= counted
        return changed

    @property
    def are_waiting(self) -> bool:
        """Whether any bucket waits."""
        return bool(self._since)

    def why_waiting(self, topic: str, now: float) -> str:
        """Why no broker serves the topic's bucket; empty when one does, or nothing is known."""
        bucket = self._bucket_of(topic)
        since = self._since.get(bucket)
        if since is None or now - since < self._patience_seconds:
            return ""
        return f"bucket {bucket} waits: {self._waiting()[bucket]}"

    def facts(self, now: float) -> BucketFacts | None:
        """How many buckets wait, and for what; None if no broker reports buckets."""
        count = max((report.count for report in self._reports.values()), default=0)
        if not count:
            return None
        reasons = [
            reason
            for bucket, reason in self._waiting().items()
            if now - self._since[bucket] >= PATIENCE_SECONDS
        ]
        return BucketFacts(count, tuple(sorted(reasons)))

    def why_not_durable(self, topic: str, durability: str) -> str | None:
        """Why the store does not provide a durability, by the broker of the topic's bucket or else any broker.

        Empty: it does. None: unknown.
        """
        bucket = self._bucket_of(topic)
        reports = [report for _, report in sorted(self._reports.items()) if report.durabilities]
        reports.sort(key=lambda report: bucket not in report.served)
        return reports[0].durabilities.get(durability) if reports else None

    def topics_in(self, buckets: Container[int], topics: Iterable[str]) -> list[str]:
        """The topics of some buckets."""
        return [topic for topic in topics if self._bucket_of(topic) in buckets]

    def _bucket_of(self, topic: str) -> int:
        """The topic's bucket; -1 while the number of buckets is unknown."""
        count = max((report.count for report in self._reports.values()), default=0)
        return bucket_of(TopicName.parse(topic), count) if count and topic else -1

    def _waiting(self) -> dict[int, str]:
        """The buckets that a broker should serve and no broker serves, with reasons."""
        served: set[int] = set()
        found: dict[int, str] = {}
        for _, report in sorted(self._reports.items()):
            served |= report.served
            found = {**report.waiting, **found}
        return {bucket: reason for bucket, reason in found.items() if bucket not in served}

    def _ceased(self, now: float) -> set[int]:
        waiting = self._waiting()
        self._since = {bucket: self._since.get(bucket, now) for bucket in waiting}
        ceased = self._reported.keys() - waiting.keys()
        for bucket in ceased:
            del self._reported[bucket]
        return set(ceased)
