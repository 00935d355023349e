"""The checker of the campaign on a cluster finds every kind of violation, and nothing in a sound outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.integration.cluster_checker import SILENT, UNRECORDED, Outcome, Reports, violations
from tests.integration.cluster_plans import FAULTS, Role, Step, combinations, plan
from tests.integration.continuous_writer import StoredTopic
from tests.integration.recorded_writer import Grant, Records

from onewriter_core.ids import Position

FIRST = [(Position(4, n + 1), b"first/4/%d" % n) for n in range(3)]
SECOND = [(Position(9, n + 1), b"second/9/%d" % n) for n in range(2)]


def sound(*, may_lose: bool = False) -> Outcome:
    """Two writers, one after the other. All that the second one sent was acknowledged, and two values of the first."""
    records = Records(
        [Grant("first", 4, 1.0, 2.0), Grant("second", 9, 3.0, 4.0)],
        {value: position for position, value in (*FIRST[:2], *SECOND)},
    )
    stored = StoredTopic({4: 4, 7: 4, 9: 9}, [*FIRST, *SECOND])
    return Outcome("topic", may_lose, records, stored)


def without(outcome: Outcome, *positions: Position) -> Outcome:
    """The same outcome with a log that lacks these entries."""
    stored = outcome.stored
    entries = [(p, value) for p, value in stored.entries if p not in positions]
    return replace(outcome, stored=StoredTopic(stored.epochs, entries))


def lost(after: Position, last: Position) -> Reports:
    return Reports(lost=[(after, last)])


def test_nothing_is_found_in_a_sound_outcome() -> None:
    assert violations(sound()) == []
    assert violations(sound(may_lose=True)) == []


def test_a_reported_loss_is_accepted_where_the_profile_allows_it() -> None:
    found = without(sound(may_lose=True), Position(4, 2), Position(4, 3))
    for reports in (lost(Position(4, 1), Position(4, 3)), Reports(at_risk=[(Position(4, 1), 7)])):
        assert violations(replace(found, reports=reports, audit=reports)) == []


def test_a_loss_that_only_the_log_of_the_broker_has_is_found() -> None:
    reports = lost(Position(4, 1), Position(4, 3))
    outcome = replace(
        without(sound(may_lose=True), Position(4, 2), Position(4, 3)), reports=reports
    )
    (found,) = violations(outcome)
    assert UNRECORDED in found


def test_an_acknowledged_message_that_is_gone_is_found() -> None:
    (found,) = [t for t in violations(without(sound(), Position(4, 2))) if SILENT in t]
    assert "4-2" in found or "entry=2" in found


def test_a_loss_that_only_a_wrong_range_covers_is_found() -> None:
    gone = without(sound(may_lose=True), Position(4, 1), Position(9, 2))
    for reports in (
        lost(Position(4, 0), Position(4, 1)),  # not the other one
        Reports(at_risk=[(Position(4, 0), 8)]),  # the ledger 9 is after the range
    ):
        found = violations(replace(gone, reports=reports))
        assert any("without a report" in text for text in found), reports


def test_a_loss_of_a_replicated_topic_is_found_even_if_it_was_reported() -> None:
    reported = replace(
        without(sound(), Position(4, 2)), reports=lost(Position(4, 1), Position(4, 2))
    )
    assert any("the profile excludes it" in text for text in violations(reported))


def _with_entry(position: Position, value: bytes) -> Outcome:
    outcome = sound()
    entries = sorted([*outcome.stored.entries, (position, value)])
    return replace(outcome, stored=StoredTopic(outcome.stored.epochs, entries))


def _with_order(*values: bytes) -> Outcome:
    entries = [(Position(4, n + 1), value) for n, value in enumerate(values)]
    return replace(sound(), records=Records(), stored=StoredTopic({4: 4}, entries))


def _with_grants(*grants: Grant) -> Outcome:
    return replace(sound(), records=Records(list(grants)))


PLANTED: dict[str, tuple[Callable[[], Outcome], str]] = {
    "an append of a deposed writer": (
        lambda: _with_entry(Position(9, 3), b"first/4/3"),
        "another epoch than their ledger's",
    ),
    "an entry without a marker": (
        lambda: _with_entry(Position(8, 1), b"first/4/3"),
        "another epoch than their ledger's",
    ),
    "a value twice": (lambda: _with_order(b"first/4/0", b"first/4/0"), "stored twice"),
    "values in another order": (
        lambda: _with_order(b"first/4/1", b"first/4/0"),
        "stored after a later value",
    ),
    "entries out of order": (
        lambda: replace(sound(), stored=StoredTopic({4: 4, 9: 9}, [*SECOND, *FIRST])),
        "not in the order",
    ),
    "an epoch that decreases in the log": (
        lambda: replace(sound(), stored=StoredTopic({4: 4, 7: 3, 9: 9}, [*FIRST, *SECOND])),
        "epochs of the markers decrease",
    ),
    "an epoch twice": (
        lambda: _with_grants(Grant("first", 4, 1.0, 2.0), Grant("second", 4, 1.0, 2.0)),
        "granted twice",
    ),
    "an epoch below an earlier one": (
        lambda: _with_grants(Grant("first", 9, 1.0, 2.0), Grant("second", 4, 3.0, 4.0)),
        "was granted after",
    ),
    "a value at another position": (
        lambda: replace(
            sound(may_lose=True),
            records=Records([], {b"first/4/0": Position(4, 3)}),
            reports=lost(Position(4, 2), Position(4, 3)),
        ),
        "not where they were acknowledged",
    ),
    "a reported loss that is present": (
        lambda: replace(sound(may_lose=True), reports=lost(Position(4, 1), Position(4, 3))),
        "reported as lost but present",
    ),
    "a range at risk of a replicated topic": (
        lambda: replace(sound(), reports=Reports(at_risk=[(Position(9, 2), 12)])),
        "the profile excludes it",
    ),
    "a writer that failed": (
        lambda: replace(sound(), records=Records(failures=["AssertionError"])),
        "AssertionError",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_violation_is_found(what: str) -> None:
    outcome, text = PLANTED[what]
    assert any(text in found for found in violations(outcome())), what


def test_the_first_rounds_have_every_role_step_and_fault_and_all_rounds_every_combination() -> None:
    first = [plan(number) for number in range(20)]
    assert {chosen.role for chosen in first} == set(Role)
    assert {chosen.step for chosen in first} == set(Step)
    assert {chosen.fault for chosen in first} == {f for faults in FAULTS.values() for f in faults}
    assert len(set(combinations())) == len(combinations()) <= 200
    assert plan(7) == plan(7)
    assert plan(7).chance.random() == plan(7).chance.random()
