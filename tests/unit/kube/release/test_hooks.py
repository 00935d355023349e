"""The decisions of the chart's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.kube.installation_configurations import EXTERNAL, configured

from onewriter_core.kubernetes.kinds import LEASE, TOPIC, Key, Kind
from onewriter_operator.installation import names, objects
from onewriter_operator.release.clean_up import (
    NotBeingUninstalled,
    check_uninstalling,
    clean_up,
    remains,
    without_ours,
)
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
def test_readiness_of_a_workload(document: Json | None, words: str) -> None:
    answer = problem((DEPLOYMENT, "operator"), document, "digest")
    assert words in answer
    assert bool(answer) == bool(words)


def test_a_workload_of_an_older_configuration_is_not_ready() -> None:
    document = workload()
    workload_ = (STATEFUL_SET, "brokers")
    assert "another configuration" in problem(workload_, document, "new")
    document["metadata"]["annotations"] = {"onewriter.dev/configuration": "old"}
    assert "another configuration" in problem(workload_, document, "new")
    document["metadata"]["annotations"] = {"onewriter.dev/configuration": "new"}
    assert problem(workload_, document, "new") == ""


def test_an_installed_object_names_its_configuration() -> None:
    for more in ({}, {"brokers": {"settings": {"rollSeconds": 300}}}):
        for each in objects(configured(more)):
            if each["kind"] == "StatefulSet":
                noted = each["metadata"]["annotations"]["onewriter.dev/configuration"]
                assert noted == names.digest(configured(more))
    assert names.digest(configured()) != names.digest(configured({"clusterDomain": "other"}))


def test_the_workloads_that_must_run() -> None:
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


# ------------------------------------------------------------ is it being uninstalled?


class Objects:
    """An API server's objects, by kind and name."""

    def __init__(self, *documents: Json) -> None:
        self._found = {(each["kind"], each["metadata"]["name"]): each for each in documents}

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        assert namespace == configured().namespace
        return self._found.get((kind.kind, name))


def helm_secret(revision: int, status: str) -> Json:
    about = {"name": f"sh.helm.release.v1.one.v{revision}", "labels": {"status": status}}
    return {"kind": "Secret", "metadata": about}


def operator_deployment(**annotations: str) -> Json:
    noted = {f"onewriter.dev/{name}": value for name, value in annotations.items()}
    return {"kind": "Deployment", "metadata": {"name": "onewriter-operator", "annotations": noted}}


async def checked(*documents: Json, revision: int = 1) -> None:
    kube: Any = Objects(*documents)
    await check_uninstalling(kube, configured(), "one", revision)


@pytest.mark.parametrize(
    "documents",
    [
        [helm_secret(1, "uninstalling")],
        [helm_secret(1, "superseded"), helm_secret(3, "uninstalling")],
        [operator_deployment(uninstall="true")],
        [operator_deployment(uninstall="true"), helm_secret(1, "deployed")],
    ],
    ids=["helm uninstalls it", "after a rollback", "confirmed", "confirmed beside Helm"],
)
async def test_an_installation_that_is_to_end_is_cleaned_up(documents: list[Json]) -> None:
    await checked(*documents)


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "no Secret of Helm"),
        ([operator_deployment()], "no Secret of Helm"),
        ([operator_deployment(uninstall="false")], "no Secret of Helm"),
        ([helm_secret(1, "deployed")], "has the status 'deployed'"),
        ([helm_secret(1, "pending-upgrade")], "has the status 'pending-upgrade'"),
    ],
)
async def test_an_applied_rendering_ends_nothing(documents: list[Json], words: str) -> None:
    with pytest.raises(NotBeingUninstalled, match=words) as refused:
        await checked(*documents)
    assert "onewriter.dev/uninstall=true" in str(refused.value)
    assert "--no-hooks" in str(refused.value)


# ------------------------------------------------------------ the clean-up


class StoppingOperator:
    """An API server whose operator stops: its Deployment has no replicas, and it still leads for some reads of its Lease."""

    def __init__(self, leads_reads: int) -> None:
        self.leads_reads = leads_reads
        self.calls: list[str] = []
        self._renewals = 0
        finalizers = ["onewriter.dev/topic-cleanup"]
        metadata = {"name": "orders", "namespace": "shop", "finalizers": finalizers}
        self._topic = {"apiVersion": TOPIC.api_version, "kind": TOPIC.kind, "metadata": metadata}

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        if kind is not LEASE:
            return {
                "kind": kind.kind,
                "metadata": {"name": name},
                "spec": {"replicas": 0},
                "status": {"replicas": 0},
            }
        if self.leads_reads == 0:
            return self._lease(name, "", "")
        self.leads_reads -= 1
        self._renewals += 1
        renewed = f"2026-01-01T00:00:00.{self._renewals:06}Z"
        return self._lease(name, "operator", renewed)

    async def list(self, kind: Kind, namespace: str, labels: str) -> Sequence[Json]:
        return [self._topic] if kind is TOPIC else []

    @staticmethod
    def _lease(name: str, holder: str, renewed: str) -> Json:
        return {
            "kind": LEASE.kind,
            "metadata": {"name": name, "uid": "u"},
            "spec": {"holderIdentity": holder, "renewTime": renewed},
        }

    async def merge(self, kind: Kind, key: Key, change: Json) -> None:
        self.calls.append(f"stop {key.name}")

    async def set_finalizers(self, kind: Kind, document: Json, finalizers: Sequence[str]) -> None:
        assert self.leads_reads == 0, "an operator that still leads would set it again"
        self.calls.append("release")

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.calls.append(f"delete {kind.kind}")


async def test_finalizers_are_removed_only_when_no_operator_leads_any_more() -> None:
    kube: Any = StoppingOperator(leads_reads=2)
    said: list[str] = []
    await clean_up(kube, configured(), 60, said.append, deletes_objects=False)
    assert kube.calls == [
        "stop onewriter-operator",
        "release",
        "stop onewriter-broker",
        "delete Lease",
    ]


# ------------------------------------------------------------ what remains


def test_the_summary_names_remaining_objects_and_the_command_that_deletes_them() -> None:
    lines = remains(configured(), {"ExclusiveTopic": 2, "ProducerClaim": 0})
    namespace = configured().namespace
    commands = [line.strip().partition("   # ")[0] for line in lines[2:]]
    assert commands == [
        "kubectl delete xt,pclaim -A --all",
        f"kubectl delete pvc -n {namespace} -l app.kubernetes.io/instance=onewriter",
        f"kubectl delete xanchor --all -n {namespace}",
        f"kubectl delete secret onewriter-ca -n {namespace} --ignore-not-found",
        "kubectl delete crd -l app.kubernetes.io/name=onewriter",
    ]
    assert "2 ExclusiveTopics;" in lines[2]


def test_without_volumes_and_objects_less_remains() -> None:
    text = " ".join(remains(configured(EXTERNAL), {"ExclusiveTopic": 0, "ProducerClaim": 0}))
    assert "pvc" not in text
    assert "xt,pclaim" not in text
