"""The plan of the installed store's cluster: the next commands to its pods, and a verdict about it. Pure.

The nodes of the cluster elect primaries among themselves. The operator only forms the cluster, introduces nodes to each
other, gives each node without a shard its primary, removes node ids that are gone, and asks replicas on other machines to
take over, so that the primaries are spread.

The rules that protect data:

* Hash slots are given only to pods without data, if no node of any view has them, and if every pod has answered: a pod
  that does not answer may have the data.
* A node id is forgotten only if every pod has answered with another id, the others declared it failed, and it has no hash
  slots.
* While a shard has no primary, its replicas vote, and the plan changes nothing in this shard. Only if every
  pod of the shard has answered with another id than the primary's, and the vote did not happen for ``FORCE_SECONDS``, one
  of its replicas with data is asked to take over without it. A primary that lives and is not a pod of the layout any more
  hands over to a replica in sync.
* A replica takes over without the votes of the others only if every pod of the cluster has answered, and no vote
  succeeded for ``TAKEOVER_SECONDS``.
* No command of the plan deletes data.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from onewriter_core.cluster_views import ClusterView, Node, Shard, SlotMap, first_slot

FORCE_SECONDS: Final = 20.0
"""Time in which a vote must have happened, and in which the nodes notice that one of them was lost. A replica that restarted does
not stand for election, because it does not know how old its data is."""

TAKEOVER_SECONDS: Final = 3 * FORCE_SECONDS
"""Time after which no vote can succeed: too many primaries were lost, or they do not know the former one."""

SPREAD_SECONDS: Final = 30.0
"""Time for which the cluster must be complete and unchanged before a primary is moved."""

_DEAD: Final = frozenset({"fail", "noaddr"})
_SILENT: Final = frozenset({"fail", "fail?", "noaddr"})


class StoreState(StrEnum):
    """The state of the whole cluster."""

    UNKNOWN = "Unknown"
    """No pod answers."""
    FORMING = "Forming"
    """It is being formed, and has no data yet."""
    COMPLETE = "Complete"
    """Every shard has its primary and all replicas, on different nodes of Kubernetes."""
    DEGRADED = "Degraded"
    """A shard has no primary, or too few replicas, for some time."""
    MISPLACED = "Misplaced"
    """The loss of one node of Kubernetes would stop a shard, or the votes."""
    STUCK = "Stuck"
    """Only a person can continue."""


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What the store process of one pod answered.

    ``keys``: the number of its keys. ``is_in_sync``: for a replica, whether it is connected to its primary and has copied
    it. ``offset``: its replication offset. ``is_serving``: whether it counts the cluster as available, and answers.
    """

    view: ClusterView
    keys: int = 0
    is_in_sync: bool = True
    offset: int = 0
    is_serving: bool = True


@dataclass(frozen=True, slots=True)
class StorePod:
    """One pod of the store. ``node``: the node of Kubernetes that runs it; empty if unknown."""

    name: str
    shard: int
    node: str = ""
    answer: PodAnswer | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command to the store process of one pod."""

    pod: str
    words: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.words))} at {self.pod}"


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The verdict, and the commands of the next step; the step after it needs new answers."""

    state: StoreState
    message: str
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """The wanted numbers of shards, and of replicas of each."""

    shards: int
    replicas: int


@dataclass(frozen=True, slots=True)
class _Member:
    """A pod that answered."""

    pod: StorePod
    answer: PodAnswer

    @property
    def name(self) -> str:
        return self.pod.name

    @property
    def shard(self) -> int:
        return self.pod.shard

    @property
    def node_id(self) -> str:
        return self.answer.view.me

    @property
    def own(self) -> Node:
        return self.answer.view.own

    def knows(self, other: _Member) -> bool:
        """Whether it knows the other one at its present address."""
        found = self.answer.view.node(other.node_id)
        return (
            found is not None
            and not found.flags & {"handshake", "noaddr"}
            and found.ip == other.own.ip
        )


