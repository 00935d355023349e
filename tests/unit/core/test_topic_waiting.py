"""The waiting line: who comes next among those whose slots are free."""

from __future__ import annotations

import pytest

from onewriter_core.ids import Identity
from onewriter_core.topic.model import AccessMode, Contender, Member, PromotionPolicy
from onewriter_core.topic.waiting import in_order, next_promoted

FIFO, PRIORITY = PromotionPolicy.FIFO, PromotionPolicy.PRIORITY


def waiter(name: str, arrival: int, priority: int = 0, slots: tuple[int, ...] = (-1,)) -> Contender:
    members = (Member(slots[0], name),)
    who = Identity(name)
    mode = AccessMode.WAIT_FOR_EXCLUSIVE
    is_partitioned = len(slots) > 1
    return Contender(
        name, slots, members, is_partitioned, name, True, who, mode, name, priority, arrival, "", ""
    )


LINE = [waiter("low", 1, -1), waiter("first", 2), waiter("high", 4, 5), waiter("second", 3)]


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (FIFO, ["low", "first", "second", "high"]),
        (PRIORITY, ["high", "first", "second", "low"]),
    ],
)
def test_the_order(policy: PromotionPolicy, names: list[str]) -> None:
    assert [w.group for w in in_order(LINE, policy)] == names
    assert [w.group for w in in_order(reversed(LINE), policy)] == names


def test_nobody_is_promoted_to_what_is_not_free() -> None:
    assert next_promoted(LINE, PRIORITY, frozenset()) is None
    assert next_promoted([], PRIORITY, frozenset({-1})) is None


def test_nobody_overtakes_a_group_that_waits_for_one_partition() -> None:
    group = waiter("group", 1, slots=(0, 1))
    single = waiter("single", 2, slots=(0,))
    other = waiter("other", 3, slots=(2,))
    line = [single, other, group]
    assert next_promoted(line, FIFO, frozenset({0})) is None
    assert next_promoted(line, FIFO, frozenset({0, 2})) == other
    assert next_promoted(line, FIFO, frozenset({0, 1, 2})) == group
