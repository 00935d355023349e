"""Alerts, the dashboard and the guides name only metrics that broker and operator have."""

from __future__ import annotations

import re
import urllib.request

import yaml
from charts.generator import dashboard
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.charts.rendering import CHART, ROOT

from onewriter_operator.metrics import Metrics
from onewriter_testing.processes import LocalBrokers

SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
}
"""The suffixes of a family's sample names."""


def names(text: str) -> set[str]:
    return {
        f"{family.name}{suffix}"
        for family in text_string_to_metric_families(text)
        for suffix in SUFFIXES.get(family.type, ("",))
    }


def asked(text: str, container: str) -> set[str]:
    return set(re.findall(rf'\b(onewriter_\w+)\{{[^}}]*container=~?"[^"]*\b{container}\b', text))


OTHER_NAMES = frozenset(
    {
        *("onewriter_core", "onewriter_broker", "onewriter_operator", "onewriter_testing"),
        *("onewriter_manifests", "onewriter_extensions"),
    }
)
"""Names of packages, of a test fixture and of a wire field."""

CONDITIONAL = frozenset({"onewriter_tls_certificate_not_after_seconds"})
"""Metrics that brokers and operators show only with a certificate."""


def shown_by(broker: LocalBrokers) -> set[str]:
    with urllib.request.urlopen(f"{broker.http_url}/metrics") as answer:  # noqa: S310 - ours
        return names(answer.read().decode()) | CONDITIONAL


def test_every_metric_that_a_guide_names_exists(broker: LocalBrokers) -> None:
    known = shown_by(broker) | names(Metrics().render().decode()) | OTHER_NAMES
    for page in sorted((ROOT / "docs").glob("*.md")):
        named = set(re.findall(r"`(onewriter_[a-z_]+[a-z])\b(?![*.])", page.read_text()))
        unknown = {each for each in named - known if f"{each}_bucket" not in known}
        assert unknown == set(), page.name


def test_every_metric_that_dashboards_and_alerts_use_exists(broker: LocalBrokers) -> None:
    of_broker = shown_by(broker)
    of_operator = names(Metrics().render().decode()) | CONDITIONAL
    rules = yaml.safe_load((CHART / "alerts.yaml").read_text())
    everything = "\n".join([*(rule["expr"] for rule in rules), *dashboard.queries()])
    assert asked(everything, "broker") - of_broker == set()
    assert asked(everything, "operator") - of_operator == set()
    used = set(re.findall(r"\bonewriter_\w+", everything))
    assert used == asked(everything, "broker") | asked(everything, "operator"), "whose is it?"
    assert len(used) > 20