class _Cluster:
    """The answers of all pods together."""

    def __init__(self, pods: Sequence[StorePod], layout: Layout) -> None:
        self.layout = layout
        self.pods = pods
        self.members = [_Member(pod, pod.answer) for pod in pods if pod.answer is not None]
        self.by_id = {member.node_id: member for member in self.members}
        self.silent = [pod for pod in pods if pod.answer is None]
        self.views = [member.answer.view for member in self.members]
        self.map = SlotMap(self.views)
        self.shards = self.map.shards()
        self.owners = {shard.primary.node_id for shard in self.shards}

    @property
    def is_new(self) -> bool:
        """Whether no pod has data."""
        return not self.silent and not any(member.answer.keys for member in self.members)

    @property
    def state_of_change(self) -> StoreState:
        """The state while something is missing."""
        return StoreState.FORMING if self.is_new else StoreState.DEGRADED

    def primary_of(self, shard: int) -> _Member | None:
        """The pod of a shard that serves hash slots."""
        found = (
            member
            for member in self.members
            if member.shard == shard and member.node_id in self.owners
        )
        return next(found, None)

    def flags_of(self, node_id: str) -> frozenset[str]:
        """All flags that any view gives a node."""
        found = (view.node(node_id) for view in self.views)
        return frozenset(flag for node in found if node is not None for flag in node.flags)


def plan_store(
    pods: Sequence[StorePod], layout: Layout, unchanged_seconds: float = 0.0
) -> StorePlan:
    """Decide the next step.

    ``pods``: all pods of the layout, and no others. ``unchanged_seconds``: for how long the nodes' roles and their
    connections have been as they are now.
    """
    cluster = _Cluster(pods, layout)
    if not cluster.members:
        return StorePlan(StoreState.UNKNOWN, "no pod of the store answers")
    first = _same_ids(cluster) or _give_slots(cluster) or _introduce(cluster)
    if first is not None and (
        first.state in {StoreState.STUCK, StoreState.FORMING} or unchanged_seconds < FORCE_SECONDS
    ):
        return first
    repair = (
        _without_primary(cluster, unchanged_seconds)
        or _other_layout(cluster)
        or _repair(cluster, unchanged_seconds)
    )
    if first is None:
        return repair or _place(cluster, unchanged_seconds)
    # An introduction in vain stops no repair of others.
    message = f"{first.message}, in vain: do they reach each other on port 16379?"
    if repair is None:
        return replace(first, message=message)
    commands = (*first.commands, *repair.commands)
    if repair.state is StoreState.STUCK:
        return replace(repair, commands=commands)
    return StorePlan(first.state, f"{message} {repair.message}", commands)


def _names(pods: Iterable[StorePod | _Member]) -> str:
    return ", ".join(sorted(pod.name for pod in pods))


# ------------------------------------------------------------ forming


def _same_ids(cluster: _Cluster) -> StorePlan | None:
    """Volumes that were copied from each other."""
    counted = Counter(member.node_id for member in cluster.members)
    for node_id, count in counted.items():
        if count > 1:
            same = _names(member for member in cluster.members if member.node_id == node_id)
            message = f"the pods {same} have the same node id: delete the volumes that are copies, with their pods"
            return StorePlan(StoreState.STUCK, message)
    return None


def _give_slots(cluster: _Cluster) -> StorePlan | None:
    """Give hash slots that no node ever had to a pod of their shard."""
    layout = cluster.layout
    missing: list[tuple[int, int, int]] = []
    for shard in range(layout.shards):
        first, last = first_slot(shard, layout.shards), first_slot(shard + 1, layout.shards) - 1
        unclaimed = cluster.map.unclaimed(first, last)
        if unclaimed == last - first + 1:
            missing.append((shard, first, last))
        elif unclaimed:
            # A process takes the hash slots of its keys that no node had before; a cluster counts epochs from 1.
            strange = [
                m for m in cluster.members if m.own.slots and m.answer.keys and not m.own.epoch
            ]
            if strange:
                return StorePlan(StoreState.STUCK, _belongs_elsewhere(strange))
            message = f"no node has {unclaimed} of the hash slots {first} to {last}: assign them with CLUSTER ADDSLOTS"
            return StorePlan(StoreState.STUCK, message)
    if not missing:
        return None
    if cluster.silent:
        waits = f"waits for the pods {_names(cluster.silent)}, before hash slots are assigned"
        return StorePlan(StoreState.FORMING, waits)
    shards = {shard for shard, _, _ in missing}
    with_data = [m for m in cluster.members if m.shard in shards and m.answer.keys]
    if with_data:
        return StorePlan(StoreState.STUCK, _belongs_elsewhere(with_data))
    chosen = _first_primaries(cluster, shards)
    commands = [
        Command(chosen[shard].name, ("CLUSTER", "ADDSLOTSRANGE", first, last))
        for shard, first, last in missing
        if shard in chosen
    ]
    return StorePlan(
        StoreState.FORMING, "hash slots are assigned to the first primaries", tuple(commands)
    )


