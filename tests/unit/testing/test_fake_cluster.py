"""The fake cluster: views, redirections, votes, and the production store over them."""

from __future__ import annotations

import hiredis
import pytest

from onewriter_broker.log.store.api import Binding, Outcome, ShardBeats
from onewriter_broker.log.store.keys import Keys
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided
from onewriter_testing.fake_store.cluster import (
    FakeCluster,
    FakeClusterStore,
    Promotion,
    even_ranges,
)
from onewriter_testing.fake_store.server import FakeConnection, FakeNode

BUCKETS = 2
SHARDS = 3
LATER = 10.0


def made() -> FakeCluster:
    cluster = FakeCluster(even_ranges(BUCKETS, SHARDS))
    cluster.tick(0.0)
    return cluster


def store_of(cluster: FakeCluster) -> FakeClusterStore:
    return FakeClusterStore(cluster, buckets=BUCKETS, replicas=1, commit_timeout_seconds=0.01)


async def answer(node: FakeNode, bucket: int) -> str:
    """Return what a node answers to a read of a bucket's record; empty: it serves it."""
    connection = FakeConnection(node, lambda: True)
    reply = await connection.submit(["HGETALL", Keys(BUCKETS).unit(bucket)])
    return str(reply) if isinstance(reply, hiredis.ReplyError) else ""


def test_each_bucket_has_a_shard_of_its_own() -> None:
    cluster = made()
    shards = [cluster.shard_of(Keys(BUCKETS).unit(bucket)) for bucket in range(BUCKETS)]
    assert sorted(shards) == [0, 1]
    assert len(cluster.ranges) == SHARDS


async def test_a_node_names_the_primary_of_a_slot_that_it_does_not_serve() -> None:
    cluster = made()
    primary = cluster.primary_of(0, BUCKETS)
    replica = primary.replicas[0]
    other = cluster.primary_of(1, BUCKETS)
    assert await answer(primary, 0) == ""
    assert (await answer(replica, 0)).endswith(f"{primary.name}:6379")
    assert (await answer(other, 0)).startswith("MOVED ")


async def test_a_replica_is_promoted_after_the_node_timeout_and_the_former_primary_follows_it() -> (
    None
):
    cluster = made()
    promotions: list[Promotion] = []
    cluster.changed = promotions.append
    former = cluster.primary_of(0, BUCKETS)
    former.is_reachable = False
    cluster.tick(1.0)
    assert cluster.primary_of(0, BUCKETS) is former
    cluster.tick(LATER)
    promoted = cluster.primary_of(0, BUCKETS)
    assert promoted is not former
    assert promoted.previous_replid == former.replid
    assert await answer(promoted, 0) == ""
    former.is_reachable = True
    assert former.is_primary
    cluster.tick(LATER + 1)
    assert not former.is_primary
    assert former.replid == promoted.replid
    assert [each.node for each in promotions] == [promoted, promoted]


async def test_a_primary_that_is_cut_off_serves_until_it_notices() -> None:
    cluster = made()
    former = cluster.primary_of(0, BUCKETS)
    cluster.cut.add(former.name)
    cluster.tick(1.0)
    assert await answer(former, 0) == ""
    cluster.tick(LATER)
    assert cluster.primary_of(0, BUCKETS) is not former
    assert (await answer(former, 0)).startswith("CLUSTERDOWN")


def test_without_a_majority_nothing_is_promoted() -> None:
    cluster = made()
    primaries = [server.primary for server in cluster.shards]
    for primary in primaries[:2]:
        primary.is_reachable = False
    cluster.tick(1.0)
    cluster.tick(LATER)
    assert [server.primary for server in cluster.shards] == primaries


def test_a_node_without_its_volume_is_replaced_and_becomes_a_replica() -> None:
    cluster = made()
    former = cluster.primary_of(0, BUCKETS)
    former.run("HSET", "key", "field", "value")
    cluster.lose_volume(cluster.shard_of(Keys(BUCKETS).unit(0)))
    assert not former.is_primary
    cluster.tick(1.0)
    cluster.tick(LATER)
    promoted = cluster.primary_of(0, BUCKETS)
    assert promoted is not former
    assert promoted.run("HGETALL", "key") == [b"field", b"value"]
    cluster.tick(LATER + 1)
    assert former.source is promoted
    assert former.replid == promoted.replid


async def test_the_store_follows_a_promotion_and_the_other_shard_does_not_notice() -> None:
    cluster = made()
    store = store_of(cluster)
    bindings: list[Binding] = []
    for bucket in range(BUCKETS):
        await store.write_birthmark(bucket, "born")
        seen = await store.observe([bucket])
        binding = Binding(bucket, seen.replid, 1, "broker~1", 1)
        assert await store.stamp(binding, birthmark="born") is Outcome.DONE
        bindings.append(binding)
    assert bindings[0].replid != bindings[1].replid
    former = cluster.primary_of(0, BUCKETS)
    former.is_reachable = False
    with pytest.raises(Undecided):
        await store.set_catalog(bindings[0], {"topic": "{}"})
    assert await store.set_catalog(bindings[1], {"topic": "{}"}) is Outcome.DONE
    cluster.tick(1.0)
    cluster.tick(LATER)
    outcome: Outcome | None = None
    for _ in range(3):
        try:
            outcome = await store.set_catalog(bindings[0], {"topic": "{}"})
            break
        except Undecided:
            continue
    assert outcome is Outcome.REFENCE
    seen = await store.observe([0])
    assert seen.previous_replid == bindings[0].replid
    await store.close()


async def test_a_wait_is_asked_at_the_primary_that_was_written_to() -> None:
    cluster = made()
    store = store_of(cluster)
    replids = []
    for bucket in range(BUCKETS):
        await store.write_birthmark(bucket, "born")
        seen = await store.observe([bucket])
        replids.append(seen.replid)
        if bucket == 0:
            cluster.primary_of(0, BUCKETS).replicas[0].holds_replication = True
        binding = Binding(bucket, seen.replid, 1, "broker~1", 1)
        await store.stamp(binding, birthmark="born")
    assert not await store.commit(Durability.REPLICATED, replid=replids[0])
    assert await store.commit(Durability.REPLICATED, replid=replids[1])
    await store.close()


async def test_a_frozen_shard_does_not_delay_the_heartbeats_of_the_others() -> None:
    cluster = made()
    store = store_of(cluster)
    await store.beat("broker~1", "first")
    assert await store.members() == [
        ShardBeats(frozenset({bucket}), {"broker~1": "first"}) for bucket in (1, 0)
    ]
    cluster.primary_of(0, BUCKETS).is_frozen = True
    await store.beat("broker~1", "second")
    assert await store.members() == [ShardBeats(frozenset({1}), {"broker~1": "second"})]
    await store.close()


def test_a_view_lists_every_node() -> None:
    cluster = made()
    node = cluster.primary_of(0, BUCKETS)
    lines = cluster.view_of(node).splitlines()
    assert len(lines) == 2 * SHARDS
    mine = next(line for line in lines if "myself" in line)
    assert mine.startswith(node.name)
