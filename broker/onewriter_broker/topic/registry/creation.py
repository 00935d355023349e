"""Who made which topics, and whether somebody may make another: quotas on topics.

What is declared is not limited here: whoever may create objects in Kubernetes is limited there. What a
client adds to it by name, a partition that nobody declared, counts like a topic. Each log counts as one.

The catalogs say who made what, so a restart forgets nothing, and count for all brokers. Those of other
brokers are read again when they are older than ELSEWHERE_SECONDS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from onewriter_broker.log.store.api import Binding
from onewriter_broker.quotas.book import Quota, QuotaBook, namespace_key
from onewriter_broker.topic.registry.catalog import CatalogEntry, Catalogs
from onewriter_core.api import ExclusiveTopic
from onewriter_core.ids import TopicName

ELSEWHERE_SECONDS: Final = 30.0
"""What other brokers' catalogs said counts for so long."""

ALONE_BELOW: Final = 0.01
"""Who has less than this part of a quota in the buckets that are held here may have more, whatever it
has elsewhere: most who make a topic have few."""

Change = Callable[[CatalogEntry | None], CatalogEntry]


class Creations:
    """The topics that clients make. ``binding_of``: by what this broker holds a bucket, None if it does not.

    ``now`` is a monotonic clock.
    """

    def __init__(
        self,
        quotas: QuotaBook,
        catalogs: Catalogs,
        binding_of: Callable[[int], Binding | None],
        now: Callable[[], float],
    ) -> None:
        self._quotas = quotas
        self._catalogs = catalogs
        self._binding_of = binding_of
        self._now = now
        self._read_elsewhere_at: float | None = None
        self._under_way: Counter[str] = Counter()
        """Logs that are counted and not in the catalog yet: by namespace, and by who makes them."""

    async def learn(self, namespace: str, creator: str) -> None:
        """Know what the namespace and ``creator`` have before ``counted`` compares it with the quotas."""
        if not creator:
            return
        await self._catalogs.learn(self._binding_of, elsewhere=False)
        read_at = self._read_elsewhere_at
        if read_at is not None and self._now() - read_at < ELSEWHERE_SECONDS:
            return
        shares = (
            (Quota.TOPICS_PER_NAMESPACE, self._in_namespace(namespace)),
            (Quota.TOPICS_PER_SUBJECT, self._of_creator(creator)),
        )
        if any(used + 1 > ALONE_BELOW * self._quotas.limit(quota) > 0 for quota, used in shares):
            self._read_elsewhere_at = self._now()
            await self._catalogs.learn(self._binding_of, elsewhere=True)

    @contextmanager
    def counted(
        self, base: TopicName, declared: ExclusiveTopic | None, creator: str, change: Change
    ) -> Iterator[Change]:
        """Inside, a change of the catalog that raises QuotaExceeded where it adds too many logs.

        They count as soon as it was asked, and no more if the change fails. ``creator``: as in
        ``subject_of``; empty: the broker itself, for which nothing is limited.
        """
        namespace, taken = base.namespace_name, 0
        key = namespace_key(namespace)

        def checked(known: CatalogEntry | None) -> CatalogEntry:
            nonlocal taken
            entry = change(known)
            more = entry.logs - (known or CatalogEntry()).with_declared(declared).logs
            if more > 0 and creator:
                in_namespace, of_creator = self._in_namespace(namespace), self._of_creator(creator)
                self._quotas.check(Quota.TOPICS_PER_NAMESPACE, key, in_namespace, more)
                self._quotas.check(Quota.TOPICS_PER_SUBJECT, creator, of_creator, more)
                self._under_way.update({key: more, creator: more})
                taken = more
                return entry.with_made(creator, more)
            return entry

        try:
            yield checked
        finally:
            if taken:
                self._under_way.subtract({key: taken, creator: taken})
                self._under_way = +self._under_way

    def measure(self) -> None:
        """Have the quota book show what the catalogs say."""
        namespaces, makers = self._catalogs.usage()
        named = {namespace_key(name): logs for name, logs in namespaces.items()}
        self._quotas.measured(Quota.TOPICS_PER_NAMESPACE, named)
        self._quotas.measured(Quota.TOPICS_PER_SUBJECT, makers)

    def _in_namespace(self, namespace: str) -> int:
        return self._catalogs.logs_in(namespace) + self._under_way[namespace_key(namespace)]

    def _of_creator(self, creator: str) -> int:
        return self._catalogs.made_by(creator) + self._under_way[creator]