def _belongs_elsewhere(with_data: Iterable[_Member]) -> str:
    return (
        f"the pods {_names(with_data)} have data, but no node has the hash slots of their shards: their volumes belong"
        " to another cluster or to a single process"
    )


def _first_primaries(cluster: _Cluster, shards: set[int]) -> dict[int, _Member]:
    """A pod for each of these shards, on different nodes of Kubernetes as far as possible."""
    chosen: dict[int, _Member] = {}
    used = Counter(m.pod.node for m in cluster.members if m.node_id in cluster.owners)
    for shard in sorted(shards):
        pods = [
            m for m in cluster.members if m.shard == shard and not m.own.slots and not m.own.follows
        ]
        if pods:
            chosen[shard] = min(pods, key=lambda m: (used[m.pod.node], m.name))
            used[chosen[shard].pod.node] += 1
    return chosen


def _introduce(cluster: _Cluster) -> StorePlan | None:
    """Introduce nodes to each other: new ones, and known ones whose addresses have changed."""
    hub = max(
        cluster.members,
        key=lambda m: (sum(map(m.knows, cluster.members)), m.node_id in cluster.owners, m.name),
    )
    others = [m for m in cluster.members if m is not hub]
    pairs = [(hub, m) for m in others if not (hub.knows(m) and m.knows(hub))]
    if not pairs:
        pairs = [
            (m, other) for m in others for other in others if m is not other and not m.knows(other)
        ]
    for first, other in pairs:
        owners = _other_owners(first.answer.view, other.answer.view)
        if owners:
            message = (
                f"{other.name} serves hash slots that other pods serve, and does not know them: its volume belongs to"
                " another cluster"
            )
            # Without an owner that answers, the volume may be the only copy.
            if owners <= cluster.by_id.keys():
                message += ". Delete its volume claim and the pod"
            else:
                message += ", or lost its nodes.conf: restore the volume with its nodes.conf"
            return StorePlan(StoreState.STUCK, message)
    if not pairs:
        return None
    commands = [
        Command(first.name, ("CLUSTER", "MEET", other.own.ip, other.own.port, other.own.bus_port))
        for first, other in pairs
    ]
    message = f"the pods {_names({m.name: m for pair in pairs for m in pair}.values())} are introduced to each other"
    return StorePlan(cluster.state_of_change, message, tuple(commands))


def _other_owners(first: ClusterView, second: ClusterView) -> set[str]:
    """The owners, in the first view, of hash slots that nodes of the second one claim; empty if both have a node in
    common, and so belong to one cluster.
    """
    known = {node.node_id for node in first.nodes}
    if any(node.node_id in known for node in second.nodes):
        return set()
    claimed = [slots for node in second.nodes for slots in node.slots]
    return {
        node.node_id
        for node in first.nodes
        for start, end in node.slots
        for begin, last in claimed
        if start <= last and begin <= end
    }


# ------------------------------------------------------------ repair


def _without_primary(cluster: _Cluster, unchanged_seconds: float) -> StorePlan | None:
    """Wait while the primary of a shard is away; meanwhile replicas of other shards join."""
    found = [
        _lost(cluster, s, unchanged_seconds)
        for s in cluster.shards
        if s.primary.node_id not in cluster.by_id
    ]
    if not found:
        return None
    worst = min(found, key=lambda plan: (plan.state is not StoreState.STUCK, not plan.commands))
    joins = [command for command, _ in _joins(cluster) if command is not None]
    return replace(worst, commands=(*worst.commands, *joins))


