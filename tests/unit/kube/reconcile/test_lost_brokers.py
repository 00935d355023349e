"""A lost broker leaves its Services: two witnesses, one write, and the kubelet has the last word."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import Kind
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.reconcile.lost_brokers import AGAIN_SECONDS, LostBrokers, not_ready

NOW = 1_700_000_000.0


def pod(*, ready: str = "True", **about: Any) -> Json:
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]
    return {
        "metadata": {"name": "b-1", "resourceVersion": "7", **about},
        "status": {"conditions": conditions},
    }


class FakeKube:
    """Pods by name; applies the patches of their statuses."""

    def __init__(self, pods: Mapping[str, Json]) -> None:
        self.pods = dict(pods)
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.error: Exception | None = None

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        assert (kind.kind, namespace) == ("Pod", "onewriter")
        self.reads.append(name)
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.pods.get(name))

    async def mend_status(self, kind: Kind, document: Json, patch: Sequence[Json]) -> Json:
        del kind
        (operation,) = patch
        name = document["metadata"]["name"]
        number = int(operation["path"].rpartition("/")[2])
        self.pods[name]["status"]["conditions"][number] = operation["value"]
        self.writes.append(name)
        return self.pods[name]

    def is_ready(self, name: str) -> bool:
        (found,) = [
            each for each in self.pods[name]["status"]["conditions"] if each["type"] == "Ready"
        ]
        return bool(found["status"] == "True")


class FakeBrokers:
    """What the brokers say of each other, and which ones answer the operator."""

    def __init__(self, alive: Mapping[str, bool], answering: Sequence[str] = ()) -> None:
        self.alive = dict(alive)
        self.answering = set(answering)
        self.suspected: list[str] = []

    async def members(self, seconds: float) -> Mapping[str, bool]:
        assert seconds > 0
        return self.alive

    async def answers(self, name: str, seconds: float) -> bool:
        assert seconds > 0
        return name in self.answering

    def suspect(self, name: str) -> None:
        self.suspected.append(name)


class World:
    def __init__(self, kube: FakeKube, brokers: FakeBrokers) -> None:
        self.time = 100.0
        self.kube = kube
        self.brokers = brokers
        self.lost = LostBrokers(
            cast("Kube", kube), "onewriter", brokers, lambda: NOW, lambda: self.time
        )


@pytest.fixture
def world() -> World:
    return World(
        FakeKube({"b-0": pod(), "b-1": pod()}), FakeBrokers({"b-0": True, "b-1": False}, ["b-0"])
    )


async def test_a_broker_that_does_not_answer_leaves_its_services(world: World) -> None:
    await world.lost.check()
    assert world.kube.writes == ["b-1"]
    assert not world.kube.is_ready("b-1")
    assert world.kube.is_ready("b-0")
    (condition,) = [
        each for each in world.kube.pods["b-1"]["status"]["conditions"] if each["type"] == "Ready"
    ]
    assert condition["reason"] == "BrokerLost"
    assert condition["lastTransitionTime"] == "2023-11-14T22:13:20Z"
    assert world.brokers.suspected == ["b-1"]


async def test_a_broker_that_answers_the_operator_stays(world: World) -> None:
    world.brokers.answering.add("b-1")
    await world.lost.check()
    assert world.kube.reads == []
    assert world.brokers.suspected == []


async def test_without_a_witness_nothing_is_done(world: World) -> None:
    world.brokers.alive.clear()
    await world.lost.check()
    assert world.kube.reads == []


async def test_the_condition_of_the_kubelet_wins_for_a_while(world: World) -> None:
    await world.lost.check()
    world.kube.pods["b-1"] = pod()
    world.time += AGAIN_SECONDS - 1
    await world.lost.check()
    assert world.kube.is_ready("b-1")
    world.time += 2
    await world.lost.check()
    assert not world.kube.is_ready("b-1")


async def test_an_owner_that_returns_and_is_lost_again_leaves_immediately(world: World) -> None:
    await world.lost.check()
    world.brokers.alive["b-1"] = True
    world.kube.pods["b-1"] = pod()
    await world.lost.check()
    world.brokers.alive["b-1"] = False
    await world.lost.check()
    assert world.kube.writes == ["b-1", "b-1"]


@pytest.mark.parametrize(
    "found", [None, pod(ready="False"), pod(deletionTimestamp="2026-01-01T00:00:00Z"), {}]
)
async def test_there_is_nothing_to_do_for_other_pods(world: World, found: Json | None) -> None:
    assert not_ready(found, NOW) == []
    if found is None:
        del world.kube.pods["b-1"]
    else:
        world.kube.pods["b-1"] = found
    await world.lost.check()
    assert world.kube.writes == []
    await world.lost.check()
    assert world.kube.reads == ["b-1"], "nor is it read each second"


@pytest.mark.parametrize("error", [ApiUnreachable("away"), ApiRefused(409, "changed")], ids=str)
async def test_a_write_that_may_succeed_now_is_repeated_at_the_next_check(
    world: World, error: Exception
) -> None:
    world.kube.error = error
    await world.lost.check()
    assert world.kube.is_ready("b-1")
    world.kube.error = None
    await world.lost.check()
    assert not world.kube.is_ready("b-1")


async def test_an_api_server_that_refuses_is_asked_again_later(world: World) -> None:
    world.kube.error = ApiRefused(403, "no right")
    await world.lost.check()
    await world.lost.check()
    assert world.kube.reads == ["b-1"]
    world.kube.error = None
    world.time += AGAIN_SECONDS
    await world.lost.check()
    assert not world.kube.is_ready("b-1")
