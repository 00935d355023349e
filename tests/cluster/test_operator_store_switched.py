"""Switching TLS of an installed cluster on: a real API server and its controllers, the chart's rights, and no node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster import commands
from tests.cluster.binaries import program
from tests.cluster.control_plane import COMMAND_SECONDS, ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.cluster.test_operator_installed import (
    CHART,
    NAMESPACE,
    RELEASE,
    RIGHTS,
    account,
    configuration,
)

Json = dict[str, Any]

TLS = ("--set=store.tls.secretName=store", "--set=valkey.image=valkey/valkey:9")


def upgrade(cluster: ControlPlane, *values: str) -> None:
    helm = [str(program("helm")), f"--kubeconfig={cluster.kubeconfig}", f"-n={NAMESPACE}"]
    words = ["upgrade", "--install", RELEASE, str(CHART), "--no-hooks", "--set=store.shards=3"]
    done = commands.run([*helm, *words, *values], seconds=COMMAND_SECONDS)
    assert done.returncode == 0, done.stderr


def stores(cluster: ControlPlane) -> list[Json]:
    names = [f"{RELEASE}-valkey-{shard}" for shard in range(3)]
    found = cluster.names("statefulset", namespace=NAMESPACE)
    return [
        cluster.get("statefulset", name, namespace=NAMESPACE) for name in names if name in found
    ]


def run_with(found: list[Json], *, has_tls: bool) -> bool:
    """Whether the controller has made all pods of the store, and made them with or without TLS."""
    annotation = "onewriter.dev/store-tls"
    return len(found) == 3 and all(
        (each["metadata"]["annotations"].get(annotation) == "true") == has_tls
        and each["status"].get("observedGeneration") == each["metadata"]["generation"]
        and each["status"].get("replicas") == each["spec"]["replicas"] == 2
        and each["status"].get("updatedReplicas") == 2
        for each in found
    )


def test_the_pods_of_a_cluster_stop_together_and_start_with_tls(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "cluster", workloads=True) as cluster:
        cluster.make_namespace(NAMESPACE)
        upgrade(cluster)
        cluster.kubectl("delete", "mutatingwebhookconfigurations", "--all")
        for kind in ("exclusivetopics", "producerclaims", "onewriters"):
            cluster.until_served("onewriter.dev", kind)
        user = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"
        verb, resource = RIGHTS[0]
        cluster.until_allowed(user, verb, resource, namespace=NAMESPACE)
        for values in ((), TLS, ()):
            upgrade(cluster, *values)
            directory = tmp_path / f"operator-{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            operator = OperatorProcess(
                directory,
                cluster,
                NAMESPACE,
                {},
                kubeconfig=account(cluster, directory),
                configuration=configuration(cluster),
                settings={"ONEWRITER_OPERATOR_INSTALLS": "true"},
            )
            with running(operator):
                wait_until(
                    lambda: run_with(stores(cluster), has_tls=bool(values)),  # noqa: B023 - of this round
                    explain=operator.log,
                )
                pods = cluster.names("pod", namespace=NAMESPACE)
                assert len([name for name in pods if "valkey" in name]) == 6
            is_first = directory.name == "operator-1"
            assert ("installation.stops_store" in operator.log()) != is_first
            assert "orbidden" not in operator.log()