def _lost(cluster: _Cluster, lost: Shard, unchanged_seconds: float) -> StorePlan:
    node_id, layout = lost.primary.node_id, cluster.layout
    followers = [m for m in cluster.members if m.own.follows == node_id]
    begins = {first_slot(shard, layout.shards): shard for shard in range(layout.shards)}
    shard = followers[0].shard if followers else begins.get(lost.ranges[0][0])
    title = f"shard {shard}" if shard is not None else f"the shard of hash slot {lost.ranges[0][0]}"
    silent = [pod for pod in cluster.silent if shard is None or pod.shard == shard]
    if not followers and silent:
        message = f"{title} has no primary, and its pods {_names(silent)} do not answer"
        return StorePlan(StoreState.DEGRADED, message)
    if not followers and not cluster.flags_of(node_id) & _SILENT:
        where = f"{lost.primary.host}:{lost.primary.port}"
        if unchanged_seconds < FORCE_SECONDS:  # perhaps it was lost just now
            return StorePlan(
                StoreState.DEGRADED, f"{title} was served by {where}: no pod is this node now"
            )
        message = f"{title} is served by {where}, which does not belong to this store"
        return StorePlan(StoreState.STUCK, message)
    with_data = [m for m in followers if m.answer.keys]
    if not with_data and not silent:
        message = (
            f"no pod of {title} has its data any more: stop the brokers, and restore the volume of one of its pods from"
            " a backup"
        )
        return StorePlan(StoreState.STUCK, message)
    former = _former_pod(cluster, lost.primary)
    if former and not cluster.flags_of(node_id) & _SILENT:
        return _leave_former(title, former, with_data, unchanged_seconds)
    if unchanged_seconds < FORCE_SECONDS:
        return StorePlan(StoreState.DEGRADED, f"{title} has no primary: its replicas vote")
    if silent:
        message = (
            f"{title} has no primary, and no replica was elected: {_names(silent)} does not answer, and may have newer"
            " data. If its volume is lost, delete its volume claim and the pod"
        )
        return StorePlan(StoreState.DEGRADED, message)
    newest = max(with_data, key=lambda m: (m.answer.offset, m.answer.keys, m.name))
    message = f"{title} has no primary: {newest.name} is asked to take over, because the primary's data is lost"
    # No pod is silent, and none is the primary: to take over without votes loses no more than with them.
    is_without_votes = unchanged_seconds >= TAKEOVER_SECONDS and not cluster.silent and not former
    voters = cluster.owners & set(cluster.by_id)
    if is_without_votes:
        message += ", without the votes of the others"
    elif cluster.silent and 2 * len(voters) <= len(cluster.owners):
        message += f"; no majority of the primaries can vote while {_names(cluster.silent)} does not answer"
    how = "TAKEOVER" if is_without_votes else "FORCE"
    return StorePlan(
        StoreState.DEGRADED, message, (Command(newest.name, ("CLUSTER", "FAILOVER", how)),)
    )


def _former_pod(cluster: _Cluster, node: Node) -> str:
    """The name of a node's pod if a layout with more replicas had it; empty for any other node."""
    name = node.host.partition(".")[0]
    stateful_sets = {pod.name.rpartition("-")[0] for pod in cluster.pods}
    stateful_set, _, number = name.rpartition("-")
    is_former = (
        stateful_set in stateful_sets
        and number.isdigit()
        and all(pod.name != name for pod in cluster.pods)
    )
    return name if is_former else ""


def _leave_former(
    title: str, former: str, with_data: Sequence[_Member], unchanged_seconds: float
) -> StorePlan:
    """Let a replica take over from a living primary that is not a pod of the layout any more. Nothing is lost."""
    message = f"{title} is served by {former}, which is not a pod of the layout any more"
    heirs = sorted(m.name for m in with_data if m.answer.is_in_sync)
    if not heirs:
        return StorePlan(StoreState.DEGRADED, f"{message}: no replica is in sync with it")
    commands = [Command(heirs[0], ("CLUSTER", "FAILOVER"))]
    if unchanged_seconds < FORCE_SECONDS:  # it hands over before it stops
        commands.clear()
    return StorePlan(
        StoreState.DEGRADED, f"{message}: {heirs[0]} takes over from it", tuple(commands)
    )


