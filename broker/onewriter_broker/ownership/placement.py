"""Which broker should own which bucket: pure decisions, no I/O, no clock.

Rendezvous hashing over the brokers' stable names, all of equal weight: if a broker leaves, only
its buckets move, and if it returns under its name it gets them again. membership.py decides which
brokers are alive; buckets.py performs the decisions. Safety does not depend on this module: if two
brokers both claim a bucket, the anchor's compare-and-set lets one of them succeed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from onewriter_broker.anchor.api import Record

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
    zombie of it, or a misconfiguration).
    """

    alive: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    complete: bool = False
    rivals: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of this broker: buckets to acquire, to hand over, and to release unserved."""

    acquire: tuple[int, ...] = ()
    give_back: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def rendezvous(bucket: int, names: Collection[str]) -> str:
    """The broker to which ``bucket`` belongs; it depends only on the set of names."""
    return max(names, key=lambda name: (_weight(bucket, name), name))


def _weight(bucket: int, name: str) -> bytes:
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()


def may_take(me: str, view: LiveView, record: Record) -> bool:
    """Whether the bucket is free for ``me``: never one whose owner may be alive.

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


def plan(me: str, view: LiveView, records: Mapping[int, Record], held: Collection[int]) -> Plan:
    """Compare the present owners with the planned owners.

    ``records`` are the anchor's records as last read, ``held`` the buckets that ``me`` serves. If a
    bucket's record names this broker although the bucket is not held (an interrupted takeover, or an
    earlier process of its name), it is acquired again, or released if another broker should own it:
    the other brokers see a living broker of that name and would not acquire it.
    """
    mine = name_of(me)
    candidates = view.settled | {mine}
    acquire, give_back, release = [], [], []
    for bucket, record in records.items():
        target = rendezvous(bucket, candidates)
        if bucket in held:
            if target != mine:
                give_back.append(bucket)
        elif target == mine:
            if may_take(me, view, record):
                acquire.append(bucket)
        elif name_of(record.owner) == mine and may_take(me, view, record):
            release.append(bucket)
    return Plan(tuple(acquire), tuple(give_back), tuple(release))


def expected(me: str, view: LiveView, records: Mapping[int, Record]) -> bool:
    """Whether a living broker still owns a bucket that belongs to ``me`` and will release it."""
    mine = name_of(me)
    candidates = view.settled | {mine}
    return any(
        name_of(record.owner) in view.alive and rendezvous(bucket, candidates) == mine
        for bucket, record in records.items()
    )
