"""The chart on real nodes, in a namespace that enforces the restricted standard: one life of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import images
from tests.cluster.binaries import program
from tests.cluster.lab import Lab

Json = dict[str, Any]

pytestmark = pytest.mark.nodes

CHART = Path(__file__).resolve().parents[2] / "charts" / "onewriter"
NAMESPACE = "chart"
REPOSITORY, TAG = images.TAG.rsplit(":", 1)
VALUES: Json = {
    "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
    "crds": {"enabled": False},  # the lab has them
    "brokers": {"resources": {"requests": {"cpu": "50m"}}},
    "valkey": {
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        "storage": {"size": "1Gi", "className": "-"},
    },
    "operator": {"resources": {"requests": {"cpu": "20m"}}},
}


class Release:
    """helm on the lab's first node."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.values = lab.directory / "values.json"

    def helm(self, *arguments: str, **values: Any) -> str:
        self.values.write_text(json.dumps(VALUES | values))
        command = [*self.lab.within(), str(program("helm")), f"--kubeconfig={self.lab.kubeconfig}"]
        done = subprocess.run(
            [*command, *arguments, f"--namespace={NAMESPACE}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stderr}\n{self.story()}"
        return done.stdout

    def install(self, **values: Any) -> str:
        return self.helm(
            *("upgrade", "--install", "writers", str(CHART), f"--values={self.values}"), **values
        )

    def get(self, kind: str, name: str) -> Json:
        return self.lab.get(kind, name, namespace=NAMESPACE)

    def story(self) -> str:
        """What a person would look at."""
        asked = (
            ("get", "pods,statefulsets", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", "deployment/writers-operator", "--tail=20"),
            ("logs", "statefulset/writers-broker", "--tail=20"),
            ("logs", "statefulset/writers-valkey", "--tail=20"),
            ("logs", "job/writers-readiness", "--tail=20"),
        )
        found = [self.lab.kubectl(*each, check=False, namespace=NAMESPACE) for each in asked]
        return "\n".join(each.stdout + each.stderr for each in found)


@pytest.fixture
def release(lab: Lab) -> Iterator[Release]:
    lab.import_image(images.archive())
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    volume = lab.directory / "chart-volume"
    volume.mkdir()
    volume.chmod(0o777)
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["lab"]}
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": enforced},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "chart-volume"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": str(volume)},
                "storageClassName": "",
                "claimRef": {"namespace": NAMESPACE, "name": "data-writers-valkey-0"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
            },
        },
    )
    yield Release(lab)
    lab.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_installed_proved_upgraded_rolled_back_uninstalled_and_installed_again(
    release: Release,
) -> None:
    release.install()
    for kind, name in (("deployment", "operator"), ("statefulset", "broker")):
        document = release.get(kind, f"writers-{name}")
        assert document["status"]["readyReplicas"] == document["spec"]["replicas"]
    said = release.helm("test", "writers", "--logs")
    assert "the former writer is refused" in said
    generation = release.get("bucketanchor", "shard-0")["summary"]["generation"]

    changed = {**VALUES["brokers"], "settings": {"rollSeconds": 300}}
    release.install(brokers=changed)
    broker = release.get("statefulset", "writers-broker")
    environment = broker["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "ONEWRITER_ROLL_SECONDS", "value": "300"} in environment
    # helm came back when every broker had been replaced, one after the other.
    status = broker["status"]
    assert status["currentRevision"] == status["updateRevision"]
    release.helm("test", "writers")

    release.helm("rollback", "writers")
    release.helm("uninstall", "writers")
    anchor = release.get("bucketanchor", "shard-0")
    assert anchor["summary"]["generation"] == generation, "the same dataset all the time"

    release.install()
    release.helm("test", "writers")
    assert release.get("bucketanchor", "shard-0")["metadata"]["uid"] == anchor["metadata"]["uid"]
