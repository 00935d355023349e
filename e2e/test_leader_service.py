"""The leader Service leads only to the leader and shows its epoch."""

from __future__ import annotations

import json
from functools import partial

import pytest
from e2e.installation import EXEC_SECONDS
from e2e.manifests import PATIENT
from e2e.world import World
from e2e.writers import Writers, WritingPod, until
from tests.cluster.control_plane import WAIT_SECONDS

ASK = "import urllib.request as r, sys; print(r.urlopen(sys.argv[1], timeout=30).read().decode())"


@pytest.fixture(scope="module")
def writers(world: World) -> Writers:
    return world.writers(name="orders", spec=PATIENT)


def answers(world: World, writers: Writers, asking: str) -> str:
    """Return the pod that answers at the Service's DNS name, requested from inside a pod; empty if none does."""
    url = f"http://{writers.name}-leader.{world.namespace}.svc.cluster.local/"
    command = ("exec", asking, "--container=writer", "--", "python", "-c", ASK, url)
    done = world.cluster.kubectl(
        *command, check=False, namespace=world.namespace, seconds=EXEC_SECONDS
    )
    return str(json.loads(done.stdout)["pod"]) if done.stdout else ""


def is_answered_by(world: World, writers: Writers, asking: str, leader: WritingPod) -> bool:
    return answers(world, writers, asking) == leader.name


def leads_to(world: World, writers: Writers, leader: WritingPod) -> None:
    until(lambda: writers.led_to() == ([leader.uid], leader.epoch), writers.led_to)
    for pod in writers.pods():
        name = pod["metadata"]["name"]
        until(partial(is_answered_by, world, writers, name, leader), writers.led_to)


def test_the_service_leads_to_the_leader_only_and_follows_it(
    world: World, writers: Writers
) -> None:
    first = writers.settled()
    leads_to(world, writers, first)
    world.api.delete("pods", world.namespace, first.name)
    writers.succeeded(first)
    second = writers.settled()
    assert second.epoch > first.epoch
    leads_to(world, writers, second)
    labels = world.cluster.get("service", "orders-leader", namespace=world.namespace)["metadata"][
        "labels"
    ]
    assert labels["onewriter.dev/epoch"] == str(second.epoch)


def test_a_rollout_does_not_wait_for_the_service(world: World, writers: Writers) -> None:
    writers.settled()
    roll = ("rollout", "restart", "deployment/orders")
    world.cluster.kubectl(*roll, namespace=world.namespace)
    done = ("rollout", "status", "deployment/orders", f"--timeout={WAIT_SECONDS}s")
    world.cluster.kubectl(*done, namespace=world.namespace)
    leads_to(world, writers, writers.settled())
    assert writers.outcomes() == {}
