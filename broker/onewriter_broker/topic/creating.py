"""Who made which topics, and whether somebody may make another: quotas on topics.

What is declared is not limited here: whoever may create objects in Kubernetes is limited there. What a
client adds to it by name, a partition that nobody declared, counts like a topic. Each log counts as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onewriter_broker.quotas.book import Part, Quota, QuotaBook, namespace_key
from onewriter_broker.topic.catalog import CatalogEntry
from onewriter_core.api import ExclusiveTopic
from onewriter_core.ids import TopicName

Change = Callable[[CatalogEntry | None], CatalogEntry]


class Creations:
    """The topics that clients of this broker made since it started, by who made them."""

    def __init__(self, quotas: QuotaBook, logs_in: Callable[[str], int]) -> None:
        """``logs_in``: how many logs a namespace has."""
        self._quotas = quotas
        self._logs_in = logs_in
        self._under_way: Counter[str] = Counter()
        self._made: dict[str, Counter[str]] = {}

    @contextmanager
    def counted(
        self, base: TopicName, declared: ExclusiveTopic | None, creator: str, change: Change
    ) -> Iterator[Change]:
        """Inside, a change of the catalog that raises QuotaExceeded where it adds too many logs.

        They count as soon as it was asked, and no more if the change fails. ``creator``: as in
        ``subject_of``; empty: the broker itself, for which nothing is limited.
        """
        namespace, taken = base.namespace_name, 0

        def checked(known: CatalogEntry | None) -> CatalogEntry:
            nonlocal taken
            entry = change(known)
            more = entry.logs - (known or CatalogEntry()).with_declared(declared).logs
            if more > 0 and creator:
                used = self._logs_in(namespace) + self._under_way[namespace]
                self._quotas.check(Quota.TOPICS_PER_NAMESPACE, namespace_key(namespace), used, more)
                quota = Quota.TOPICS_PER_SUBJECT
                self._quotas.check(quota, creator, self._quotas.used(quota, creator), more)
                self._quotas.count(*[Part(quota, creator)] * more)
                self._under_way[namespace] += more
                taken = more
            return entry

        try:
            yield checked
        except BaseException:
            self._give_back(creator, taken)
            raise
        else:
            if taken:
                self._made.setdefault(str(base), Counter())[creator] += taken
        finally:
            self._under_way[namespace] -= taken

    def deleted(self, base: TopicName) -> None:
        """The topic is gone: whoever made it may make others."""
        for creator, count in self._made.pop(str(base), Counter()).items():
            self._give_back(creator, count)

    def _give_back(self, creator: str, count: int) -> None:
        self._quotas.give_back(*[Part(Quota.TOPICS_PER_SUBJECT, creator)] * count)
