"""ProducerClaim as a value: whom it names, what it allows, which priority it gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from onewriter_core.api import Permission, ProducerClaim
from onewriter_core.topic.model import AccessMode

INT32 = st.integers(-(2**31), 2**31 - 1)


def claimed(**spec: Any) -> ProducerClaim:
    return ProducerClaim.from_document(
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ProducerClaim",
            "metadata": {"name": "primary", "namespace": "shop"},
            "spec": {
                "topicRef": {"name": "orders"},
                "subject": {"serviceAccountName": "writer"},
                **spec,
            },
        }
    )


def test_a_bare_claim_may_lead_and_no_more() -> None:
    spec = claimed().spec
    assert spec.allow == (Permission.LEAD,)
    assert (spec.mode, spec.priority, spec.default_priority) == (None, None, None)
    for mode in (AccessMode.SHARED, AccessMode.EXCLUSIVE, AccessMode.WAIT_FOR_EXCLUSIVE):
        assert spec.refuses_mode(mode) is None
    assert spec.refuses_mode(AccessMode.EXCLUSIVE_WITH_FENCING) == "does not allow to take over"


def test_a_claim_for_shared_writing_alone_cannot_lead() -> None:
    spec = claimed(allow=[]).spec
    assert spec.refuses_mode(AccessMode.SHARED) is None
    assert spec.refuses_mode(AccessMode.WAIT_FOR_EXCLUSIVE) == "does not allow to lead"


def test_a_mode_restricts_everything_but_takeover_which_has_its_own_permission() -> None:
    spec = claimed(mode="WaitForExclusive", allow=["lead", "takeover"]).spec
    assert spec.refuses_mode(AccessMode.WAIT_FOR_EXCLUSIVE) is None
    assert spec.refuses_mode(AccessMode.EXCLUSIVE_WITH_FENCING) is None
    assert spec.refuses_mode(AccessMode.EXCLUSIVE) == "allows mode WaitForExclusive only"
    assert spec.refuses_mode(AccessMode.SHARED) == "allows mode WaitForExclusive only"


@pytest.mark.parametrize(
    ("given", "requested", "in_effect"),
    [
        ({}, None, 0),
        ({}, 7, 7),
        ({"priority": 5}, 7, 5),
        ({"priority": 5}, 3, 3),
        ({"priority": 5, "defaultPriority": 4}, None, 4),
        ({"priority": 5, "defaultPriority": 4}, 0, 0),
        ({"defaultPriority": 4}, None, 4),
        ({"priority": -5}, None, -5),
        ({"priority": -5}, -9, -9),
    ],
)
def test_the_producers_priority_is_capped_and_defaults_to_the_claims(
    given: dict[str, int], requested: int | None, in_effect: int
) -> None:
    assert claimed(**given).spec.priority_in_effect(requested) == in_effect


@given(cap=INT32, requested=st.none() | INT32)
def test_no_producer_rises_above_its_claim(cap: int, requested: int | None) -> None:
    assert claimed(priority=cap).spec.priority_in_effect(requested) <= cap


@pytest.mark.parametrize(
    "wrong",
    [
        {"subject": {}},
        {"subject": {"tokenSubject": "a", "serviceAccountName": "b"}},
        {"subject": {"tokenSubject": ""}},
        {"subject": {"tokenSubject": "two\nlines"}},
        {"subject": {"podSelector": {}}},
        {"subject": {"podSelector": {"matchLabels": {}}}},
        {"subject": {"user": "a"}},
        {"topicRef": {}},
        {"topicRef": {"name": "Orders"}},
        {"topicRef": {"name": "orders", "namespace": "other"}},
        {"mode": "Leader"},
        {"mode": "ExclusiveWithFencing"},
        {"mode": "Exclusive", "allow": []},
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"priority": "high"},
        {"priority": 1, "defaultPriority": 2},
        {"allow": ["takeover"]},
        {"allow": ["lead", "lead"]},
        {"allow": ["own"]},
        {"allow": None},
    ],
)
def test_an_invalid_claim_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        claimed(**wrong)
