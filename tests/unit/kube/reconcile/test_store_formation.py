"""The steps of the operator at a store's cluster: what it asks, executes and reports."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest
from tests.unit.kube.installation_configurations import configured

from onewriter_core.cluster_views import ClusterView, Node, first_slot
from onewriter_core.errors import Unavailable
from onewriter_core.kubernetes.kinds import Kind
from onewriter_operator.kube import ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.store_shards import SPREAD_SECONDS, PodAnswer, StorePlan, StoreState
from onewriter_operator.reconcile.store_formation import (
    COMPLETE_SECONDS,
    INCOMPLETE_SECONDS,
    PLACES_SECONDS,
    STEP_SECONDS,
    StoreClusterReconciler,
)
from onewriter_operator.store_process import AccessDenied

Json = dict[str, Any]

CONFIGURATION = configured({"store": {"shards": 3, "replicas": 1}})


class Pods:
    """The processes of all pods of a complete cluster, by their pods' names.

    ``handshakes``: the number of nodes with another random id in each answer. ``confused``: pods whose names lead to the processes of other pods.
    """

    def __init__(self) -> None:
        self.passwords: list[str] = []
        self.accepted = "first"
        self.denies: set[str] = set()
        self.away: set[str] = set()
        self.refuses: set[str] = set()
        self.confused: dict[str, str] = {}
        self.closed: list[str] = []
        self.handshakes = self.introductions = 0
        self.executed: list[tuple[str, tuple[str | int, ...]]] = []
        self.follows = {f"onewriter-valkey-{shard}-1": f"id-{shard}-0" for shard in range(3)}

    def connect(self, pod: str, password: str) -> Process:
        self.passwords.append(password)
        return Process(self, pod, password)

    def answer(self, me: str) -> PodAnswer:
        nodes = []
        for shard in range(3):
            for number in range(2):
                name = f"onewriter-valkey-{shard}-{number}"
                flags = {"slave" if number else "master"} | ({"myself"} if name == me else set())
                slots = ((first_slot(shard, 3), first_slot(shard + 1, 3) - 1),)
                nodes.append(
                    Node(
                        f"id-{shard}-{number}",
                        f"{name}.host",
                        6379,
                        frozenset(flags),
                        self.follows.get(name, ""),
                        shard,
                        () if number else slots,
                        ip=f"10.0.{shard}.{number}",
                        bus_port=16379,
                    )
                )
        for number in range(self.handshakes):
            self.introductions += 1
            handshake = frozenset({"handshake"})
            nodes.append(
                Node(f"random-{self.introductions}", f"10.9.9.{number}", 6379, handshake, "", 0, ())
            )
        return PodAnswer(ClusterView(me.replace("onewriter-valkey", "id"), tuple(nodes)))


class Process:
    def __init__(self, pods: Pods, name: str, password: str) -> None:
        self._pods, self._name, self._password = pods, name, password

    async def ask(self) -> PodAnswer:
        if self._password != self._pods.accepted or self._name in self._pods.denies:
            raise AccessDenied("no")
        if self._name in self._pods.away:
            raise Unavailable("no answer")
        return self._pods.answer(self._pods.confused.get(self._name, self._name))

    async def execute(self, words: tuple[str | int, ...]) -> None:
        self._pods.executed.append((self._name, words))
        if self._name in self._pods.refuses:
            raise Unavailable("ERR refused")

    async def close(self) -> None:
        self._pods.closed.append(self._name)


class Server:
    """The API server: the Secret, and on which nodes the pods run."""

    def __init__(self) -> None:
        self.password = "first"  # noqa: S105 - of this test alone
        self.listed = 0
        self.refuses_lists = False
        self.place: dict[str, str] = {}

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        assert (namespace, name) == ("system", "onewriter-valkey-cluster")
        if not self.password:
            return None
        return {"data": {"password": base64.b64encode(self.password.encode()).decode()}}

    async def list(self, kind: Kind, namespace: str, labels: str) -> list[Json]:
        assert "app.kubernetes.io/component=valkey" in labels
        self.listed += 1
        if self.refuses_lists:
            raise ApiUnreachable("no answer")
        return [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"onewriter-valkey-{shard}-{number}", "namespace": namespace},
                "spec": {
                    "nodeName": self.place.get(
                        f"onewriter-valkey-{shard}-{number}", "abc"[(shard + number) % 3]
                    )
                },
            }
            for shard in range(3)
            for number in range(2)
        ]


class World:
    def __init__(self) -> None:
        self.pods, self.server, self.metrics = Pods(), Server(), Metrics()
        self.plans: list[StorePlan] = []
        self.now = 0.0
        self.operator = StoreClusterReconciler(
            cast("Kube", self.server),
            CONFIGURATION,
            self.metrics,
            self.plans.append,
            self.pods.connect,
            lambda: self.now,
        )


@pytest.fixture
def world() -> World:
    return World()


async def test_a_complete_cluster_gets_no_command(world: World) -> None:
    assert await world.operator.step() == COMPLETE_SECONDS
    assert world.plans[-1].state is StoreState.COMPLETE
    assert world.pods.executed == []
    assert b'onewriter_store_cluster_state{state="Complete"} 1.0' in world.metrics.render()
    assert b'onewriter_store_cluster_state{state="Stuck"} 0.0' in world.metrics.render()


async def test_a_command_that_is_refused_is_planned_again_from_new_answers(world: World) -> None:
    del world.pods.follows["onewriter-valkey-1-1"]
    world.pods.refuses.add("onewriter-valkey-1-1")
    for _ in range(2):
        assert await world.operator.step() == STEP_SECONDS
    assert world.pods.executed == [("onewriter-valkey-1-1", ("CLUSTER", "REPLICATE", "id-1-0"))] * 2
    assert b"commands_total{" not in world.metrics.render()
    world.pods.refuses.clear()
    await world.operator.step()
    assert (
        b'onewriter_store_cluster_commands_total{command="REPLICATE"} 1.0' in world.metrics.render()
    )


async def test_a_pod_that_does_not_answer_is_reported(world: World) -> None:
    world.pods.away.add("onewriter-valkey-2-1")
    assert await world.operator.step() == INCOMPLETE_SECONDS
    assert (
        world.plans[-1].message
        == "shard 2 has no replica in sync (onewriter-valkey-2-1 does not answer)"
    )


async def test_a_process_of_another_pod_gets_no_command_and_is_not_kept_connected(
    world: World,
) -> None:
    """Two pods of different shards have exchanged their addresses, and the name server has the former ones."""
    first, second = "onewriter-valkey-0-1", "onewriter-valkey-1-1"
    world.pods.confused = {first: second, second: first}
    assert await world.operator.step() == INCOMPLETE_SECONDS
    assert world.pods.executed == []
    assert world.plans[-1].state is StoreState.DEGRADED
    assert f"({first} does not answer)" in world.plans[-1].message
    assert sorted(world.pods.closed) == [first, second]
    world.pods.confused.clear()
    assert await world.operator.step() == COMPLETE_SECONDS


async def test_without_the_secret_nothing_is_asked(world: World) -> None:
    world.server.password = ""
    assert await world.operator.step() == INCOMPLETE_SECONDS
    assert (world.plans[-1].state, world.pods.passwords) == (StoreState.UNKNOWN, [])
    assert world.plans[-1].message == "no pod of the store answers"
    world.server.password = "first"  # noqa: S105 - of this test alone
    assert await world.operator.step() == COMPLETE_SECONDS


async def test_the_reason_is_reported_if_no_pod_answers(world: World) -> None:
    world.pods.away |= {
        f"onewriter-valkey-{shard}-{number}" for shard in range(3) for number in range(2)
    }
    await world.operator.step()
    assert world.plans[-1].message == "no pod of the store answers: no answer"
    world.pods.away.remove("onewriter-valkey-0-0")
    await world.operator.step()
    assert "no answer" not in world.plans[-1].message


async def test_newlines_at_the_end_of_the_password_do_not_count(world: World) -> None:
    """The start script of the pods reads the password without them."""
    world.server.password = "first\n\n"  # noqa: S105 - of this test alone
    assert await world.operator.step() == COMPLETE_SECONDS
    assert set(world.pods.passwords) == {"first"}


async def test_a_changed_password_is_read_again(world: World) -> None:
    await world.operator.step()
    world.server.password = world.pods.accepted = "second"  # noqa: S105 - of this test alone
    assert await world.operator.step() == INCOMPLETE_SECONDS
    assert await world.operator.step() == COMPLETE_SECONDS
    assert set(world.pods.passwords) == {"first", "second"}


async def test_the_nodes_of_the_pods_are_read_again_after_a_change_and_now_and_then(
    world: World,
) -> None:
    for _ in range(3):
        await world.operator.step()
    assert world.server.listed == 1
    world.pods.away.add("onewriter-valkey-2-1")
    await world.operator.step()
    assert world.server.listed == 2
    world.now += PLACES_SECONDS
    await world.operator.step()
    assert world.server.listed == 3


async def test_a_pod_that_denies_access_stops_no_repair_of_others(world: World) -> None:
    del world.pods.follows["onewriter-valkey-1-1"]
    world.pods.denies.add("onewriter-valkey-2-1")
    for step in range(1, 3):
        assert await world.operator.step() == STEP_SECONDS
        command = ("onewriter-valkey-1-1", ("CLUSTER", "REPLICATE", "id-1-0"))
        assert world.pods.executed == [command] * step
    assert len(world.pods.passwords) == 6, "the other pods stay connected"


async def test_a_pod_that_learns_a_changed_password_later_is_asked_again(world: World) -> None:
    await world.operator.step()
    world.pods.denies.add("onewriter-valkey-2-1")
    world.server.password = world.pods.accepted = "second"  # noqa: S105 - of this test alone
    assert await world.operator.step() == INCOMPLETE_SECONDS
    assert await world.operator.step() == INCOMPLETE_SECONDS
    assert "onewriter-valkey-2-1 does not answer" in world.plans[-1].message
    world.pods.denies.clear()
    assert await world.operator.step() == COMPLETE_SECONDS


async def test_a_primary_is_not_asked_again_to_hand_over_before_it_had_the_time(
    world: World,
) -> None:
    world.server.place = {"onewriter-valkey-1-0": "a"}  # beside the primary of shard 0
    failover = ("onewriter-valkey-0-1", ("CLUSTER", "FAILOVER"))
    await world.operator.step()
    world.now += SPREAD_SECONDS
    for _ in range(3):
        await world.operator.step()
        world.now += STEP_SECONDS
    assert world.pods.executed == [failover]
    world.now += SPREAD_SECONDS
    await world.operator.step()
    assert world.pods.executed == [failover] * 2


async def test_introductions_in_vain_are_no_change_of_the_cluster(world: World) -> None:
    world.pods.handshakes = 1
    world.server.place = {"onewriter-valkey-1-0": "a"}
    await world.operator.step()
    world.now += SPREAD_SECONDS
    await world.operator.step()
    assert world.pods.executed == [("onewriter-valkey-0-1", ("CLUSTER", "FAILOVER"))]


async def test_without_the_nodes_of_the_pods_the_cluster_is_repaired_all_the_same(
    world: World,
) -> None:
    del world.pods.follows["onewriter-valkey-1-1"]
    world.server.refuses_lists = True
    await world.operator.step()
    assert world.pods.executed == [("onewriter-valkey-1-1", ("CLUSTER", "REPLICATE", "id-1-0"))]
