"""The status of the installation's object as a table: facts from YAML in, status out."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from onewriter_core.api.installation import OneWriterStatus
from onewriter_core.kubernetes.objects import parse_one_writer
from onewriter_operator.conditions import ONE_WRITER_REASONS
from onewriter_operator.plan.broker_report import BrokerReport, StoreReport, parse_report
from onewriter_operator.plan.installation import InstallationFacts, plan_installation, steady

Json = dict[str, Any]

CASES: list[Json] = yaml.safe_load((Path(__file__).parent / "installations.yaml").read_text())

FACTS = TypeAdapter(InstallationFacts)

DOCUMENT: Json = {
    "apiVersion": "onewriter.dev/v1alpha1",
    "kind": "OneWriter",
    "metadata": {
        "name": "onewriter",
        "namespace": "system",
        "uid": "o1",
        "generation": 1,
        "resourceVersion": "5",
    },
}

REPORT: Json = {
    "version": "0.1.0",
    "store": {
        "url": "redis://store:6379",
        "topology": "Single",
        "is_reachable": True,
        "durability": "Local",
        "memory_bytes_used": 524_288_000,
        "memory_bytes_max": 1_048_576_000,
        "is_full": False,
        "faults": [],
    },
    "certificates": [["broker", "2126-01-01T00:00:00.000Z"]],
}


def facts_of(case: Json) -> InstallationFacts:
    before = copy.deepcopy(case.get("before", {"observedGeneration": -1}))
    given: Json = {
        "now": 1_000_000.0,
        "version": "0.2.0",
        "brokers_ready": 3,
        "brokers_desired": 3,
        "fleet": {"expected": 3, "synced": 3},
        "reports": dict.fromkeys(("broker-0", "broker-1", "broker-2"), REPORT),
        "buckets": {"total": 64},
        **case.get("facts", {}),
        "found": parse_one_writer(DOCUMENT | {"status": before}),
    }
    return FACTS.validate_python(given)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_one_writer(case: Json) -> None:
    plan = plan_installation(facts_of(case))
    if "status" in case:
        assert plan.status is case["status"]
        return
    assert plan.status is not None
    OneWriterStatus.from_document(plan.status)  # the definition allows it
    found = {each["type"]: each for each in plan.status["conditions"]}
    assert list(found) == list(ONE_WRITER_REASONS)
    for kind, expected in case.get("conditions", {}).items():
        assert f"{found[kind]['status']}/{found[kind]['reason']}" == expected, found[kind]
    for kind, message in case.get("message", {}).items():
        assert found[kind]["message"] == message
    for name, value in case.get("expect", {}).items():
        assert plan.status[name] == value, name
    for name in case.get("absent", ()):
        assert name not in plan.status
    if "after" in case:
        assert plan.after_seconds == case["after"]


def test_every_condition_and_reason_is_reached() -> None:
    reached: dict[str, set[str]] = {}
    for case in CASES:
        for each in (plan_installation(facts_of(case)).status or {}).get("conditions", ()):
            reached.setdefault(each["type"], set()).add(each["reason"])
    assert reached == {kind: set(reasons) for kind, reasons in ONE_WRITER_REASONS.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_plan_of_a_shown_status_does_not_change_it(case: Json) -> None:
    facts = facts_of(case)
    first = plan_installation(facts).status
    if first is None or facts.drift:
        return
    found = parse_one_writer({**facts.found.document, "status": first})
    again = plan_installation(dataclasses.replace(facts, found=found, now=facts.now + 0.5))
    assert again.status == first


def test_a_number_that_wavers_around_a_boundary_stays() -> None:
    shown = steady(149.0, None, 100.0)
    for value in (151.0, 149.0, 160.0, 140.0, 100.0, 170.0):
        shown = steady(value, shown, 100.0)
        assert shown == 100
    assert steady(176.0, shown, 100.0) == 200


def test_the_address_of_a_cluster_with_many_pods_is_cut() -> None:
    """The definition limits its length. It must not refuse the whole status."""
    url = f"redis+cluster://{','.join(f'pod-{number}.store:6379' for number in range(64))}"
    facts = facts_of({"facts": {"reports": {"broker-0": REPORT | {"store": {"url": url}}}}})
    status = plan_installation(facts).status
    assert status is not None
    assert status["store"]["url"] == url[: len(status["store"]["url"])]
    OneWriterStatus.from_document(status)  # the definition allows it


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ({}, BrokerReport()),
        ({"store": 7, "certificates": [3, {"name": "x"}]}, BrokerReport()),
        ({"version": "1", "store": {"reachable": "yes"}}, BrokerReport("1")),
        ({"store": {"full": 1, "faults": "no", "refusesWrites": "yes"}}, BrokerReport()),
        (
            {"store": {"full": True, "faults": ["f"], "refusesWrites": True}},
            BrokerReport(store=StoreReport(is_full=True, faults=("f",), refuses_writes=True)),
        ),
    ],
)
def test_a_report_of_another_version_is_read_as_far_as_it_goes(
    line: Json, report: BrokerReport
) -> None:
    assert parse_report(line) == report
