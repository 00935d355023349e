"""Which broker should own which bucket: pure decisions, no I/O, no clock.

Rendezvous hashing over the brokers' stable names, all of equal weight: if a broker leaves, only
its buckets move, and if it returns under its name it gets them again. membership.py decides which
brokers are alive; buckets.py performs the decisions. Safety does not depend on this module: if two
brokers both claim a bucket, the anchor's compare-and-set lets one of them succeed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onewriter_broker.anchor.api import Record

TABLES_MAX = 128
"""Sets of brokers whose targets are remembered: one for the store, and one for each shard that shows other brokers."""

_SEPARATOR = "~"


def incarnation_of(name: str, nonce: str) -> str:
    """The identity of one broker process: its stable name and a random part.

    Raises ValueError for a name that is empty or contains ``~`` or ``:``.
    """
    if not name or _SEPARATOR in name or ":" in name:
        raise ValueError(f"a broker's name is not empty and has neither '~' nor ':': {name!r}")
    return f"{name}{_SEPARATOR}{nonce}"


def name_of(incarnation: str) -> str:
    """The stable name in an incarnation; empty for an owner that no broker wrote."""
    name, separator, _ = incarnation.rpartition(_SEPARATOR)
    return name if separator else ""


@dataclass(frozen=True, slots=True)
class LiveView:
    """The living brokers, as one broker observes them.

    ``alive``: names of the other brokers that are not known to be dead. ``settled``: those that have
    been alive long enough to get buckets. ``complete``: the observation is long enough that a name
    missing from ``alive`` is dead. ``rivals``: other active processes under this broker's own name (a
    zombie of it, or a misconfiguration). ``of_buckets``: the views for the buckets of shards that show other
    brokers than the whole store does. ``is_read``: whether this broker can read the shard.
    """

    alive: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    complete: bool = False
    rivals: frozenset[str] = frozenset()
    is_read: bool = True
    of_buckets: Mapping[int, LiveView] = field(default_factory=dict)

    def of(self, bucket: int) -> LiveView:
        """The view for one bucket: in a cluster, which brokers reach the bucket's shard."""
        return self.of_buckets.get(bucket, self)


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of this broker: buckets to acquire, to hand over, and to release unserved."""

    acquire: tuple[int, ...] = ()
    give_back: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def rendezvous(bucket: int, names: Collection[str]) -> str:
    """The broker to which ``bucket`` belongs; it depends only on the set of names."""
    return _best(bucket, names)[1]


def _best(bucket: int, names: Collection[str]) -> tuple[bytes, str]:
    return max((_weight(bucket, name), name) for name in names)


def _weight(bucket: int, name: str) -> bytes:
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()


class Targets:
    """The brokers to which buckets belong, for the sets of names that were asked for last.

    A broker asks each second. Comparing 4,096 buckets with 256 names takes 0.7 s, so the answers are remembered. If a set
    differs from the one before it by some names, only these names are compared, and the buckets of missing ones.
    """

    def __init__(self) -> None:
        self._tables: dict[frozenset[str], _Table] = {}
        self._last: _Table | None = None

    def among(self, names: frozenset[str]) -> _Table:
        """The targets of all buckets if these brokers, at least one, may get buckets."""
        table = self._tables.pop(names, None)
        if table is None:
            table = _Table(names) if self._last is None else self._last.changed_to(names)
            if len(self._tables) >= TABLES_MAX:
                del self._tables[next(iter(self._tables))]
        self._tables[names] = self._last = table  # at the end: the first one is the one to forget
        return table


class _Table:
    """The targets for one set of names. Each bucket is compared when it is asked for."""

    def __init__(
        self,
        names: frozenset[str],
        former: Mapping[int, tuple[bytes, str]] | None = None,
        new_names: Collection[str] = (),
    ) -> None:
        self._names = names
        self._best: dict[int, tuple[bytes, str]] = {}
        self._former = {} if former is None else former
        self._new_names = new_names

    def changed_to(self, names: frozenset[str]) -> _Table:
        """The targets for another set of names, which compares only what differs."""
        return _Table(names, self._best, names - self._names)

    def of(self, bucket: int) -> str:
        """The broker to which ``bucket`` belongs."""
        best = self._best.get(bucket)
        if best is None:
            before = self._former.get(bucket)
            if before is None or before[1] not in self._names:
                best = _best(bucket, self._names)
            elif self._new_names:
                best = max(before, _best(bucket, self._new_names))
            else:
                best = before
            self._best[bucket] = best
        return best[1]


def may_take(me: str, view: LiveView, record: Record) -> bool:
    """Whether the bucket is free for ``me``: never one whose owner may be alive. ``view``: that for the bucket.

    A bucket is free if it has no owner, if this process or an earlier one of its name owns it (the lock
    on the data directory, or the orchestrator, ensures that the earlier process has ended), or if a
    dead broker owns it. A bucket whose owner has no broker's name (``adopt --force``) is not free.
    """
    owner, name = record.owner, name_of(record.owner)
    if owner in {"", me}:
        return True
    if not name or owner in view.rivals:
        return False
    if name == name_of(me):
        return True
    return view.complete and name not in view.alive


def _targets(
    me: str, view: LiveView, buckets: Iterable[int], targets: Targets
) -> Iterator[tuple[int, LiveView, str]]:
    """Each bucket with the view for it and the broker to which it belongs."""
    own_name, tables = name_of(me), dict[int, _Table]()
    for bucket in buckets:
        live = view.of(bucket)
        table = tables.get(id(live))
        if table is None:
            table = tables[id(live)] = targets.among(live.settled | {own_name})
        yield bucket, live, table.of(bucket)


def plan(
    me: str,
    view: LiveView,
    records: Mapping[int, Record],
    held: Collection[int],
    targets: Targets | None = None,
) -> Plan:
    """Compare the present owners with the planned owners.

    ``records`` are the anchor's records as last read, ``held`` the buckets that ``me`` serves. If a
    bucket's record names this broker although the bucket is not held (an interrupted takeover, or an
    earlier process of its name), it is acquired again, or released if another broker should own it:
    the other brokers see a living broker of that name and would not acquire it. ``targets`` are those of earlier calls.
    """
    own_name = name_of(me)
    acquire, give_back, release = [], [], []
    for bucket, live, target in _targets(me, view, records, targets or Targets()):
        record = records[bucket]
        if bucket in held:
            if target != own_name:
                give_back.append(bucket)
        elif target == own_name:
            if may_take(me, live, record):
                acquire.append(bucket)
        elif name_of(record.owner) == own_name and may_take(me, live, record):
            release.append(bucket)
    return Plan(tuple(acquire), tuple(give_back), tuple(release))


def expected(
    me: str, view: LiveView, records: Mapping[int, Record], targets: Targets | None = None
) -> bool:
    """Whether a living broker still owns a bucket that belongs to ``me`` and will release it.

    It releases no bucket to a broker that does not reach the bucket's shard.
    """
    own_name = name_of(me)
    return any(
        target == own_name and live.is_read and name_of(records[bucket].owner) in live.alive
        for bucket, live, target in _targets(me, view, records, targets or Targets())
    )