def _other_layout(cluster: _Cluster) -> StorePlan | None:
    """Refuse a number of shards that the cluster does not have."""
    layout = cluster.layout
    served = Counter(cluster.by_id[owner].shard for owner in cluster.owners)
    without = [shard for shard in range(layout.shards) if not served[shard]]
    twice = [shard for shard, count in served.items() if count > 1]
    if not without and not twice:
        return None
    if len(cluster.owners) != layout.shards:
        message = (
            f"the cluster has {len(cluster.owners)} shards, and store.shards is {layout.shards}: hash slots are not"
            f" moved. Set store.shards to {len(cluster.owners)} again"
        )
    else:
        message = (
            f"no pod of shard {without[0]} serves hash slots, and another shard has two primaries"
        )
    return StorePlan(StoreState.STUCK, message)


def _joins(cluster: _Cluster) -> Iterable[tuple[Command | None, str]]:
    """For each node that knows its shard's primary and does not follow it: the command that makes it follow, or why none
    does.

    A former primary that knows that another one has all its hash slots removes their keys when it starts again.
    """
    for member in cluster.members:
        primary = cluster.primary_of(member.shard)
        if (
            primary is None
            or member is primary
            or member.own.follows == primary.node_id
            or member.own.slots
            or member.answer.view.node(primary.node_id) is None
        ):
            continue
        if not member.own.follows and member.answer.keys:
            known = member.answer.view.node(primary.node_id)
            is_superseded = (
                known is not None
                and known.slots == primary.own.slots
                and known.epoch > member.own.epoch
            )
            what = (
                "the pod (its claim may stay)" if is_superseded else "its volume claim and the pod"
            )
            reason = (
                f"{member.name} has data, but belongs to no shard: delete {what}, so that it copies"
                f" {primary.name}"
            )
            yield None, reason
        else:
            yield Command(member.name, ("CLUSTER", "REPLICATE", primary.node_id)), ""


def _repair(cluster: _Cluster, unchanged_seconds: float) -> StorePlan | None:
    """Give each node its primary, and forget ids that are gone; None if nothing is missing."""
    found = list(_joins(cluster))
    joins = [command for command, _ in found if command is not None]
    refused = next((reason for command, reason in found if command is None), "")
    if refused:
        return StorePlan(StoreState.STUCK, refused, tuple(joins))
    problem = _incomplete(cluster)
    commands = tuple(joins or _forget(cluster))
    if problem or joins:
        return StorePlan(cluster.state_of_change, problem or "replicas join", commands)
    foreign = _foreign(cluster)
    former = "" if foreign is None else _former_pod(cluster, foreign)
    if former:
        message = f"waits until {former} stops, which is not a pod of the layout any more"
        return StorePlan(StoreState.DEGRADED, message, commands)
    if foreign is not None and unchanged_seconds >= FORCE_SECONDS:
        where = f"{foreign.host}:{foreign.port}"
        message = f"the node {foreign.node_id} at {where} does not belong to this store: remove it with CLUSTER FORGET"
        return StorePlan(StoreState.STUCK, message, commands)
    if commands:
        return StorePlan(StoreState.COMPLETE, "ids of former pods are removed", commands)
    return None


def _incomplete(cluster: _Cluster) -> str:
    """What is missing: replicas that are not in sync, pods that do not answer, nodes that do not reach each other."""
    problems = []
    for shard in range(cluster.layout.shards):
        primary = cluster.primary_of(shard)
        in_sync = [
            m
            for m in cluster.members
            if primary is not None and m.own.follows == primary.node_id and m.answer.is_in_sync
        ]
        if len(in_sync) < cluster.layout.replicas:
            silent = [pod for pod in cluster.silent if pod.shard == shard]
            count = (
                f"{len(in_sync)} of {cluster.layout.replicas} replicas" if in_sync else "no replica"
            )
            because = f" ({_names(silent)} does not answer)" if silent else ""
            problems.append(f"shard {shard} has {count} in sync{because}")
    waiting = [member for member in cluster.members if not member.answer.is_serving]
    if not problems and waiting:
        problems.append(f"{_names(waiting)} counts the cluster as down (cluster_state)")
    if not problems:
        for member in cluster.members:
            for node in member.answer.view.nodes:
                other = cluster.by_id.get(node.node_id)
                if (
                    other is not None
                    and other is not member
                    and (node.flags & _SILENT or not node.is_linked)
                ):
                    problems.append(
                        f"{member.name} does not reach {other.name} on port {other.own.bus_port}"
                    )
    return "; ".join(problems[:3])


