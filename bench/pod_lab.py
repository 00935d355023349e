"""The chart on the two-node lab, and a Deployment whose pods compete for topics or Leases.

Here: the topic with its claim, pods with the stock Pulsar client, and where they leave their notes.
Not here: cluster, image and release (``e2e``, whose stories run on the same), faults and figures
(``pod_takeover``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.machine import LabUnavailable
from e2e import images as client_image
from e2e.api import Api
from e2e.clusters import TestedCluster, tested_cluster, uses_existing
from e2e.installation import NAMESPACE as RELEASE_NAMESPACE
from e2e.installation import RELEASE, Installation
from tests.cluster import binaries, images, lab

from onewriter_core.kubernetes.names import INJECT_LABEL, TOPIC_ANNOTATION

PROGRAMS = Path(__file__).with_name("pods")

NAMESPACE = "bench"
ACCOUNT = "writer"
DEPLOYMENT = "writers"
TOKEN = "/run/onewriter/token"  # noqa: S105 - where it is
AUTHORITY = "/run/onewriter/ca.crt"
URL = f"pulsar+ssl://{RELEASE}-broker.{RELEASE_NAMESPACE}.svc.cluster.local:6651"

PODS_SECONDS = 120
GRACE_SECONDS = 6
"""More than a supervisor takes to leave."""

Say = Callable[[str], None]
Json = dict[str, Any]


def missing() -> list[str]:
    """Why pods cannot be measured here, one sentence each."""
    found = [*lab.missing(), *images.missing(), *missing_programs(binaries.NODE)]
    if importlib.util.find_spec("pulsar") is None:
        found.append("the stock Pulsar client: pip install pulsar-client")
    if uses_existing():
        found.append("a lab of its own: USE_EXISTING_CLUSTER leads to nodes whose clocks differ")
    return found


def missing_programs(names: Sequence[str]) -> list[str]:
    """Programs of Kubernetes that are neither there nor can be built, one sentence each."""
    lacking = [name for name in names if binaries.find(name) is None]
    return binaries.missing_tools() if lacking else []


class PodLab:
    """A lab with the release in it. ``notes`` is a directory that pods write to."""

    def __init__(self, tested: TestedCluster, installation: Installation) -> None:
        self.cluster = tested.cluster
        self.notes = tested.directory / "notes"
        self._installation = installation
        self._program = tested.directory / "program"

    def prepare(self) -> None:
        """What pods need before there are any: directories, namespace, account, rights."""
        self.notes.mkdir()
        self.notes.chmod(0o777)
        shutil.copytree(
            PROGRAMS, self._program / "bench" / "pods", ignore=shutil.ignore_patterns("__pycache__")
        )
        authority = {"ca.crt": self._installation.authority()}
        self.cluster.apply(*_other_objects(), _config_map("brokers", authority))

    def declare(self, topic: str) -> None:
        """A topic that two pods of the account may write, and wait until it is Ready."""
        self.cluster.apply(*_topic(topic))
        arguments = ("wait", "--for=condition=Ready", f"xt/{topic}", "--timeout=60s")
        self.cluster.kubectl(*arguments, namespace=NAMESPACE)

    def verify(self, topic: str) -> str:
        """What ``onewriter verify`` says of the topic's log, asked in a broker's pod."""
        name = f"persistent://{NAMESPACE}/default/{topic}"
        done = self._installation.run_in_broker("onewriter", "verify", name, "-o", "json")
        if done.returncode not in {0, 1}:
            raise LabUnavailable(f"onewriter verify: {done.stderr}")
        return done.stdout

    # ------------------------------------------------------------ the pods

    @contextlib.contextmanager
    def pods(
        self,
        arm: str,
        contests: Sequence[str],
        pace_seconds: float,
        options: Sequence[str] = (),
        *,
        led_topic: str | None = None,
    ) -> Iterator[None]:
        """Two pods, one per node, each with a candidate per contest; gone at the end.

        ``arm`` is a module of ``bench.pods``, ``options`` are its further arguments. With ``led_topic`` the operator
        injects a sidecar into each pod, with its default resources, which leads that topic.
        """
        for contest in contests:
            (self.notes / contest).mkdir(exist_ok=True)
            (self.notes / contest).chmod(0o777)
        arguments = [
            *(f"bench.pods.{arm}", ",".join(contests), "--notes=/notes"),
            *(f"--namespace={NAMESPACE}", f"--pace-seconds={pace_seconds}", *options),
        ]
        self.cluster.apply(self._deployment(arguments, led_topic))
        try:
            wait = ("rollout", "status", f"deployment/{DEPLOYMENT}", f"--timeout={PODS_SECONDS}s")
            self.cluster.kubectl(*wait, namespace=NAMESPACE)
            yield
        except BaseException as error:
            error.add_note(self.diagnostics())
            raise
        finally:
            delete = ("delete", f"deployment/{DEPLOYMENT}", "--cascade=foreground", "--timeout=60s")
            self.cluster.kubectl(*delete, check=False, namespace=NAMESPACE)

    def delete_pod(self, name: str) -> None:
        """Have a pod deleted, and do not wait for it."""
        self.cluster.kubectl("delete", f"pod/{name}", "--wait=false", namespace=NAMESPACE)

    def diagnostics(self) -> str:
        """What a person would look at."""
        requests = (
            ("get", "pods,xt,pclaim,lease", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", f"--selector=app={DEPLOYMENT}", "--all-containers", "--prefix", "--tail=20"),
        )
        found = [self.cluster.kubectl(*each, check=False, namespace=NAMESPACE) for each in requests]
        return (
            "\n".join(each.stdout + each.stderr for each in found)
            + self._installation.diagnostics()
        )

    def _deployment(self, arguments: Sequence[str], led_topic: str | None) -> Json:
        labels = {"app": DEPLOYMENT}
        about: Json = {"labels": labels}
        if led_topic is not None:
            about = {
                "labels": labels | {INJECT_LABEL: "true"},
                "annotations": {TOPIC_ANNOTATION: led_topic},
            }
        mounts = {"/program": self._program, "/notes": self.notes}
        token = {"serviceAccountToken": {"path": "token", "audience": "onewriter"}}
        volumes: list[Json] = [
            {"name": path.strip("/"), "hostPath": {"path": str(source), "type": "Directory"}}
            for path, source in mounts.items()
        ]
        container = {
            "name": "candidates",
            "image": client_image.TAG,
            "imagePullPolicy": "Never",
            "command": ["python", "-m", "bench.pods.supervisor", *arguments],
            "env": [{"name": "PYTHONPATH", "value": f"/program:/{client_image.DIRECTORY}"}],
            "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                *({"name": path.strip("/"), "mountPath": path} for path in mounts),
                {"name": "token", "mountPath": "/run/onewriter", "readOnly": True},
            ],
        }
        apart = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
        pod = {
            "serviceAccountName": ACCOUNT,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532},
            "topologySpreadConstraints": [apart],
            "containers": [container],
            "volumes": [
                *volumes,
                {
                    "name": "token",
                    "projected": {"sources": [token, {"configMap": {"name": "brokers"}}]},
                },
            ],
        }
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": DEPLOYMENT, "namespace": NAMESPACE},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": about, "spec": pod},
            },
        }


@contextlib.contextmanager
def running(say: Say) -> Iterator[PodLab]:
    """A lab with the release installed; waits for its turn, one lab at a time on a machine.

    Raises LabUnavailable, ClusterError, CannotBuild.
    """
    say("the image, then two nodes as soon as no other lab runs on this machine")
    with contextlib.ExitStack() as stack:
        tested = stack.enter_context(tested_cluster(notices_lost_nodes_early=True, nodes=2))
        api = stack.enter_context(Api(tested.cluster, tested.directory / "api.sock"))
        installation = Installation(tested, api)
        say("installing the chart")
        installation.install()
        found = PodLab(tested, installation)
        found.prepare()
        yield found


def _other_objects() -> list[Json]:
    """Namespace and account of the pods, and the right to Leases for those that elect by one."""
    about = {"name": ACCOUNT, "namespace": NAMESPACE}
    rights = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    }
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": about,
            "rules": [rights],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": about,
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **about}],
        },
    ]


def _config_map(name: str, data: dict[str, str]) -> Json:
    about = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data}


def _topic(name: str) -> list[Json]:
    return [
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ExclusiveTopic",
            "metadata": {"name": name, "namespace": NAMESPACE},
            # The pods play many rounds: a fenced one must not be evicted between them.
            "spec": {"fencing": {"podPolicy": "None"}},
        },
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ProducerClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "topicRef": {"name": name},
                "subject": {"serviceAccountName": ACCOUNT},
                "mode": "WaitForExclusive",
            },
        },
    ]
