"""Acknowledgements in any order: the cursor never covers a message that was not acknowledged."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from onewriter_broker.dispatch.cursor import Cursor, ack_set_of, before, mask_of
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_core.ids import EARLIEST, Position

BATCH = 70  # messages in each entry: more than one word of an ack set
ALL = (1 << BATCH) - 1


@dataclass
class Model:
    """The messages of each entry that are not acknowledged yet."""

    entries: list[Position]
    left: dict[Position, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = dict.fromkeys(self.entries, ALL)


@st.composite
def logs(draw: st.DrawFn) -> list[Position]:
    """Draw a few ledgers of a few entries, with numbers missing between ledgers."""
    entries: list[Position] = []
    ledger = 0
    for length in draw(st.lists(st.integers(0, 5), min_size=1, max_size=5)):
        ledger += draw(st.integers(1, 3))
        entries += [Position(ledger, number) for number in range(1, length + 1)]
    return entries or [Position(1, 1)]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["one", "part", "until", "until-part", "read", "save", "ghost"]),
        st.integers(0, 30),
        st.integers(1, ALL),
    ),
    max_size=40,
)


def read_between(gaps: LedgerGaps, entries: list[Position], start: int) -> None:
    """Pass on what a reader learns from the entry at ``start`` and the next one."""
    after = entries[start - 1] if start else EARLIEST
    gaps.learn(after, entries[start])


def check(cursor: Cursor, model: Model) -> None:
    for position, left in model.left.items():
        if cursor.is_acknowledged(position):
            assert left == 0, f"{position} was not acknowledged"
        else:
            remaining = cursor.remaining(position)
            remaining = ALL if remaining is None else remaining
            assert left & ~remaining == 0, f"messages of {position} were not acknowledged"
            assert position > cursor.mark_delete
        if position > cursor.reach:
            assert cursor.remaining(position) is None
            assert not cursor.is_acknowledged(position)


@given(logs(), OPERATIONS)
@settings(max_examples=400, deadline=None)
def test_cursor_never_claims_what_was_not_acknowledged(
    entries: list[Position], operations: list[tuple[str, int, int]]
) -> None:
    gaps = LedgerGaps()
    cursor = Cursor(EARLIEST, gaps)
    model = Model(entries)
    for operation, number, mask in operations:
        position = entries[number % len(entries)]
        match operation:
            case "one":
                assert cursor.acknowledge(position)
                model.left[position] = 0
            case "part":
                assert cursor.acknowledge_messages(position, mask)
                model.left[position] &= mask
            case "until":
                cursor.acknowledge_until(position)
                model.left.update({entry: 0 for entry in entries if entry <= position})
            case "until-part":
                cursor.acknowledge_until(before(position))
                model.left.update({entry: 0 for entry in entries if entry < position})
                cursor.acknowledge_messages(position, mask)
                model.left[position] &= mask
            case "read":
                read_between(gaps, entries, number % len(entries))
                cursor.settle()
            case "save":
                saved = json.loads(json.dumps(cursor.to_saved()))
                restored = Cursor.from_saved(saved, gaps)
                assert restored.to_saved() == saved
                cursor = restored
            case _:  # an acknowledgement of an entry that never existed
                cursor.acknowledge(Position(position.ledger, position.entry + 40))
        check(cursor, model)
    # Acknowledged messages are not forgotten either, as long as no bound is reached.
    for position, left in model.left.items():
        assert cursor.is_acknowledged(position) == (left == 0)
    # Once all is acknowledged and the log was read through, the cursor is at the end of the log.
    for index, position in enumerate(entries):
        read_between(gaps, entries, index)
        assert cursor.acknowledge(position)
    cursor.settle()
    assert cursor.mark_delete >= entries[-1]


@given(logs(), OPERATIONS, st.integers(0, 2), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_bounds_forget_acknowledgements_but_invent_none(
    entries: list[Position],
    operations: list[tuple[str, int, int]],
    ranges_max: int,
    partial_bytes_max: int,
) -> None:
    gaps = LedgerGaps()
    cursor = Cursor(EARLIEST, gaps, ranges_max=ranges_max, partial_bytes_max=partial_bytes_max)
    model = Model(entries)
    for operation, number, mask in operations:
        position = entries[number % len(entries)]
        refused = cursor.refused
        if operation in {"one", "ghost", "read"}:
            taken = cursor.acknowledge(position)
            model.left[position] = 0
        else:
            taken = cursor.acknowledge_messages(position, mask)
            model.left[position] &= mask
        assert taken == (cursor.refused == refused)
        assert cursor.range_count <= ranges_max
        check(cursor, model)
        saved = Cursor.from_saved(cursor.to_saved(ranges_max=1, partial_bytes_max=60), gaps)
        check(saved, model)


@given(logs(), st.data())
@settings(max_examples=200, deadline=None)
def test_count_never_exceeds_what_is_there_and_is_exact_once_read(
    entries: list[Position], data: st.DataObject
) -> None:
    gaps = LedgerGaps()
    for index in data.draw(st.lists(st.integers(0, len(entries) - 1))):
        read_between(gaps, entries, index)
    low = data.draw(st.sampled_from([EARLIEST, *entries]))
    high = data.draw(st.sampled_from([entry for entry in entries if entry >= low] or entries))
    true = sum(1 for entry in entries if low < entry <= high)
    counted, is_exact = gaps.count(low, high)
    assert counted <= true
    assert not is_exact or counted == true
    for index in range(len(entries)):
        read_between(gaps, entries, index)
    assert gaps.count(low, high) == (true, True)


@given(st.integers(0, 2**200))
def test_ack_sets_survive_the_way_over_the_wire(mask: int) -> None:
    words = ack_set_of(mask)
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert mask_of(words) == mask


@given(logs(), st.lists(st.sets(st.integers(0, 30)), max_size=8), st.data())
@settings(max_examples=300, deadline=None)
def test_entries_acknowledged_together_are_those_acknowledged_one_by_one(
    entries: list[Position], batches: list[set[int]], data: st.DataObject
) -> None:
    gaps = LedgerGaps()
    for start in data.draw(st.sets(st.integers(0, len(entries) - 1))):
        read_between(gaps, entries, start)
    together, single = Cursor(EARLIEST, gaps), Cursor(EARLIEST, gaps)
    for batch in batches:
        positions = sorted({entries[number % len(entries)] for number in batch})
        for cursor in (together, single):
            cursor.acknowledge_messages(entries[-1], 1)
        assert together.acknowledge_all(positions) == []
        for position in positions:
            assert single.acknowledge(position)
        assert together.mark_delete == single.mark_delete
        assert together.ranges == single.ranges
        assert together.reach == single.reach
        assert together.to_saved() == single.to_saved()


def test_of_entries_acknowledged_together_those_beyond_the_bound_are_not_taken() -> None:
    cursor = Cursor(Position(1, 0), LedgerGaps(), ranges_max=2)
    odd = [Position(1, number) for number in (3, 5, 7, 8, 9)]
    assert cursor.acknowledge_all(odd) == odd[2:]
    assert cursor.refused == 3
    assert cursor.ranges == [(Position(1, 3), Position(1, 3)), (Position(1, 5), Position(1, 5))]
    assert cursor.acknowledge_all([Position(1, 4), Position(1, 6)]) == []
