"""Whose a ledger was, by the bucket's audit stream: for ledgers whose markers were trimmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.store.audit_windows import AuditRecord, newest_records
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import Purpose

_FENCES: Final = frozenset(purpose.value for purpose in Purpose)


def marker_of(fields: Mapping[str, str]) -> dict[str, str]:
    """What the marker said of whose audit record these are the fields."""
    kind = fields["kind"]
    marker = {"cause": kind}
    if "producer" in fields:
        told = {name: fields[name] for name in ("epoch", "producer", "subject") if name in fields}
        return marker | {"mode": "exclusive"} | told
    return marker | {"mode": "none" if kind == Purpose.DEPOSE.value else "shared"}


async def audited_marker(
    store: LogStore, bucket: int, name: TopicName, ledger: int
) -> dict[str, str]:
    """What the marker of one ledger said; empty: the audit does not know (any more).

    Raises Undecided.
    """
    marker: dict[str, str] = {}

    async def has_marker(records: Sequence[AuditRecord]) -> bool:
        for _, fields in records:
            is_of = fields.get("topic") == str(name.base) and fields.get("ledger") == str(ledger)
            if is_of and fields.get("kind") in _FENCES:
                marker.update(marker_of(fields))
                return True
        return False

    await newest_records(store, bucket, has_marker)
    return marker
