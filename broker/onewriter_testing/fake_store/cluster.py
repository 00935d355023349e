"""A world of fake nodes that form a cluster: shards, the nodes' views of them, and votes.

Each node has its own view of who serves which slots. A view changes only while the node is on the cluster's bus, so
a primary that was cut off continues to serve its slots until it notices that it lost the majority. ``tick`` makes
the decisions that Valkey makes: a primary that the majority of the primaries has missed for
``node_timeout_seconds`` is replaced by a replica, under a higher epoch; a former primary that returns becomes a
replica.

A test or a simulation says what happens to nodes, and calls ``tick`` with its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from onewriter_broker.log.store.api import Append, Binding, Fence, OwnWrite
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.bound_reads import BoundReads
from onewriter_broker.log.store.redis.cluster import Cluster
from onewriter_broker.log.store.redis.connection import RedisConnection
from onewriter_broker.log.store.redis.primary import Endpoint, Primary, RedisSettings, handshake
from onewriter_core.cluster_views import SLOTS, slot_of
from onewriter_core.errors import Undecided
from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.fake_store.keyspace import Keyspace
from onewriter_testing.fake_store.server import FakeConnection, FakeNode, FakeServer
from onewriter_testing.fake_store.store import FakeLogStore

PORT = 6379

FROZEN_SECONDS = 60.0
"""How long a frozen node does not answer: longer than anything waits for it."""

DATASETS_PER_SHARD = 1_000_000
"""Replids of each shard."""


class Claim(NamedTuple):
    """Which node serves a shard, by a vote of this epoch."""

    epoch: int
    node: str


@dataclass(frozen=True, slots=True)
class Promotion:
    """A replica became primary. ``lost``: the keyspace of the primary that it replaces."""

    lost: Keyspace
    node: FakeNode


class FakeCluster:
    """Shards, and the views of their nodes.

    ``ranges`` are the inclusive slots of each shard; ``changed`` is called for each promotion, and again before a
    former primary gives up its data. ``empty_serves`` is a bug for mutants: a node without data stays primary.
    """

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        replicas: int = 1,
        node_timeout_seconds: float = 1.5,
        changed: Callable[[Promotion], None] = lambda _promotion: None,
        empty_serves: bool = False,
    ) -> None:
        self.ranges = list(ranges)
        self.shards = [
            FakeServer(name=f"shard-{number}", datasets=number * DATASETS_PER_SHARD)
            for number in range(len(ranges))
        ]
        self.cut: set[str] = set()
        """Nodes that do not reach the bus; clients reach them."""
        self.empty: dict[str, Keyspace] = {}
        """Nodes that lost their volume, with what they had; they serve nothing until they are replicas."""
        self.changed = changed
        self.empty_serves = empty_serves
        self._node_timeout_seconds = node_timeout_seconds
        self._views: dict[str, list[Claim]] = {}
        self._missed: dict[int, float] = {}
        self._alone: dict[str, float] = {}
        self._now = 0.0
        for server in self.shards:
            for _ in range(replicas):
                server.add_replica(f"{server.primary.name.rpartition('-')[0]}-{len(server.nodes)}")
        first = [Claim(number + 1, shard.primary.name) for number, shard in enumerate(self.shards)]
        for name, node in self.nodes.items():
            self._views[name] = list(first)
            node.redirection = self._redirection_of(node)

    @property
    def nodes(self) -> dict[str, FakeNode]:
        """All nodes by their names, which are also their hosts."""
        return {name: node for shard in self.shards for name, node in shard.nodes.items()}

    def shard_of(self, key: str) -> int:
        """The number of the shard that has a key."""
        slot = slot_of(key)
        return next(number for number, (low, high) in enumerate(self.ranges) if low <= slot <= high)

    def shard_of_bucket(self, bucket: int, buckets: int) -> int:
        """The number of the shard that has a bucket."""
        return self.shard_of(Keys(buckets).unit(bucket))

    def primary_of(self, bucket: int, buckets: int) -> FakeNode:
        """The primary of a bucket's shard, by the newest vote."""
        return self.shards[self.shard_of_bucket(bucket, buckets)].primary

    def lose_volume(self, shard: int) -> None:
        """The primary of a shard restarts at once, without its data."""
        server = self.shards[shard]
        node = server.primary
        lost = node.keyspace
        server.lose_volume(node)
        if not self.empty_serves:
            node.is_primary = False
            self.empty[node.name] = lost

    # ------------------------------------------------------------ the bus and the votes

    def tick(self, now: float) -> None:
        """Let the nodes exchange their views, vote, and follow."""
        self._now = now
        present = {name for name, node in self.nodes.items() if self._is_on_bus(node)}
        newest = [
            max(view[number] for view in self._views.values()) for number in range(len(self.shards))
        ]
        voters = sum(claim.node in present and claim.node not in self.empty for claim in newest)
        has_majority = 2 * voters > len(self.shards)
        for name in self.nodes:
            if name in present and has_majority:
                self._alone.pop(name, None)
            else:
                self._alone.setdefault(name, now)
        if not has_majority:
            return
        for number, claim in enumerate(newest):
            if claim.node in present and claim.node not in self.empty:
                self._missed.pop(number, None)
            elif now - self._missed.setdefault(number, now) >= self._node_timeout_seconds:
                newest[number] = self._elected(number, newest, present)
        for name in present:
            self._views[name] = list(newest)
        for number, claim in enumerate(newest):
            self._follow(self.shards[number], claim, present)

    def _is_on_bus(self, node: FakeNode) -> bool:
        return node.is_reachable and not node.is_frozen and node.name not in self.cut

    def _elected(self, number: int, newest: Sequence[Claim], present: set[str]) -> Claim:
        server, former = self.shards[number], newest[number]
        candidates = [
            node
            for name, node in sorted(server.nodes.items())
            if name in present and not node.is_primary and name not in self.empty
        ]
        if not candidates:
            return former
        old = server.nodes[former.node]
        chosen = max(candidates, key=lambda node: len(node.history))
        server.promote(chosen)
        self._missed.pop(number, None)
        self.changed(Promotion(self.empty.get(old.name, old.keyspace), chosen))
        return Claim(max(claim.epoch for claim in newest) + 1, chosen.name)

    def _follow(self, server: FakeServer, claim: Claim, present: set[str]) -> None:
        primary = server.nodes[claim.node]
        if not primary.is_primary or claim.node not in present:
            return
        for name, node in sorted(server.nodes.items()):
            if node is primary or name not in present:
                continue
            if node.source is primary:
                if node.replid != primary.replid and not node.holds_replication:
                    node.follow()
                continue
            if node.is_primary:
                self.changed(Promotion(node.keyspace, primary))
            self.empty.pop(name, None)
            server.demote(node, primary)

    # ------------------------------------------------------------ what a node answers

    def view_of(self, node: FakeNode) -> str:
        """The node's reply to CLUSTER NODES."""
        lines = []
        view = self._views[node.name]
        for number, server in enumerate(self.shards):
            claim, (low, high) = view[number], self.ranges[number]
            for name in server.nodes:
                serves = name == claim.node
                flags = ("myself," if name == node.name else "") + ("master" if serves else "slave")
                follows = "-" if serves else claim.node
                slots = f" {low}-{high}" if serves else ""
                lines.append(
                    f"{name} {name}:{PORT}@{PORT + 10_000} {flags} {follows} 0 0 {claim.epoch}"
                    f" connected{slots}"
                )
        return "\n".join(lines)

    def _redirection_of(self, node: FakeNode) -> Callable[[bytes], str]:
        def redirection(key: bytes) -> str:
            alone = self._alone.get(node.name)
            if alone is not None and self._now - alone >= self._node_timeout_seconds:
                return "CLUSTERDOWN The cluster is down"
            name = key.decode(errors="replace")
            claim = self._views[node.name][self.shard_of(name)]
            if claim.node != node.name:
                return f"MOVED {slot_of(name)} {claim.node}:{PORT}"
            return "" if node.is_primary else "CLUSTERDOWN Hash slot not served"

        return redirection


