"""Events and PodDisruptionBudgets as typed values."""

from __future__ import annotations

import pytest

from onewriter_core.json_values import Json
from onewriter_kubectl.objects import parse_budget, parse_event, parse_selector

LABELS = {"app": "writer", "tier": "front"}


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ({}, True),
        ({"matchLabels": {"app": "writer"}}, True),
        ({"matchLabels": {"app": "writer", "tier": "back"}}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Newer"}]}, False),
    ],
)
def test_a_selector_selects_labels_as_kubernetes_does(selector: Json, selects: bool) -> None:
    assert parse_selector(selector).selects(LABELS) == selects


@pytest.mark.parametrize(
    ("times", "last_seen"),
    [
        ({"series": {"lastObservedTime": "4"}, "lastTimestamp": "3"}, "4"),
        ({"lastTimestamp": "3", "eventTime": "2"}, "3"),
        ({"lastTimestamp": None, "eventTime": "2"}, "2"),
        ({"metadata": {"creationTimestamp": "1"}}, "1"),
        ({}, ""),
    ],
)
def test_an_event_has_the_time_of_its_last_occurrence(times: Json, last_seen: str) -> None:
    event = parse_event({"type": "Warning", "reason": "WriterFenced", "message": "m", **times})
    assert (event.type, event.reason, event.last_seen) == ("Warning", "WriterFenced", last_seen)


def test_a_budget_without_a_status_allows_no_disruption() -> None:
    budget = parse_budget({"metadata": {"name": "writers"}, "spec": None, "status": None})
    assert (budget.name, budget.disruptions_allowed, budget.current_healthy) == ("writers", 0, None)
