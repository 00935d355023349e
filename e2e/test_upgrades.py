"""Brokers, store and operators are replaced, upgraded, rolled back and removed while writers write.

With ONEWRITER_ROLLOUTS=20 the brokers are replaced 20 times, one rollout after the other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from e2e import manifests
from e2e.installation import COMPONENT, NAMESPACE, WORKLOADS, Installation
from e2e.manifests import PATIENT, SIDECAR, STOCK
from e2e.world import World
from e2e.writers import Writers, WritingPod, until
from tests.cluster.control_plane import WAIT_SECONDS

ROLLOUTS = int(os.environ.get("ONEWRITER_ROLLOUTS", "1"))

INSTALLED = ("pods", "statefulsets", "deployments", "services", "poddisruptionbudgets")


@dataclass(frozen=True)
class Seen:
    """What writers observed between two moments."""

    sends: int
    failed: int
    turned_away: int
    longest_ms: int
    kept: int
    topics: int
    causes: tuple[str, ...]
    """For each topic that did not keep its epoch: its changes and the brokers that served it."""

    def __str__(self) -> str:
        causes = "".join(f"; {each}" for each in self.causes)
        return (
            f"{self.sends} sends, {self.failed} failed, the longest {self.longest_ms} ms;"
            f" {self.turned_away} waiters turned away; {self.kept} of {self.topics} epochs kept{causes}"
        )


def causes(writers: Writers, before: WritingPod, served_by: str, installation: Installation) -> str:
    """Return in one line why a topic's epoch advanced, and whether its broker changed or restarted."""
    changes = ", ".join(
        f"{each['epoch']} {each['cause']} leaderless {each.get('leaderlessMs')} ms"
        for each in reversed(writers.status().get("transitions", ()))
        if each["epoch"] > before.epoch
    )
    restarts = ", ".join(
        f"{pod['metadata']['name']} {container['restartCount']}"
        for pod in installation.pods("broker")
        for container in pod["status"].get("containerStatuses", ())
        if container["name"] == "broker"
    )
    serves = installation.owner(writers.topic)
    return (
        f"{writers.name}: epoch {before.epoch} to {changes or 'the same one of another pod'},"
        f" served by {served_by} and then {serves}, restarts {restarts}"
    )


def watched(
    installation: Installation, all_writers: list[Writers], action: Callable[[], None]
) -> Seen:
    """Return what the writers observed during a change, up to a few lines after its end."""
    before = [writers.settled() for writers in all_writers]
    served_by = [installation.owner(writers.topic) for writers in all_writers]
    acknowledged = [writers.acknowledged for writers in all_writers]
    refused = sum(writers.refusals for writers in all_writers)
    turned_away = sum(writers.turned_away for writers in all_writers)
    action()
    for writers in all_writers:
        writers.wrote()
    now = [until(writers.writing_pod, writers.status) for writers in all_writers]
    fresh = [each.acknowledged - had for had, each in zip(acknowledged, all_writers, strict=True)]
    lines = [line for some in fresh for line in some]
    # A writer that could not learn the result of a line began a new term.
    unknown = sum(len({line.term for line in some}) - 1 for some in fresh)
    advanced = [
        causes(writers, former, server, installation)
        for writers, former, present, server in zip(
            all_writers, before, now, served_by, strict=True
        )
        if (former.uid, former.epoch) != (present.uid, present.epoch)
    ]
    return Seen(
        sends=len(lines),
        failed=sum(writers.refusals for writers in all_writers) - refused + unknown,
        turned_away=sum(writers.turned_away for writers in all_writers) - turned_away,
        longest_ms=max(line.took_ms for line in lines),
        kept=len(all_writers) - len(advanced),
        topics=len(all_writers),
        causes=tuple(advanced),
    )


def report(world: World, what: str, seen: Seen) -> None:
    """Add the result to the summary, and check that no writer was refused and none lost its topic."""
    world.tally.figures.append(f"{what}: {seen}")
    assert (seen.failed, seen.kept) == (0, seen.topics), str(seen)


def replaced(installation: Installation, action: Callable[[], object], *parts: str) -> None:
    """Wait until all pods of these components are replaced, and all buckets are at their brokers."""
    former = installation.uids(*parts)
    action()
    until(
        lambda: (
            installation.is_ready()
            and former.isdisjoint(installation.uids(*parts))
            and installation.is_placed()
        ),
        installation.diagnostics,
    )


