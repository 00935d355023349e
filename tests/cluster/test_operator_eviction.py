"""Eviction of fenced pods against a real control plane: budgets, uids, restarts of the operator."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import WAIT_SECONDS, ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.cluster.plugin import CRDS
from tests.cluster.worlds import World, one_world
from tests.unit.kube.fake_broker import producer_group, status, transition

Json = dict[str, Any]


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with controllers: budgets are counted."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), workloads=True) as cluster:
        cluster.establish(*CRDS)
        yield cluster


@pytest.fixture(scope="module")
def shared(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with one_world(control_plane, tmp_path_factory.mktemp("operator"), QUICK_FENCING) as found:
        yield found


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    yield shared
    shared.clear()


@pytest.fixture
def own_world(control_plane: ControlPlane, tmp_path: Path) -> Iterator[World]:
    """An operator for one test, which the test may end."""
    with one_world(control_plane, tmp_path, QUICK_FENCING) as found:
        yield found


QUICK_FENCING = """
import os
import pathlib
from onewriter_operator.app import OperatorLimits
from onewriter_operator.cli import serve
from onewriter_operator.plan.facts import PlanLimits
lasts = pathlib.Path(os.environ["ONEWRITER_OPERATOR_CONFIGURATION"]).with_suffix(".grace")
class Grace(float):
    def __sub__(self, passed):
        left = float(self) - passed
        return max(left, 0.5) if lasts.exists() else left
