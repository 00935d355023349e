"""Faults of a cluster. One shard at a time fails; the other shards vote for its replica.

When a replica is promoted, the history records what it did not have. Two shards never fail at the same time: the third
one alone is no majority, so no replica would be promoted.
"""

from __future__ import annotations

from tests.contents import Contents, stored_in
from tests.simulation import nemesis as single
from tests.simulation.nemesis import Fault, Nemesis
from tests.simulation.world import BUCKETS, REPLICATED_TOPIC

from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.fake_store.cluster import FakeCluster, Promotion
from onewriter_testing.fake_store.server import FakeNode, FakeServer

SETTLED_SECONDS = 0.5
"""Wait after a fault. By then a former primary is a replica and has a copy of the data."""


def _cluster(nemesis: Nemesis) -> FakeCluster:
    cluster = nemesis.world.cluster
    assert cluster is not None

    def promoted(promotion: Promotion) -> None:
        nemesis.world.recorder.seen("promotion")
        lost = Contents(promotion.lost)
        nemesis.record_destroyed(lost, stored_in(promotion.node), replicated=False)

    cluster.changed = promoted
    return cluster


def _replica(server: FakeServer) -> FakeNode | None:
    """Return a replica that follows the primary's dataset."""
    linked = server.primary.linked_replicas
    return linked[0] if linked else None


async def _shard(
    nemesis: Nemesis, topic: str | None = None
) -> tuple[FakeCluster, int, FakeNode] | None:
    """Choose a healthy shard whose replica may lag. Return None if another fault is in progress.

    With a ``topic``, the shard is the topic's, and its replica always lags.
    """
    cluster = _cluster(nemesis)
    if nemesis.is_store_disturbed:
        return None
    if topic is None:
        shard = nemesis.randomness.randrange(len(cluster.shards))
    else:
        shard = cluster.shard_of_bucket(bucket_of(TopicName.parse(topic), BUCKETS), BUCKETS)
    server = cluster.shards[shard]
    replica = _replica(server)
    if replica is None or not server.primary.is_reachable:
        return None
    nemesis.is_store_disturbed = True
    if topic is not None or nemesis.randomness.random() < 0.6:
        replica.holds_replication = True
        await nemesis.lasting(0.05, 1.0)
    return cluster, shard, server.primary


async def _healed(nemesis: Nemesis, cluster: FakeCluster, shard: int) -> None:
    """Let the shard's nodes follow its primary again."""
    for node in cluster.shards[shard].nodes.values():
        node.holds_replication = False
        node.is_reachable, node.is_frozen = True, False
        cluster.cut.discard(node.name)
    for node in cluster.shards[shard].primary.linked_replicas:
        node.follow()
    await nemesis.lasting(SETTLED_SECONDS, 2 * SETTLED_SECONDS)
    nemesis.is_store_disturbed = False


async def primary_lost(nemesis: Nemesis, topic: str | None = None) -> None:
    """A primary dies; its replica, which may lag, is promoted. Later the process returns with its data."""
    chosen = await _shard(nemesis, topic)
    if chosen is None:
        return
    cluster, shard, primary = chosen
    primary.is_reachable = False
    await nemesis.lasting(0.5, 5.0)
    await _healed(nemesis, cluster, shard)


async def primary_cut_off(nemesis: Nemesis) -> None:
    """A primary loses its connections to the other nodes, but not to clients. It serves until it notices this."""
    chosen = await _shard(nemesis)
    if chosen is None:
        return
    cluster, shard, primary = chosen
    cluster.cut.add(primary.name)
    await nemesis.lasting(0.5, 5.0)
    await _healed(nemesis, cluster, shard)


async def primary_frozen(nemesis: Nemesis) -> None:
    """A primary stops answering and its connections stay open, so calls end at their time limits."""
    chosen = await _shard(nemesis)
    if chosen is None:
        return
    cluster, shard, primary = chosen
    primary.is_frozen = True
    await nemesis.lasting(0.5, 5.0)
    primary.drop_connections()
    await _healed(nemesis, cluster, shard)


async def volume_lost(nemesis: Nemesis, topic: str | None = None) -> None:
    """A primary restarts without its data, before the other nodes miss it."""
    chosen = await _shard(nemesis, topic)
    if chosen is None:
        return
    cluster, shard, _ = chosen
    nemesis.world.recorder.seen("volume lost")
    cluster.lose_volume(shard)
    await nemesis.lasting(2.5, 5.0)
    await _healed(nemesis, cluster, shard)


async def replicated_topic_loses_primary(nemesis: Nemesis) -> None:
    """The primary of the replicated topic's shard dies while its replica lags."""
    await primary_lost(nemesis, REPLICATED_TOPIC)


async def replicated_topic_loses_volume(nemesis: Nemesis) -> None:
    """The primary of the replicated topic's shard restarts without its data while its replica lags."""
    await volume_lost(nemesis, REPLICATED_TOPIC)


async def primary_restarted(nemesis: Nemesis) -> None:
    """A primary restarts with its data, before the other nodes miss it. Its dataset has a new replication id."""
    cluster = _cluster(nemesis)
    server = nemesis.randomness.choice(cluster.shards)
    if nemesis.is_store_disturbed or not server.primary.is_primary:
        return
    nemesis.is_store_disturbed = True
    server.restart(server.primary)
    await nemesis.lasting(SETTLED_SECONDS, 3.0)
    nemesis.is_store_disturbed = False


async def replica_lost(nemesis: Nemesis) -> None:
    """A replica confirms nothing for a while, so appends to replicated topics wait."""
    cluster = _cluster(nemesis)
    server = nemesis.randomness.choice(cluster.shards)
    replica = _replica(server)
    if nemesis.is_store_disturbed or replica is None:
        return
    nemesis.is_store_disturbed = True
    replica.holds_replication = True
    await nemesis.lasting(0.5, 4.0)
    replica.holds_replication = False
    replica.follow()
    nemesis.is_store_disturbed = False


async def nodes_drop_connections(nemesis: Nemesis) -> None:
    for server in _cluster(nemesis).shards:
        if nemesis.randomness.random() < 0.5:
            server.primary.drop_connections()
    await nemesis.lasting(0.0, 0.3)


CLUSTER_FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        single.pause_client,
        single.pause_broker,
        single.kill_broker,
        single.rolling_restart,
        single.broker_without_store,
        single.broker_without_anchor,
        single.anchor_away,
        single.flaky_store,
        single.slow_store,
        primary_lost,
        primary_cut_off,
        primary_frozen,
        volume_lost,
        primary_restarted,
        replica_lost,
        nodes_drop_connections,
    )
}