@pytest.fixture(scope="module")
def all_writers(world: World) -> list[Writers]:
    """For each broker a topic that it serves, written with the stock client; one topic is written by sidecars."""
    brokers = [pod["metadata"]["name"] for pod in world.installation.pods("broker")]
    names = [world.name_served_by(name, f"topic-of-{name[-1]}") for name in brokers]
    stock = [world.writers(STOCK, name, spec=PATIENT) for name in names]
    return [*stock, world.writers(SIDECAR, spec=PATIENT)]


def test_replacing_the_brokers_fails_no_send(world: World, all_writers: list[Writers]) -> None:
    installation = world.installation
    longest = []
    for number in range(1, ROLLOUTS + 1):
        seen = watched(
            installation,
            all_writers,
            lambda: replaced(installation, lambda: installation.restart("broker"), "broker"),
        )
        report(world, f"rollout {number} of the brokers", seen)
        longest.append(seen.longest_ms)
    longest.sort()
    world.tally.figures.append(
        f"the longest send of each of {ROLLOUTS} rollouts: p50 {part(longest, 0.5)} ms,"
        f" p99 {part(longest, 0.99)} ms, max {longest[-1]} ms"
    )


def part(values: list[int], share: float) -> int:
    """Return the value that this share of all (sorted) values does not exceed."""
    return values[math.ceil(share * len(values)) - 1]


def test_replacing_store_and_operators_loses_nothing(
    world: World, all_writers: list[Writers]
) -> None:
    installation = world.installation
    parts = ("valkey", "operator")
    seen = watched(
        installation,
        all_writers,
        lambda: replaced(installation, lambda: installation.restart(*parts), *parts),
    )
    report(world, "store and operators replaced", seen)


def test_an_upgrade_and_its_rollback_keep_topics_epochs_and_writers(
    world: World, all_writers: list[Writers]
) -> None:
    """The template of every pod changes, as with every new version of the image."""
    installation = world.installation
    noted = {"annotations": {"example.com/version": "2"}}
    values = {part: installation.values[part] | noted for part in ("brokers", "valkey", "operator")}
    every = ("broker", "valkey", "operator")

    def upgrade() -> None:
        installation.upgrade(**values)
        assert installation.brokers_are_rolled_out(), "helm comes back behind the last of them"

    for what, action in (
        ("helm upgrade", upgrade),
        ("helm rollback", lambda: installation.helm("rollback", "onewriter")),
    ):

        def change(action: Callable[[], object] = action) -> None:
            replaced(installation, action, *every)

        report(world, what, watched(installation, all_writers, change))


def test_uninstalled_and_installed_again_under_writers(
    world: World, all_writers: list[Writers]
) -> None:
    installation = world.installation
    formers = [until(writers.writing_pod, writers.status) for writers in all_writers]
    world.apply(manifests.topic("doomed", deletionPolicy="Delete"))
    until(lambda: world.api.get("exclusivetopics", world.namespace, "doomed"))
    for writers in all_writers:
        writers.wrote()
    installation.helm("uninstall", "onewriter")
    until(lambda: remains(world) == [], lambda: (remains(world), installation.diagnostics()))
    # No operator is left to do what its finalizer requires: the finalizer must be gone.
    gone = ("delete", "exclusivetopic/doomed", f"--timeout={WAIT_SECONDS}s")
    world.cluster.kubectl(*gone, namespace=world.namespace)
    installation.upgrade()
    until(lambda: installation.is_ready() and installation.is_placed(), installation.diagnostics)
    for writers, former in zip(all_writers, formers, strict=True):
        writers.wrote()
        assert until(writers.writing_pod, writers.status).epoch >= former.epoch


def remains(world: World) -> list[str]:
    """Return the objects of the release that still exist or whose deletion hangs."""
    found = {kind: world.api.list(kind, NAMESPACE) for kind in INSTALLED}
    ours = {"app.kubernetes.io/managed-by": "onewriter-operator"}
    return [
        f"{kind}/{each['metadata']['name']}"
        for kind, objects in found.items()
        for each in objects
        if ours.items() <= each["metadata"].get("labels", {}).items()
        or each["metadata"].get("labels", {}).get(COMPONENT) in WORKLOADS
        or "deletionTimestamp" in each["metadata"]
    ]
