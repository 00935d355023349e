"""The operator's life cycle: end, freeze, two leaders at once, and a failing or unavailable API server."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.faulty_api import FaultyApi
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.cluster.worlds import World, broker, claim_document, epoch_is, topic_document, world
from tests.unit.kube.fake_broker import ThreadedBroker

__all__ = ["broker", "world"]

Json = dict[str, Any]


# ------------------------------------------------------------ the operator's own life cycle


def test_a_restarted_operator_loses_nothing_and_repeats_no_event(world: World) -> None:
    world.topic()
    world.claim()
    world.writes(epoch=1)
    world.until("WriterActive", "True/Held")
    world.operator.kill()
    world.broker.do(world.broker.fake.bodies.clear)
    world.writes(epoch=2)
    world.topic("later")
    world.operator.start()
    wait_until(lambda: world.status().get("epoch") == 2)
    world.until("Ready", "True/Ready", name="later")
    assert len(world.broker.fake.topics()) == 2
    assert all(len(body["topics"]) >= 1 for body in world.broker.fake.bodies)


def test_a_state_with_some_of_the_topics_is_never_handed_over(world: World) -> None:
    world.apply(*(topic_document(f"t{number}") for number in range(30)))
    wait_until(lambda: len(world.broker.fake.topics()) == 30)
    world.broker.do(world.broker.fake.forget)
    for turn in range(1, 4):
        world.operator.kill()
        world.broker.do(world.broker.fake.cut)
        if turn == 2:  # also a broker that has lost everything
            world.broker.fake.revision = world.broker.fake.desired = None
        world.operator.start()
        world.topic("t0", retention={"maxEntries": turn})
        generation = world.get("xt", "t0")["metadata"]["generation"]
        shows(world, "t0", generation)
    assert {len(body["topics"]) for body in world.broker.fake.bodies} == {30}


def shows(world: World, name: str, generation: int) -> None:
    """Wait until the status describes this generation, and the brokers have it."""
    wait_until(lambda: world.status(name=name).get("observedGeneration") == generation)
    world.until("PolicyApplied", "True/Applied", name=name)


SHORT: Json = {"lease": {"durationSeconds": 15, "renewSeconds": 12, "retrySeconds": 0.5}}
"""For tests that wait for the end of a Lease."""


@pytest.fixture
def two(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> Iterator[tuple[World, OperatorProcess]]:
    """A leading replica and a waiting one."""
    urls = {"broker-0": broker.url}
    first, second = (
        OperatorProcess(tmp_path, api_server, namespace, urls, name=name, options=SHORT)
        for name in ("operator-0", "operator-1")
    )
    with running(first):
        wait_until(lambda: first.leads, explain=first.log)
        with running(second):
            yield World(api_server, namespace, broker, first), second


def test_two_operators_lead_one_after_the_other(two: tuple[World, OperatorProcess]) -> None:
    world, second = two
    world.topic()
    world.until("Ready", "True/Ready")
    assert not second.leads
    wait_until(lambda: "operator.started" in second.log())  # so a waiting one has a log, too
    assert world.operator.stop() == 0
    wait_until(lambda: second.leads)
    world.writes(epoch=5)
    wait_until(lambda: world.status().get("epoch") == 5)
    world.operator.start()
    second.kill()
    wait_until(lambda: world.operator.leads)
    world.writes(epoch=6)
    wait_until(lambda: world.status().get("epoch") == 6)


def test_an_operator_that_was_frozen_ends_and_does_no_harm(
    two: tuple[World, OperatorProcess],
) -> None:
    world, second = two
    world.topic()
    world.until("Ready", "True/Ready")
    world.operator.signal(signal.SIGSTOP)
    wait_until(lambda: second.leads)
    world.writes(epoch=5)
    wait_until(lambda: world.status().get("epoch") == 5)
    world.operator.signal(signal.SIGCONT)
    assert world.operator.wait_ended() == 1
    assert "operator.ends" in world.operator.log()
    world.writes(epoch=6)
    wait_until(lambda: world.status().get("epoch") == 6)


def test_two_operators_that_both_believe_to_lead_agree(world: World, tmp_path: Path) -> None:
    second = OperatorProcess(
        tmp_path,
        world.cluster,
        world.namespace,
        {"broker-0": world.broker.url},
        name="operator-1",
        configuration={"release": "other"},  # a Lease of its own
    )
    with running(second):
        wait_until(lambda: second.leads and world.operator.leads)
        world.topic(
            deletionPolicy="Delete", leaderService={"name": "leader", "ports": [{"port": 80}]}
        )
        world.claim()
        for epoch in range(1, 6):
            world.writes(epoch=epoch)
            epoch_is(world, epoch)
        world.until("Drifted", "False/NoDrift")
        world.delete("xt")


# ------------------------------------------------------------ an API server that fails


@contextlib.contextmanager
def faulty(
    api_server: ControlPlane,
    namespace: str,
    broker: ThreadedBroker,
    tmp_path: Path,
    options: Json | None = None,
) -> Iterator[tuple[World, FaultyApi]]:
    with FaultyApi(api_server, tmp_path) as proxy:
        operator = OperatorProcess(
            tmp_path,
            api_server,
            namespace,
            {"broker-0": broker.url},
            kubeconfig=proxy.kubeconfig,
            options=options,
        )
        with running(operator):
            yield World(api_server, namespace, broker, operator), proxy


def test_a_status_that_is_refused_is_written_again(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> None:
    with faulty(api_server, namespace, broker, tmp_path) as (world, proxy):
        wait_until(lambda: world.operator.leads)
        faults = {
            code: proxy.fail("PATCH", f"/exclusivetopics/t{code}/status", code, times=3)
            for code in (409, 422, 429, 500, 503)
        }
        for code in faults:
            world.topic(f"t{code}")
        for code, fault in faults.items():
            world.until("Ready", "True/Ready", name=f"t{code}")
            assert fault.count == 3, code


def test_retry_after_is_honoured(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> None:
    with faulty(api_server, namespace, broker, tmp_path) as (world, proxy):
        wait_until(lambda: world.operator.leads)
        fault = proxy.fail(
            "PATCH", "/exclusivetopics/orders/status", 429, times=100, headers={"Retry-After": "60"}
        )
        world.topic()
        wait_until(lambda: fault.count)
        time.sleep(3)
        assert fault.count == 1


def test_a_slow_answer_about_one_object_holds_up_no_other(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> None:
    with faulty(api_server, namespace, broker, tmp_path) as (world, proxy):
        wait_until(lambda: world.operator.leads)
        # All of them: the operator gives up a write without an answer and repeats it.
        slow = proxy.fail("PATCH", "/exclusivetopics/slow/status", 0, times=100, is_held=True)
        world.topic("slow")
        wait_until(lambda: slow.count)
        world.topic("quick")
        world.until("Ready", "True/Ready", name="quick")
        assert world.condition("Ready", name="slow") == ""
        slow.is_held = False
        world.until("Ready", "True/Ready", name="slow")


def test_a_watch_that_is_cut_misses_nothing(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> None:
    with faulty(api_server, namespace, broker, tmp_path) as (world, proxy):
        for number in range(5):
            world.topic(f"t{number}")
            proxy.cut_streams()
            world.until("Ready", "True/Ready", name=f"t{number}")
            world.delete("xt", f"t{number}")
            proxy.cut_streams()
            wait_until(lambda: world.broker.fake.topics() == [])


def test_a_server_that_is_away_ends_leadership_and_comes_back_to_everything(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> None:
    with faulty(api_server, namespace, broker, tmp_path, SHORT) as (world, proxy):
        world.topic()
        world.until("Ready", "True/Ready")
        bodies = len(world.broker.fake.bodies)
        proxy.is_down = True
        assert world.operator.wait_ended() == 1
        assert len(world.broker.fake.bodies) == bodies  # the brokers keep their configuration
        world.writes(epoch=4)
        proxy.is_down = False
        world.operator.start()
        wait_until(lambda: world.status().get("epoch") == 4)


PATIENT = """
from onewriter_operator.app import OperatorLimits
from onewriter_operator.brokers.fleet import FleetLimits
from onewriter_operator.cli import serve
from onewriter_operator.plan.facts import PlanLimits
fleet = FleetLimits(settle_seconds=120.0, catch_up_seconds=60.0)
serve(OperatorLimits(plan=PlanLimits(moving_seconds=60.0, patience_seconds=60.0), fleet=fleet))
"""
"""The operator with long delays for slow brokers; the plan tables check the real delays."""

FREQUENT: Json = {"resyncSeconds": 10}
"""Settings with the shortest resync interval."""

ROUNDS_MAX = 20


def wrote_nothing(operator: OperatorProcess, proxy: FaultyApi, objects: int) -> bool:
    """Whether one more reconcile of all these objects causes no write."""
    proxy.counted()
    visited = "onewriter_reconcile_seconds_count"
    visits = operator.metric(visited)
    wait_until(lambda: operator.metric(visited) >= visits + objects)
    return not proxy.counted()


def until_settled(operator: OperatorProcess, proxy: FaultyApi, objects: int) -> None:
    """Wait until all writes caused by earlier changes are done."""
    assert any(wrote_nothing(operator, proxy, objects) for _ in range(ROUNDS_MAX))


def many(count: int, **spec: Any) -> list[Json]:
    """Topics with a leader Service, and a claim for each."""
    found = []
    for number in range(count):
        service = {"name": f"leader-{number}", "ports": [{"port": 80}]}
        found.append(topic_document(f"t{number}", leaderService=service, **spec))
        found.append(claim_document(f"c{number}", f"t{number}"))
    return found


def test_nothing_is_written_while_nothing_happens(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> None:
    with FaultyApi(api_server, tmp_path) as proxy:
        operator = OperatorProcess(
            tmp_path,
            api_server,
            namespace,
            {"broker-0": broker.url},
            kubeconfig=proxy.kubeconfig,
            options=FREQUENT,
            program=PATIENT,
        )
        with running(operator):
            world = World(api_server, namespace, broker, operator)
            world.apply(*many(20, deletionPolicy="Delete"))
            world.writes("t0", epoch=2)
            for number in range(20):
                world.until("Ready", "True/Ready", name=f"t{number}")
            world.until("WriterActive", "True/Held", name="t0")
            until_settled(operator, proxy, 40)
            assert wrote_nothing(operator, proxy, 40)  # all objects, by a resync


def test_an_operator_that_starts_again_rewrites_nothing(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> None:
    with ThreadedBroker("broker-1") as another, FaultyApi(api_server, tmp_path) as proxy:
        urls = {"broker-0": broker.url, "broker-1": another.url}
        operator = OperatorProcess(
            tmp_path,
            api_server,
            namespace,
            urls,
            kubeconfig=proxy.kubeconfig,
            options=FREQUENT,
            program=PATIENT,
        )
        with running(operator):
            worlds = [World(api_server, namespace, each, operator) for each in (broker, another)]
            worlds[0].apply(*many(12))
            for number in range(12):
                worlds[number % 2].writes(f"t{number}", claim=f"c{number}", epoch=2)
            for number in range(12):
                worlds[0].until("WriterActive", "True/Held", name=f"t{number}")
                worlds[0].until("Granted", "True/Granted", "pclaim", f"c{number}")
            until_settled(operator, proxy, 24)
            operator.stop()
            proxy.counted()
            operator.start()
            wait_until(lambda: operator.metric("onewriter_brokers_followed") == 2)
            wait_until(lambda: operator.metric("onewriter_reconcile_seconds_count") >= 3 * 24)
            assert proxy.counted() == []
