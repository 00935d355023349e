"""What the guides name exists: alerts, conditions, reasons, causes, Events, log lines, values."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
import yaml
from charts.generator.values import Values
from tests.unit.charts.rendering import CHART, ROOT

from onewriter_broker.ownership.store_access import StoreAccess
from onewriter_core.api.status import ExclusiveTopicStatus, FencedPod, ProducerClaimStatus
from onewriter_core.api.topic import ExclusiveTopic
from onewriter_core.errors import ServerError
from onewriter_core.kubernetes.kinds import ANCHOR, CLAIM, ONE_WRITER, TOPIC
from onewriter_core.topic.model import TransitionCause
from onewriter_operator.conditions import CLAIM_REASONS, ONE_WRITER_REASONS, TOPIC_REASONS
from onewriter_operator.plan.actions import EventReason
from onewriter_operator.plan.store_shards import StoreState
from onewriter_operator.reconcile.lost_brokers import REASON as BROKER_LOST

PAGES = (
    *("failures.md", "operator.md", "install.md", "kubectl.md", "operations.md", "kubernetes.md"),
    "pipeline-kubernetes.md",
)

KUBERNETES = frozenset(
    {"Terminating", "True", "False", "Unknown", "Role", "Secret", "StorageClass"}
)
"""Words of Kubernetes itself."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def sources() -> str:
    parts = ("broker", "operator", "core", "client")
    return "\n".join(path.read_text() for part in parts for path in (ROOT / part).rglob("*.py"))


def alerts() -> set[str]:
    return {rule["alert"] for rule in yaml.safe_load((CHART / "alerts.yaml").read_text())}


def quoted(text: str, pattern: str) -> set[str]:
    """What stands in backticks and looks like that."""
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {each for each in re.findall(r"`([^`\n]+)`", outside) if re.fullmatch(pattern, each)}


def words() -> set[str]:
    """Every word that status, Events and answers to clients may have."""
    found: set[str] = set(KUBERNETES)
    for reasons in (TOPIC_REASONS, CLAIM_REASONS, ONE_WRITER_REASONS):
        found |= set(reasons) | {each for group in reasons.values() for each in group}
    found |= {each.value for each in TransitionCause} | {"Forced"}
    found |= {each.value for each in StoreAccess}
    found |= set(re.findall(r"[A-Z]\w+", str(FencedPod.model_fields["outcome"].annotation)))
    found |= set(get_args(EventReason))
    found |= {state.value for state in StoreState}
    found |= set(re.findall(r'name = "(\w+)" if reason', sources()))
    found |= {"".join(part.title() for part in each.name.split("_")) for each in ServerError}
    found |= {"ExclusiveTopic", "ProducerClaim", "BucketAnchor", "OneWriter", BROKER_LOST}
    found |= set(
        re.findall(r'= "([A-Z]\w+)"', (ROOT / "core/onewriter_core/api/topic.py").read_text())
    )
    return found | set(re.findall(r'= "([A-Z]\w+)"', _configuration())) | alerts()


def _configuration() -> str:
    return (ROOT / "operator/onewriter_operator/configuration.py").read_text() + (
        ROOT / "charts/generator/values.py"
    ).read_text()


def test_every_alert_that_is_named_exists_and_each_has_its_place_in_the_guide() -> None:
    for name in PAGES:
        assert set(re.findall(r"\bOnewriter[A-Z]\w+", page(name))) - alerts() == set(), name
    reported = set(re.findall(r"\bOnewriter[A-Z]\w+", page("failures.md")))
    assert alerts() - reported - {"OnewriterPublishSlow", "OnewriterEventLoopLate"} == set(), (
        "of faults, not of load"
    )


@pytest.mark.parametrize("name", ["failures.md", "operator.md", "kubernetes.md"])
def test_every_condition_reason_cause_and_event_exists(name: str) -> None:
    assert quoted(page(name), r"[A-Z][a-z]+(?:[A-Z]+[a-z]*)*") - words() == set()


@pytest.mark.parametrize("name", PAGES)
def test_every_log_line_and_value_exists(name: str) -> None:
    dotted = quoted(page(name), r"[a-z_]+(\.[a-zA-Z_]+)+")
    known = sources()
    for each in sorted(dotted):
        is_said = f'"{each}"' in known
        is_resource = each in {kind.resource for kind in (TOPIC, CLAIM, ONE_WRITER, ANCHOR)}
        assert is_said or is_field(each) or is_file(each) or is_resource, f"{each} is nowhere"


def is_file(name: str) -> bool:
    return name.rpartition(".")[2] in {"md", "txt", "yaml", "py", "gz", "crt", "key", "log"}


def is_field(path: str) -> bool:
    """Whether a value of the chart, or a field of an object, is called that."""
    first, *rest = path.removeprefix("xt.").split(".")
    if not rest:
        return first in {"spec", "status"}
    roots: list[Any] = [Values] if first in Values.model_json_schema()["properties"] else []
    roots += [ExclusiveTopic] if first == "spec" else []
    roots += [ExclusiveTopicStatus, ProducerClaimStatus] if first == "status" else []
    rest = rest if first == "status" else [first, *rest]
    return any(has(root.model_json_schema(), rest) for root in roots)


def has(schema: Any, path: list[str]) -> bool:
    definitions = schema.get("$defs", {})

    def within(node: Any, left: list[str]) -> bool:
        if "$ref" in node:
            return within(definitions[node["$ref"].rpartition("/")[2]], left)
        choices = [*node.get("anyOf", ()), *node.get("allOf", ())]
        if any(within(each, left) for each in choices):
            return True
        if not left or node.get("additionalProperties"):
            return not choices
        return left[0] in node.get("properties", {}) and within(
            node["properties"][left[0]], left[1:]
        )

    return within(schema, path)
