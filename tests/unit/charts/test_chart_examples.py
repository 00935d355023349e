"""The chart's examples of values: what they install, and the risk that they state."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.unit.charts.rendering import CHART, ROOT, as_model, chart, configuration, rendered

from onewriter_operator.installation import objects

Json = dict[str, Any]

EXAMPLES = sorted(path.name for path in (CHART / "examples").iterdir())


def text_of(name: str) -> str:
    return (CHART / "examples" / name).read_text(encoding="utf-8")


def values_of(name: str) -> Json:
    found: Json = yaml.safe_load(text_of(name))
    return found


def store_sets(name: str) -> list[Json]:
    """Return the StatefulSets of the store that the operator installs."""
    found = objects(configuration(rendered(values_of(name))))
    return [
        each
        for each in found
        if each["kind"] == "StatefulSet" and "valkey" in each["metadata"]["name"]
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_valid_and_documented(name: str) -> None:
    values = values_of(name)
    chart().validate_schema(values)
    as_model(values)
    assert rendered(values)
    for page in (ROOT / "docs" / "install.md", CHART / "README.md"):
        assert f"examples/{name}" in page.read_text(encoding="utf-8")
    assert f"--values charts/onewriter/examples/{name}" in text_of(name)


def test_production_uses_a_cluster_of_three_shards_with_a_replica_each() -> None:
    found = store_sets("production.yaml")
    assert [each["spec"]["replicas"] for each in found] == [2, 2, 2]
    for each in found:
        affinity = each["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        assert affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert each["spec"]["volumeClaimTemplates"]
    values = as_model(values_of("production.yaml"))
    assert values.brokers.replicas > 1
    assert values.operator.replicas > 1


def test_the_minimal_values_use_one_pod_and_state_the_risk() -> None:
    (found,) = store_sets("minimal.yaml")
    assert found["spec"]["replicas"] == 1
    comments = " ".join(
        line.lstrip("# ") for line in text_of("minimal.yaml").splitlines() if line.startswith("#")
    )
    assert "all acknowledged messages are lost" in comments
    assert "production.yaml" in comments
