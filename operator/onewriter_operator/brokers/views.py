"""Merges the reports of all brokers: for each topic, the view that counts. No I/O.

Two brokers may both report that they serve a topic, if one was frozen or cut off. The ledger rises with
every change of the holder, so the view with the highest ledger is the latest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from onewriter_core.topic_view import TopicView

TOPICS_REMEMBERED_MAX: Final = 100_000
"""Topics whose last broker, and the time when it stopped serving them, are kept."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class View:
    """One topic as its broker reports it. ``since``: when its state changed last."""

    broker: str
    status: TopicView
    since: float


class Views:
    """The views of all brokers, by topic."""

    def __init__(self, topics_max: int = TOPICS_REMEMBERED_MAX) -> None:
        self._topics_max = topics_max
        self._by_broker: dict[str, dict[str, View]] = {}
        self._last_server: OrderedDict[str, str] = OrderedDict()
        self._gone_at: OrderedDict[str, float] = OrderedDict()

    def best(self, topic: str) -> View | None:
        """The view that counts; None if no broker serves the topic."""
        found = [views[topic] for views in self._by_broker.values() if topic in views]
        return max(found, key=_rank) if found else None

    def server(self, topic: str) -> str:
        """The broker that served the topic last; empty if unknown."""
        return self._last_server.get(topic, "")

    def gone_at(self, topic: str) -> float | None:
        """When the last broker stopped serving the topic; None if unknown."""
        return self._gone_at.get(topic)

    def put(self, broker: str, topic: str, status: TopicView, now: float) -> TopicView | None:
        """Take in a broker's report of a topic; the view that counted before."""
        before = self.best(topic)
        known = self._by_broker.setdefault(broker, {}).get(topic)
        is_same = known is not None and known.status.state == status.state
        since = known.since if known is not None and is_same else now
        self._by_broker[broker][topic] = View(broker, status, since)
        self._gone_at.pop(topic, None)
        best = self.best(topic)
        if best is not None:
            self._remember(self._last_server, topic, best.broker)
        return None if before is None else before.status

    def drop(self, broker: str, topic: str, now: float) -> TopicView | None:
        """Note that a broker stopped serving a topic; the view that counted before."""
        before = self.best(topic)
        self._by_broker.get(broker, {}).pop(topic, None)
        if self._last_server.get(topic) == broker:
            del self._last_server[topic]
        if before is not None and self.best(topic) is None:
            self._remember(self._gone_at, topic, now)
        return None if before is None else before.status

    def keep_only(self, broker: str, topics: Iterable[str], now: float) -> list[str]:
        """Drop a broker's views of topics that it no longer serves; those topics."""
        kept = set(topics)
        gone = [topic for topic in self._by_broker.get(broker, {}) if topic not in kept]
        for topic in gone:
            self.drop(broker, topic, now)
        return gone

    def lose(self, broker: str) -> list[str]:
        """Drop all views of a broker; the topics that it served."""
        return list(self._by_broker.pop(broker, {}))

    def _remember(self, values: OrderedDict[str, _Value], topic: str, value: _Value) -> None:
        values[topic] = value
        values.move_to_end(topic)
        while len(values) > self._topics_max:
            values.popitem(last=False)


def claims_in(status: TopicView | None) -> set[str]:
    """The claims whose producers a view mentions."""
    return set() if status is None else {each.claim for each in status.producers if each.claim}


def _rank(view: View) -> tuple[bool, int, int, float]:
    status = view.status
    return status.is_served, status.ledger, status.epoch, view.since
