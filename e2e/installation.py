"""onewriter in the cluster, installed by its chart into a namespace that enforces ``restricted``."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e import log
from e2e.api import Api, path
from e2e.clusters import STORE_NODE, TestedCluster
from e2e.manifests import PROGRAMS
from tests.cluster import commands, images
from tests.cluster.control_plane import COMMAND_SECONDS, WAIT_SECONDS, ClusterError

from onewriter_broker.ownership.placement import rendezvous
from onewriter_core.cluster_views import SlotMap, first_slot, parse_view
from onewriter_core.ids import TopicName, bucket_of

Json = dict[str, Any]

CHART = images.ROOT / "charts" / "onewriter"
RELEASE = "onewriter"
NAMESPACE = "onewriter"
OPERATOR = f"{RELEASE}-operator"
"""The operator's Deployment, and its Lease."""

POLL_SECONDS = 0.5

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
COMPONENT = "app.kubernetes.io/component"
WORKLOADS = {"broker": "statefulset", "valkey": "statefulset", "operator": "deployment"}

REPOSITORY, TAG = images.TAG.rsplit(":", 1)

EXEC_SECONDS = 120.0
"""Time limit of one program in a pod, whose kubelet may be stopped."""

CLAIM = "history"
FOLDER = "/data/onewriter"
"""The folder of the pipeline's tables, in their volume."""

_SMALL: Json = {
    "suspend": True,
    "cores": 1,
    "driverMemory": "512m",
    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1536Mi"}},
}
"""Settings of a job that only tests start: its schedule is suspended."""

PIPELINE: Json = {
    "enabled": True,
    "image": dict(zip(("repository", "tag"), images.SPARK.tag.rsplit(":", 1), strict=True)),
    "table": {"uri": FOLDER, "volumeClaim": CLAIM},
    "topicsPattern": "persistent://pipeline-.*",
    "jobs": {"offload": {**_SMALL, "args": ["--batch-mb=1"]}, "audit": _SMALL},
    "retention": {"trim": {"enabled": True, "schedule": "0 0 1 1 *", "keepHours": 0}},
    "executors": {"instances": 1, "memory": "512m", "memoryOverhead": "512m"},
}


