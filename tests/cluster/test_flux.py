"""Flux applies and prunes the chart: no endless differences, and no pruning deletes what contains data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.flux.program import count, synced
from tests.cluster.test_chart_installed import ANCHOR, NAMESPACE, RESTRICTED, Installation
from tests.unit.charts.rendering import rendered

Json = dict[str, Any]

pytestmark = pytest.mark.full

TOPIC: Json = {
    "apiVersion": "onewriter.dev/v1alpha1",
    "kind": "ExclusiveTopic",
    "metadata": {"name": "orders", "namespace": NAMESPACE},
    "spec": {},
}
VOLUME = "data-onewriter-valkey-0"
"""The claim that the StatefulSet controller creates for the store's volume."""

KEPT = (
    "CustomResourceDefinition/exclusivetopics.onewriter.dev",
    "CustomResourceDefinition/producerclaims.onewriter.dev",
    "CustomResourceDefinition/onewriters.onewriter.dev",
    "CustomResourceDefinition/bucketanchors.onewriter.dev",
    f"Secret/{NAMESPACE}/onewriter-ca",
)


def chart() -> list[Json]:
    """What Flux applies: everything but Helm's hooks and tests."""
    found = [each for each in rendered() if "helm.sh/hook" not in str(each["metadata"])]
    for each in found:
        if each["kind"] in {"Role", "RoleBinding"}:
            each["metadata"].setdefault("namespace", NAMESPACE)
    return found


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("flux"), workloads=True) as found:
        found.make_namespace(NAMESPACE, RESTRICTED)
        yield found


def test_flux_finds_no_difference_and_prunes_nothing_that_contains_data(
    cluster: ControlPlane,
) -> None:
    objects = chart()
    first = synced(cluster, objects)
    assert set(first.values()) <= {"created", "configured"}
    installation = Installation(cluster)
    cluster.apply(*installation.installed(), TOPIC, ANCHOR)
    cluster.until(lambda: VOLUME in installation.names("pvc"), "the store has a volume")

    # Again, and once more after the operator has installed its objects: nothing is applied again and again.
    again = synced(cluster, objects, previous=objects)
    assert count(again) == {"unchanged": len(objects)}, again

    # A Kustomization that has become empty prunes all that it applied.
    pruned = synced(cluster, [], previous=objects)
    kept = {name for name, action in pruned.items() if action == "skipped"}
    assert kept == set(KEPT)
    assert {action for name, action in pruned.items() if name not in kept} == {"deleted"}
    # The installed objects are collected, because their owner was pruned. The volume stays.
    cluster.until(lambda: installation.names("statefulset") == [], "the workloads are collected")
    for kind, name in (
        ("xt", "orders"),
        ("bucketanchor", "shard-0"),
        ("pvc", VOLUME),
        ("secret", "onewriter-ca"),
    ):
        assert "deletionTimestamp" not in cluster.get(kind, name, namespace=NAMESPACE)["metadata"]

    # Applied again, it continues with what was kept.
    back = synced(cluster, objects)
    assert {back[name] for name in KEPT} <= {"unchanged", "configured"}
