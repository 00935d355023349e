"""Requests in flight of each subject: beyond its quota none of its connections begins another one.

Nothing is refused: a connection that may begin none is not read, and goes on when half of the subject's
requests are answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from onewriter_broker.quotas.book import Quota, QuotaBook

GO_ON_BELOW: Final = 0.5
"""The share of the quota below which waiting connections go on."""


class RequestsInFlight:
    """Counts them in the quota book, for all connections of one broker."""

    def __init__(self, quotas: QuotaBook) -> None:
        self._quotas = quotas
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}

    def begin(self, subject: str) -> None:
        """One more is being worked on."""
        self._used[subject] += 1

    def end(self, subject: str) -> None:
        """One was answered: connections that wait for it go on where there is room again."""
        self._used[subject] -= 1
        if subject in self._waiting and self._used[subject] <= self._limit * GO_ON_BELOW:
            for go_on in list(self._waiting.pop(subject)):
                go_on()
        if not self._used[subject]:
            del self._used[subject]

    def has_room(self, subject: str) -> bool:
        """Whether the subject may begin another one."""
        return not self._limit or self._used[subject] < self._limit

    def wait(self, subject: str, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called, once, when there is room again."""
        if go_on not in self._waiting.setdefault(subject, {}):
            self._quotas.refused[Quota.REQUESTS_PER_SUBJECT] += 1
            self._waiting[subject][go_on] = None

    def leave(self, subject: str, go_on: Callable[[], None]) -> None:
        """The connection is closed."""
        waiting = self._waiting.get(subject, {})
        waiting.pop(go_on, None)
        if not waiting:
            self._waiting.pop(subject, None)

    def most(self) -> int:
        """How many the subject with most of them has."""
        return max(self._used.values(), default=0)

    @property
    def _limit(self) -> int:
        return self._quotas.limit(Quota.REQUESTS_PER_SUBJECT)
