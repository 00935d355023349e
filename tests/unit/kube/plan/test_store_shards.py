"""The plan of the store's cluster: forming, repair, refusals and placement."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from onewriter_core.cluster_views import ClusterView, Node, first_slot
from onewriter_operator.plan.store_shards import (
    FORCE_SECONDS,
    SPREAD_SECONDS,
    TAKEOVER_SECONDS,
    Command,
    Layout,
    PodAnswer,
    StorePlan,
    StorePod,
    StoreState,
    next_move,
    plan_store,
)

SHARDS = 3


def range_of(shard: int, shards: int = SHARDS) -> tuple[int, int]:
    return first_slot(shard, shards), first_slot(shard + 1, shards) - 1


@dataclass
class Process:
    """A store process: what it says about itself."""

    node_id: str
    ip: str
    slots: tuple[tuple[int, int], ...] = ()
    follows: str = ""
    epoch: int = 0
    keys: int = 0
    offset: int = 0
    is_in_sync: bool = True
    is_serving: bool = True
    answers: bool = True
    host: str = ""


@dataclass
class World:
    """Pods of three shards. By default they form a complete cluster, in which all know each other.

    ``flags``: what the others say about a node id. ``stale_ips``: former addresses that the others know.
    ``ignorant``: pods that know no other node, and that no other one knows.
    """

    replicas: int = 1
    shards: int = SHARDS
    unchanged_seconds: float = 1_000.0
    processes: dict[str, Process] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    former: list[Process] = field(default_factory=list)
    flags: dict[str, set[str]] = field(default_factory=dict)
    stale_ips: dict[str, str] = field(default_factory=dict)
    ignorant: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for shard, number in itertools.product(range(self.shards), range(1 + self.replicas)):
            name = f"store-{shard}-{number}"
            self.processes[name] = Process(
                f"id-{shard}-{number}",
                f"10.0.{shard}.{number}",
                slots=(range_of(shard, self.shards),) if number == 0 else (),
                follows=f"id-{shard}-0" if number else "",
                epoch=shard + 1,
                keys=10,
            )
            self.nodes[name] = "abcdefgh"[(shard + number) % max(3, self.shards)]

    def view_of(self, name: str) -> ClusterView:
        me = self.processes[name]
        others = [p for n, p in self.processes.items() if n != name] + self.former
        known = (
            []
            if name in self.ignorant
            else [self._node(p) for p in others if p.node_id not in self._unknown]
        )
        own = dataclasses.replace(
            self._node(me), flags=frozenset({"myself", *self._role(me)}), ip=me.ip
        )
        return ClusterView(me.node_id, (own, *known))

    @property
    def _unknown(self) -> set[str]:
        return {self.processes[name].node_id for name in self.ignorant}

    def _node(self, process: Process) -> Node:
        flags = frozenset({*self._role(process), *self.flags.get(process.node_id, ())})
        return Node(
            process.node_id,
            process.host or process.ip,
            6379,
            flags,
            process.follows,
            process.epoch,
            process.slots,
            ip=self.stale_ips.get(process.node_id, process.ip),
            bus_port=16379,
            is_linked=not flags & {"fail", "fail?"},
        )

    @staticmethod
    def _role(process: Process) -> set[str]:
        return {"slave" if process.follows else "master"}

    def pods(self) -> list[StorePod]:
        found = []
        for name, process in self.processes.items():
            shard = int(name.split("-")[1])
            answer = None
            if process.answers:
                answer = PodAnswer(
                    self.view_of(name),
                    process.keys,
                    process.is_in_sync,
                    process.offset,
                    is_serving=process.is_serving,
                )
            found.append(StorePod(name, shard, self.nodes.get(name, ""), answer))
        return found

    def plan(self) -> StorePlan:
        return plan_store(self.pods(), Layout(self.shards, self.replicas), self.unchanged_seconds)

    # ------------------------------------------------------------ what happens to it

    def is_fresh(self) -> World:
        """No process knows another one or has anything."""
        for process in self.processes.values():
            process.slots, process.follows, process.keys, process.epoch = (), "", 0, 0
        self.ignorant = set(self.processes)
        return self

    def empty(self, name: str) -> Process:
        """The volume of a pod was lost: the process has a new id and knows nothing. Returns the former process."""
        former = self.processes[name]
        self.former.append(former)
        self.processes[name] = Process(f"new-{name}", former.ip)
        self.ignorant.add(name)
        return former

    def promote(self, name: str, instead_of: Process) -> None:
        process = self.processes[name]
        process.slots, process.follows, process.epoch = instead_of.slots, "", 9
        instead_of.slots = ()
        for other in self.processes.values():
            if other.follows == instead_of.node_id:
                other.follows = process.node_id


def words(plan: StorePlan) -> list[str]:
    return [str(command) for command in plan.commands]


# ------------------------------------------------------------ forming


def test_a_complete_cluster_needs_nothing() -> None:
    plan = World().plan()
    assert plan == StorePlan(StoreState.COMPLETE, "3 shards have a primary and 1 replica each")


def test_without_an_answer_nothing_is_known() -> None:
    world = World()
    for process in world.processes.values():
        process.answers = False
    assert world.plan() == StorePlan(StoreState.UNKNOWN, "no pod of the store answers")


def test_hash_slots_are_given_to_one_empty_pod_of_each_shard_on_different_nodes() -> None:
    world = World().is_fresh()
    world.nodes["store-1-0"], world.nodes["store-1-1"] = "a", "b"
    plan = world.plan()
    assert plan.state is StoreState.FORMING
    assert words(plan) == [
        "CLUSTER ADDSLOTSRANGE 0 5460 at store-0-0",
        "CLUSTER ADDSLOTSRANGE 5461 10921 at store-1-1",
        "CLUSTER ADDSLOTSRANGE 10922 16383 at store-2-0",
    ]


def test_hash_slots_are_given_only_if_every_pod_answers() -> None:
    world = World().is_fresh()
    world.processes["store-2-1"].answers = False
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.FORMING, ())
    assert "store-2-1" in plan.message


def test_a_formation_that_was_interrupted_continues() -> None:
    world = World().is_fresh()
    world.processes["store-1-0"].slots = (range_of(1),)
    world.processes["store-1-0"].keys = 3  # a broker may have found it already
    assert words(world.plan()) == [
        "CLUSTER ADDSLOTSRANGE 0 5460 at store-0-0",
        "CLUSTER ADDSLOTSRANGE 10922 16383 at store-2-0",
    ]


def test_new_nodes_are_introduced_and_then_get_their_primaries() -> None:
    world = World().is_fresh()
    for shard in range(SHARDS):
        world.processes[f"store-{shard}-0"].slots = (range_of(shard),)
    plan = world.plan()
    assert plan.state is StoreState.FORMING
    assert words(plan) == [
        f"CLUSTER MEET 10.0.{shard}.{number} 6379 16379 at store-2-0"
        for shard, number in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 1))
    ]
    world.ignorant.clear()
    plan = world.plan()
    assert plan.state is StoreState.FORMING
    assert words(plan) == [
        f"CLUSTER REPLICATE id-{shard}-0 at store-{shard}-1" for shard in range(SHARDS)
    ]


@pytest.mark.parametrize("keys_at", ["store-0-0", "store-2-1"])
def test_pods_with_data_and_without_hash_slots_are_not_formed_to_a_new_cluster(
    keys_at: str,
) -> None:
    world = World().is_fresh()
    world.processes[keys_at].keys = 1
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert keys_at in plan.message


def test_the_volume_of_a_single_process_in_a_new_cluster_is_named() -> None:
    """Without a nodes.conf a process takes the hash slots of its keys."""
    world = World().is_fresh()
    stranger = world.processes["store-1-0"]
    stranger.keys, stranger.slots = 2, ((6000, 6000), (12000, 12000))
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert plan.message.startswith("the pods store-1-0 have data")
    assert "ADDSLOTS" not in plan.message


def test_a_part_of_a_range_is_never_filled() -> None:
    world = World()
    world.processes["store-0-0"].slots = ((0, 5000),)
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert "460 of the hash slots 0 to 5460" in plan.message


# ------------------------------------------------------------ restarts


def test_a_pod_that_restarts_with_another_address_is_introduced_again() -> None:
    world = World()
    world.stale_ips[world.processes["store-0-1"].node_id] = "10.9.9.9"
    plan = world.plan()
    assert plan.state is StoreState.DEGRADED
    assert {(each.pod, *each.words[:2]) for each in plan.commands} == {
        ("store-0-1", "CLUSTER", "MEET")
    }
    assert {each.words[2] for each in plan.commands} == {
        process.ip for name, process in world.processes.items() if name != "store-0-1"
    }


def test_pods_that_all_restarted_with_other_addresses_are_introduced_again() -> None:
    world = World()
    for name, process in world.processes.items():
        world.stale_ips[process.node_id] = f"10.9.{name[-3]}.{name[-1]}"
        world.flags[process.node_id] = {"fail?"}
    plan = world.plan()
    assert plan.state is StoreState.DEGRADED
    assert {each.words[1] for each in plan.commands} == {"MEET"}
    assert len({each.words[2] for each in plan.commands}) == 5
    world.stale_ips.clear()
    world.flags.clear()
    assert world.plan().state is StoreState.COMPLETE


def test_nothing_is_done_while_the_replicas_vote() -> None:
    world = World(unchanged_seconds=0.0)
    world.processes["store-0-0"].answers = False
    world.flags["id-0-0"] = {"fail?"}
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "shard 0 has no primary: its replicas vote"


def test_a_shard_whose_pods_are_all_away_is_waited_for() -> None:
    world = World()
    for name in ("store-0-0", "store-0-1"):
        world.processes[name].answers = False
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "shard 0 has no primary, and its pods store-0-0, store-0-1 do not answer"


def test_a_replica_that_is_away_is_named() -> None:
    world = World()
    world.processes["store-1-1"].answers = False
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "shard 1 has no replica in sync (store-1-1 does not answer)"


def test_a_replica_that_copies_is_not_in_sync() -> None:
    world = World(replicas=2)
    world.processes["store-1-2"].is_in_sync = False
    plan = world.plan()
    assert (plan.state, plan.message) == (
        StoreState.DEGRADED,
        "shard 1 has 1 of 2 replicas in sync",
    )


def test_a_pod_that_counts_the_cluster_as_down_is_named() -> None:
    world = World()
    world.processes["store-1-0"].is_serving = False
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "store-1-0 counts the cluster as down (cluster_state)"


def test_nodes_that_do_not_reach_each_other_are_named() -> None:
    world = World()
    world.flags["id-1-1"] = {"fail?"}
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert "store-0-0 does not reach store-1-1 on port 16379" in plan.message


def test_a_pod_that_cannot_be_introduced_stops_no_repair_of_others() -> None:
    world = World(replicas=2)
    world.ignorant.add("store-0-1")
    world.processes["store-0-1"].follows, world.processes["store-0-1"].keys = "", 0
    world.flags[world.empty("store-1-0").node_id] = {"fail"}
    world.ignorant.remove("store-1-0")
    world.processes["store-2-2"].follows, world.processes["store-2-2"].keys = "", 0
    world.unchanged_seconds = FORCE_SECONDS - 1
    assert {each.words[1] for each in world.plan().commands} == {"MEET"}
    world.unchanged_seconds = FORCE_SECONDS
    plan = world.plan()
    assert plan.state is StoreState.DEGRADED
    assert "in vain: do they reach each other on port 16379? shard 1 has no primary" in plan.message
    assert {each.words[1] for each in plan.commands} == {"MEET", "FAILOVER", "REPLICATE"}
    assert "CLUSTER FAILOVER FORCE at store-1-2" in words(plan)
    assert "CLUSTER REPLICATE id-2-0 at store-2-2" in words(plan)


def test_no_primary_is_moved_while_a_pod_cannot_be_introduced() -> None:
    world = World()
    former = world.processes["store-1-0"]
    world.promote("store-1-1", former)
    former.follows = "id-1-1"
    world.stale_ips["id-0-1"] = "10.9.9.9"
    plan = world.plan()
    assert plan.state is StoreState.DEGRADED
    assert {each.words[1] for each in plan.commands} == {"MEET"}
    assert plan.message.endswith("in vain: do they reach each other on port 16379?")


# ------------------------------------------------------------ lost volumes


def test_a_pod_whose_volume_was_lost_becomes_a_replica_and_its_former_id_is_forgotten() -> None:
    world = World()
    world.unchanged_seconds = 0.0
    former = world.empty("store-0-0")

    def step() -> StorePlan:
        plan = world.plan()
        assert not [each for each in plan.commands if each.words[1].startswith("ADDSLOTS")]  # type: ignore[union-attr]
        return plan

    assert {each.words[1] for each in step().commands} == {"MEET"}
    world.ignorant.clear()
    world.flags[former.node_id] = {"fail?"}
    assert (step().state, step().commands) == (StoreState.DEGRADED, ())
    world.flags[former.node_id] = {"fail"}
    world.promote("store-0-1", former)
    assert words(step()) == ["CLUSTER REPLICATE id-0-1 at store-0-0"]
    world.processes["store-0-0"].follows = "id-0-1"
    world.processes["store-0-0"].is_in_sync = False
    plan = step()
    assert plan.message == "shard 0 has no replica in sync"
    assert words(plan) == [f"CLUSTER FORGET id-0-0 at {name}" for name in world.processes]
    world.former.clear()
    world.processes["store-0-0"].is_in_sync = True
    world.unchanged_seconds = SPREAD_SECONDS
    assert words(step()) == ["CLUSTER FAILOVER at store-0-0"]


def test_an_id_is_forgotten_only_if_every_pod_has_answered_with_another_one() -> None:
    world = World()
    former = world.empty("store-0-1")
    world.ignorant.clear()
    world.processes["store-0-1"].follows = "id-0-0"
    world.flags[former.node_id] = {"fail"}
    world.processes["store-2-1"].answers = False
    assert world.plan().commands == ()
    world.processes["store-2-1"].answers = True
    assert {each.words for each in world.plan().commands} == {("CLUSTER", "FORGET", "id-0-1")}


def test_a_shard_that_lost_all_volumes_is_never_replaced_by_an_empty_one() -> None:
    world = World()
    for name in ("store-0-0", "store-0-1"):
        world.flags[world.empty(name).node_id] = {"fail"}
    assert {each.words[1] for each in world.plan().commands} == {"MEET"}
    world.ignorant.clear()
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert plan.message.startswith("no pod of shard 0 has its data any more")


def test_a_replica_that_restarted_when_its_primary_was_lost_is_asked_to_take_over() -> None:
    world = World(replicas=2)
    former = world.empty("store-0-0")
    world.ignorant.clear()
    world.flags[former.node_id] = {"fail"}
    world.processes["store-0-1"].keys = 0  # it had not copied its primary
    world.unchanged_seconds = FORCE_SECONDS - 1
    assert world.plan().commands == ()
    world.unchanged_seconds = FORCE_SECONDS
    assert words(world.plan()) == ["CLUSTER FAILOVER FORCE at store-0-2"]


def test_a_replica_takes_over_without_votes_if_nobody_was_elected_for_long() -> None:
    """Two of three primaries are lost: no majority can vote."""
    world = World()
    for name in ("store-0-0", "store-1-0"):
        world.flags[world.empty(name).node_id] = {"fail"}
    world.ignorant.clear()
    world.unchanged_seconds = TAKEOVER_SECONDS - 1
    (command,) = (each for each in world.plan().commands if "FAILOVER" in each.words)
    assert command == Command("store-0-1", ("CLUSTER", "FAILOVER", "FORCE"))
    world.unchanged_seconds = TAKEOVER_SECONDS
    (command,) = (each for each in world.plan().commands if "FAILOVER" in each.words)
    assert command == Command("store-0-1", ("CLUSTER", "FAILOVER", "TAKEOVER"))


def test_no_replica_takes_over_without_votes_while_any_pod_does_not_answer() -> None:
    world = World()
    for name in ("store-0-0", "store-1-0"):
        world.flags[world.empty(name).node_id] = {"fail"}
    world.ignorant.clear()
    world.processes["store-2-1"].answers = False
    world.unchanged_seconds = 10 * TAKEOVER_SECONDS
    plan = world.plan()
    assert words(plan) == ["CLUSTER FAILOVER FORCE at store-0-1"]
    assert plan.message.endswith(
        "; no majority of the primaries can vote while store-2-1 does not answer"
    )


def test_no_replica_is_asked_to_take_over_while_a_pod_may_have_the_data() -> None:
    world = World()
    world.processes["store-0-0"].answers = False
    world.flags["id-0-0"] = {"fail"}
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert "store-0-0 does not answer, and may have newer data" in plan.message
    world.unchanged_seconds = FORCE_SECONDS - 1
    assert world.plan().message == "shard 0 has no primary: its replicas vote"


def test_a_silent_pod_of_another_shard_stops_no_takeover() -> None:
    world = World()
    former = world.empty("store-0-0")
    world.ignorant.clear()
    world.flags[former.node_id] = {"fail"}
    world.processes["store-2-1"].answers = False
    assert words(world.plan()) == ["CLUSTER FAILOVER FORCE at store-0-1"]


def test_a_shard_without_a_primary_stops_no_repair_of_other_shards() -> None:
    world = World()
    for name in ("store-0-0", "store-0-1", "store-1-1"):
        world.flags[world.empty(name).node_id] = {"fail"}
    world.ignorant.clear()
    plan = world.plan()
    assert plan.state is StoreState.STUCK
    assert plan.message.startswith("no pod of shard 0 has its data any more")
    assert words(plan) == ["CLUSTER REPLICATE id-1-0 at store-1-1"]


# ------------------------------------------------------------ a node that never returns


def test_a_node_that_never_returns_leaves_its_shards_without_replicas_until_its_pods_run_elsewhere() -> (
    None
):
    world = World()
    lost = [name for name, node in world.nodes.items() if node == "a"]
    assert lost == ["store-0-0", "store-2-1"]
    for name in lost:
        world.processes[name].answers = False
        world.flags[world.processes[name].node_id] = {"fail"}
    world.promote("store-0-1", world.processes["store-0-0"])
    world.processes["store-0-0"].follows = ""
    for _ in range(3):
        plan = world.plan()
        assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
        assert plan.message == (
            "shard 0 has no replica in sync (store-0-0 does not answer); shard 2 has no replica in sync (store-2-1 does"
            " not answer)"
        )
    # Its volume claims are deleted, and its pods start with empty volumes on another node.
    for name in lost:
        world.empty(name)
        world.nodes[name] = "d"
    world.unchanged_seconds = 0.0
    assert {each.words[1] for each in world.plan().commands} == {"MEET"}
    world.ignorant.clear()
    world.unchanged_seconds = 1_000.0
    assert words(world.plan()) == [
        "CLUSTER REPLICATE id-0-1 at store-0-0",
        "CLUSTER REPLICATE id-2-0 at store-2-1",
    ]
    world.processes["store-0-0"].follows = "id-0-1"
    world.processes["store-2-1"].follows = "id-2-0"
    plan = world.plan()
    assert {each.words for each in plan.commands} == {
        ("CLUSTER", "FORGET", "id-0-0"),
        ("CLUSTER", "FORGET", "id-2-1"),
    }
    world.former.clear()
    plan = world.plan()
    assert words(plan) == ["CLUSTER FAILOVER at store-0-0"], "the primaries are spread again"


def test_without_a_node_for_its_pods_only_the_missing_replica_is_reported() -> None:
    """A pod that cannot be scheduled answers nothing, and has no node."""
    world = World()
    world.processes["store-0-1"].answers = False
    world.flags["id-0-1"] = {"fail"}
    del world.nodes["store-0-1"]
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "shard 0 has no replica in sync (store-0-1 does not answer)"


# ------------------------------------------------------------ two replicas


def test_two_replicas_have_a_node_each() -> None:
    world = World(replicas=2)
    assert world.plan() == StorePlan(
        StoreState.COMPLETE, "3 shards have a primary and 2 replicas each"
    )
    world.nodes["store-1-2"] = world.nodes["store-1-1"]
    plan = world.plan()
    assert plan.state is StoreState.MISPLACED
    assert plan.message.startswith("2 pods of shard 1 are on node c")


def test_a_lost_replica_of_two_is_reported_although_the_shard_is_replicated() -> None:
    world = World(replicas=2)
    world.processes["store-0-1"].answers = False
    world.flags["id-0-1"] = {"fail"}
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "shard 0 has 1 of 2 replicas in sync (store-0-1 does not answer)"


def test_the_other_replica_follows_the_promoted_one() -> None:
    world = World(replicas=2)
    former = world.empty("store-0-0")
    world.ignorant.clear()
    world.flags[former.node_id] = {"fail"}
    world.promote("store-0-1", former)
    world.processes["store-0-2"].follows = former.node_id
    assert words(world.plan()) == [
        "CLUSTER REPLICATE id-0-1 at store-0-0",
        "CLUSTER REPLICATE id-0-1 at store-0-2",
    ]


@pytest.mark.parametrize("newest", ["store-0-1", "store-0-2"])
def test_the_replica_with_the_newest_data_is_asked_to_take_over(newest: str) -> None:
    world = World(replicas=2)
    world.unchanged_seconds = FORCE_SECONDS
    former = world.empty("store-0-0")
    world.ignorant.clear()
    world.flags[former.node_id] = {"fail"}
    world.processes[newest].offset = 1
    assert words(world.plan()) == [f"CLUSTER FAILOVER FORCE at {newest}"]


def test_no_replica_is_asked_to_take_over_while_another_one_may_be_newer() -> None:
    world = World(replicas=2)
    former = world.empty("store-0-0")
    world.ignorant.clear()
    world.flags[former.node_id] = {"fail"}
    world.processes["store-0-2"].answers = False
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert "store-0-2 does not answer, and may have newer data" in plan.message


@pytest.mark.parametrize("shards", [3, 5])
def test_a_replica_that_is_added_joins_its_shard(shards: int) -> None:
    world = World(replicas=2, shards=shards)
    for shard in range(shards):
        name = f"store-{shard}-2"
        world.processes[name] = Process(f"new-{name}", f"10.0.{shard}.2")
        world.ignorant.add(name)
    assert {each.words[1] for each in world.plan().commands} == {"MEET"}
    world.ignorant.clear()
    assert words(world.plan()) == [
        f"CLUSTER REPLICATE id-{shard}-0 at store-{shard}-2" for shard in range(shards)
    ]


def test_a_replica_that_is_removed_is_forgotten() -> None:
    world = World(replicas=2)
    for shard in range(SHARDS):
        gone = world.processes.pop(f"store-{shard}-2")
        world.former.append(gone)
        world.flags[gone.node_id] = {"fail"}
    world.replicas = 1
    plan = world.plan()
    assert plan.state is StoreState.COMPLETE
    assert {each.words for each in plan.commands} == {
        ("CLUSTER", "FORGET", f"id-{shard}-2") for shard in range(SHARDS)
    }


def without_second_replicas() -> World:
    """A cluster whose second replicas run, although the layout has one replica."""
    world = World(replicas=2)
    for shard in range(SHARDS):
        gone = world.processes.pop(f"store-{shard}-2")
        gone.host = f"store-{shard}-2.store.onewriter.svc"
        world.former.append(gone)
    world.replicas = 1
    return world


def test_a_replica_that_is_removed_is_waited_for_while_it_runs() -> None:
    plan = without_second_replicas().plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "waits until store-0-2 stops, which is not a pod of the layout any more"


def test_a_living_primary_that_is_removed_hands_over_and_is_never_replaced_by_force() -> None:
    world = without_second_replicas()
    first, second = world.processes["store-2-0"], world.processes["store-2-1"]
    leaving = world.former[2]
    leaving.slots, leaving.follows, leaving.epoch = first.slots, "", 9
    first.slots, first.follows, second.follows = (), leaving.node_id, leaving.node_id
    first.is_in_sync, first.offset = False, 10
    world.unchanged_seconds = FORCE_SECONDS - 1
    served = "shard 2 is served by store-2-2, which is not a pod of the layout any more"
    assert world.plan() == StorePlan(
        StoreState.DEGRADED, f"{served}: store-2-1 takes over from it", ()
    )
    world.unchanged_seconds = 10 * FORCE_SECONDS
    assert words(world.plan()) == ["CLUSTER FAILOVER at store-2-1"]
    second.is_in_sync = False
    plan = world.plan()
    assert (plan.commands, plan.message) == ((), f"{served}: no replica is in sync with it")
    world.flags[leaving.node_id] = {"fail"}  # it stopped at once
    assert words(world.plan()) == ["CLUSTER FAILOVER FORCE at store-2-0"]


def test_a_living_primary_that_only_the_operator_does_not_reach_keeps_its_shard() -> None:
    world = World()
    world.processes["store-2-0"].host = "store-2-0.store.onewriter.svc"
    world.processes["store-2-0"].answers = False
    assert world.plan().commands == ()


def test_a_pod_with_data_outside_of_a_shard_is_not_emptied() -> None:
    world = World()
    world.processes["store-0-1"].follows = ""
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert plan.message.startswith("store-0-1 has data, but belongs to no shard")
    world.processes["store-1-1"].follows, world.processes["store-1-1"].keys = "", 0
    plan = world.plan()
    assert (plan.state, words(plan)) == (
        StoreState.STUCK,
        ["CLUSTER REPLICATE id-1-0 at store-1-1"],
    )


@pytest.mark.parametrize(
    ("epoch", "advice"),
    [(8, "delete the pod (its claim may stay)"), (9, "delete its volume claim")],
)
def test_a_former_primary_that_knows_its_successor_keeps_its_claim(epoch: int, advice: str) -> None:
    world = World()
    former = world.processes["store-0-0"]
    world.promote("store-0-1", former)  # in epoch 9
    former.epoch = epoch
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert advice in plan.message


def test_a_replica_of_another_shard_follows_its_own() -> None:
    world = World()
    world.processes["store-0-1"].follows = "id-1-0"
    assert words(world.plan()) == ["CLUSTER REPLICATE id-0-0 at store-0-1"]


# ------------------------------------------------------------ what does not belong


def test_a_node_of_others_is_reported() -> None:
    world = World()
    world.former.append(Process("foreign", "10.7.7.7"))
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert "foreign at 10.7.7.7:6379 does not belong to this store" in plan.message


def test_hash_slots_at_a_node_of_others_are_reported() -> None:
    world = World()
    world.former.append(Process("foreign", "10.7.7.7", slots=(range_of(0),), epoch=99))
    world.processes["store-0-0"].slots = ()
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert plan.message == "shard 0 is served by 10.7.7.7:6379, which does not belong to this store"


def test_a_node_that_was_lost_just_now_is_not_taken_for_one_of_others() -> None:
    world = World()
    world.unchanged_seconds = FORCE_SECONDS - 1
    world.empty("store-0-0")
    world.empty("store-0-1")
    world.ignorant.clear()
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.DEGRADED, ())
    assert plan.message == "shard 0 was served by 10.0.0.0:6379: no pod is this node now"
    world = World()
    world.unchanged_seconds = FORCE_SECONDS - 1
    world.empty("store-0-1")
    world.ignorant.clear()
    world.processes["store-0-1"].follows = "id-0-0"
    assert world.plan().state is StoreState.COMPLETE


def test_a_volume_that_was_restored_from_a_copy_of_a_replica_gets_its_shard_again() -> None:
    world = World()
    world.unchanged_seconds = FORCE_SECONDS
    lost = [world.empty(name) for name in ("store-0-0", "store-0-1")]
    world.ignorant.clear()
    for former in lost:
        world.flags[former.node_id] = {"fail"}
    assert world.plan().state is StoreState.STUCK
    world.processes["store-0-1"] = lost[1]
    world.former.remove(lost[1])
    del world.flags[lost[1].node_id]
    assert words(world.plan()) == ["CLUSTER FAILOVER FORCE at store-0-1"]
    world.promote("store-0-1", lost[0])
    assert words(world.plan()) == ["CLUSTER REPLICATE id-0-1 at store-0-0"]


def test_a_volume_of_another_cluster_is_not_merged() -> None:
    world = World()
    world.ignorant.add("store-1-1")
    stranger = world.processes["store-1-1"]
    stranger.slots, stranger.follows, stranger.keys = (range_of(2),), "", 5
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert plan.message.startswith("store-1-1 serves hash slots that other pods serve")
    assert plan.message.endswith("Delete its volume claim and the pod")


def test_a_volume_that_may_be_the_only_copy_is_not_to_be_deleted() -> None:
    world = World()
    world.flags[world.empty("store-1-0").node_id] = {"fail"}
    world.ignorant.clear()
    world.ignorant.add("store-1-1")
    process = world.processes["store-1-1"]  # with its data, and without its nodes.conf
    process.slots, process.follows, process.epoch = ((6000, 6000), (7000, 7000)), "", 0
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert plan.message.startswith("store-1-1 serves hash slots that other pods serve")
    assert "restore the volume with its nodes.conf" in plan.message
    assert "Delete" not in plan.message


def test_copied_volumes_are_reported() -> None:
    world = World()
    world.processes["store-1-1"].node_id = "id-0-1"
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert "store-0-1, store-1-1 have the same node id" in plan.message


def test_another_number_of_shards_is_refused() -> None:
    world = World()
    wider = World(shards=5).is_fresh()
    for number in (0, 1):
        for shard in (3, 4):
            name = f"store-{shard}-{number}"
            world.processes[name] = wider.processes[name]
            world.nodes[name] = "a"
    world.shards = 5
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.STUCK, ())
    assert plan.message.startswith("the cluster has 3 shards, and store.shards is 5")


# ------------------------------------------------------------ placement


def test_a_primary_with_its_replica_on_one_node_is_misplaced() -> None:
    world = World()
    world.nodes["store-1-1"] = world.nodes["store-1-0"]
    plan = world.plan()
    assert plan.state is StoreState.MISPLACED
    assert plan.message.startswith(
        "2 pods of shard 1 are on node b: its loss would stop the shard. Use at least three nodes"
    )


def test_primaries_are_spread_again_when_the_cluster_has_been_complete_for_a_while() -> None:
    world = World()
    former = world.processes["store-1-0"]
    world.promote("store-1-1", former)
    former.follows = "id-1-1"
    world.unchanged_seconds = SPREAD_SECONDS - 1
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.MISPLACED, ())
    assert plan.message.startswith("node c has 2 of 3 primaries")
    assert plan.message.endswith(
        "; shard 1 gets its primary on node b, so that primaries are on different nodes"
    )
    world.unchanged_seconds = SPREAD_SECONDS
    assert world.plan().commands == (Command("store-1-0", ("CLUSTER", "FAILOVER")),)


def test_no_primary_is_moved_while_something_is_missing() -> None:
    world = World()
    former = world.processes["store-1-0"]
    world.promote("store-1-1", former)
    former.follows = "id-1-1"
    world.processes["store-2-1"].is_in_sync = False
    assert (world.plan().state, world.plan().commands) == (StoreState.DEGRADED, ())


def test_two_nodes_are_too_few() -> None:
    world = World()
    world.nodes = {name: "ab"[int(name[-1])] for name in world.processes}
    world.nodes["store-2-0"], world.nodes["store-2-1"] = "b", "a"
    plan = world.plan()
    assert (plan.state, plan.commands) == (StoreState.MISPLACED, ())
    assert "node a has 2 of 3 primaries" in plan.message
    assert plan.message.endswith("Use at least three nodes, and an odd number of shards")


def test_without_the_names_of_the_nodes_the_placement_is_not_judged() -> None:
    world = World()
    world.nodes = dict.fromkeys(world.processes, "a")
    world.nodes["store-0-0"] = ""
    assert world.plan().state is StoreState.COMPLETE


def placements(nodes: Iterable[str], shards: int) -> Iterable[list[tuple[str, str]]]:
    return itertools.product(list(itertools.permutations(nodes, 2)), repeat=shards)  # type: ignore[return-value]


@pytest.mark.parametrize(("nodes", "shards"), [("abc", 3), ("abcd", 3), ("abc", 4)])
def test_moves_end_with_the_best_spread_from_every_placement(nodes: str, shards: int) -> None:
    def most(primaries: Iterable[str]) -> list[int]:
        found = list(primaries)
        return sorted((found.count(node) for node in nodes), reverse=True)

    for placement in placements(nodes, shards):
        placed = {shard: list(pair) for shard, pair in enumerate(placement)}
        primaries = {shard: pair[0] for shard, pair in enumerate(placement)}
        best = min(most(choice) for choice in itertools.product(*placement))
        moves = 0
        while (move := next_move(primaries, placed)) is not None:
            primaries[move[0]] = move[1]
            moves += 1
            assert moves <= 2 * shards, placement
        assert most(primaries.values()) == best, placement
