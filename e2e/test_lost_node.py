"""A leader's node is cut off while its containers continue to run, loses its kubelet, or is drained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.faults import Faults
from e2e.manifests import KINDS, PATIENT, PATIENT_WITH_SILENCE, RELAYED, SIDECAR, STOCK
from e2e.world import World
from e2e.writers import until
from tests.cluster.control_plane import WAIT_SECONDS

SPARED = PATIENT_WITH_SILENCE | {"fencing": {"podPolicy": "None", "minIntervalSeconds": 0}}


def losable(world: World, faults: Faults) -> str:
    """Return a node that can be lost: the store and a broker run on another node.

    Brokers that started while a node was away can share the other one. One of them is moved then.
    """
    installation = world.installation
    (store,) = installation.pods("valkey")
    kept = store["spec"]["nodeName"]
    node = faults.losable(sorted(set(world.cluster.names("nodes")) - {kept}))
    brokers = installation.pods("broker")
    if all(pod["spec"]["nodeName"] == node for pod in brokers):
        installation.place_broker(brokers[-1]["metadata"]["name"], kept)
        until(installation.is_placed, installation.diagnostics)
    return node


def broker_on(world: World, node: str) -> str:
    """Return a broker on this node, which is moved there if none is."""
    installation = world.installation
    brokers = installation.pods("broker")
    found = next((pod for pod in brokers if pod["spec"]["nodeName"] == node), brokers[0])
    name = str(found["metadata"]["name"])
    installation.place_broker(name, node)
    until(installation.is_placed, installation.diagnostics)
    return name


def is_node_ready(world: World, node: str) -> bool:
    found = world.api.get("nodes", "", node) or {}
    conditions = found["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_a_zombie_on_a_lost_node_appends_nothing_and_relayed_clients_leave_its_broker(
    world: World, faults: Faults
) -> None:
    node = losable(world, faults)
    (store,) = world.installation.pods("valkey")
    broker = broker_on(world, node)
    relayed = world.writers(RELAYED, world.name_served_by(broker, "relayed"), spec=PATIENT)
    client = relayed.leads_on(store["spec"]["nodeName"])
    spared = world.writers(STOCK, world.name_served_away_from(node, "spared"), spec=SPARED)
    name = world.name_served_away_from(node, "evicted")
    evicted = world.writers(SIDECAR, name, spec=PATIENT_WITH_SILENCE)
    formers = [writers.leads_on(node) for writers in (spared, evicted)]
    zombie, condemned = formers
    faults.lose(node)
    relayed.wrote()
    epoch = relayed.status()["epoch"]
    assert epoch == client.epoch, "its client left the lost broker within the resume window"
    for writers, former in zip((spared, evicted), formers, strict=True):
        successor = writers.succeeded(former)
        assert successor.node != node
        assert writers.last_transition()["cause"] == "Silent"
        writers.wrote()
    spared.until_outcome(zombie, "NotRequested")
    evicted.until_outcome(condemned, "Evicted")
    assert evicted.is_there(condemned.uid), "nobody on its node hears of it"
    for former in formers:
        assert faults.is_running(former.pod), "the zombies live"

    faults.find_again(node)
    until(lambda: is_node_ready(world, node))
    until(lambda: not evicted.is_there(condemned.uid))
    spared.refused(zombie)
    assert spared.is_there(zombie.uid)
    for writers in (spared, evicted, relayed):
        writers.settled()
        writers.wrote()


def test_a_leader_without_a_kubelet_writes_on_and_is_fenced_all_the_same(
    world: World, faults: Faults
) -> None:
    node = losable(world, faults)
    name = world.name_served_away_from(node, "unattended")
    writers = world.writers(STOCK, name, spec=PATIENT)
    former = writers.leads_on(node)
    faults.stop_kubelet(node)
    until(lambda: not is_node_ready(world, node))
    world.api.delete("pods", world.namespace, former.name)
    before = writers.lines()
    until(lambda: writers.lines() > before)
    assert writers.status()["epoch"] == former.epoch, "no kubelet is no reason to lose a topic"

    order = {"metadata": {"annotations": {"onewriter.dev/fence": str(former.epoch)}}}
    world.api.patch("exclusivetopics", world.namespace, writers.name, order)
    successor = writers.succeeded(former)
    assert writers.is_there(former.uid), "it is going, and cannot go"
    until(lambda: writers.led_to() == ([successor.uid], successor.epoch), writers.led_to)

    faults.start_kubelet(node)
    until(lambda: not writers.is_there(former.uid))
    assert writers.settled().uid == successor.uid
    assert writers.events("PodEvicted") == []


def test_a_leader_on_a_drained_node_hands_over(world: World, faults: Faults) -> None:
    node = losable(world, faults)
    all_writers = [world.writers(kind, f"drained-{kind}", spec=PATIENT) for kind in KINDS]
    formers = [writers.leads_on(node) for writers in all_writers]
    with drained(world, node):
        for writers, former in zip(all_writers, formers, strict=True):
            now = writers.settled()
            assert now.node != node
            assert now.epoch > former.epoch
            # A pod that ends while its topic changes brokers is listed, too.
            evicted = set(writers.outcomes().values()) - {"Pending", "PodGone"}
            assert not evicted, "a drain is no reason to evict anybody else"
            writers.wrote()
    until(world.installation.is_ready, world.installation.diagnostics)


@contextmanager
def drained(world: World, node: str) -> Iterator[None]:
    """Drain the node of all pods, including those of onewriter."""
    options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={WAIT_SECONDS}s")
    try:
        world.cluster.kubectl("drain", node, *options)
        yield
    finally:
        world.cluster.kubectl("uncordon", node)
