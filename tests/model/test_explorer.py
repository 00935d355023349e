"""The explorer finds shortest counter-examples, and accepts no search that was not complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.model.explorer import Always, Sometimes, Step, explore

State = tuple[int, int]


class Jugs:
    """Two jugs of 3 and 5 litres that can be filled, emptied and poured into each other."""

    sizes = (3, 5)

    def initial(self) -> Iterator[State]:
        yield (0, 0)

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        small, large = state
        yield "fill the small one", (3, large)
        yield "fill the large one", (small, 5)
        yield "empty the small one", (0, large)
        yield "empty the large one", (small, 0)
        poured = min(small, 5 - large)
        yield "pour small into large", (small - poured, large + poured)
        poured = min(large, 3 - small)
        yield "pour large into small", (small + poured, large - poured)


NEVER_FOUR = Always[State]("the large one never holds 4", lambda state: state[1] != 4)
FOUR = Sometimes[State, str]("the large one holds 4", lambda before, action, after: after[1] == 4)


def test_every_reachable_state_is_seen_once() -> None:
    report = explore(Jugs(), sometimes=[FOUR])
    assert report.states == 16
    assert report.transitions == 16 * 6
    assert not report.cut
    report.assert_sound()


def test_the_explorer_reports_a_shortest_trace_to_a_broken_state() -> None:
    report = explore(Jugs(), always=[NEVER_FOUR])
    with pytest.raises(AssertionError) as reported:
        report.assert_sound(describe=str)
    assert str(reported.value).splitlines()[:-1] == [
        "broken: the large one never holds 4",
        "      (0, 0)",
        "   1. fill the large one",
        "      (0, 5)",
        "   2. pour large into small",
        "      (3, 2)",
        "   3. empty the small one",
        "      (0, 2)",
        "   4. pour large into small",
        "      (2, 0)",
        "   5. fill the large one",
        "      (2, 5)",
        "   6. pour large into small",
        "      (3, 4)",
    ]


def test_a_step_is_judged_even_when_it_leads_to_a_known_state() -> None:
    kept = Step[State, str](
        "full jugs stay full",
        lambda before, action, after: before != (3, 5) or sum(after) == sum(before),
    )
    report = explore(Jugs(), steps=[kept])
    assert report.violation is not None
    assert report.violation.broken == "full jugs stay full"
    assert len(report.violation.actions) == 3
    assert report.violation.states[-2] == (3, 5)
    assert report.violation.states[-1] in {(0, 5), (3, 0)}


def test_a_step_that_changes_nothing_is_judged_too() -> None:
    moves = Step[State, str](
        "every action does something", lambda before, _, after: before != after
    )
    report = explore(Jugs(), steps=[moves])
    assert report.violation is not None
    assert report.violation.states == ((0, 0), (0, 0))


def test_an_initial_state_may_already_be_broken() -> None:
    report = explore(Jugs(), always=[Always[State]("never empty", lambda state: sum(state) > 0)])
    assert report.violation is not None
    assert report.violation.actions == ()
    assert report.violation.states == ((0, 0),)


def test_a_sometimes_property_that_is_never_reached_fails() -> None:
    overflow = Sometimes[State, str]("six litres in one", lambda before, action, after: 6 in after)
    with pytest.raises(AssertionError, match="never reached: six litres in one"):
        explore(Jugs(), sometimes=[overflow, FOUR]).assert_sound()


def test_the_trace_contains_the_text_of_a_failed_assertion() -> None:
    def small(state: State) -> bool:
        assert state[0] < 3, f"the small one holds {state[0]}"
        return True

    report = explore(Jugs(), always=[Always("room in the small one", small)])
    assert report.violation is not None
    assert "the small one holds 3" in report.violation.detail


def test_a_model_that_raises_is_a_finding_with_its_trace() -> None:
    class Fragile(Jugs):
        def successors(self, state: State) -> Iterator[tuple[str, State]]:
            if state == (3, 2):
                raise KeyError("the small one slipped")
            yield from super().successors(state)

    report = explore(Fragile())
    assert report.violation is not None
    assert report.violation.broken == "an action raised"
    assert "the small one slipped" in report.violation.detail
    assert report.violation.actions == ("fill the large one", "pour large into small")


def test_a_bound_is_never_silent() -> None:
    for report in (explore(Jugs(), depth_max=3), explore(Jugs(), states_max=5)):
        assert report.cut
        assert report.cut in str(report)
        with pytest.raises(AssertionError, match="incomplete"):
            report.assert_sound()
        report.assert_sound(partial=True)


def test_bounds_that_are_not_reached_are_not_reported() -> None:
    whole = explore(Jugs())
    assert not explore(Jugs(), depth_max=whole.depth + 1, states_max=whole.states).cut


def test_a_partial_search_still_has_to_reach_what_it_must() -> None:
    with pytest.raises(AssertionError, match="never reached: the large one holds 4"):
        explore(Jugs(), sometimes=[FOUR], depth_max=2).assert_sound(partial=True)
