"""onewriter in the cluster, installed by its chart into a namespace that enforces ``restricted``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from e2e import log
from e2e.api import Api
from e2e.clusters import TestedCluster
from e2e.manifests import PROGRAMS
from tests.cluster import images
from tests.cluster.control_plane import ClusterError

from onewriter_core.ids import TopicName, bucket_of

Json = dict[str, Any]

CHART = images.ROOT / "charts" / "onewriter"
RELEASE = "onewriter"
NAMESPACE = "onewriter"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
COMPONENT = "app.kubernetes.io/component"

REPOSITORY, TAG = images.TAG.rsplit(":", 1)


class Installation:
    """The release, its pods, and what can be asked of them."""

    def __init__(self, tested: TestedCluster, api: Api) -> None:
        self.cluster = tested.cluster
        self.api = api
        self._tested = tested
        self._values = tested.directory / "values.json"
        self.values: Json = {
            "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
            "brokers": {"replicas": 2, "resources": {"requests": {"cpu": "50m"}}},
            "valkey": {
                "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
                "storage": tested.storage,
            },
            "operator": {"resources": {"requests": {"cpu": "20m"}}},
        }
        """What the chart is told: small enough for two nodes that share two cores."""

    # ------------------------------------------------------------ helm

    def helm(self, *arguments: str) -> str:
        """Run helm for the release. Raises ClusterError with what a person would look at."""
        cluster = self.cluster
        command = [*cluster.enter(), str(cluster.tool("helm"))]
        where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        done = subprocess.run(
            [*command, *where, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"helm {' '.join(arguments)}: {done.stderr}\n{self.story()}")
        return done.stdout

    def install(self) -> None:
        """Install, and wait as helm does, until topics can be declared."""
        self._tested.prepare_volume(NAMESPACE, f"data-{RELEASE}-valkey-0")
        namespace = {"name": NAMESPACE, "labels": RESTRICTED}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
        self.upgrade(CHART)

    def upgrade(self, chart: Path = CHART, **values: Any) -> str:
        """Install this chart with these values in place of those that are told as a rule."""
        self._values.write_text(json.dumps(self.values | values))
        options = ("--install", f"--values={self._values}", "--timeout=5m")
        return self.helm("upgrade", RELEASE, str(chart), *options)

    def uninstall(self) -> None:
        """Take everything away that the suite brought; an existing cluster outlives it."""
        self.helm("uninstall", RELEASE)
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")

    # ------------------------------------------------------------ its parts

    def pods(self, component: str) -> list[Json]:
        """The pods of ``broker``, ``valkey`` or ``operator`` that are not going, by name."""
        found = self.api.list("pods", NAMESPACE, **{COMPONENT: component})
        staying = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(staying, key=lambda pod: str(pod["metadata"]["name"]))

    def is_ready(self) -> bool:
        """Whether all parts are there and ready."""
        wanted = {
            "broker": self.values["brokers"]["replicas"],
            "valkey": 1,
            "operator": 2,
        }
        return all(
            len(pods) == count and all(map(is_ready, pods))
            for pods, count in ((self.pods(part), count) for part, count in wanted.items())
        )

    def owner(self, topic: str) -> str:
        """The broker pod that serves a topic, or would; empty while nobody does."""
        found = self.api.get("bucketanchors", NAMESPACE, "shard-0")
        records = (found or {}).get("buckets", ())
        bucket = bucket_of(TopicName.parse(topic), len(records)) if records else -1
        owners = [record["owner"] for record in records if record["bucket"] == bucket]
        return str(owners[0].partition("~")[0]) if owners else ""

    def run_in_broker(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in a ready broker's pod, which knows how to reach the store."""
        ready = [pod["metadata"]["name"] for pod in self.pods("broker") if is_ready(pod)]
        if not ready:
            raise ClusterError(f"no broker is ready\n{self.story()}")
        where = ("exec", "--stdin", str(ready[0]), "--container=broker", "--")
        return self.cluster.kubectl(*where, *command, stdin=stdin, check=False, namespace=NAMESPACE)

    def logs(self, *topics: str) -> dict[str, log.Stored]:
        """Topics' logs out of the store, and what ``onewriter verify`` says of them."""
        program = (PROGRAMS / "read_log.py").read_text()
        done = self.run_in_broker("python", "-", *topics, stdin=program)
        if done.returncode != 0:
            raise ClusterError(f"read_log.py: {done.stderr}")
        return log.stored(done.stdout)

    def story(self) -> str:
        """What a person would look at when something is wrong."""
        asked = (
            ("get", "nodes"),
            ("get", "pods,statefulsets,leases", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            *(
                ("logs", f"--selector={COMPONENT}={part}", "--prefix", "--tail=40")
                for part in ("operator", "broker", "valkey", "readiness")
            ),
        )
        found = [self.cluster.kubectl(*each, check=False, namespace=NAMESPACE) for each in asked]
        return "\n".join(each.stdout + each.stderr for each in found)


def is_ready(pod: Json) -> bool:
    """Whether Kubernetes counts the pod as ready."""
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
