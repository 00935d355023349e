"""Floors of dropped ownerships: never below what was dropped, and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.ids import Identity
from onewriter_core.own.floors import (
    COMMON,
    GENERATION_DROPPED_MAX,
    Floors,
    decode,
    is_floor,
    may_drop,
)
from onewriter_core.own.names import check_text, own_field
from onewriter_core.own.table import Owner, Ownership, OwnershipGranted, OwnRequest, decide

DROPS = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "c", "d"]), st.integers(1, GENERATION_DROPPED_MAX))
)


@given(DROPS, DROPS)
def test_a_floor_is_at_or_above_all_that_was_dropped(
    first: list[tuple[str, int]], then: list[tuple[str, int]]
) -> None:
    floors = Floors()
    for dropped in (first, then):
        before = floors
        records = ((own_field(group, "resource"), n) for group, n in dropped)
        floors = floors.after(records, groups_max=3)
        for group in ("", "a", "b", "c", "d", "never dropped"):
            highest = max((n for name, n in dropped if name == group), default=0)
            assert floors.of(group) >= max(highest, before.of(group))
        assert len(floors.groups) <= 3
        assert decode(floors.encode()) == floors
        assert before.joined(floors, groups_max=3) == floors.joined(before, groups_max=3)


def test_groups_keep_their_own_floors_while_there_is_space() -> None:
    floors = Floors().after([(own_field("a", "r"), 7), (own_field("b", "r"), 3)])
    assert (floors.of("a"), floors.of("b"), floors.of("c")) == (7, 3, 0)
    assert COMMON not in floors.encode()


def test_a_floor_is_no_record_and_no_group_is_called_like_one() -> None:
    assert all(is_floor(name) for name in Floors({"": 1, "a": 2}, 3).encode())
    assert not is_floor(own_field("", "resource"))
    with pytest.raises(Exception, match="control"):
        check_text("group", COMMON, 256)


def test_the_next_owner_begins_above_the_floor() -> None:
    before = Floors().after([(own_field("a", "r"), 7)]).begin("a", Ownership())
    answer = decide(before, OwnRequest(Owner(Identity("one")), 1))
    assert isinstance(answer, OwnershipGranted)
    assert answer.after.generation == 8
    returning = decide(before, OwnRequest(Owner(Identity("one")), 7, only_returns=True))
    assert not isinstance(returning, OwnershipGranted)


def test_a_record_without_owner_may_be_dropped_below_the_limit() -> None:
    owner = Owner(Identity("one"))
    assert may_drop(Ownership(1, owner))
    assert may_drop(Ownership(GENERATION_DROPPED_MAX))
    assert not may_drop(Ownership(1, owner, is_owned=True))
    assert not may_drop(Ownership(GENERATION_DROPPED_MAX + 1))
