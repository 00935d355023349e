"""The log store on a real cluster of three primaries with a replica each: routing, failovers, votes.

The contract suite also runs on a cluster (``full``). Here is what only a cluster can show.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.conformance.log_store_worlds import (
    BUCKETS,
    ClusterWorld,
    Writer,
    decided,
    positions,
    topics_of_bucket,
    writer,
)
from tests.store_cluster import StoreCluster, running_cluster, wait_until

from onewriter_broker.log.store.api import LogStore, Outcome
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.server_checks import (
    check_cluster,
    check_server,
    judge_cluster,
)
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_core.api.topic import Durability
from onewriter_core.cluster_views import slot_of
from onewriter_core.errors import Undecided

TOPICS = [topics_of_bucket(bucket, 1)[0] for bucket in range(BUCKETS)]
KEYS = Keys(BUCKETS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StoreCluster]:
    with running_cluster(replicas=1) as running:
        yield running


@pytest.fixture
def world(cluster: StoreCluster) -> ClusterWorld:
    cluster.wait_complete()
    world = ClusterWorld(cluster)
    world.flush_all()
    return world


@pytest.fixture
async def store(world: ClusterWorld) -> AsyncIterator[LogStore]:
    # A frozen primary is found within the time limit of a connection attempt.
    opened = RedisLogStore(dataclasses.replace(world.settings(), connect_timeout_seconds=2.0))
    yield opened
    await opened.close()


def elsewhere(world: ClusterWorld) -> int:
    """A bucket on another shard than bucket 0."""
    here = world.primary
    return next(
        bucket
        for bucket in range(1, BUCKETS)
        if world.cluster.primary(KEYS.unit(bucket)) is not here
    )


async def writers(world: ClusterWorld, store: LogStore) -> list[Writer]:
    """A writer for each bucket, with its topic fenced."""
    found = [await writer(world, store, bucket=bucket) for bucket in range(BUCKETS)]
    for each, topic in zip(found, TOPICS, strict=True):
        assert await each.fence(topic) is Outcome.DONE
    return found


async def test_buckets_of_all_shards_are_written_read_and_replicated(
    world: ClusterWorld, store: LogStore
) -> None:
    found = await writers(world, store)
    for _ in range(3):
        calls = [each.append(topic, b"x") for each, topic in zip(found, TOPICS, strict=True)]
        await asyncio.gather(*calls)
    for each, topic in zip(found, TOPICS, strict=True):
        replid = each.binding.replid
        assert await positions(store, topic) == ["5-0", "5-1", "5-2", "5-3"]
        assert (await store.read_state(topic, replid=replid))["holder"] == "broker-a"
        for durability in Durability:
            commit = functools.partial(store.commit, durability, replid=replid)
            assert await decided(commit)
    assert len({each.binding.replid for each in found}) > 1


async def test_every_primary_is_observed_with_its_buckets(
    world: ClusterWorld, store: LogStore
) -> None:
    shards = await store.observe_shards()
    assert len(shards) == 3
    assert sorted(b for shard in shards for b in shard.buckets or ()) == list(range(BUCKETS))
    for shard in shards:
        assert shard.seen is not None
        assert shard.seen.replicas == 1
        assert shard.seen.is_primary


async def test_a_call_concerns_one_bucket(world: ClusterWorld, store: LogStore) -> None:
    first, second = (await writers(world, store))[:2]
    with pytest.raises(ValueError, match="one bucket"):
        await store.append([first.appending(TOPICS[0], b"x"), second.appending(TOPICS[1], b"x")])


async def test_heartbeats_are_on_every_shard(world: ClusterWorld, store: LogStore) -> None:
    await store.beat("broker-a", "1")
    readings = await store.members()
    assert [reading.beats for reading in readings] == [{"broker-a": "1"}] * 3
    shown = [bucket for reading in readings for bucket in reading.buckets or ()]
    assert sorted(shown) == list(range(BUCKETS)), "each shard names its buckets"


async def test_the_self_test_checks_every_primary(world: ClusterWorld) -> None:
    found = await check_cluster(world.settings())
    assert len(found.answered) == found.primaries == 3
    verdict = judge_cluster(found, Durability.LOCAL, replicas=1)
    assert verdict.refusals == ()
    assert verdict.promises == frozenset(Durability)
    single = dataclasses.replace(world.settings(), url=f"redis://127.0.0.1:{world.primary.port}")
    facts = await check_server(single)
    assert facts.is_in_cluster


async def test_a_planned_failover_ends_the_binding_and_disturbs_no_other_bucket(
    world: ClusterWorld, store: LogStore
) -> None:
    """The former primary answers MOVED. The connection to it stays, and so do those to other shards."""
    found = await writers(world, store)
    mine, topic = found[0], TOPICS[0]
    await mine.append(topic, b"before")
    before = world.primary
    replica = world.cluster.replica_of(before)
    replica.command("CLUSTER", "FAILOVER")
    wait_until(lambda: world.primary is replica)
    other = elsewhere(world)
    append = mine.appending(topic, b"refused")
    assert await decided(lambda: store.append([append])) == [Outcome.REFENCE]
    seen = await store.observe([0])
    assert seen.replid == replica.replid()
    assert seen.previous_replid == mine.binding.replid
    await found[other].append(TOPICS[other], b"beside")
    assert await positions(store, topic) == ["5-0", "5-1"]
    await bound_anew(store, mine)
    assert await positions(store, topic) == ["5-0", "5-1", "6-0"]


async def bound_anew(store: LogStore, former: Writer) -> Writer:
    """Register the dataset that serves the bucket now, stamp it, and fence the topic with the next ledger."""
    bucket = former.binding.bucket
    seen = await store.observe([bucket])
    binding = dataclasses.replace(
        former.binding,
        replid=seen.replid,
        generation=former.binding.generation + 1,
        version=former.binding.version + 1,
    )
    assert await store.stamp(binding) is Outcome.DONE
    fresh = Writer(store, binding, former.ledger + 1)
    assert await fresh.fence(TOPICS[bucket]) is Outcome.DONE
    return fresh


async def test_a_lost_primary_is_replaced_while_the_other_shards_continue(
    world: ClusterWorld, store: LogStore
) -> None:
    found = await writers(world, store)
    mine, topic = found[0], TOPICS[0]
    await mine.append(topic, b"kept")
    assert await decided(lambda: store.commit(Durability.REPLICATED, replid=mine.binding.replid))
    other = elsewhere(world)
    lost = world.primary
    lost.kill()
    with pytest.raises(Undecided):
        await store.append([mine.appending(topic, b"undecided")])
    await found[other].append(TOPICS[other], b"meanwhile")
    seen = await decided(lambda: store.observe([0]))
    assert seen.previous_replid == mine.binding.replid
    assert world.primary is not lost
    fresh = await bound_anew(store, mine)
    await fresh.append(topic, b"after")
    assert await positions(store, topic) == ["5-0", "5-1", "6-0", "6-1"]
    lost.start()
    world.cluster.wait_complete()
    assert lost.information("replication")["role"] == "slave"


async def test_a_deposed_primary_that_still_runs_accepts_nothing_that_counts(
    world: ClusterWorld, store: LogStore
) -> None:
    """It wakes with a call of its former owner in its socket, and is asked again by a store that was opened before."""
    zombie = RedisLogStore(
        dataclasses.replace(
            world.settings(), call_timeout_seconds=60.0, connect_timeout_seconds=2.0
        )
    )
    mine, topic = (await writers(world, zombie))[0], TOPICS[0]
    await mine.append(topic, b"kept")
    assert await decided(lambda: zombie.commit(Durability.REPLICATED, replid=mine.binding.replid))
    frozen = world.primary
    frozen.pause()
    late = asyncio.get_running_loop().create_task(zombie.append([mine.appending(topic, b"late")]))
    try:
        fresh = await decided(lambda: bound_anew(store, mine))
        await fresh.append(topic, b"counts")
    finally:
        frozen.resume()
    answered = (await asyncio.gather(late, return_exceptions=True))[0]
    assert isinstance(answered, Undecided) or answered in ([Outcome.DONE], [Outcome.REFENCE])
    world.cluster.wait_complete()
    retried = await decided(lambda: zombie.append([mine.appending(topic, b"again")]))
    assert retried == [Outcome.REFENCE]
    assert await positions(store, topic) == ["5-0", "5-1", "6-0", "6-1"]
    await zombie.close()


async def test_a_call_to_a_frozen_primary_ends_when_another_takes_its_place(
    world: ClusterWorld,
) -> None:
    """The heartbeats notice it: the call itself has a longer time limit than the test."""
    settings = dataclasses.replace(
        world.settings(), call_timeout_seconds=3600.0, connect_timeout_seconds=2.0
    )
    store = RedisLogStore(settings)
    mine, topic = (await writers(world, store))[0], TOPICS[0]
    frozen = world.primary
    frozen.pause()
    late = asyncio.get_running_loop().create_task(store.append([mine.appending(topic, b"late")]))
    try:
        while not late.done():
            await store.beat("broker-a", "1")
            await asyncio.sleep(0.1)
        with pytest.raises(Undecided, match="dropped"):
            await late
        seen = await decided(lambda: store.observe([0]))
        assert seen.previous_replid == mine.binding.replid
    finally:
        late.cancel()
        frozen.resume()
    await store.close()


async def test_a_slot_that_moved_is_found_and_its_bucket_is_bound_by_its_own_record(
    world: ClusterWorld, store: LogStore
) -> None:
    mine, topic = (await writers(world, store))[0], TOPICS[0]
    await mine.append(topic, b"1")
    source = world.primary
    target = world.cluster.primary(KEYS.unit(elsewhere(world)))
    slot = slot_of(KEYS.unit(0))
    target_id = world.cluster.view(target).me
    try:
        source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target_id)
        wait_until(lambda: world.primary is target)
        append = mine.appending(topic, b"2")
        assert await decided(lambda: store.append([append])) == [Outcome.REFENCE]
        seen = await store.observe([0])
        assert seen.replid == target.replid()
        assert seen.units[0].generation == mine.binding.generation
        assert await decided(lambda: store.replicate(0))
        fresh = await bound_anew(store, mine)
        await fresh.append(topic, b"3")
        assert await positions(store, topic) == ["5-0", "5-1", "6-0", "6-1"]
    finally:
        source_id = world.cluster.view(source).me
        if world.primary is target:
            target.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", source_id)
            wait_until(lambda: world.primary is source)


@pytest.mark.full  # the contract suite restarts single processes
async def test_all_processes_restarted_at_once_serve_the_same_data(
    world: ClusterWorld, store: LogStore
) -> None:
    found = await writers(world, store)
    for each, topic in zip(found, TOPICS, strict=True):
        await each.append(topic, b"kept")
    world.cluster.kill()
    for server in world.cluster.servers:
        server.start()
    world.cluster.wait_complete()
    for topic in TOPICS:
        assert await decided(functools.partial(positions, store, topic)) == ["5-0", "5-1"]
