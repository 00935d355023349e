"""``why`` as a table: facts in, sentences out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.unit.kubectl.fake_kubectl import WAITER, WRITER, claim, condition, topic

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import seconds_of
from onewriter_core.kubernetes.objects import parse_claim, parse_pod, parse_topic
from onewriter_core.topic.model import TransitionCause
from onewriter_core.topic_view import parse_view
from onewriter_kubectl.objects import parse_budget
from onewriter_kubectl.reasons import CAUSES, Facts, why

CASES = yaml.safe_load((Path(__file__).parent / "reasons.yaml").read_text())
NOW = seconds_of("2026-01-01T01:00:00Z")

CLAIMS = {
    "primary": parse_claim(claim("primary", WRITER, WAITER)),
    "broken": parse_claim(claim("broken", ready="False")),
}


def facts_of(case: Json) -> Facts:
    assert NOW is not None
    document = topic(**case.get("status", {}))
    document["metadata"] |= case.get("metadata", {})
    shown = {each["type"]: each for each in document["status"]["conditions"]}
    for kind, (status, reason, message) in case.get("conditions", {}).items():
        shown[kind] = condition(kind, str(status), reason, message)
    document["status"]["conditions"] = list(shown.values())
    budgets = case.get("budgets", ())
    pods = [{"metadata": {"name": name}} | pod for name, pod in case.get("pods", {}).items()]
    return Facts(
        parse_topic(document),
        NOW,
        claims=[CLAIMS[name] for name in case.get("claims", ())],
        budgets=None if budgets is None else [parse_budget(each) for each in budgets],
        pods={pod.key.name: pod for pod in map(parse_pod, pods)},
        live=parse_view(case["live"]) if "live" in case else None,
        operator=case.get("operator"),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_why(case: Json) -> None:
    sentences = why(facts_of(case))
    left = iter(sentences)
    for expected in case.get("sentences", ()):
        assert expected in left, f"{expected!r} is missing, or in another place: {sentences}"
    for word in case.get("absent", ()):
        assert word not in "\n".join(sentences)
    assert all(each.endswith((".", ":")) or each.startswith("  ") or not each for each in sentences)


def test_every_cause_of_a_transition_has_a_sentence() -> None:
    assert set(CAUSES) == {each.value for each in TransitionCause} | {"Forced"}
