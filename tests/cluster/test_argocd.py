"""Argo CD compares, applies and prunes the chart: no endless differences, and no pruning deletes what contains data."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.cluster.argocd.program import synced
from tests.cluster.control_plane import ControlPlane
from tests.cluster.test_chart_installed import ANCHOR, NAMESPACE, RESTRICTED, ROOT, Installation
from tests.cluster.test_flux import TOPIC, VOLUME, chart

pytestmark = pytest.mark.full

KEPT = {
    "CustomResourceDefinition//exclusivetopics.onewriter.dev",
    "CustomResourceDefinition//producerclaims.onewriter.dev",
    "CustomResourceDefinition//onewriters.onewriter.dev",
    "CustomResourceDefinition//bucketanchors.onewriter.dev",
    f"Secret/{NAMESPACE}/onewriter-ca",
}
PERSISTENT = (
    ("xt", "orders"),
    ("bucketanchor", "shard-0"),
    ("pvc", VOLUME),
    ("secret", "onewriter-ca"),
)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("argocd"), workloads=True) as found:
        found.make_namespace(NAMESPACE, RESTRICTED)
        yield found


@pytest.mark.parametrize("tracking", ["annotation", "label"])
def test_argo_cd_finds_no_difference_and_prunes_nothing_that_contains_data(
    cluster: ControlPlane, tracking: str
) -> None:
    objects = chart()
    first = synced(cluster, objects, NAMESPACE, tracking=tracking)
    assert set(first.actions.values()) == {"Synced"}
    installation = Installation(cluster)
    cluster.apply(*installation.installed(), TOPIC, ANCHOR)
    cluster.until(lambda: VOLUME in installation.names("pvc"), "the store has a volume")

    # Nothing is applied again and again, and what the operator has installed is not left over.
    again = synced(cluster, objects, NAMESPACE, tracking=tracking)
    assert again.differing == set()
    assert {name for name, each in again.actions.items() if each != "Synced"} == set()
    if tracking == "label":
        annotate_claims(cluster)

    # An Application that has become empty prunes all that belongs to it.
    pruned = synced(cluster, [], NAMESPACE, tracking=tracking)
    assert pruned.done("PruneSkipped") >= KEPT
    assert set(pruned.actions.values()) == {"Pruned", "PruneSkipped"}
    cluster.until(lambda: installation.names("statefulset") == [], "the workloads are collected")
    synced(cluster, [], NAMESPACE, tracking=tracking)  # the volume has no StatefulSet any more
    for kind, name in PERSISTENT:
        assert "deletionTimestamp" not in cluster.get(kind, name, namespace=NAMESPACE)["metadata"]

    # Applied again, it continues with what was kept.
    back = synced(cluster, objects, NAMESPACE, tracking=tracking)
    # Tracked by label, the claim counts as left over until the operator has created the StatefulSet again.
    left = {f"PersistentVolumeClaim/{NAMESPACE}/{VOLUME}"} if tracking == "label" else set()
    assert {name for name, each in back.actions.items() if each != "Synced"} == left
    assert back.done("PruneSkipped") == left


def annotate_claims(cluster: ControlPlane) -> None:
    """Run the command that the documentation gives for an Argo CD that tracks by label."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^kubectl annotate pvc .*", text, re.MULTILINE)
    words = command.replace("-n onewriter", f"-n {NAMESPACE}").split()
    cluster.kubectl(*words[1:])
