"""Reads the newest audit records of a bucket, in windows that grow until the caller has enough."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from onewriter_broker.log.store.api import LogStore

AuditRecord = tuple[str, dict[str, str]]
"""The id and the fields of an audit record."""

FIRST_RECORDS: Final = 512
"""Records in the first window."""

RECORDS_MAX: Final = 8_192
"""Records in the last window."""

_GROWTH: Final = 4


async def newest_records(
    store: LogStore,
    bucket: int,
    is_enough: Callable[[Sequence[AuditRecord]], Awaitable[bool]],
    *,
    first: int = FIRST_RECORDS,
    most: int = RECORDS_MAX,
) -> tuple[list[AuditRecord], bool]:
    """The newest records, newest first, and whether these are all records of the bucket.

    The window has ``first`` records, and grows up to ``most`` until ``is_enough`` accepts it. Raises Undecided.
    """
    count = first
    while True:
        found = await store.read_audit(bucket, count=count, reverse=True)
        is_all = len(found) < count
        if await is_enough(found) or is_all or count >= most:
            return found, is_all
        count = min(count * _GROWTH, most)
