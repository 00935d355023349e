"""``why`` as a table: facts in, sentences out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.kubectl.fake_kubectl import WAITER, WRITER, claim, condition, topic

from onewriter_core.topic.model import Departure
from onewriter_kubectl.objects import seconds
from onewriter_kubectl.reasons import CAUSES, Found, why

Json = dict[str, Any]

CASES = yaml.safe_load((Path(__file__).parent / "reasons.yaml").read_text())
NOW = seconds("2026-01-01T01:00:00Z")

CLAIMS = {
    "primary": claim("primary", WRITER, WAITER),
    "broken": claim("broken", ready="False"),
}


def found(case: Json) -> Found:
    assert NOW is not None
    document = topic(**case.get("status", {}))
    document["metadata"] |= case.get("metadata", {})
    shown = {each["type"]: each for each in document["status"]["conditions"]}
    for kind, (status, reason, message) in case.get("conditions", {}).items():
        shown[kind] = condition(kind, str(status), reason, message)
    document["status"]["conditions"] = list(shown.values())
    return Found(
        document,
        NOW,
        claims=[CLAIMS[name] for name in case.get("claims", ())],
        budgets=case.get("budgets", ()),
        pods=case.get("pods", {}),
        live=case.get("live"),
        operator=case.get("operator"),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_why(case: Json) -> None:
    said = why(found(case))
    left = iter(said)
    for line in case.get("said", ()):
        assert line in left, f"{line!r} is not said, or not there: {said}"
    for word in case.get("unsaid", ()):
        assert word not in "\n".join(said)
    assert all(line.endswith((".", ":")) or line.startswith("  ") or not line for line in said)


def test_every_cause_that_there_is_has_its_words() -> None:
    assert set(CAUSES) == {each.value for each in Departure} | {"Forced"}
