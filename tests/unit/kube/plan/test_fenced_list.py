"""The list of fenced pods in the status is bounded, and an open pod is not dropped for a settled one."""

from __future__ import annotations

from typing import Any

from tests.unit.kube.plan.test_plan_tables import topic_facts

from onewriter_core.api.status import FENCED_PODS_SHOWN_MAX
from onewriter_operator.plan.fenced import plan_fenced


def pod(epoch: int, outcome: str) -> dict[str, Any]:
    about = {"podUID": f"u{epoch}", "pod": f"writer-{epoch}", "cause": "Silent"}
    at = "2026-01-01T00:00:00Z"
    return about | {"epoch": epoch, "outcome": outcome, "at": at, "since": at}


def test_the_oldest_settled_pod_leaves_a_full_list_before_an_open_one() -> None:
    settled = [pod(epoch, "Evicted") for epoch in range(2, FENCED_PODS_SHOWN_MAX + 2)]
    before = {"observedGeneration": 1, "fencedPods": [pod(1, "Pending"), *settled]}
    facts = topic_facts({"facts": {"brokers": {"expected": 2, "synced": 1}}, "before": before})
    shown = [each.epoch for each in plan_fenced(facts).pods]
    assert len(shown) == FENCED_PODS_SHOWN_MAX
    assert 1 in shown, "a pod that is still to be evicted"
    assert 2 not in shown, "the oldest pod whose outcome is final"
