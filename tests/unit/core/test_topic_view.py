"""A broker's report of a topic is parsed once, whatever the broker's release."""

from __future__ import annotations

import pytest
from tests.unit.kube.fake_broker import producer_group, status, transition

from onewriter_core.topic_view import ProducerView, TopicView, parse_view


def test_a_report_of_a_broker_is_read() -> None:
    holder = producer_group("w1", "primary", "writer-0", epoch=3)
    waiter = producer_group("w2", priority=5, place=1)
    transitions = [transition(3, "Silent", holder, producer_group("w0", None, "writer-9"))]
    found = parse_view(status(3, holders=[holder], waiters=[waiter], transitions=transitions))
    assert (found.state, found.epoch, found.is_served, found.ledger) == ("Held", 3, True, 3)
    assert found.holder == found.holders[0]
    assert found.holder is not None
    assert found.holder.has_pod
    assert (found.waiters[0].place, found.waiters[0].priority) == (1, 5)
    assert found.transitions[0].leaderless_ms == 12
    assert found.transitions[0].previous is not None
    assert found.declared_by is None


def test_a_missing_field_has_its_default() -> None:
    assert parse_view({}) == TopicView()


def test_an_unknown_field_is_ignored() -> None:
    found = parse_view({"epoch": 2, "newer": [1], "holders": [{"producerName": "w", "newer": 1}]})
    assert found == TopicView(epoch=2, holders=(ProducerView("w"),))


def test_a_transition_without_epoch_cause_or_time_is_left_out() -> None:
    whole = {"epoch": 1, "cause": "Silent", "at": "T"}
    parts = [{k: v for k, v in whole.items() if k != name} for name in whole]
    found = parse_view({"transitions": [*parts, whole]})
    assert [each.epoch for each in found.transitions] == [1]


def test_a_topic_that_is_not_declared_has_an_empty_namespace() -> None:
    assert parse_view({"declaredBy": None}).declared_by == ""
    assert parse_view({"declaredBy": "shop"}).declared_by == "shop"


def test_a_report_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a JSON object, not list"):
        parse_view([])
