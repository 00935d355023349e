"""``make store-cluster``: the store is a Valkey Cluster on three nodes. Its processes, pods, volumes and one node are lost while
writers write.

It needs what ``make e2e`` needs, and a lab of its own: an installation keeps its number of shards. Each loss happens twice in a
row. The summary shows the longest gap of each topic.

The writers are stock clients with the relay. Without it they notice only after 30 to 60 s that the broker on a lost node is
gone, and their gaps would say nothing about the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from e2e import clusters
from e2e.acknowledgements import Acknowledgements
from e2e.api import Api
from e2e.clusters import TestedCluster, uses_existing
from e2e.faults import Faults
from e2e.installation import NAMESPACE, Installation, claim_of
from e2e.manifests import PATIENT, RELAYED, Json
from e2e.outages import Gap
from e2e.world import World
from e2e.writers import Writers, until

from onewriter_operator.installation.names import SHARD_LABEL

NODES = 3
SHARDS = 3
HIT, OTHER = 1, 0
"""The shard that loses its primary, and one that does not. In the lab the pods of the first one run on nodes that can be lost."""

REPLICATED = PATIENT | {"durability": "Replicated"}
LINES = 20
"""Acknowledgements after a fault that show that the writers continue."""

STORE_CLUSTER_PORTS = "6379,16379"
"""The ports of the store's processes: for brokers and replicas, and among each other."""

TWICE = pytest.mark.parametrize("time_of_loss", ["first time", "second time"])

SMALL: Json = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
"""The resources of each process of the store."""


@pytest.fixture(scope="session")
def tested() -> Iterator[TestedCluster]:
    """A lab of three nodes, or the cluster of KUBECONFIG."""
    with clusters.tested_cluster(notices_lost_nodes_early=True, nodes=NODES) as found:
        yield found


@pytest.fixture(scope="session")
def installation(tested: TestedCluster, api: Api) -> Iterator[Installation]:
    """onewriter with a cluster as its store."""
    found = Installation(tested, api)
    found.values |= {"store": {"shards": SHARDS, "replicas": 1}, "spark": {"enabled": False}}
    found.values["valkey"]["resources"] = SMALL
    found.install()
    until(lambda: is_complete(found), found.diagnostics)
    yield found
    if uses_existing():
        found.uninstall()


@dataclass(frozen=True)
class Stage:
    """The writers. ``local``: a topic of the same shard whose acknowledgements do not wait for the replica."""

    world: World
    acknowledgements: Acknowledgements
    replicated: Writers
    local: Writers
    other: Writers

    @property
    def installation(self) -> Installation:
        return self.world.installation

    @property
    def all_writers(self) -> tuple[Writers, ...]:
        return self.replicated, self.local, self.other

    def gap(self, writers: Writers, began_ms: int) -> Gap:
        """The longest time without an acknowledgement that ended after the fault began."""
        pairs = (Gap(*each) for each in pairwise(self.acknowledgements.of(writers.name)))
        return max((each for each in pairs if each.next_ms >= began_ms), key=lambda each: each.ms)

    def gaps(self, began_ms: int) -> dict[str, Gap]:
        """The gaps of all topics, by their names."""
        self.acknowledgements.catch_up(math.ceil((now_ms() - began_ms) / 1000) + 10)
        return {writers.name: self.gap(writers, began_ms) for writers in self.all_writers}

    def wrote_during(self, writers: Writers, gap: Gap) -> int:
        """The number of acknowledgements of other writers in a gap."""
        times = self.acknowledgements.of(writers.name, since_ms=gap.last_ms)
        return len([each for each in times if each < gap.next_ms])

    def report(self, fault: str, gaps: dict[str, Gap], repaired_after_ms: int) -> None:
        """Add a line to the summary."""
        shown = ", ".join(f"{name} {gap.ms} ms" for name, gap in gaps.items())
        self.world.tally.figures.append(
            f"{fault}: longest gap of {shown}; the store is complete again after {repaired_after_ms} ms"
        )


@pytest.fixture(scope="module")
def stage(world: World) -> Iterator[Stage]:
    with Acknowledgements(world.api, world.namespace) as acknowledgements:
        replicated, local, other = (
            world.writers(RELAYED, world.name_in_shard(shard, stem), spec=spec)
            for shard, stem, spec in (
                (HIT, "replicated", REPLICATED),
                (HIT, "local", PATIENT),
                (OTHER, "other", REPLICATED),
            )
        )
        local.is_checked = False  # a promotion may lose what only the former primary had
        yield Stage(world, acknowledgements, replicated, local, other)


