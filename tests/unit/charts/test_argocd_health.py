"""The health check for Argo CD, run by Lua as Argo CD runs it: 5.1, and without its libraries."""

from __future__ import annotations

from typing import Any

import pytest
from lupa import lua51
from tests.unit.charts.rendering import CHART, ROOT
from tests.unit.kube.health_cases import CASES, Json, document, title

from onewriter_operator.conditions import CLAIM_REASONS, TOPIC_REASONS

SCRIPT = (CHART / "argocd" / "health.lua").read_text()

OPENED = frozenset({"_G", "_VERSION", "table", "package", "require", "module"})
"""What Argo CD opens beside the functions of the base library."""


def health(found: Json) -> Json:
    """What Argo CD shows of an object."""
    lua: Any = lua51.LuaRuntime(register_builtins=False)
    libraries = "coroutine debug io math os string"
    assert OPENED.isdisjoint(libraries.split())
    for name in libraries.split():
        lua.execute(f"{name} = nil")
    lua.globals().obj = lua.table_from(found, recursive=True)
    answer = lua.execute(SCRIPT)
    return dict(answer)


@pytest.mark.parametrize("case", CASES, ids=title)
def test_health(case: Json) -> None:
    found = health(document(case))
    assert found["status"] == case["argo"], found
    assert found["message"]


def test_every_health_is_reached() -> None:
    assert {case["argo"] for case in CASES} == {"Healthy", "Progressing", "Degraded", "Suspended"}


@pytest.mark.parametrize("reasons", [TOPIC_REASONS, CLAIM_REASONS], ids=["topic", "claim"])
def test_every_reason_has_a_health(reasons: Any) -> None:
    metadata = {"name": "x", "namespace": "y", "generation": 1}
    for reason in sorted(reasons["Ready"]):
        for status in ("True", "False", "Unknown"):
            ready = {"type": "Ready", "status": status, "reason": reason, "message": ""}
            shown = {"observedGeneration": 1, "conditions": [ready]}
            found = health({"metadata": metadata, "status": shown})["status"]
            assert (
                found == {"True": "Healthy", "False": "Degraded", "Unknown": "Progressing"}[status]
            )


def test_the_documentation_shows_how_to_use_the_health_checks() -> None:
    reported = (ROOT / "docs" / "install.md").read_text()
    for kind in ("ExclusiveTopic", "ProducerClaim"):
        assert f"resource.customizations.health.onewriter.dev_{kind}" in reported
    assert "charts/onewriter/argocd/health.lua" in reported
