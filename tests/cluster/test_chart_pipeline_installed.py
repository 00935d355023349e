"""The pipeline's jobs in a real control plane: accepted, restricted, and a driver that creates an executor.

No node runs the pods. The driver is a real Spark beside the API server, with the rights of its account
and the chart's arguments. The image's own script runs here what the executor's pod would run.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import commands
from tests.cluster.binaries import program
from tests.cluster.control_plane import COMMAND_SECONDS, ControlPlane

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "onewriter"
ENTRYPOINT = ROOT / "pipeline" / "image" / "entrypoint.sh"
NAMESPACE = "system"
LOOPBACK = "127.0.0.1"
SECONDS_MAX = 600.0
"""Time limit for the start of a Spark on two shared cores."""
VALUES = (
    "spark.enabled=true",
    "spark.table.uri=s3://history/t",
    "spark.retention.trim.enabled=true",
)
KINDS = {
    "kubeflow": ("sparkoperator.k8s.io", "v1beta2", "ScheduledSparkApplication"),
    "apache": ("spark.apache.org", "v1", "SparkApplication"),
}
JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
print("sum", spark.sparkContext.parallelize(range(100), 4).map(lambda each: 2 * each).sum())
spark.stop()
"""


class Release:
    """A release of the chart with a runner."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster

    def helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(program("helm")), f"--kubeconfig={self.cluster.kubeconfig}", *arguments]
        command += [f"--namespace={NAMESPACE}", *(f"--set={each}" for each in VALUES)]
        return commands.run(command, seconds=COMMAND_SECONDS)

    def install(self, runner: str) -> subprocess.CompletedProcess[str]:
        chosen = f"--set=spark.runner={runner}"
        return self.helm("upgrade", "--install", "onewriter", str(CHART), "--no-hooks", chosen)

    def documents(self, runner: str) -> list[Json]:
        chosen = (f"--set=spark.runner={runner}", "--set=spark.checkKinds=false")
        done = self.helm("template", "onewriter", str(CHART), "--kube-version=1.36.3", *chosen)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    def judged(self, document: Json) -> str:
        """Return the API server's objection to the document; empty if there is none."""
        done = self.cluster.kubectl(
            *("create", "--dry-run=server", "-f", "-"),
            stdin=yaml.safe_dump(document),
            check=False,
            namespace=NAMESPACE,
        )
        return "" if done.returncode == 0 and "Warning" not in done.stderr else done.stderr


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    restricted = {
        f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")
    }
    with ControlPlane(tmp_path_factory.mktemp("pipeline"), workloads=True) as cluster:
        cluster.make_namespace(NAMESPACE, restricted)
        yield Release(cluster)


def definition(group: str, version: str, kind: str) -> Json:
    """Return a minimal definition of an operator's kind, which shows that the kind exists."""
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, in a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{**served, "schema": {"openAPIV3Schema": anything}}],
        },
    }


@pytest.mark.parametrize("runner", ["cronjob", "spark-submit", "kubeflow", "apache"])
def test_the_pipeline_installs_if_its_requirements_exist(release: Release, runner: str) -> None:
    if runner in KINDS:
        group, version, kind = KINDS[runner]
        refused = release.install(runner)
        assert refused.returncode != 0
        assert f"has no {kind} of {group}/{version}" in refused.stderr
        release.cluster.apply(definition(group, version, kind))
        release.cluster.until_served(group, f"{kind.lower()}s")
    done = release.install(runner)
    assert done.returncode == 0, done.stderr
    jobs = set(release.cluster.names("cronjob", namespace=NAMESPACE))
    wanted = {"onewriter-offload", "onewriter-audit", "onewriter-trim"}
    assert jobs == ({"onewriter-trim"} if runner == "kubeflow" else wanted)


@pytest.mark.parametrize("runner", ["cronjob", "spark-submit", "apache"])
def test_pipeline_pods_pass_the_restricted_standard(release: Release, runner: str) -> None:
    seen = 0
    for document in release.documents(runner):
        name = document["metadata"]["name"]
        if document["kind"] == "CronJob":
            template = copy.deepcopy(document["spec"]["jobTemplate"]["spec"]["template"])
        elif document["kind"] == "Pod" and name.endswith("-pipeline"):
            template = copy.deepcopy(document)
        else:
            continue
        template |= {"apiVersion": "v1", "kind": "Pod"}
        template["metadata"] = {**template["metadata"], "name": name, "namespace": NAMESPACE}
        template["spec"].pop("serviceAccountName")  # not all of them exist
        assert release.judged(template) == "", name
        seen += 1
    assert seen == 4, "offload, audit, trim, the test"


