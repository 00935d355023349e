"""docs/operator.md and the code name the same conditions, reasons, outcomes, Events and metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from onewriter_core.api.installation import OneWriterStatus
from onewriter_core.api.status import FencedPod
from onewriter_core.kubernetes.names import (
    FENCE,
    HANDOVER,
    PAUSED,
    PRIORITY_ANNOTATION,
    READY_WHEN_ANNOTATION,
    RECONCILE_AT,
    RELAY_ANNOTATION,
    TOPIC_ANNOTATION,
    UNMANAGED,
)
from onewriter_operator import conditions
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.actions import EventReason

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "operator.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """One section's text."""
    return DOCS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def words(text: str) -> set[str]:
    """The words that a text formats as code."""
    return set(re.findall(r"`([A-Za-z]+)`", text))


def settings_of(text: str) -> set[str]:
    """The names that the first column of a table formats as code."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([A-Za-z_/]+)", row)}


def test_every_reason_of_a_condition_is_explained() -> None:
    known = words(section("Status")) | words(section("Pods of stale writers"))
    declared: Mapping[str, frozenset[str]]
    for declared in (conditions.TOPIC_REASONS, conditions.CLAIM_REASONS):
        for kind, reasons in declared.items():
            assert kind in known
            assert reasons - known == set(), kind


def test_every_condition_of_the_installation_is_explained_and_no_other() -> None:
    text = section("The installation").partition("| condition |")[2]
    reasons = set().union(*conditions.ONE_WRITER_REASONS.values())
    assert words(text) == reasons | set(conditions.ONE_WRITER_REASONS)


def test_every_field_of_the_installation_is_explained() -> None:
    text = section("The installation").partition("| condition |")[0]
    fields = {each.alias for each in OneWriterStatus.model_fields.values()}
    assert fields - {"conditions", "observedGeneration"} <= words(text)


def test_every_documented_reason_exists() -> None:
    given = {
        reason
        for declared in (conditions.TOPIC_REASONS, conditions.CLAIM_REASONS)
        for reasons in declared.values()
        for reason in reasons
    }
    rows = [line for line in section("Status").splitlines() if line.startswith("| `")]
    explained = {word for row in rows for word in words("|".join(row.split("|")[2:]))}
    assert explained - given - {"Serving"} == set()


def test_every_outcome_for_a_fenced_pod_is_explained_and_no_other() -> None:
    outcomes = set(get_args(FencedPod.model_fields["outcome"].annotation))
    assert settings_of(section("Pods of stale writers")) == outcomes


def test_every_event_is_named_and_no_other() -> None:
    assert words(section("Events")) == set(get_args(EventReason))


def test_every_metric_is_named_and_no_other() -> None:
    metrics = Metrics()
    metrics.certificate(0.0)  # there is none without a webhook
    families = {
        f"{each.name}_total" if each.type == "counter" else each.name
        for each in metrics.registry.collect()
    }
    assert settings_of(section("Metrics and probes")) == families


def test_every_annotation_is_explained() -> None:
    values = {PAUSED, UNMANAGED, RECONCILE_AT, FENCE, HANDOVER}
    values |= {TOPIC_ANNOTATION, PRIORITY_ANNOTATION, READY_WHEN_ANNOTATION, RELAY_ANNOTATION}
    explained = set(re.findall(r"^\| `(onewriter\.dev/[a-z-]+)", DOCS, re.MULTILINE))
    assert explained == values