def even_ranges(buckets: int, shards: int) -> list[tuple[int, int]]:
    """Slots of ``shards`` shards such that each of the first ``buckets`` has one bucket, if there are enough."""
    slots = sorted(slot_of(Keys(buckets).unit(bucket)) for bucket in range(buckets))
    cuts = [slots[number] + 1 for number in range(min(buckets, shards) - 1)]
    while len(cuts) < shards - 1:
        cuts.append(SLOTS - (shards - 1 - len(cuts)))
    starts = [0, *cuts]
    return list(zip(starts, [cut - 1 for cut in [*cuts, SLOTS]], strict=True))


class FakeClusterStore(FakeLogStore):
    """The production store over a fake cluster. Calls of one bucket run one after the other."""

    def __init__(
        self, cluster: FakeCluster, *, buckets: int, replicas: int, commit_timeout_seconds: float
    ) -> None:
        super().__init__(
            lambda: None,
            buckets=buckets,
            replicas=replicas,
            commit_timeout_seconds=commit_timeout_seconds,
        )
        self._nodes = cluster
        self._turns: dict[object, asyncio.Lock] = {}
        hosts = ",".join(f"{name}:{PORT}" for name in sorted(cluster.nodes))
        self._settings = RedisSettings(
            url=f"redis+cluster://{hosts}",
            buckets=buckets,
            replicas=replicas,
            commit_timeout_seconds=commit_timeout_seconds,
        )
        self._cluster = Cluster(self._settings, self._keys, self._open_at, self._read_view)
        self._writes, self._reads = self._cluster.writes, self._cluster.reads
        self._bound_reads = BoundReads(self._reads, self._slot_of)

    def turn(self, about: Sequence[object], *, writes: bool) -> asyncio.Lock:
        bucket = self._bucket(about[0]) if about else None
        if bucket is None:
            return asyncio.Lock()
        return self._turns.setdefault((bucket, writes), asyncio.Lock())

    async def reached(self, *, writes: bool) -> Primary | None:
        del writes
        return None

    def _bucket(self, about: object) -> int | None:
        match about:
            case int():
                return about
            case Binding():
                return about.bucket
            case Fence() | OwnWrite():
                return about.binding.bucket
            case TopicName():
                return bucket_of(about, self._settings.buckets)
            case [Append() as first, *_]:
                return first.binding.bucket
            case [int() as first, *_]:
                return first
            case _:
                return None

    def _node(self, endpoint: Endpoint) -> FakeNode:
        node = self._nodes.nodes.get(endpoint.host)
        if node is None or not node.is_reachable or self.faults.is_cut_off:
            raise Undecided(f"no connection to the store at {endpoint}")
        return node

    async def _open_at(
        self, endpoint: Endpoint, _settings: RedisSettings, replaces: Primary | None
    ) -> Primary:
        connection = FakeConnection(self._node(endpoint), lambda: not self.faults.is_cut_off)
        return await handshake(cast("RedisConnection", cast("Any", connection)), endpoint, replaces)

    async def _read_view(self, endpoint: Endpoint) -> str:
        node = self._node(endpoint)
        if node.is_frozen:
            await asyncio.sleep(FROZEN_SECONDS)
        return self._nodes.view_of(node)
