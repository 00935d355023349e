"""The comparison of a wanted object with the one in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from onewriter_operator.plan.difference import content, difference, exact

Json = dict[str, Any]

SERVICE: Json = {
    "kind": "Service",
    "metadata": {"name": "a", "labels": {"app": "a"}},
    "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]},
}
RULES: Json = {"ports": [{"protocol": "TCP", "port": 80}]}
POLICY: Json = {
    "kind": "NetworkPolicy",
    "metadata": {"name": "a"},
    "spec": {"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [RULES], "egress": []},
}


def changed(wanted: Json, **spec: Any) -> Json:
    return wanted | {"spec": wanted["spec"] | spec}


@pytest.mark.parametrize(
    ("wanted", "found", "path"),
    [
        (SERVICE, changed(SERVICE, selector={"app": "a", "more": "b"}), "spec.selector.more"),
        (SERVICE, changed(SERVICE, externalIPs=["192.0.2.1"]), "spec.externalIPs"),
        (SERVICE, changed(SERVICE, clusterIP="10.0.0.1", sessionAffinity="None"), ""),
        (POLICY, changed(POLICY, ingress=[RULES, {}]), "spec.ingress"),
        (POLICY, changed(POLICY, ingress=[RULES | {"from": []}]), "spec.ingress[0].from"),
        (POLICY, changed(POLICY, egress=[{}]), "spec.egress"),
        (
            POLICY,
            changed(POLICY, podSelector={"matchLabels": {"app": "a", "b": "c"}}),
            "spec.podSelector.matchLabels.b",
        ),
        (POLICY, POLICY, ""),
        (SERVICE, {**SERVICE, "metadata": {"name": "a", "labels": {"app": "a", "b": "c"}}}, ""),
    ],
)
def test_additions_count_only_in_sealed_fields(wanted: Json, found: Json, path: str) -> None:
    assert difference(exact(wanted, found), found) == path


def test_an_addition_becomes_null_in_the_wanted_object() -> None:
    found = changed(SERVICE, selector={"app": "a", "more": "b"}, externalIPs=["192.0.2.1"])
    spec = exact(SERVICE, found)["spec"]
    assert spec["selector"] == {"app": "a", "more": None}
    assert spec["externalIPs"] is None
    assert SERVICE["spec"] == {"selector": {"app": "a"}, "ports": [{"port": 80}]}


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({"metadata": {"name": "a", "labels": {"app": "a", "team": "b"}}}, False),
        ({"metadata": {"name": "a", "labels": {"app": "a"}, "resourceVersion": "9"}}, False),
        ({"status": {"ready": 1}}, False),
        ({"metadata": {"name": "a", "labels": {"app": "b"}}}, True),
        ({"spec": {}}, True),
    ],
)
def test_the_content_is_without_the_status_and_the_labels_of_others(
    change: Json, is_other: bool
) -> None:
    assert (content(SERVICE | change, SERVICE) != content(SERVICE, SERVICE)) is is_other
