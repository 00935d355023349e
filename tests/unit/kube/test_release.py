"""What the chart's hooks decide."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kube.installation_configurations import EXTERNAL, configured

from onewriter_operator.installation import names, objects
from onewriter_operator.release.clean_up import without_ours
from onewriter_operator.release.readiness import DEPLOYMENT, STATEFUL_SET, problem, workloads

Json = dict[str, Any]

READY = {"observedGeneration": 2, "updatedReplicas": 3, "readyReplicas": 3}


def workload(**status: int) -> Json:
    return {"metadata": {"generation": 2}, "spec": {"replicas": 3}, "status": {**READY, **status}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "Deployment operator does not exist"),
        (workload(), ""),
        (workload(observedGeneration=1), "has not been looked at"),
        (workload(updatedReplicas=2), "2 of 3 pods are updated"),
        (workload(readyReplicas=0), "0 of 3 pods are ready"),
        ({"metadata": {"generation": 1}, "spec": {"replicas": 1}}, "has not been looked at"),
    ],
)
def test_what_is_ready(document: Json | None, words: str) -> None:
    said = problem((DEPLOYMENT, "operator"), document, "digest")
    assert words in said
    assert bool(said) == bool(words)


def test_what_the_operator_has_not_come_to_is_not_ready() -> None:
    document = workload()
    workload_ = (STATEFUL_SET, "brokers")
    assert "another configuration" in problem(workload_, document, "new")
    document["metadata"]["annotations"] = {"onewriter.dev/configuration": "old"}
    assert "another configuration" in problem(workload_, document, "new")
    document["metadata"]["annotations"] = {"onewriter.dev/configuration": "new"}
    assert problem(workload_, document, "new") == ""


def test_what_is_installed_says_for_which_configuration() -> None:
    for more in ({}, {"brokers": {"settings": {"rollSeconds": 300}}}):
        for each in objects(configured(more)):
            if each["kind"] == "StatefulSet":
                noted = each["metadata"]["annotations"]["onewriter.dev/configuration"]
                assert noted == names.digest(configured(more))
    assert names.digest(configured()) != names.digest(configured({"clusterDomain": "other"}))


def test_what_must_run() -> None:
    assert workloads(configured()) == [
        (DEPLOYMENT, "onewriter-operator"),
        (STATEFUL_SET, "onewriter-valkey"),
        (STATEFUL_SET, "onewriter-broker"),
    ]
    assert (STATEFUL_SET, "onewriter-valkey") not in workloads(configured(EXTERNAL))


def test_only_our_finalizers_are_taken_off() -> None:
    finalizers = ["onewriter.dev/topic-cleanup", "example.org/theirs", "foregroundDeletion"]
    assert without_ours(finalizers) == ["example.org/theirs", "foregroundDeletion"]
    assert without_ours([]) == []
