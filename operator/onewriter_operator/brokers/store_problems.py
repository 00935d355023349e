"""What is wrong with the store for all topics, by the reports of all brokers. No I/O.

A problem counts once it has lasted ``patience_seconds``: a restart of the store must not rewrite the status of
every topic twice. If only some brokers lost the store, the others serve the topics, so that does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from onewriter_operator.plan.broker_report import BrokerReport

Judge = Callable[[Collection[BrokerReport]], str]
"""A sentence about a problem of the store, from the present reports of all brokers; empty if there is none.

A broker of an earlier version does not report everything. What it does not report is unknown.
"""


def unreachable(reports: Collection[BrokerReport]) -> str:
    """No broker that can be followed reaches the store."""
    answers = [report.store.is_reachable for report in reports]
    if False not in answers or True in answers:
        return ""
    away = [each.store for each in reports if each.store.is_reachable is False]
    reason = next((f": {each.problem}" for each in away if each.problem), "")
    return f"no broker reaches the store {away[0].url}".rstrip() + reason


def read_only(reports: Collection[BrokerReport]) -> str:
    """The store refuses every write. Of a cluster that is unknown: it may be only one of its primaries."""
    for store in (each.store for each in reports):
        if store.refuses_writes and store.topology != "Cluster":
            return f"the store {store.url} refuses writes: {'; '.join(store.faults or ())}"
    return ""


def full(reports: Collection[BrokerReport]) -> str:
    """The store is almost full, so that brokers refuse new producers."""
    for store in (each.store for each in reports):
        if store.is_full:
            return f"the store {store.url} is almost full, so brokers refuse new producers"
    return ""


class LastingProblem:
    """One problem of one installation's store."""

    def __init__(self, judge: Judge, patience_seconds: float) -> None:
        self._judge = judge
        self._patience_seconds = patience_seconds
        self._since: float | None = None
        self._text = ""
        self._was_reported = False

    def put(self, reports: Collection[BrokerReport], now: float) -> bool:
        """Take in the present reports of all brokers that can be followed. True: a problem that counted has ended."""
        text = self._judge(reports)
        if text:
            if not self._was_reported:
                self._text = text
            self._since = now if self._since is None else self._since
            return False
        has_ended, self._since, self._was_reported = self._was_reported, None, False
        return has_ended

    @property
    def is_pending(self) -> bool:
        """Whether the problem has begun and was not reported yet."""
        return self._since is not None and not self._was_reported

    def is_due(self, now: float) -> bool:
        """Whether the problem has begun to count since the last call."""
        if self._was_reported or not self.why(now):
            return False
        self._was_reported = True
        return True

    def why(self, now: float) -> str:
        """The sentence about the problem if it counts; otherwise empty."""
        if self._since is None or now - self._since < self._patience_seconds:
            return ""
        return self._text