plan = PlanLimits(
    grace_seconds=Grace(1.0),
    away_seconds=3600.0,
    node_seconds=0.5,
    eviction_retry_seconds_min=0.5,
    eviction_retry_seconds_max=1.0,
    eviction_failed_seconds=1.0,
)
serve(OperatorLimits(plan=plan))
"""
"""The operator with a short grace; the plan tables check the ten seconds. A file makes it longer."""

GRACE_IS_OVER_SECONDS = 1.5


@contextlib.contextmanager
def long_grace(world: World) -> Iterator[None]:
    """Extend the grace during the context, so that a slow machine has time."""
    lasts = world.operator.directory / f"{world.operator.name}.grace"
    lasts.touch()
    try:
        yield
    finally:
        lasts.unlink()


def visited_after_grace(world: World) -> None:
    """Wait until the grace of all fenced pods is over and the operator has reconciled again."""
    time.sleep(GRACE_IS_OVER_SECONDS)
    world.noticed()


def pod(world: World, name: str, node: str = "", **labels: str) -> str:
    """Create a ready pod, as if a kubelet ran it; return its uid."""
    labels = {"app": "writer", "onewriter.dev/claim": "primary", **labels}
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "containers": [{"name": "app", "image": "app"}],
                "terminationGracePeriodSeconds": 0,
                **({"nodeName": node} if node else {}),
            },
        }
    )
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    change = {"status": {"phase": "Running", "podIP": "10.1.0.9", "conditions": [ready]}}
    world.cluster.kubectl(
        "patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(change),
        namespace=world.namespace,
    )  # fmt: skip
    return str(world.get("pod", name)["metadata"]["uid"])


def set_node(world: World, name: str, *, is_ready: bool) -> None:
    """Create a node without a kubelet, or change its condition."""
    world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True" if is_ready else "Unknown"}
    change = {"status": {"conditions": [ready]}}
    world.cluster.kubectl(
        "patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(change)
    )


def budget(world: World, name: str = "writers", **spec: Any) -> None:
    document = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "writer"}}, **spec},
    }
    world.apply(document)
    wait_until(lambda: world.get("pdb", name).get("status", {}).get("observedGeneration"))


def fence(world: World, name: str, uid: str, *, cause: str = "Silent", epoch: int = 2) -> None:
    """Let the broker report that the writer in a pod was fenced, and its successor."""
    former = producer_group("w", "primary", name, epoch=epoch)
    former["podUID"] = uid
    later = producer_group("next", "primary", "next", epoch=epoch + 1)
    found = status(
        epoch + 1, holders=[later], transitions=[transition(epoch + 1, cause, later, former)]
    )
    world.broker.serve(world.name("orders"), found)


def outcomes(world: World) -> dict[str, str]:
    found = world.status().get("fencedPods", ())
    return {each["pod"]: each["outcome"] for each in found}


def declare(world: World, **fencing: Any) -> None:
    world.topic(fencing=fencing or {"minIntervalSeconds": 0})
    world.claim()
    world.until("Ready", "True/Ready")


def is_there(world: World, name: str) -> bool:
    return name in world.names("pod")


def test_a_stale_pod_is_evicted_and_the_status_shows_it(world: World) -> None:
    declare(world)
    fenced = world.operator.metric("onewriter_fenced_total")
    with long_grace(world):
        fence(world, "writer-0", pod(world, "writer-0"))
        wait_until(lambda: outcomes(world) == {"writer-0": "Pending"})
        assert is_there(world, "writer-0")
    wait_until(lambda: outcomes(world) == {"writer-0": "Evicted"})
    wait_until(lambda: not is_there(world, "writer-0"))
    world.until("FencedPodEvicted", "True/Evicted", "pclaim", "primary")
    wait_until(lambda: world.events("PodEvicted"))
    assert world.operator.metric("onewriter_fenced_total") == fenced + 1


@pytest.mark.parametrize("cause", ["Handover", "Released", "ConnectionLost", "TakenOver"])
def test_a_writer_that_was_not_stale_keeps_its_pod(world: World, cause: str) -> None:
    declare(world)
    fence(world, "writer-0", pod(world, "writer-0"), cause=cause)
    world.until("WriterActive", "True/Held")
    visited_after_grace(world)
    assert is_there(world, "writer-0")
    assert outcomes(world) == {}


def test_a_writer_that_lost_its_broker_is_evicted_only_from_a_node_that_is_not_ready(
    world: World,
) -> None:
    node = f"node-{uuid.uuid4().hex[:5]}"
    set_node(world, node, is_ready=True)
    declare(world)
    fence(world, "writer-0", pod(world, "writer-0", node), cause="BrokerChanged")
    wait_until(lambda: outcomes(world) == {"writer-0": "Pending"})
    visited_after_grace(world)
    visited_after_grace(world)
    assert outcomes(world) == {"writer-0": "Pending"}
    set_node(world, node, is_ready=False)
    wait_until(lambda: outcomes(world) == {"writer-0": "Evicted"})


def test_a_writer_that_returns_in_time_keeps_its_pod(world: World) -> None:
    declare(world)
    uid = pod(world, "writer-0")
    back = producer_group("w", "primary", "writer-0", place=1)
    back["podUID"] = uid

    def registered() -> None:
        topic = world.name("orders")
        world.broker.fake.serve(topic, world.broker.fake.served[topic] | {"waiters": [back]})

    with long_grace(world):
        fence(world, "writer-0", uid)
        wait_until(lambda: outcomes(world) == {"writer-0": "Pending"})
        world.broker.do(registered)
        wait_until(lambda: outcomes(world) == {"writer-0": "CameBack"})
    visited_after_grace(world)
    assert is_there(world, "writer-0")


def test_a_pod_of_the_same_name_that_came_later_is_never_evicted(world: World) -> None:
    declare(world)
    uid = pod(world, "writer-0")
    world.cluster.kubectl("delete", "pod", "writer-0", "--now", namespace=world.namespace)
    successor = pod(world, "writer-0")
    assert successor != uid
    fence(world, "writer-0", uid)
    wait_until(lambda: outcomes(world) == {"writer-0": "PodGone"})
    world.until("FencedPodEvicted", "True/PodGone", "pclaim", "primary")
    assert world.get("pod", "writer-0")["metadata"]["uid"] == successor


def test_a_pod_that_is_gone_is_no_trouble(world: World) -> None:
    declare(world)
    fence(world, "writer-0", str(uuid.uuid4()))
    wait_until(lambda: outcomes(world) == {"writer-0": "PodGone"})


def test_a_budget_blocks_until_it_lets_go(world: World) -> None:
    budget(world, minAvailable=1)
    declare(world)
    fence(world, "writer-0", pod(world, "writer-0"))
    wait_until(lambda: outcomes(world) == {"writer-0": "BlockedByPDB"})
    world.until("FencedPodEvicted", "False/BlockedByPDB", "pclaim", "primary")
    assert is_there(world, "writer-0")
    wait_until(lambda: world.events("EvictionBlocked"))
    pod(world, "writer-1")
    wait_until(lambda: outcomes(world) == {"writer-0": "Evicted"})
    wait_until(lambda: not is_there(world, "writer-0"))
    assert is_there(world, "writer-1")


def test_two_budgets_are_reported_and_the_eviction_retried(world: World) -> None:
    budget(world, "one", maxUnavailable=1)
    budget(world, "two", maxUnavailable=1)
    declare(world)
    fence(world, "writer-0", pod(world, "writer-0"))
    wait_until(lambda: outcomes(world) == {"writer-0": "EvictionFailed"})
    world.until("FencedPodEvicted", "False/EvictionFailed", "pclaim", "primary")
    world.cluster.kubectl("delete", "pdb", "one", "two", namespace=world.namespace)
    wait_until(lambda: outcomes(world) == {"writer-0": "Evicted"})


def test_deletion_does_not_ask_the_budget(world: World) -> None:
    budget(world, minAvailable=1)
    declare(world, podPolicy="Delete", minIntervalSeconds=0)
    fence(world, "writer-0", pod(world, "writer-0"))
    wait_until(lambda: not is_there(world, "writer-0"))


def test_the_pod_policy_none_removes_no_pod(world: World) -> None:
    declare(world, podPolicy="None")
    fence(world, "writer-0", pod(world, "writer-0"))
    wait_until(lambda: outcomes(world) == {"writer-0": "NotRequested"})
    visited_after_grace(world)
    assert is_there(world, "writer-0")


def test_evictions_of_one_topic_are_spaced(world: World) -> None:
    declare(world, minIntervalSeconds=4)
    uids = {name: pod(world, name) for name in ("writer-0", "writer-1")}
    fence(world, "writer-0", uids["writer-0"], epoch=2)
    wait_until(lambda: outcomes(world).get("writer-0") == "Evicted")
    fence(world, "writer-1", uids["writer-1"], epoch=3)
    wait_until(lambda: outcomes(world).get("writer-1") == "Evicted")
    since = {
        each["pod"]: datetime.fromisoformat(each["since"]) for each in world.status()["fencedPods"]
    }
    between = since["writer-1"] - since["writer-0"]
    assert between.total_seconds() >= 3  # `since` has whole seconds


def test_a_restarted_operator_forgets_no_pod_and_evicts_none_twice(own_world: World) -> None:
    world = own_world
    declare(world)
    uids = {name: pod(world, name) for name in ("writer-0", "writer-1")}
    with long_grace(world):
        fence(world, "writer-0", uids["writer-0"])
        wait_until(lambda: outcomes(world) == {"writer-0": "Pending"})
        world.operator.kill()
    later = producer_group("later", "primary", "later", epoch=40)
    world.broker.serve(world.name("orders"), status(40, holders=[later]))  # not in the history
    world.operator.start()
    wait_until(lambda: outcomes(world) == {"writer-0": "Evicted"})
    wait_until(lambda: len(world.events("PodEvicted")) == 1)  # written once, after the status
    world.operator.kill()
    successor = pod(world, "writer-0")
    world.operator.start()
    wait_until(lambda: world.operator.leads)
    visited_after_grace(world)
    assert world.get("pod", "writer-0")["metadata"]["uid"] == successor
    assert outcomes(world) == {"writer-0": "Evicted"}
    assert len(world.events("PodEvicted")) == 1


def test_two_concurrent_operators_evict_a_pod_once(world: World, tmp_path: Path) -> None:
    second = OperatorProcess(
        tmp_path,
        world.cluster,
        world.namespace,
        {"broker-0": world.broker.url},
        name="operator-1",
        configuration={"release": "other"},
        program=QUICK_FENCING,
    )
    with running(second):
        wait_until(lambda: second.leads)
        declare(world)
        fence(world, "writer-0", pod(world, "writer-0"))
        wait_until(lambda: outcomes(world).get("writer-0") in {"Evicted", "PodGone"})
        successor = pod(world, "writer-0")
        visited_after_grace(world)
        assert world.get("pod", "writer-0")["metadata"]["uid"] == successor


def test_two_alternating_pods_of_one_claim_are_not_evicted(world: World) -> None:
    declare(world)
    uids = [pod(world, f"writer-{number}") for number in (0, 1)]
    for turn in range(300):
        names = (f"writer-{turn % 2}", f"writer-{(turn + 1) % 2}")
        former = producer_group("w", "primary", names[0], epoch=turn + 1) | {
            "podUID": uids[turn % 2]
        }
        now = producer_group("w", "primary", names[1], epoch=turn + 2) | {
            "podUID": uids[(turn + 1) % 2]
        }
        transitions = [transition(turn + 2, "TakenOver", now, former)]
        found = status(turn + 2, holders=[now], waiters=[former], transitions=transitions)
        world.broker.serve(world.name("orders"), found)
    wait_until(lambda: world.status().get("epoch") == 301)
    visited_after_grace(world)
    assert outcomes(world) == {}
    assert is_there(world, "writer-0")
    assert is_there(world, "writer-1")


def test_dependents_go_with_their_topic_and_namespaces_are_not_stuck(own_world: World) -> None:
    world = own_world
    world.topic(deletionPolicy="Delete", leaderService={"name": "leader", "ports": [{"port": 80}]})
    world.until("Ready", "True/Ready")
    wait_until(lambda: "leader" in world.names("service"))
    world.delete("xt")
    wait_until(lambda: "leader" not in world.names("service"))
    world.topic("another", deletionPolicy="Delete")
    wait_until(lambda: world.get("xt", "another")["metadata"].get("finalizers"))
    world.cluster.kubectl("delete", "namespace", world.namespace, f"--timeout={WAIT_SECONDS}s")
