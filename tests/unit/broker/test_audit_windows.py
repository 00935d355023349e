"""Reading the newest audit records in windows that grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.store.audit_windows import AuditRecord, newest_records


class Audit:
    """A store whose audit has some records."""

    def __init__(self, records: int) -> None:
        self._records = [(f"{number}-0", {"kind": "grant"}) for number in range(records)]
        self.counts: list[int] = []

    async def read_audit(self, bucket: int, *, count: int, reverse: bool) -> list[AuditRecord]:
        assert (bucket, reverse) == (3, True)
        self.counts.append(count)
        return self._records[::-1][:count]


@pytest.mark.parametrize(
    ("records", "wanted", "counts", "is_all"),
    [
        (1, 1, [2], True),
        (9, 2, [2], False),
        (9, 3, [2, 8], False),
        (9, 99, [2, 8, 20], True),
        (99, 99, [2, 8, 20], False),
    ],
)
async def test_window_grows_until_the_caller_has_enough(
    records: int, wanted: int, counts: list[int], is_all: bool
) -> None:
    audit = Audit(records)

    async def has_enough(found: Sequence[AuditRecord]) -> bool:
        return len(found) >= wanted

    store = cast("LogStore", cast("Any", audit))
    found, has_all = await newest_records(store, 3, has_enough, first=2, most=20)
    assert (audit.counts, has_all) == (counts, is_all)
    assert found[0][0] == f"{records - 1}-0"