def _strangers(cluster: _Cluster) -> set[str]:
    """Ids in the views that no pod has and that have no hash slots. Empty unless every pod has answered."""
    if cluster.silent:
        return set()
    known = {
        node.node_id
        for view in cluster.views
        for node in view.nodes
        if "handshake" not in node.flags
    }
    return known - set(cluster.by_id) - cluster.owners


def _forget(cluster: _Cluster) -> list[Command]:
    gone = sorted(each for each in _strangers(cluster) if cluster.flags_of(each) & _DEAD)
    return [
        Command(member.name, ("CLUSTER", "FORGET", node_id))
        for node_id in gone
        for member in cluster.members
        if member.answer.view.node(node_id) is not None and member.own.follows != node_id
    ]


def _foreign(cluster: _Cluster) -> Node | None:
    """A node that lives and does not belong to this store."""
    alive = [each for each in sorted(_strangers(cluster)) if not cluster.flags_of(each) & _SILENT]
    return cluster.map.nodes[alive[0]] if alive else None


# ------------------------------------------------------------ placement


def _place(cluster: _Cluster, unchanged_seconds: float) -> StorePlan:
    """Spread the primaries over the nodes of Kubernetes, and judge the placement."""
    layout = cluster.layout
    replicas = "1 replica" if layout.replicas == 1 else f"{layout.replicas} replicas"
    complete = StorePlan(
        StoreState.COMPLETE, f"{layout.shards} shards have a primary and {replicas} each"
    )
    if not all(pod.node for pod in cluster.pods):
        return complete
    primaries = {m.shard: m.pod.node for m in cluster.members if m.node_id in cluster.owners}
    placed: dict[int, list[str]] = {}
    for pod in cluster.pods:
        placed.setdefault(pod.shard, []).append(pod.node)
    problem = _misplaced(primaries, placed)
    move = next_move(primaries, placed)
    if move is None:
        advice = ". Use at least three nodes, and an odd number of shards"
        return StorePlan(StoreState.MISPLACED, problem + advice) if problem else complete
    shard, node = move
    target = next(m for m in cluster.members if m.shard == shard and m.pod.node == node)
    state = StoreState.MISPLACED if problem else StoreState.COMPLETE
    message = (
        f"shard {shard} gets its primary on node {node}, so that primaries are on different nodes"
    )
    message = f"{problem}; {message}" if problem else message
    if unchanged_seconds < SPREAD_SECONDS:
        return StorePlan(state, message)
    return StorePlan(state, message, (Command(target.name, ("CLUSTER", "FAILOVER")),))


def _misplaced(primaries: Mapping[int, str], placed: Mapping[int, Sequence[str]]) -> str:
    for shard, nodes in sorted(placed.items()):
        node, count = Counter(nodes).most_common(1)[0]
        if count > 1:
            return (
                f"{count} pods of shard {shard} are on node {node}: its loss would stop the shard"
            )
    node, count = Counter(primaries.values()).most_common(1)[0]
    if 2 * (len(primaries) - count) <= len(primaries):
        return (
            f"node {node} has {count} of {len(primaries)} primaries: after its loss no majority could vote, and no replica"
            " would be promoted"
        )
    return ""


def next_move(
    primaries: Mapping[int, str], placed: Mapping[int, Sequence[str]]
) -> tuple[int, str] | None:
    """The shard whose primary moves next, and to which node; None if the primaries are spread as evenly as possible.

    ``primaries``: the node of each shard's primary. ``placed``: the nodes of all its pods. Every move either makes the
    numbers of primaries more even, or shortens the sequence of moves that does.
    """
    used = Counter(primaries.values())
    for count in sorted(set(used.values()), reverse=True):
        waiting = deque(shard for shard in sorted(primaries) if used[primaries[shard]] == count)
        seen = set(waiting)
        while waiting:
            shard = waiting.popleft()
            for node in sorted({*placed[shard]} - {primaries[shard]}):
                if used[node] <= count - 2:
                    return shard, node
                for other in sorted(primaries):
                    if primaries[other] == node and other not in seen:
                        seen.add(other)
                        waiting.append(other)
    return None