def now_ms() -> int:
    """The wall clock. The lab's pods share the clock of this machine."""
    return time.time_ns() // 1_000_000


def is_complete(installation: Installation) -> bool:
    """Whether every shard has its primary and its replica. After a promotion the operator may still have to spread them."""
    found = installation.conditions()
    complete = {"True/StoreComplete", "False/StoreMisplaced"}
    return (
        installation.is_ready()
        and found.get("Ready") == "True/Ready"
        and found.get("StoreComplete") in complete
    )


def until_complete(stage: Stage, began_ms: int) -> int:
    """Wait until the operator has repaired the cluster; the milliseconds since the fault."""
    until(lambda: is_complete(stage.installation), stage.installation.diagnostics)
    return now_ms() - began_ms


def survived(stage: Stage, fault: str, act: Callable[[], object]) -> Gap:
    """Check that all writers continue under their epochs, and that the operator repairs the cluster.

    Returns the gap of the topic whose acknowledgements wait for the replica.
    """
    formers = [writers.settled() for writers in stage.all_writers]
    began_ms = now_ms()
    act()
    for writers in stage.all_writers:
        writers.wrote(LINES)
    after_ms = until_complete(stage, began_ms)
    for writers, former in zip(stage.all_writers, formers, strict=True):
        writers.wrote()
        now = writers.settled()
        assert (now.uid, now.epoch) == (former.uid, former.epoch), writers.status()
    gaps = stage.gaps(began_ms)
    stage.report(fault, gaps, after_ms)
    return gaps[stage.replicated.name]


def until_spread(installation: Installation) -> None:
    """Wait until the operator has spread the primaries, so that the loss of any node leaves a majority of them."""
    until(
        lambda: installation.conditions().get("StoreComplete") == "True/StoreComplete",
        installation.diagnostics,
    )


def test_three_nodes_are_enough(installation: Installation) -> None:
    until_spread(installation)
    primaries = [installation.primary_of(shard) for shard in range(SHARDS)]
    assert len({pod["spec"]["nodeName"] for pod in primaries}) == NODES


@TWICE
def test_the_process_of_a_primary_dies(stage: Stage, faults: Faults, time_of_loss: str) -> None:
    primary = stage.installation.primary_of(HIT)
    title = f"process of a primary killed, {time_of_loss}"
    survived(stage, title, lambda: faults.kill(primary, "valkey"))


def test_a_primary_that_hangs_and_wakes_is_replaced_and_returns(
    stage: Stage, faults: Faults
) -> None:
    primary = stage.installation.primary_of(HIT)

    def hang() -> None:
        faults.freeze(primary)
        stage.local.wrote(LINES)
        faults.thaw(primary)

    survived(stage, "a primary that hangs until it is replaced", hang)
    assert stage.installation.primary_of(HIT)["metadata"]["name"] != primary["metadata"]["name"]


def test_a_primary_that_is_cut_off_is_replaced_and_returns(stage: Stage, faults: Faults) -> None:
    primary = stage.installation.primary_of(HIT)

    def cut_off() -> None:
        heal = faults.cut_off(primary, STORE_CLUSTER_PORTS, is_server=True)
        stage.local.wrote(LINES)
        heal()

    survived(stage, "a primary that is cut off until it is replaced", cut_off)
    assert stage.installation.primary_of(HIT)["metadata"]["name"] != primary["metadata"]["name"]


def test_a_volume_is_lost_together_with_the_leading_operator(
    tested: TestedCluster, stage: Stage, faults: Faults
) -> None:
    primary = stage.installation.primary_of(HIT)
    operator = stage.installation.pod(until(stage.installation.leading_operator))

    def lose() -> None:
        lose_volume(tested, stage, faults, primary)
        stage.world.api.delete(
            "pods", NAMESPACE, operator["metadata"]["name"], gracePeriodSeconds=0
        )

    survived(stage, "pod and volume of a primary lost, and the leading operator", lose)