class Installation:
    """The release and its pods."""

    def __init__(self, tested: TestedCluster, api: Api) -> None:
        self.cluster = tested.cluster
        self.api = api
        self._tested = tested
        self._values = tested.directory / "values.json"
        self.values: Json = {
            "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
            "brokers": {
                "replicas": 2,
                "resources": {"requests": {"cpu": "50m"}},
            },
            "valkey": {
                "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
                "storage": tested.storage,
            },
            "operator": {
                "resources": {"requests": {"cpu": "20m"}},
                "leaderServices": {"enabled": True},
            },
            "spark": PIPELINE | {"nodeSelector": tested.node_of_volumes},
        }
        """The chart's values: small enough for two nodes that share two cores."""

    # ------------------------------------------------------------ helm

    def helm(self, *arguments: str) -> str:
        """Run helm for the release. Raises ClusterError with diagnostics."""
        cluster = self.cluster
        command = [*cluster.enter(), str(cluster.tool("helm"))]
        where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        try:
            done = commands.run([*command, *where, *arguments], seconds=COMMAND_SECONDS)
        except commands.CommandHangs as error:
            raise ClusterError(f"{error}\n{self.diagnostics()}") from None
        if done.returncode != 0:
            raise ClusterError(f"helm {' '.join(arguments)}: {done.stderr}\n{self.diagnostics()}")
        return done.stdout

    def install(self) -> None:
        """Install, and wait as helm does, until topics can be declared."""
        for pod in self.store_pods:
            node = STORE_NODE
            if self.shards > 1:
                shard, number = (int(part) for part in pod.split("-")[-2:])
                node = self._tested.node_of_store_pod(shard, number)
            self._tested.prepare_volume(NAMESPACE, claim_of(pod), node)
        namespace = {"name": NAMESPACE, "labels": RESTRICTED}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
        self.upgrade(CHART)

    def upgrade(self, chart: Path = CHART, **values: Any) -> str:
        """Install this chart, with these values in place of the usual ones."""
        self._values.write_text(json.dumps(self.values | values))
        options = ("--install", f"--values={self._values}", f"--timeout={WAIT_SECONDS}s")
        return self.helm("upgrade", RELEASE, str(chart), *options)

    def restart(self, *components: str) -> None:
        """Restart all pods of ``broker``, ``valkey`` or ``operator`` with kubectl."""
        named = [f"{WORKLOADS[each]}/{RELEASE}-{each}" for each in components]
        self.cluster.kubectl("rollout", "restart", *named, namespace=NAMESPACE)

    def uninstall(self) -> None:
        """Remove everything that the suite created; an existing cluster stays."""
        self.helm("uninstall", RELEASE)
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")

    # ------------------------------------------------------------ the store

    @property
    def shards(self) -> int:
        """The number of shards of the store."""
        return int(self.values.get("store", {}).get("shards", 1))

    @property
    def store_pods(self) -> list[str]:
        """The names of the store's pods. In a cluster each primary has one replica."""
        name = f"{RELEASE}-valkey"
        if self.shards == 1:
            return [f"{name}-0"]
        return [f"{name}-{shard}-{number}" for shard in range(self.shards) for number in range(2)]

    def primary_of(self, shard: int) -> Json:
        """The pod that serves the hash slots of a shard of the cluster, as a ready process knows it."""
        asked = next(pod["metadata"]["name"] for pod in self.pods("valkey") if is_ready(pod))
        where = ("exec", asked, "--container=valkey", "--", "cat", "/data/nodes.conf")
        printed = self.cluster.kubectl(*where, namespace=NAMESPACE, seconds=EXEC_SECONDS).stdout
        nodes = [line for line in printed.splitlines() if not line.startswith("vars ")]
        view = parse_view("\n".join(nodes), (asked, 0))
        found = SlotMap([view]).primary_of(first_slot(shard, self.shards))
        if found is None:
            raise ClusterError(f"shard {shard} has no primary\n{printed}")
        return self.pod(found.host.partition(".")[0])

    def conditions(self) -> dict[str, str]:
        """The conditions of the installation's object, as ``True/Ready``."""
        found = self.api.get("onewriters", NAMESPACE, RELEASE) or {}
        listed = found.get("status", {}).get("conditions", ())
        return {each["type"]: f"{each['status']}/{each['reason']}" for each in listed}

    # ------------------------------------------------------------ components

    def pods(self, component: str) -> list[Json]:
        """The pods of ``broker``, ``valkey`` or ``operator`` that are not being deleted, by name."""
        found = self.api.list("pods", NAMESPACE, **{COMPONENT: component})
        staying = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(staying, key=lambda pod: str(pod["metadata"]["name"]))

    def is_ready(self) -> bool:
        """Whether all components exist and are ready."""
        wanted = {
            "broker": self.values["brokers"]["replicas"],
            "valkey": len(self.store_pods),
            "operator": 2,
        }
        return all(
            len(pods) == count and all(map(is_ready, pods))
            for pods, count in ((self.pods(part), count) for part, count in wanted.items())
        )

    def brokers_are_rolled_out(self) -> bool:
        """Whether every broker has the present pod template."""
        found = self.api.get("statefulsets", NAMESPACE, f"{RELEASE}-broker") or {}
        status = found.get("status", {})
        return bool(status) and status.get("currentRevision") == status.get("updateRevision")

    def has_its_nodes(self) -> bool:
        """Whether every node is ready and schedulable; a returned node becomes so a moment later."""
        return all(
            is_ready(node)
            and not any(
                taint["key"].startswith("node.kubernetes.io/")
                for taint in node["spec"].get("taints", ())
            )
            for node in self.api.list("nodes")
        )

    def pod(self, name: str) -> Json:
        """A pod of the release by its name. Raises ClusterError if it does not exist."""
        found = self.api.get("pods", NAMESPACE, name)
        if found is None:
            raise ClusterError(f"there is no pod {name}")
        return found

    def leading_operator(self) -> str:
        """The operator pod that the Lease names; empty while no replica leads."""
        found = self.api.get("leases", NAMESPACE, OPERATOR) or {}
        return str(found.get("spec", {}).get("holderIdentity") or "")

    @contextmanager
    def without_operator(self) -> Iterator[None]:
        """Scale the operator to zero during the context; the webhook has no server then."""
        there = self.api.get("deployments", NAMESPACE, OPERATOR) or {}
        self._scale_operator(0)
        try:
            until_gone = (f"--selector={COMPONENT}=operator", f"--timeout={WAIT_SECONDS}s")
            self.cluster.kubectl("wait", "--for=delete", "pod", *until_gone, namespace=NAMESPACE)
            yield
        finally:
            self._scale_operator(there["spec"]["replicas"])

    def _scale_operator(self, replicas: int) -> None:
        self.api.patch("deployments", NAMESPACE, OPERATOR, {"spec": {"replicas": replicas}})

    def authority(self) -> str:
        """The CA of the brokers' certificate, as the operator publishes it for clients."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self.api.get("configmaps", NAMESPACE, f"{RELEASE}-broker-ca")) is None:
            if time.monotonic() > deadline:
                raise ClusterError(f"no authority was published\n{self.diagnostics()}")
            time.sleep(POLL_SECONDS)
        return str(found["data"]["ca.crt"])

    def readiness(self, broker: str) -> Json:
        """A broker pod's answer at ``/readyz``, ready or not."""
        where = f"{path('pods', NAMESPACE, broker)}:8081/proxy/readyz"
        found: Json = json.loads(self.api.ask("GET", where)[1])
        return found

    def uids(self, *components: str) -> set[str]:
        """The uids of the components' pods."""
        return {pod["metadata"]["uid"] for each in components for pod in self.pods(each)}

    def owners(self) -> dict[int, str]:
        """The broker pod that serves each bucket; empty while none does."""
        found = self.api.get("bucketanchors", NAMESPACE, "shard-0")
        records = (found or {}).get("buckets", ())
        return {record["bucket"]: record["owner"].partition("~")[0] for record in records}

    def owner(self, topic: str) -> str:
        """The broker pod that serves a topic's bucket; empty while none does."""
        owners = self.owners()
        return owners.get(bucket_of(TopicName.parse(topic), len(owners)), "") if owners else ""

    def is_placed(self) -> bool:
        """Whether each bucket is at its assigned broker, so that none is moving."""
        names = [pod["metadata"]["name"] for pod in self.pods("broker")]
        owners = self.owners()
        return bool(owners) and all(
            owner == rendezvous(bucket, names) for bucket, owner in owners.items()
        )

    def place_broker(self, name: str, node: str) -> None:
        """Bring a broker to a node, unless it runs there: it starts again while all other nodes are closed."""
        former = self.pod(name)
        if former["spec"]["nodeName"] == node:
            return
        closed = sorted(set(self.cluster.names("nodes")) - {node})
        self.cluster.kubectl("cordon", *closed)
        try:
            self.api.delete("pods", NAMESPACE, name)
            self._until_another(former)
        finally:
            self.cluster.kubectl("uncordon", *closed)

    def _until_another(self, former: Json) -> None:
        """Wait until another pod has the name of this one, and is ready."""
        about = former["metadata"]
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found = self.api.get("pods", NAMESPACE, about["name"])
            if found is not None and found["metadata"]["uid"] != about["uid"] and is_ready(found):
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"{about['name']} does not come back\n{self.diagnostics()}")
            time.sleep(POLL_SECONDS)

    def run_in_broker(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in a ready broker's pod, which has the configuration of the store.

        The pod's node must be ready, too: pods of a lost node count as ready for a moment longer,
        and the API server waits for its kubelet without a limit.
        """
        nodes = {node["metadata"]["name"] for node in self.api.list("nodes") if is_ready(node)}
        ready = [
            str(pod["metadata"]["name"])
            for pod in self.pods("broker")
            if is_ready(pod) and pod["spec"]["nodeName"] in nodes
        ]
        if not ready:
            raise ClusterError(f"no broker is ready\n{self.diagnostics()}")
        where = ("exec", "--stdin", ready[0], "--container=broker", "--")
        return self.cluster.kubectl(
            *(*where, *command),
            stdin=stdin,
            check=False,
            namespace=NAMESPACE,
            seconds=EXEC_SECONDS,
        )

    def logs(self, *topics: str) -> dict[str, log.Stored]:
        """Topics' logs from the store, and the results of ``onewriter verify``."""
        program = (PROGRAMS / "read_log.py").read_text()
        done = self.run_in_broker("python", "-", *topics, stdin=program)
        if done.returncode != 0:
            raise ClusterError(f"read_log.py: {done.stderr}")
        return log.stored(done.stdout)

    def diagnostics(self) -> str:
        """Diagnostics for a failure."""
        requests = (
            ("get", "nodes"),
            ("get", "onewriters", "-o", "yaml"),
            ("get", "pods,statefulsets,leases", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            *(
                ("logs", f"--selector={COMPONENT}={part}", "--prefix", "--tail=40")
                for part in ("operator", "broker", "valkey", "readiness")
            ),
        )
        return self.cluster.diagnostics(*requests, namespace=NAMESPACE)


def claim_of(store_pod: str) -> str:
    """The claim of a store pod's volume."""
    return f"data-{store_pod}"


def is_ready(one: Json) -> bool:
    """Whether a pod or node is ready in Kubernetes."""
    conditions = one["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
