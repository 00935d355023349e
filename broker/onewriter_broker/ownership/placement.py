"""Which broker should own which bucket: pure decisions, no I/O, no clock.

Rendezvous hashing over the brokers' stable names, all of equal weight: when a broker leaves, only
its buckets move, and when it comes back under its name they are its own again. Who is alive is
membership's opinion (membership.py), performing the decision is the owner's work (buckets.py).
Nothing here is needed for safety: two brokers that both think a bucket is theirs meet at the
anchor's compare-and-set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from onewriter_broker.anchor.api import Record

_SEPARATOR = "~"


def incarnation_of(name: str, nonce: str) -> str:
    """The identity of one broker process: its stable name and something random.

    Raises ValueError for a name that is empty or contains ``~`` or ``:``.
    """
    if not name or _SEPARATOR in name or ":" in name:
        raise ValueError(f"a broker's name is not empty and has neither '~' nor ':': {name!r}")
    return f"{name}{_SEPARATOR}{nonce}"


def name_of(incarnation: str) -> str:
    """The stable name inside an incarnation; empty for an owner that no broker wrote."""
    name, separator, _ = incarnation.rpartition(_SEPARATOR)
    return name if separator else ""


@dataclass(frozen=True, slots=True)
class LiveView:
    """Who is there, as one broker sees it.

    ``alive``: names of the other brokers that are not known to be dead. ``settled``: those among
    them that have been there long enough to be given buckets. ``complete``: the observation is long
    enough that a name missing from ``alive`` is dead. ``rivals``: other processes under this
    broker's own name that were seen at work (a zombie of it, or a misconfiguration).
    """

    alive: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    complete: bool = False
    rivals: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """What this broker should do now: buckets to take, to give to others, to release unserved."""

    acquire: tuple[int, ...] = ()
    give_back: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def rendezvous(bucket: int, names: Collection[str]) -> str:
    """The name that ``bucket`` belongs to; the same for everybody who knows the same names."""
    return max(names, key=lambda name: (_weight(bucket, name), name))


def _weight(bucket: int, name: str) -> bytes:
    return hashlib.blake2b(f"{bucket}/{name}".encode(), digest_size=8).digest()


def may_take(me: str, view: LiveView, record: Record) -> bool:
    """Whether the bucket is free for ``me``: never one whose owner may be alive.

    Free is what has no owner, what this process or an earlier one of its name owns (the lock on the
    data directory, or the orchestrator, has seen to it that the earlier one is gone), and what a
    dead broker owns. An owner without a broker's name (``adopt --force`` at work) is not free.
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
    """Compare who owns with who should.

    ``records`` are the anchor's records as last read, ``held`` the buckets that ``me`` serves. A
    bucket whose record names this broker although it is not held (a takeover that broke off, or an
    earlier process of its name) is taken again, or released if another broker should own it: the
    others see a live broker of that name and would wait for ever.
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
    """Whether a bucket that should be ``me``'s is still with a live broker, who will give it up."""
    mine = name_of(me)
    candidates = view.settled | {mine}
    return any(
        name_of(record.owner) in view.alive and rendezvous(bucket, candidates) == mine
        for bucket, record in records.items()
    )
