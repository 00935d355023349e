"""How full the store is, what it can promise, and what that does to producers."""

from __future__ import annotations

import dataclasses

import pytest

from onewriter_broker.log.api import Durability, Observation
from onewriter_broker.store_watch import nearly_full, with_replicas

SEEN = Observation("r", "", True, 0, {}, memory_bytes_used=50, memory_bytes_max=100)
LOCAL = frozenset({Durability.NONE, Durability.LOCAL})


@pytest.mark.parametrize(
    ("used", "limit", "was_full", "expected"),
    [
        (90, 100, False, False),
        (91, 100, False, True),
        (86, 100, True, True),
        (85, 100, True, False),
        (10**12, 0, False, False),
        (10**12, 0, True, False),
    ],
    ids=["at the mark", "above it", "not yet room", "room", "no limit", "the limit was lifted"],
)
def test_a_store_is_nearly_full_until_there_is_room(
    used: int, limit: int, *, was_full: bool, expected: bool
) -> None:
    seen = dataclasses.replace(SEEN, memory_bytes_used=used, memory_bytes_max=limit)
    assert nearly_full(seen, was_full=was_full) is expected


def test_a_replica_that_joins_lets_more_be_promised_and_one_that_goes_takes_nothing_back() -> None:
    more = with_replicas(LOCAL, 1, 2)
    assert more == LOCAL | {Durability.REPLICATED}
    assert with_replicas(more, 2, 2) == more | {Durability.ALL_REPLICAS}
    assert with_replicas(more, 0, 2) == more
    assert with_replicas(LOCAL, 5, 0) == more, "AllReplicas is offered only where it is configured"


def test_replicas_alone_promise_nothing_where_nothing_is_written_to_a_file() -> None:
    nothing = frozenset({Durability.NONE})
    assert with_replicas(nothing, 2, 2) == nothing
