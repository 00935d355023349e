"""The cluster under test: nodes on this machine, or the cluster of a kubeconfig.

``USE_EXISTING_CLUSTER=true`` (envtest's variable) selects the cluster of KUBECONFIG, whose nodes must have
loaded the archives of ``e2e.images`` and of the pipeline's image; ``make kind`` creates one. Otherwise the
lab is started.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import images
from e2e.machines import KindMachines, LabMachines, Machines, UnknownMachines
from tests.cluster.binaries import LAB_SECONDS, exclusively, program
from tests.cluster.control_plane import Cluster
from tests.cluster.images import Image
from tests.cluster.images import archive as image_archive
from tests.cluster.lab import Lab, remove

Json = dict[str, Any]

STORE_NODE = "lab"
"""The lab's node with all volumes, unless the store is a cluster; a test can lose the other node."""


def uses_existing() -> bool:
    """Whether the environment names an existing cluster."""
    return os.environ.get("USE_EXISTING_CLUSTER", "").lower() == "true"


class ExistingCluster(Cluster):
    """The cluster of KUBECONFIG."""

    def __init__(self) -> None:
        first = os.environ.get("KUBECONFIG", "~/.kube/config").partition(os.pathsep)[0]
        self.kubeconfig = Path(first).expanduser()

    def tool(self, name: str) -> Path:
        """Return a program of this machine, or else one that is built."""
        found = shutil.which(name)
        return Path(found) if found else program(name)


@dataclass
class TestedCluster:
    """A cluster, the machines of its nodes, and its values for the chart."""

    __test__ = False

    cluster: Cluster
    machines: Machines
    directory: Path
    storage: Json = field(default_factory=dict)
    """``valkey.storage`` of the chart's values."""
    volumes: bool = False
    """Whether tests create the volumes: there is no StorageClass."""
    lab: Lab | None = None
    """The lab, if the cluster is one."""

    @property
    def node_of_volumes(self) -> dict[str, str]:
        """The labels of the only node with volumes; none if every node has them."""
        return {"kubernetes.io/hostname": STORE_NODE} if self.volumes else {}

    def node_of_store_pod(self, shard: int, number: int) -> str:
        """The lab's node with the volume of a pod of a cluster: the pods of one shard never share a node."""
        nodes = [STORE_NODE] if self.lab is None else sorted(self.lab.members)
        return nodes[(shard + number) % len(nodes)]

    def load(self, image: Image) -> None:
        """Bring an image to the node that has the volumes; an existing cluster's nodes have it."""
        if self.lab is not None:
            self.lab.import_image(image_archive(image), STORE_NODE)

    def prepare_volume(self, namespace: str, claim: str, node: str = STORE_NODE) -> None:
        """Create a claim's volume, empty and on this node, if no StorageClass does. A claim can get another one later."""
        if not self.volumes:
            return
        name = next(each for each in _names(claim) if not (self.directory / each).exists())
        path = self.directory / name
        path.mkdir()
        path.chmod(0o777)
        where = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{namespace}-{name}"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": {"path": str(path)},
                    "storageClassName": "",
                    "claimRef": {"namespace": namespace, "name": claim},
                    "nodeAffinity": {
                        "required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}
                    },
                },
            }
        )


def _names(claim: str) -> Iterator[str]:
    """The names of a claim's volumes, one after the other."""
    yield claim
    for number in itertools.count(1):
        yield f"{claim}.{number}"


@contextmanager
def tested_cluster(*, notices_lost_nodes_early: bool, nodes: int) -> Iterator[TestedCluster]:
    """The cluster that the environment asks for; the lab lives as long as the context.

    ``notices_lost_nodes_early``: see Lab. ``nodes``: of the lab.
    """
    directory = Path(tempfile.mkdtemp(prefix="onewriter-e2e-"))
    try:
        if uses_existing():
            yield _existing(directory)
        else:
            archive = images.archive()
            wanted = Lab(
                directory / "lab", nodes, notices_lost_nodes_early=notices_lost_nodes_early
            )
            with exclusively("lab", LAB_SECONDS), wanted as lab:
                yield _lab(lab, archive, directory)
    finally:
        remove(directory)


def _existing(directory: Path) -> TestedCluster:
    cluster = ExistingCluster()
    nodes = cluster.names("nodes")
    machines = KindMachines(nodes) if KindMachines.are(nodes) else UnknownMachines()
    return TestedCluster(cluster, machines, directory, {"size": "1Gi"})


def _lab(lab: Lab, archive: Path, directory: Path) -> TestedCluster:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: lab.import_image(archive, node), lab.members))
    storage = {"size": "1Gi", "className": "-"}
    return TestedCluster(lab, LabMachines(lab), directory, storage, volumes=True, lab=lab)
