"""The quota book: counts what subjects and namespaces use, and decides whether they get more.

It knows neither connections nor topics. The caller takes a unit before it grants something, and gives it back
afterwards. When a quota shrinks, what is in use stays: quotas are compared only when more is requested.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from onewriter_core.authorization import Principal
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity
from onewriter_http.addresses import network_of


class Quota(enum.StrEnum):
    """The limited things, and whom the limit is for. The value is the setting's name without ``quota_``."""

    CONNECTIONS_PER_SUBJECT = "connections_per_subject"
    CONNECTIONS_PER_NAMESPACE = "connections_per_namespace"
    PRODUCERS_PER_SUBJECT = "producers_per_subject"
    PRODUCERS_PER_NAMESPACE = "producers_per_namespace"
    CONSUMERS_PER_SUBJECT = "consumers_per_subject"
    SUBSCRIPTIONS_PER_NAMESPACE = "subscriptions_per_namespace"
    REQUESTS_PER_SUBJECT = "requests_per_subject"
    TOPICS_PER_SUBJECT = "topics_per_subject"
    TOPICS_PER_NAMESPACE = "topics_per_namespace"

    @property
    def setting(self) -> str:
        """The setting that holds the limit."""
        return f"quota_{self.value}"

    @property
    def what(self) -> str:
        """The name of what is counted."""
        return self.value.partition("_per_")[0].replace("_", " ")


class QuotaExceeded(Refused):
    """A subject or namespace uses as much as a quota allows. Definite; the same request may succeed later."""

    def __init__(
        self,
        quota: Quota,
        whose: str,
        used: int,
        limit: int,
        code: ServerError = ServerError.TOO_MANY_REQUESTS,
    ) -> None:
        super().__init__(
            code,
            f"quota exceeded: {whose} has {used} {quota.what}, and {quota.setting} allows {limit};"
            " give some back, or ask an administrator to raise the setting",
        )
        self.quota = quota


class QuotaUnit(NamedTuple):
    """One unit of one quota, and whom it counts for."""

    quota: Quota
    whose: str


class QuotaBook:
    """The counts of one broker. A limit of 0, or a missing one, allows any number."""

    def __init__(self, limits: Mapping[Quota, int] | None = None) -> None:
        self._limits = dict(limits or {})
        self._used: dict[Quota, Counter[str]] = {quota: Counter() for quota in Quota}
        self.refused: Counter[Quota] = Counter()
        """Refusals since the start, by quota."""

    def limit(self, quota: Quota) -> int:
        """The limit of the quota; 0 for none."""
        return self._limits.get(quota, 0)

    def used(self, quota: Quota, whose: str) -> int:
        """How much of the quota is in use."""
        return self._used[quota][whose]

    def most(self, quota: Quota) -> tuple[str, int]:
        """The subject or namespace that uses most of it, and how much."""
        used = self._used[quota]
        return max(used.items(), key=lambda each: each[1], default=("", 0))

    def take(self, *units: QuotaUnit) -> None:
        """Add one to the count of each unit, of all or of none. Raises QuotaExceeded."""
        for quota, whose in units:
            self.check(quota, whose, self._used[quota][whose])
        self.count(*units)

    def count(self, *units: QuotaUnit) -> None:
        """Add one to the count of each unit, even beyond a limit."""
        for quota, whose in units:
            self._used[quota][whose] += 1

    def give_back(self, *units: QuotaUnit) -> None:
        """Subtract one from the count of each unit."""
        for quota, whose in units:
            used = self._used[quota]
            used[whose] -= 1
            if used[whose] <= 0:
                del used[whose]

    def check(self, quota: Quota, whose: str, used: int, more: int = 1) -> None:
        """Decide about a quota whose use is counted elsewhere. Raises QuotaExceeded."""
        limit = self.limit(quota)
        if limit and used + more > limit:
            self.refused[quota] += 1
            raise QuotaExceeded(quota, whose, used, limit)

    def measured(self, quota: Quota, used: Mapping[str, int]) -> None:
        """Replace the counts of a quota with what was measured elsewhere."""
        self._used[quota] = Counter(used)


def subject_of(identity: Identity, address: str) -> str:
    """The name under which the book counts a connection: its subject; without one, the host of the client.

    ``address`` is ``host:port``. All addresses of an IPv6 /64 network are one host.
    """
    if not identity.is_anonymous:
        return f"subject {identity.subject}"
    return f"anonymous client at {network_of(address.rpartition(':')[0] or address)}"


def connection_units(identity: Identity, address: str) -> tuple[QuotaUnit, ...]:
    """The units of a connection: one of its subject, and for a ServiceAccount another of its namespace."""
    units = [QuotaUnit(Quota.CONNECTIONS_PER_SUBJECT, subject_of(identity, address))]
    namespace = Principal(identity).namespace
    if namespace is not None:
        whose = f"Kubernetes namespace {namespace}"
        units.append(QuotaUnit(Quota.CONNECTIONS_PER_NAMESPACE, whose))
    return tuple(units)


def namespace_key(namespace: str) -> str:
    """The name under which the book counts the objects of a Pulsar namespace, ``tenant/namespace``."""
    return f"namespace {namespace}"


Item = TypeVar("Item")


class CountedItems(dict[int, Item]):
    """A mapping whose ids count in the quota book from ``take`` until they are removed."""

    def __init__(self, book: QuotaBook) -> None:
        super().__init__()
        self._book = book
        self._units: dict[int, tuple[QuotaUnit, ...]] = {}

    def take(self, key: int, *units: QuotaUnit) -> None:
        """Count an id that is in the mapping, or will be. Raises QuotaExceeded."""
        self._book.take(*units)
        self._units[key] = units

    def __delitem__(self, key: int) -> None:
        super().__delitem__(key)
        self._give_back(key)

    def remove(self, key: int) -> Item | None:
        """Remove an id; returns its value, or None if it is not in the mapping."""
        found = self.get(key)
        if key in self:
            del self[key]
        return found

    def clear(self) -> None:
        super().clear()
        for key in list(self._units):
            self._give_back(key)

    def _give_back(self, key: int) -> None:
        self._book.give_back(*self._units.pop(key, ()))