def lose_volume(tested: TestedCluster, stage: Stage, faults: Faults, pod: Json) -> None:
    """Lose a pod of the store with its volume. Its successor gets an empty one."""
    name = pod["metadata"]["name"]
    tested.prepare_volume(NAMESPACE, claim_of(name), pod["spec"]["nodeName"])
    stage.world.api.delete("persistentvolumeclaims", NAMESPACE, claim_of(name))
    faults.kill(pod, "valkey")
    delete_pods(stage, [pod])


@TWICE
def test_a_primary_loses_its_pod_and_its_volume(
    tested: TestedCluster, stage: Stage, faults: Faults, time_of_loss: str
) -> None:
    primary = stage.installation.primary_of(HIT)
    title = f"pod and volume of a primary lost, {time_of_loss}"
    gap = survived(stage, title, lambda: lose_volume(tested, stage, faults, primary))
    assert stage.wrote_during(stage.other, gap), "writers of other shards do not wait"


def test_a_primary_whose_pod_is_deleted_hands_over(stage: Stage) -> None:
    primary = stage.installation.primary_of(HIT)
    name, uid = primary["metadata"]["name"], primary["metadata"]["uid"]

    def delete() -> None:
        stage.world.api.delete("pods", NAMESPACE, name)
        until(lambda: uid not in stage.installation.uids("valkey"))

    survived(stage, "pod of a primary deleted", delete)


def test_all_pods_of_the_store_restart_at_once(stage: Stage) -> None:
    pods = stage.installation.pods("valkey")
    survived(stage, "all pods of the store deleted", lambda: delete_pods(stage, pods))


def delete_pods(stage: Stage, pods: Sequence[Json]) -> None:
    """Delete pods of the store without any time to stop, and wait until each has a successor."""
    for pod in pods:
        stage.world.api.delete("pods", NAMESPACE, pod["metadata"]["name"], gracePeriodSeconds=0)
    former = {pod["metadata"]["uid"] for pod in pods}

    def is_replaced() -> bool:
        uids = stage.installation.uids("valkey")
        return former.isdisjoint(uids) and len(uids) == len(stage.installation.store_pods)

    until(is_replaced, stage.installation.diagnostics)


@TWICE
def test_the_node_of_a_primary_is_lost(stage: Stage, faults: Faults, time_of_loss: str) -> None:
    """Writers and brokers of the node are lost, too, so a topic may get another holder. Topics that wait for a replica on
    the node are paused until it returns.
    """
    until_spread(stage.installation)
    for writers in stage.all_writers:
        writers.settled()
    primary = stage.installation.primary_of(HIT)
    node = faults.losable([primary["spec"]["nodeName"]])
    began_ms = now_ms()
    faults.lose(node)
    stage.local.wrote(LINES)
    faults.find_again(node)
    after_ms = until_complete(stage, began_ms)
    for writers in stage.all_writers:
        writers.wrote(LINES)
        writers.settled()
    stage.report(f"node of a primary lost, {time_of_loss}", stage.gaps(began_ms), after_ms)


def test_the_node_of_a_primary_never_returns(
    tested: TestedCluster, stage: Stage, faults: Faults
) -> None:
    """A person removes the node, and the claims and pods of the store that were on it. The pods start with empty volumes on
    the other nodes.
    """
    until_spread(stage.installation)
    for writers in stage.all_writers:
        writers.settled()
    node = faults.losable([stage.installation.primary_of(HIT)["spec"]["nodeName"]])
    lost = [pod for pod in stage.installation.pods("valkey") if pod["spec"]["nodeName"] == node]
    others = {pod["spec"]["nodeName"] for pod in stage.installation.pods("valkey")} - {node}
    began_ms = now_ms()
    faults.lose(node)
    stage.local.wrote(LINES)
    stage.world.api.delete("nodes", "", node)
    for pod in lost:
        name, label = pod["metadata"]["name"], pod["metadata"]["labels"][SHARD_LABEL]
        (taken,) = (
            each["spec"]["nodeName"]
            for each in stage.installation.pods("valkey")
            if each["metadata"]["labels"][SHARD_LABEL] == label and each["metadata"]["name"] != name
        )
        tested.prepare_volume(NAMESPACE, claim_of(name), min(others - {taken}))
        stage.world.api.delete("persistentvolumeclaims", NAMESPACE, claim_of(name))
    delete_pods(stage, lost)
    after_ms = until_complete(stage, began_ms)
    for writers in stage.all_writers:
        writers.wrote(LINES)
        writers.settled()
    stage.report("node of a primary lost for ever", stage.gaps(began_ms), after_ms)
