"""A lost broker's pod on a real API server: the change of its status is accepted, and nothing else changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from tests.cluster.control_plane import ControlPlane

from onewriter_operator.kube import Kube, load_configuration
from onewriter_operator.reconcile.lost_brokers import LostBrokers

Json = dict[str, Any]

NOW = 1_700_000_000.0
BROKERS = ("broker-0", "broker-1")


class BrokerReports:
    """The first broker lives; the second one answers nobody."""

    async def members(self, seconds: float) -> Mapping[str, bool]:
        del seconds
        return {"broker-0": True, "broker-1": False}

    async def answers(self, name: str, seconds: float) -> bool:
        del name, seconds
        return False

    def suspect(self, name: str) -> None:
        del name


def create(cluster: ControlPlane, namespace: str, name: str) -> None:
    """Create a pod that a kubelet reported as ready."""
    container = {"name": "broker", "image": "localhost/onewriter:dev"}
    spec = {"nodeName": "lost", "containers": [container]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.apply(document, namespace=namespace)
    conditions = [{"type": each, "status": "True"} for each in ("Initialized", "Ready")]
    change = {"status": {"phase": "Running", "conditions": conditions}}
    words = ("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(change))
    cluster.kubectl(*words, namespace=namespace)


def ready(cluster: ControlPlane, namespace: str, name: str) -> Json:
    found = json.loads(
        cluster.kubectl("get", "pod", name, "-o", "json", namespace=namespace).stdout
    )
    assert found["status"]["phase"] == "Running"
    conditions = {each["type"]: each for each in found["status"]["conditions"]}
    assert conditions["Initialized"]["status"] == "True"
    condition: Json = conditions["Ready"]
    return condition


def test_a_lost_brokers_pod_is_not_ready(api_server: ControlPlane, namespace: str) -> None:
    for name in BROKERS:
        create(api_server, namespace, name)

    async def check() -> None:
        async with Kube(await load_configuration(api_server.kubeconfig)) as kube:
            await LostBrokers(kube, namespace, BrokerReports(), lambda: NOW).check()

    asyncio.run(check())
    assert ready(api_server, namespace, "broker-0")["status"] == "True"
    lost = ready(api_server, namespace, "broker-1")
    assert (lost["status"], lost["reason"]) == ("False", "BrokerLost")
