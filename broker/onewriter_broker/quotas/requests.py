"""Concurrent requests of each subject. At its quota, none of its connections begins another request.

Nothing is refused: the broker stops reading from a connection that may not begin a request, and continues
when half of the subject's requests are answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from onewriter_broker.quotas.book import Quota, QuotaBook

RESUME_BELOW: Final = 0.5
"""Waiting connections continue below this share of the quota."""


class RequestsInFlight:
    """Counts requests in the quota book, for all connections of one broker."""

    def __init__(self, quotas: QuotaBook) -> None:
        self._quotas = quotas
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}

    def begin(self, subject: str) -> None:
        """Count one more request."""
        self._used[subject] += 1

    def end(self, subject: str) -> None:
        """Count one request less, and let waiting connections continue if there is room again."""
        self._used[subject] -= 1
        if subject in self._waiting and self._used[subject] <= self._limit * RESUME_BELOW:
            for resume in list(self._waiting.pop(subject)):
                resume()
        if not self._used[subject]:
            del self._used[subject]

    def has_space(self, subject: str) -> bool:
        """Whether the subject may begin another request."""
        return not self._limit or self._used[subject] < self._limit

    def wait(self, subject: str, resume: Callable[[], None]) -> None:
        """Call ``resume`` once when there is room again."""
        if resume not in self._waiting.setdefault(subject, {}):
            self._quotas.refused[Quota.REQUESTS_PER_SUBJECT] += 1
            self._waiting[subject][resume] = None

    def leave(self, subject: str, resume: Callable[[], None]) -> None:
        """Stop waiting, because the connection is closed."""
        waiting = self._waiting.get(subject, {})
        waiting.pop(resume, None)
        if not waiting:
            self._waiting.pop(subject, None)

    def most(self) -> int:
        """The highest number of requests of one subject."""
        return max(self._used.values(), default=0)

    @property
    def _limit(self) -> int:
        return self._quotas.limit(Quota.REQUESTS_PER_SUBJECT)
