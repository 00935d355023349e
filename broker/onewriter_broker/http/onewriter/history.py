"""A topic's history from the audit stream, as recorded by every broker that served it.

The stream belongs to a bucket, so reading skips the records of other topics. A page is bounded, and contains
the id from which the next page continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from onewriter_broker.http.pulsar.stats import iso
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.store.audit_windows import AuditRecord, newest_records
from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.history.transitions import OUTAGE_FIELDS, READY
from onewriter_core.topic.model import Purpose

READ_RECORDS: Final = 512
"""Records that one read from the store asks for."""

SCANNED_MAX: Final = 8_192
"""Records that one request reads at most."""

RECORDS_PER_TICK: Final = 50
"""Records that are handled in one tick of the event loop: one or two milliseconds."""

_NUMBERS: Final = frozenset(
    {"epoch", "oldEpoch", "ledger", "priority", "arrival", "entries", "claimed", *OUTAGE_FIELDS}
)
_DOCUMENTS: Final = frozenset({"previous", "nextWaiter", "former"})
_NUMBER = re.compile(r"-?[0-9]{1,16}", re.ASCII)

RECORD_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)
"""The id of an audit record in the store."""


@dataclass(frozen=True, slots=True)
class Page:
    """Records of one topic, oldest first.

    ``next``: the id after which the next page begins; None if there are no more records now. ``is_cut``:
    there may be earlier records that were not read.
    """

    records: list[dict[str, Any]]
    next: str | None
    is_cut: bool


async def newest(
    store: LogStore,
    bucket: int,
    topic: str,
    limit: int,
    *,
    read_records: int = READ_RECORDS,
    scanned_max: int = SCANNED_MAX,
) -> Page:
    """The last ``limit`` records of a topic. Raises Undecided."""
    records: list[dict[str, Any]] = []

    async def has_enough(found: Sequence[AuditRecord]) -> bool:
        records.clear()
        ticks = Ticks(RECORDS_PER_TICK)
        for record_id, fields in reversed(found):
            await ticks.step()
            if _is_of(fields, topic):
                _add(records, shown(record_id, fields))
        return len(records) >= limit

    found, is_all = await newest_records(
        store, bucket, has_enough, first=read_records, most=scanned_max
    )
    last = found[0][0] if found else None
    return Page(records[-limit:], last, not is_all or len(records) > limit)


async def following(store: LogStore, bucket: int, topic: str, after: str, limit: int) -> Page:
    """Up to ``limit`` records after ``after``. Raises Undecided."""
    records: list[dict[str, Any]] = []
    scanned, ticks = 0, Ticks(RECORDS_PER_TICK)
    while len(records) < limit and scanned < SCANNED_MAX:
        found = await store.read_audit(bucket, after=after, count=READ_RECORDS)
        for record_id, fields in found:
            await ticks.step()
            if _is_of(fields, topic):
                # Records that belong to the page's last grant are still added to it.
                if len(records) == limit and fields.get("kind") != READY:
                    break
                _add(records, shown(record_id, fields))
            after = record_id
        scanned += len(found)
        if len(found) < READ_RECORDS:
            break
    return Page(records, after, is_cut=False)


def _is_of(fields: dict[str, str], topic: str) -> bool:
    """Whether a record is about the topic, its ownership, or its whole bucket (an adoption)."""
    return fields.get("topic", fields.get("resource", topic)) == topic


def _add(records: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Add a record. The times of a winner are added to its grant instead, if that is in the list."""
    if record.get("kind") == READY:
        for granted in reversed(records):
            is_same = granted.get("ledger") == record.get("ledger")
            if is_same and granted.get("kind") == Purpose.GRANT.value:
                granted.update({name: record[name] for name in OUTAGE_FIELDS if name in record})
                return
    records.append(record)


def shown(record_id: str, fields: dict[str, str]) -> dict[str, Any]:
    """A record with its numbers as numbers. Invalid values stay unchanged."""
    record: dict[str, Any] = {"id": record_id}
    for name, text in fields.items():
        record[name] = text
        if name in _NUMBERS and _NUMBER.fullmatch(text):
            record[name] = int(text)
        elif name in _DOCUMENTS:
            try:
                record[name] = json.loads(text)
            except ValueError:
                continue
    time_ms = record.pop("t", record.pop("time", ""))
    if _NUMBER.fullmatch(str(time_ms)):
        record["at"] = iso(int(time_ms))
    return record
