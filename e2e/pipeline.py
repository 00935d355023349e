"""The pipeline of the installation: its image, its volume, runs of its jobs, and the contents of its tables."""

from __future__ import annotations

import json
import uuid
from typing import Any

from e2e.api import ANSWER_SECONDS
from e2e.clusters import TestedCluster
from e2e.faults import Faults
from e2e.installation import CLAIM, FOLDER, NAMESPACE, RELEASE, Installation
from e2e.manifests import PROGRAMS
from e2e.writers import until
from tests.cluster import images

Json = dict[str, Any]

RUN_SECONDS = 900.0
"""Time limit for a run of a job on two shared cores."""

CONTAINER = "pipeline"


class Pipeline:
    """The jobs of the release."""

    def __init__(self, tested: TestedCluster, installation: Installation) -> None:
        self._tested = tested
        self._installation = installation
        self._api = installation.api

    def prepare(self) -> None:
        """Bring the image to the nodes, and make the volume of the tables."""
        self._tested.load(images.SPARK)
        self._tested.prepare_volume(NAMESPACE, CLAIM)
        wanted: Json = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        if self._tested.volumes:
            wanted["storageClassName"] = ""
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": wanted,
        }
        self._tested.cluster.apply(claim, namespace=NAMESPACE)

    # ------------------------------------------------------------ runs

    def start(self, job: str) -> Run:
        """Run a job now, as an operator would do by hand."""
        name = f"{job}-{uuid.uuid4().hex[:5]}"
        source = f"--from=cronjob/{RELEASE}-{job}"
        self._tested.cluster.kubectl("create", "job", source, name, namespace=NAMESPACE)
        return Run(self._installation, name)

    def run(self, job: str) -> str:
        """Run a job to its end; return its output."""
        return self.start(job).succeeded()

    # ------------------------------------------------------------ tables

    def table(self, topic: str) -> Json:
        """Return the numbers and the epochs of a topic's messages in the table."""
        cronjob = self._api.get("cronjobs", NAMESPACE, f"{RELEASE}-offload")
        assert cronjob is not None
        spec = cronjob["spec"]["jobTemplate"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        container["command"] = ["python", "-c", (PROGRAMS / "read_table.py").read_text()]
        container["args"] = [FOLDER, topic]
        name = f"look-{uuid.uuid4().hex[:5]}"
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        self._tested.cluster.apply(job, namespace=NAMESPACE)
        found: Json = json.loads(Run(self._installation, name).succeeded())
        return found


class Run:
    """One run: a Job and its pods."""

    def __init__(self, installation: Installation, name: str) -> None:
        self.name = name
        self._installation = installation
        self._api = installation.api

    def pods(self) -> list[Json]:
        """Return its pods, the newest last."""
        found = self._api.list("pods", NAMESPACE, **{"job-name": self.name})
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def driver(self) -> Json:
        """Wait for the running pod and return it."""

        def running() -> Json | None:
            found = [pod for pod in self.pods() if pod["status"]["phase"] == "Running"]
            return found[-1] if found else None

        return until(running, self.diagnostics)

    def executors(self, driver: Json) -> list[Json]:
        """Return the pods that a driver has made."""
        uid = driver["metadata"]["uid"]
        return [
            pod
            for pod in self._api.list("pods", NAMESPACE, **{"spark-role": "executor"})
            if any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences", ()))
        ]

    def said(self) -> str:
        """Return the output of its newest pod; waits until there is some."""
        name = self.pods()[-1]["metadata"]["name"]
        return until(lambda: self._api.log(NAMESPACE, name, CONTAINER, seconds=ANSWER_SECONDS))

    def kill_behind(self, words: str, faults: Faults) -> Json:
        """kill -9 the running pod as soon as it has printed these words; return the pod."""
        driver = self.driver()
        faults.kill_behind(words, driver, CONTAINER)
        return driver

    def succeeded(self) -> str:
        """Wait for its end, which must be successful; return the output of its last pod."""

        def ended() -> str:
            status = (self._api.get("jobs", NAMESPACE, self.name) or {}).get("status", {})
            kinds = [
                each["type"] for each in status.get("conditions", ()) if each["status"] == "True"
            ]
            return next((each for each in kinds if each in {"Complete", "Failed"}), "")

        assert until(ended, self.diagnostics, RUN_SECONDS) == "Complete", self.diagnostics()
        return self.said()

    def diagnostics(self) -> str:
        """Return diagnostics for a failure."""
        requests = (
            ("describe", "pods", f"--selector=job-name={self.name}"),
            ("logs", f"--selector=job-name={self.name}", "--tail=40", "--prefix"),
        )
        return self._installation.cluster.diagnostics(*requests, namespace=NAMESPACE)
