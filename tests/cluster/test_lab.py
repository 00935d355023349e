"""The lab itself: its nodes run containers, reach each other, and one can be lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import image_archive
from tests.cluster.control_plane import WAIT_SECONDS
from tests.cluster.lab import Lab

pytestmark = pytest.mark.nodes

IMAGE = "localhost/busybox:1"
WEB = "web.default.svc.cluster.local"
SECONDS_MAX = 240.0

Json = dict[str, Any]


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


@pytest.fixture(scope="module")
def web(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Four web servers, two on each node, behind a Service."""
    directory = tmp_path_factory.mktemp("images")
    busybox = Path("/bin/busybox")
    archive = image_archive.write(
        directory / "busybox.tar", IMAGE, {"bin/busybox": busybox}, ["/bin/busybox"], user="65532"
    )
    lab.import_image(archive)
    labels = {"app": "web"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    container = {
        "name": "web",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["httpd", "-f", "-p", "8080", "-h", "/etc"],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    lab.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 4,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "topologySpreadConstraints": [spread],
                        "terminationGracePeriodSeconds": 1,
                        "containers": [container],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    lab.kubectl("rollout", "status", "deployment/web", f"--timeout={WAIT_SECONDS}s")
    yield lab
    lab.kubectl(
        "delete", "deployment/web", "service/web", "--wait=true", f"--timeout={WAIT_SECONDS}s"
    )


def pods(lab: Lab) -> list[Json]:
    return [lab.get("pod", name) for name in lab.names("pods")]


def server_process(lab: Lab, pod: Json) -> int:
    """Return the process of a pod's web server. It forks one for each connection, also for those of its probe."""
    found = lab.processes_of(pod["metadata"]["uid"])
    (server,) = [each for each in found if parent_of(each) not in {0, *found}]
    return server


def parent_of(process: int) -> int:
    """Return the parent of a process; 0 if it has ended."""
    try:
        # The command's name is in parentheses and may contain anything.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def reaches(lab: Lab, pod: str) -> bool:
    address = lab.get("service", "web")["spec"]["clusterIP"]
    connect = ["busybox", "nc", "-w", "3", address, "80"]
    return lab.kubectl("exec", pod, "--", *connect, check=False).returncode == 0


def resolves(lab: Lab, pod: str) -> bool:
    address = lab.get("service", "web")["spec"]["clusterIP"]
    done = lab.kubectl("exec", pod, "--", "busybox", "nslookup", WEB, check=False)
    return address in done.stdout


def test_pods_of_both_nodes_reach_a_service_and_know_its_name(web: Lab) -> None:
    found = pods(web)
    assert {pod["spec"]["nodeName"] for pod in found} == {"lab", "lab2"}
    for pod in found:
        name = pod["metadata"]["name"]
        # A node's rules are updated a moment after the pods are ready.
        eventually(partial(reaches, web, name), f"{name} does not reach the service")
        eventually(partial(resolves, web, name), f"{name} does not know the service's name")


def test_a_pods_processes_can_be_frozen_and_woken(web: Lab) -> None:
    pod = pods(web)[0]
    uid = pod["metadata"]["uid"]
    state = Path(f"/proc/{server_process(web, pod)}/stat")
    web.signal_pod(uid, signal.SIGSTOP)
    eventually(lambda: state.read_text().split()[2] == "T", "it is not frozen")
    web.signal_pod(uid, signal.SIGCONT)
    eventually(lambda: state.read_text().split()[2] != "T", "it is not woken")


def test_a_pod_can_be_cut_off_by_its_own_firewall(web: Lab) -> None:
    pod = pods(web)[0]
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    web.firewall(uid, "-A OUTPUT -p tcp --dport 80 -j DROP")
    assert not reaches(web, name)
    web.firewall(uid, "-D OUTPUT -p tcp --dport 80 -j DROP")
    eventually(lambda: reaches(web, name), "it is cut off still")


def test_a_node_is_lost_while_its_containers_run_on(web: Lab) -> None:
    lost = next(pod for pod in pods(web) if pod["spec"]["nodeName"] == "lab2")
    process = server_process(web, lost)
    web.cut("lab2")
    try:
        web.kubectl(
            "wait", "--for=condition=Ready=Unknown", "node/lab2", f"--timeout={WAIT_SECONDS}s"
        )
        assert process in web.processes_of(lost["metadata"]["uid"])
    finally:
        web.heal("lab2")
    web.kubectl("wait", "--for=condition=Ready", "node/lab2", f"--timeout={WAIT_SECONDS}s")