def account_config(release: Release, account: str, directory: Path) -> tuple[Path, str]:
    """Return a kubeconfig with a ServiceAccount's rights, and its token."""
    made = release.cluster.kubectl("create", "token", account, namespace=NAMESPACE)
    config = yaml.safe_load(release.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": made.stdout.strip()}
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    (directory / "token").write_text(made.stdout.strip())
    return path, config["clusters"][0]["cluster"]["certificate-authority"]


def executors(release: Release) -> list[Json]:
    done = release.cluster.kubectl(
        "get", "pods", "--selector=spark-role=executor", "--output=json", namespace=NAMESPACE
    )
    return list(json.loads(done.stdout)["items"])


@pytest.mark.spark
@pytest.mark.timeout(1_500)
def test_a_driver_makes_executors_with_its_own_rights_and_they_work(
    release: Release, tmp_path: Path
) -> None:
    import pyspark

    assert release.install("spark-submit").returncode == 0
    documents = release.documents("spark-submit")
    (offload,) = [each for each in documents if each["metadata"]["name"] == "onewriter-offload"]
    template = offload["spec"]["jobTemplate"]["spec"]["template"]
    driver = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template)}
    driver["metadata"] = {**driver["metadata"], "name": "driver", "namespace": NAMESPACE}
    release.cluster.apply(driver)  # it does not run: it owns the executors
    config, authority = account_config(release, "onewriter-pipeline", tmp_path)
    templates = release.cluster.get("configmap", "onewriter-pipeline", namespace=NAMESPACE)
    (tmp_path / "offload.yaml").write_text(templates["data"]["offload.yaml"])
    (tmp_path / "job.py").write_text(JOB)
    home = str(Path(pyspark.__file__).parent)
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": LOOPBACK,
        "KUBECONFIG": str(config),
    }
    given = template["spec"]["containers"][0]["args"]
    arguments = [
        each.replace("$(ONEWRITER_POD_IP)", LOOPBACK)
        .replace("$(ONEWRITER_POD)", "driver")
        .replace("/etc/onewriter/templates", str(tmp_path))
        .replace("spark.driver.port=7078", "spark.driver.port=0")
        .replace("blockManager.port=7079", "blockManager.port=0")
        .replace("https://kubernetes.default.svc", release.cluster.url)
        for each in given[: given.index("/opt/onewriter/pipeline.py")]
    ]
    for name, value in {
        "kubernetes.authenticate.caCertFile": authority,
        "kubernetes.authenticate.oauthTokenFile": str(tmp_path / "token"),
        "executor.instances": "1",
    }.items():
        arguments += ["--conf", f"spark.{name}={value}"]
    with (tmp_path / "driver.log").open("w") as log:
        running = subprocess.Popen(
            [f"{home}/bin/spark-submit", *arguments, str(tmp_path / "job.py")],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        executor = None
        try:
            executor = start_executor(release, running, environment, tmp_path)
            assert running.wait(SECONDS_MAX) == 0, (tmp_path / "driver.log").read_text()[-3000:]
        finally:
            for each in filter(None, (running, executor)):
                each.kill()
                each.wait()
    assert "sum 9900" in (tmp_path / "driver.log").read_text()
    release.cluster.until(lambda: executors(release) == [], "executors are there: the driver's")


def start_executor(
    release: Release, running: subprocess.Popen[bytes], environment: dict[str, str], place: Path
) -> subprocess.Popen[bytes]:
    """Wait for the executor's pod, check it, and run what the pod would run."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := executors(release)):
        output = (place / "driver.log").read_text()[-3000:]
        assert running.poll() is None, output
        assert time.monotonic() < deadline, output
        time.sleep(0.5)
    pod = found[0]
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["metadata"]["ownerReferences"][0]["name"] == "driver"
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "pipeline", "the policy's"
    assert [each["name"] for each in pod["spec"]["volumes"] if "emptyDir" in each] == [
        "spark-local-dir-1"
    ]
    reported = {each["name"]: each.get("value", "") for each in container["env"]}
    own = {
        "SPARK_EXECUTOR_POD_IP": LOOPBACK,
        "SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"],
        "SPARK_LOCAL_DIRS": str(place),
        "SPARK_CONF_DIR": str(place),
        "SPARK_EXECUTOR_MEMORY": "512m",
    }
    with (place / "executor.log").open("w") as log:
        return subprocess.Popen(
            [str(ENTRYPOINT), *container["args"]],
            env={**environment, **reported, **own},
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=place,
        )
