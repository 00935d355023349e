"""A thousand claims for one topic: each has a defined outcome, and nothing grows with their number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.cluster.worlds import World, broker, claim_document, epoch_is
from tests.unit.kube.fake_broker import ThreadedBroker, producer_group, status, transition

from onewriter_core.api.status import PRODUCERS_SHOWN_MAX
from onewriter_core.kubernetes.kinds import CLAIM
from onewriter_operator.kube import Kube, load_configuration

__all__ = ["broker"]

Json = dict[str, Any]

CLAIMS = 1_000
NAMES = [f"claim-{number:04}" for number in range(CLAIMS)]
SHOWN = 100
"""Waiters that a broker reports one by one; it counts the rest."""

CREATES_AT_ONCE = 20
POLLS = 40
READY_SECONDS = 1_200.0
"""Time limit for a thousand objects on a busy machine."""
CLAIM_BYTES_MAX = 4_096
TOPIC_BYTES_MAX = 8_192


SELDOM: Json = {"resyncSeconds": 86_400}
"""Settings without resync, so that only changes cause reconciles."""


@pytest.fixture
def world(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> Iterator[World]:
    urls = {"broker-0": broker.url}
    operator = OperatorProcess(tmp_path, api_server, namespace, urls, options=SELDOM)
    with running(operator):
        yield World(api_server, namespace, broker, operator)


async def create_claims(world: World) -> None:
    """Create a claim for each name, all for the same topic."""
    gate = asyncio.Semaphore(CREATES_AT_ONCE)
    async with Kube(await load_configuration(world.cluster.kubeconfig)) as kube:

        async def create(name: str) -> None:
            document = claim_document(name)
            document["metadata"]["namespace"] = world.namespace
            async with gate:
                await kube.create(CLAIM, document)

        async with asyncio.TaskGroup() as group:
            for name in NAMES:
                group.create_task(create(name))


def crowd(epoch: int, writer: str, former: Json | None = None) -> Json:
    """Return a broker's report of a topic for which all others wait."""
    holder = producer_group(f"w-{writer}", writer, epoch=epoch)
    others = [name for name in NAMES if name != writer]
    waiters = [
        producer_group(f"w-{name}", name, place=place)
        for place, name in enumerate(others[:SHOWN], 1)
    ]
    transitions = [transition(epoch, "Released" if former else "Initial", holder, former)]
    found = status(epoch, holders=[holder], waiters=waiters, transitions=transitions)
    return found | {"waiting": len(others), "waitersOmitted": len(others) - SHOWN}


def size(found: Json) -> int:
    return len(json.dumps(found))


def test_a_thousand_claims_for_one_topic(world: World) -> None:
    world.topic()
    asyncio.run(create_claims(world))
    world.topic("another")  # while the operator has to reconcile all of them
    world.until("Ready", "True/Ready", name="another")
    wait_until(lambda: len(world.broker.fake.claims()) == CLAIMS, READY_SECONDS)

    def ready() -> int:
        return sum(
            any(each["type"] == "Ready" and each["status"] == "True" for each in found)
            for found in (claim["status"].get("conditions", ()) for claim in world.all("pclaim"))
        )

    wait_until(lambda: ready() == CLAIMS, READY_SECONDS, ready)
    first = crowd(1, NAMES[0])
    world.broker.serve(world.name("orders"), first)
    world.until("Granted", "True/Granted", "pclaim", NAMES[0])
    world.until("Granted", "False/Waiting", "pclaim", NAMES[1])
    epoch_is(world, 1)
    wait_until(lambda: world.status().get("waiting") == CLAIMS - 1)
    last = wait_until(lambda: world.status("pclaim", NAMES[SHOWN]).get("producers"))
    assert last[0]["queuePosition"] == SHOWN

    def behind() -> str:
        granted = world.status("pclaim", NAMES[-1])["conditions"][1]
        return f"{granted['type']} {granted['status']}/{granted['reason']}: {granted['message']}"

    wait_until(lambda: "899 wait for the topic behind those that are shown" in behind())
    assert behind().startswith("Granted False/Waiting")
    at_rest(world)

    # A change of the holder concerns only the claims that the broker reports.
    visits = world.operator.metric("onewriter_reconcile_seconds_count")
    world.broker.serve(world.name("orders"), crowd(2, NAMES[1], first["holder"]))
    world.until("Granted", "True/Granted", "pclaim", NAMES[1])
    epoch_is(world, 2)
    at_rest(world)
    assert world.operator.metric("onewriter_reconcile_seconds_count") - visits < CLAIMS / 2

    assert size(world.status()) < TOPIC_BYTES_MAX
    statuses = [claim["status"] for claim in world.all("pclaim")]
    assert max(map(size, statuses)) < CLAIM_BYTES_MAX
    assert all(len(each.get("producers", ())) <= 1 < PRODUCERS_SHOWN_MAX for each in statuses)


def at_rest(world: World) -> None:
    """Wait until the queue is empty and no more writes occur."""
    seen: list[float] = []

    def rests() -> bool:
        seen.append(world.operator.metric("onewriter_reconcile_seconds_count"))
        waiting = world.operator.metric("onewriter_workqueue_depth")
        return waiting == 0 and len(seen) > POLLS and len(set(seen[-POLLS:])) == 1

    wait_until(rests, READY_SECONDS)


def test_a_thousand_producers_of_one_claim_are_counted_and_not_all_listed(world: World) -> None:
    world.topic()
    world.claim()
    names = [f"w{number}" for number in range(CLAIMS)]
    waiters = [producer_group(name, "primary", place=at) for at, name in enumerate(names[1:], 1)]
    holder = producer_group(names[0], "primary", epoch=1)
    world.broker.serve(world.name("orders"), status(1, holders=[holder], waiters=waiters))
    world.until("Granted", "True/Granted", "pclaim", "primary")
    found = world.status("pclaim", "primary")
    assert len(found["producers"]) == PRODUCERS_SHOWN_MAX
    assert found["producersOmitted"] == CLAIMS - PRODUCERS_SHOWN_MAX
    wait_until(lambda: world.status().get("waiting") == CLAIMS - 1)
