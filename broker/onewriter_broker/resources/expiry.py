"""Decides which ownership records may be dropped, and builds the write; resource_bucket.py performs it.

A dropped record leaves a floor for its group (``onewriter_core.own.floors``). The resource later starts above the
floor, so no generation is ever granted twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping

from onewriter_broker.log.store.api import Binding, OwnedRecord, OwnWrite
from onewriter_broker.resources.records import OwnershipRecord
from onewriter_core.own.floors import Floors, may_drop
from onewriter_core.own.names import split_field, topic_of
from onewriter_core.own.table import SERVE_SECONDS_MAX


def is_idle(entry: OwnershipRecord, now: float) -> bool:
    """Whether the resource has no owner, and no former owner that may still act (``Owner.serve_seconds``)."""
    is_over = max(entry.answer_at, entry.left_at) + SERVE_SECONDS_MAX <= now
    return entry.end is None and is_over and may_drop(entry.current(now))


def oldest(
    entries: Mapping[str, OwnershipRecord],
    count: int,
    *,
    now: float,
    before_ms: int,
    spared: Container[str],
) -> list[str]:
    """Records that may be dropped for new ones: those whose owners left first, and before ``before_ms``.

    ``spared`` names the records of the current request, which must stay.

    A topic's record always stays, because it ensures that only the group's owner reads the topic (S9).
    """
    found = (
        (entry.left_ms, field)
        for field, entry in entries.items()
        if entry.left_ms < before_ms and field not in spared and is_idle(entry, now)
    )
    kept = ((left_ms, field) for left_ms, field in found if topic_of(split_field(field)[1]) is None)
    return [field for _, field in heapq.nsmallest(count, kept)]


def dropping(
    binding: Binding,
    before: Floors,
    dropped: Mapping[str, int],
    *,
    broker: str,
    cause: str,
    time_ms: int,
) -> tuple[Floors, OwnWrite]:
    """The floors after a drop of records, and the write that drops them."""
    after = before.after(dropped.items())
    old, new = before.encode(), after.encode()
    audit = _audit(dropped, broker=broker, cause=cause, time_ms=time_ms)
    write = OwnWrite(
        binding,
        audits=(audit,),
        dropped=dropped,
        floors={name: floor for name, floor in new.items() if old.get(name) != floor},
        floors_removed=sorted(old.keys() - new.keys()),
    )
    return after, write


def returned(
    stored: Mapping[str, OwnedRecord], known: Container[str], floors: Floors
) -> dict[str, int]:
    """Dropped records that a dataset still has, because it lagged behind. ``known``: records that were not dropped.

    A record at or below the floor of its group was dropped, because later grants begin above the floor.
    """
    return {
        field: record.generation
        for field, record in stored.items()
        if field not in known and floors.covers(field, record.generation)
    }


def dropping_again(
    binding: Binding, floors: Floors, dropped: Mapping[str, int], *, broker: str, time_ms: int
) -> OwnWrite:
    """The write that stores the floors and drops the records again, in a dataset that lagged behind."""
    audit = _audit(dropped, broker=broker, cause="failover", time_ms=time_ms)
    return OwnWrite(binding, audits=(audit,), dropped=dropped, floors=floors.encode())


def _audit(
    dropped: Mapping[str, int], *, broker: str, cause: str, time_ms: int
) -> Mapping[str, str]:
    """The audit record of a drop."""
    return {
        "kind": "ownDropped",
        "cause": cause,
        "records": str(len(dropped)),
        "groups": str(len({split_field(field)[0] for field in dropped})),
        "generation": str(max(dropped.values(), default=0)),
        "broker": broker,
        "t": str(time_ms),
    }
