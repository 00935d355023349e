"""``status.transitions``: the last ten changes of the holder, whatever a broker still knows of them."""

from __future__ import annotations

from onewriter_core.api.status import TRANSITIONS_SHOWN_MAX
from onewriter_core.json_values import Json
from onewriter_core.topic_view import parse_view
from onewriter_operator.plan.topic import shown_transitions, with_former


def shown(epoch: int, **more: object) -> Json:
    return {"epoch": epoch, "cause": "Silent", "at": f"at {epoch}", **more}


def test_transitions_that_a_broker_has_forgotten_stay_in_the_status() -> None:
    before = [shown(epoch) for epoch in range(12, 2, -1)]
    found = with_former([shown(14), shown(13)], before)
    assert [each["epoch"] for each in found] == list(range(14, 4, -1))
    assert len(found) == TRANSITIONS_SHOWN_MAX


def test_a_transition_keeps_its_time_and_gains_what_was_not_known() -> None:
    before = [shown(7, outageMs=2600, leaderlessMs=12)]
    (found,) = with_former([{**shown(7, outageMs=2600, firstMessageMs=90), "at": "later"}], before)
    assert found == shown(7, outageMs=2600, leaderlessMs=12, firstMessageMs=90)


def test_a_broker_that_knows_no_transition_changes_nothing() -> None:
    before = [shown(7), shown(5)]
    assert with_former([], before) == before


def test_an_epoch_above_those_of_the_broker_is_not_kept() -> None:
    assert with_former([shown(7)], [shown(99), shown(6)]) == [shown(7), shown(6)]


def test_a_time_that_a_broker_does_not_report_is_unknown_and_not_zero() -> None:
    transition = {"epoch": 7, "cause": "Handover", "at": "at 7", "kind": "grant", "handoverMs": 0}
    (found,) = shown_transitions(parse_view({"transitions": [transition]}))
    assert found == {"epoch": 7, "cause": "Handover", "at": "at 7", "handoverMs": 0}
