"""Objects whose status comes from the operator's plan, for tools that judge health by status."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from tests.unit.kube.plan.test_plan_tables import claim_facts, topic_facts

from onewriter_operator.plan.claim import plan_claim
from onewriter_operator.plan.topic import plan_topic

Json = dict[str, Any]

HERE = Path(__file__).parent

CASES: list[Json] = yaml.safe_load((HERE / "health.yaml").read_text())


def title(case: Json) -> str:
    return str(case.get("case") or f"a new {case['kind']}")


def document(case: Json) -> Json:
    """The object of a case, as the API server would return it."""
    if case.get("fresh"):
        return {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": case["kind"],
            "metadata": {"name": "orders", "namespace": "shop", "generation": 1},
            "status": {"observedGeneration": -1},
        }
    found = copy.deepcopy(_planned(str(case["case"])))
    if "generation" in case:
        found["metadata"]["generation"] = case["generation"]
    return found


def _planned(name: str) -> Json:
    for file, facts_of, plan_of in (
        ("topics.yaml", topic_facts, plan_topic),
        ("claims.yaml", claim_facts, plan_claim),
    ):
        for each in yaml.safe_load((HERE / "plan" / file).read_text()):
            if each["name"] == name:
                facts: Any = facts_of(each)
                status = plan_of(facts).status
                assert status is not None, f"{name}: no status is written"
                found: Json = {**facts.declared.document, "status": status}
                return found
    raise KeyError(name)
