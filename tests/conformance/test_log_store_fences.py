"""The contract of LogStore: a fence opens a log's next ledger once, and only for the stamped owner."""

from __future__ import annotations

import pytest
from tests.conformance.log_store_worlds import World, Writer, positions, topics_of_bucket, writer

from onewriter_broker.log.store.api import Binding, Fence, FencedLog, LogStore, Marker, Outcome
from onewriter_core.ids import EARLIEST, Position

TOPIC, OTHER, THIRD = topics_of_bucket(0, 3)


async def test_a_fence_opens_the_log_sets_its_state_and_is_audited(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store, generation=3)
    assert await mine.fence(TOPIC) is Outcome.DONE
    (marker,) = await store.read_blocks(TOPIC, EARLIEST, count=10)
    assert marker == Marker(Position(5, 0), {"owner": "broker-a", "gen": "3", "epoch": "5"})
    state = await store.read_state(TOPIC)
    assert state == {"tok": "5:broker-a", "ledger": "5", "holder": "broker-a"}
    ((_, record),) = await store.read_audit(0, count=10)
    assert record == {"event": "fence", "ledger": "5"}
    assert (await store.observe([0])).units[0].last_ledger == 5


async def test_a_log_that_must_exist_but_does_not_is_lost(world: World, store: LogStore) -> None:
    mine = await writer(world, store)
    assert await mine.fence(TOPIC, create=False) is Outcome.LOST
    assert await positions(store, TOPIC) == []
    assert await store.read_audit(0, count=10) == []


@pytest.mark.parametrize("ledger", [4, 5])
async def test_a_ledger_that_is_not_above_the_last_is_refused(
    world: World, store: LogStore, ledger: int
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    successor = await writer(world, store, owner="broker-b", version=2, ledger=ledger)
    assert await successor.fence(TOPIC) is Outcome.FENCED
    assert await positions(store, TOPIC) == ["5-0"]
    assert (await store.read_state(TOPIC))["tok"] == "5:broker-a"


async def test_the_last_ledger_of_a_bucket_never_falls(world: World, store: LogStore) -> None:
    mine = await writer(world, store, ledger=9)
    await mine.fence(TOPIC)
    await Writer(store, mine.binding, 6).fence(OTHER)
    assert (await store.observe([0])).units[0].last_ledger == 9


async def test_a_repeated_fence_answers_the_same_and_is_audited_once(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    await mine.append(TOPIC, b"first")
    assert await mine.fence(TOPIC) is Outcome.DONE
    assert await mine.fence(TOPIC, create=False) is Outcome.DONE
    assert await positions(store, TOPIC) == ["5-0", "5-1"]
    assert len(await store.read_audit(0, count=10)) == 1


async def test_a_group_is_fenced_as_a_whole_or_not_at_all(world: World, store: LogStore) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    await Writer(store, mine.binding, 7).fence(THIRD)
    group = Writer(store, mine.binding, 6)
    assert await group.fence(TOPIC, OTHER, THIRD) is Outcome.FENCED
    assert await group.fence(TOPIC, OTHER, create=False) is Outcome.LOST
    assert await positions(store, TOPIC) == ["5-0"]
    assert await positions(store, OTHER) == []
    assert await positions(store, THIRD) == ["7-0"]
    assert await store.read_state(OTHER) == {}

    later = Writer(store, mine.binding, 8)
    assert await later.fence(TOPIC, OTHER, THIRD) is Outcome.DONE
    assert await later.fence(TOPIC, OTHER, THIRD) is Outcome.DONE
    assert await positions(store, OTHER) == ["8-0"]
    events = [record["ledger"] for _, record in await store.read_audit(0, count=10)]
    assert events == ["5", "7", "8"]


async def test_only_the_stamped_owner_fences(world: World, store: LogStore) -> None:
    unstamped = Writer(store, Binding(0, world.replid(), 1, "broker-a", 1), 5)
    assert await unstamped.fence(TOPIC) is Outcome.LOST
    await writer(world, store, owner="broker-b", version=2)
    assert await unstamped.fence(TOPIC) is Outcome.FENCED
    await writer(world, store, owner="broker-a", generation=2, version=3)
    assert await unstamped.fence(TOPIC) is Outcome.REFENCE
    assert await positions(store, TOPIC) == []


@pytest.mark.parametrize("name", ["k", "owner", "gen"])
async def test_a_marker_field_of_the_stores_own_is_a_mistake(
    world: World, store: LogStore, name: str
) -> None:
    mine = await writer(world, store)
    log = FencedLog(TOPIC, True, {name: "x"}, {})
    with pytest.raises(ValueError, match=name):
        await store.fence(Fence(mine.binding, 5, (log,), {}))
