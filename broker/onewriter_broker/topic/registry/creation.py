"""Quotas on topics: who made which topics, and whether a client may make another one.

Declared topics are not limited here, because Kubernetes limits who may create objects. An undeclared partition
that a client adds to such a topic by name counts like a topic. Each log counts as one.

The catalogs record who made each log. So the counts survive a restart, and cover all brokers. The catalogs of
other brokers are read again when they are older than ELSEWHERE_SECONDS.
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
"""How long the catalogs of other brokers are valid after a read."""

ALONE_BELOW: Final = 0.01
"""A client that has less than this part of a quota in the buckets held here may make more, whatever it has
elsewhere. Most clients that make topics have few."""

Change = Callable[[CatalogEntry | None], CatalogEntry]


class Creations:
    """The topics that clients make.

    ``binding_of`` returns the binding under which this broker holds a bucket. None: it does not hold it.
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
        """Logs that are counted and not in the catalog yet, by namespace and by creator."""

    async def learn(self, namespace: str, creator: str) -> None:
        """Read what the namespace and ``creator`` have, before ``counted`` compares it with the quotas."""
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
        """A context with a change of the catalog that raises QuotaExceeded if it adds too many logs.

        The logs count from the request on, until the change fails. ``creator`` is as in ``subject_of``. Empty:
        the broker itself, which has no limit.
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
        """Report the counts of the catalogs to the quota book."""
        namespaces, makers = self._catalogs.usage()
        named = {namespace_key(name): logs for name, logs in namespaces.items()}
        self._quotas.measured(Quota.TOPICS_PER_NAMESPACE, named)
        self._quotas.measured(Quota.TOPICS_PER_SUBJECT, makers)

    def _in_namespace(self, namespace: str) -> int:
        return self._catalogs.logs_in(namespace) + self._under_way[namespace_key(namespace)]

    def _of_creator(self, creator: str) -> int:
        return self._catalogs.made_by(creator) + self._under_way[creator]
