"""When the operator writes a status, and how it repairs changes of other writers."""

from __future__ import annotations

from typing import Any

import pytest

from onewriter_core.kubernetes.kinds import (
    micro_timestamp,
    seconds_of,
    timestamp,
)
from onewriter_core.kubernetes.objects import parse, parse_conditions
from onewriter_operator.conditions import MESSAGE_LENGTH_MAX, no, written, yes
from onewriter_operator.plan.difference import difference, digest
from onewriter_operator.reconcile.status import foreign_fields, is_shown

Json = dict[str, Any]


def condition(kind: str, status: str = "True") -> Json:
    return {"type": kind, "status": status, "reason": "X", "message": ""}


def test_the_same_status_is_not_written_again() -> None:
    wanted = {"epoch": 3, "conditions": [condition("Ready"), condition("Stalled")]}
    found = {"epoch": 3, "conditions": [condition("Stalled"), condition("Ready")]}
    assert is_shown(wanted, found)


def test_the_condition_of_another_controller_does_not_count() -> None:
    wanted = {"epoch": 3, "conditions": [condition("Ready")]}
    assert is_shown(wanted, {"epoch": 3, "conditions": [condition("Ready"), condition("Audited")]})


@pytest.mark.parametrize(
    "found",
    [
        {"epoch": 4, "conditions": [condition("Ready")]},
        {"epoch": 3, "conditions": [condition("Ready", "False")]},
        {"epoch": 3, "conditions": []},
        {"epoch": 3, "holder": {"producerName": "x"}, "conditions": [condition("Ready")]},
        {},
    ],
)
def test_anything_else_is(found: Json) -> None:
    assert not is_shown({"epoch": 3, "conditions": [condition("Ready")]}, found)


def test_a_patch_removes_fields_that_an_apply_leaves_to_others() -> None:
    wanted = {"epoch": 3, "topic": "t", "conditions": [condition("Ready")]}
    found = {"epoch": 3, "topic": "x", "holder": {}, "conditions": [condition("Audited")]}
    assert foreign_fields(wanted, found) == [
        {"op": "remove", "path": "/status/holder"},
        {"op": "replace", "path": "/status/topic", "value": "t"},
    ]
    assert foreign_fields(wanted, wanted) == []


def test_managed_fields_show_the_other_writer_of_a_status() -> None:
    ours = {
        "manager": "onewriter-operator",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:epoch": {}}},
    }
    spec = {"manager": "kubectl", "fieldsV1": {"f:spec": {}}}
    other = {
        "manager": "kubectl-edit",
        "subresource": "status",
        "time": "T",
        "fieldsV1": {"f:status": {"f:epoch": {}}},
    }
    extra = {
        "manager": "auditor",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:conditions": {}}},
    }

    def editor(*entries: Json) -> tuple[str, str]:
        metadata = {"name": "a", "managedFields": list(entries)}
        found = parse({"kind": "ExclusiveTopic", "metadata": metadata})
        return found.status_editor({"epoch", "holder"})

    assert editor(ours, spec) == ("", "")
    assert editor(ours, extra) == ("", "")
    assert editor(ours, other) == ("kubectl-edit", "T")


def test_a_condition_moves_with_its_status_only() -> None:
    first = written([yes("Ready", "A", "x")], {}, 1, 1000)
    same = written([yes("Ready", "B", "y")], parse_conditions({"conditions": first}), 2, 2000)
    other = written([no("Ready", "B", "y")], parse_conditions({"conditions": same}), 2, 3000)
    assert first[0]["lastTransitionTime"] == same[0]["lastTransitionTime"] == timestamp(1000)
    assert (same[0]["reason"], same[0]["observedGeneration"]) == ("B", 2)
    assert other[0]["lastTransitionTime"] == timestamp(3000)


def test_messages_are_bounded() -> None:
    (found,) = written([yes("Ready", "A", "x" * 5000)], {}, 1, 0)
    assert len(found["message"]) == MESSAGE_LENGTH_MAX


@pytest.mark.parametrize(
    ("wanted", "found", "path"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2, "d": 3}]}}, ""),
        ({"a": []}, {}, ""),
        ({"a": {}}, {}, ""),
        ({"a": None}, {}, ""),
        ({"a": 1}, {"a": 2}, "a"),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, "a.b[1].c"),
        ({"a": [1]}, {"a": [1, 2]}, "a"),
        ({"a": [1]}, {"a": {"x": 1}}, "a"),
        ({"a": {"b": 1}}, {"a": 1}, "a"),
        ({"a": 1}, None, "."),
    ],
)
def test_a_difference_is_named_by_its_path(wanted: Json, found: Any, path: str) -> None:
    assert difference(wanted, found) == path


def test_a_digest_does_not_depend_on_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_moments_are_written_and_read() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00Z"
    assert micro_timestamp(1.5) == "1970-01-01T00:00:01.500000Z"
    assert seconds_of("1970-01-01T00:00:01.500000Z") == 1.5
    assert seconds_of("2026-01-01T00:00:00.123Z") == pytest.approx(1767225600.123)
    assert seconds_of("soon") is None
    assert seconds_of(None) is None
    assert seconds_of("2026-13-01T00:00:00Z") is None
