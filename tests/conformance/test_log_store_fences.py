"""The contract of LogStore: a fence opens a log's next ledger once, and only for the stamped owner."""

from __future__ import annotations

import pytest
from tests.conformance.log_store_worlds import World, Writer, positions, topics_of_bucket, writer
from tests.stamps import fence_once

from onewriter_broker.log.store.api import Binding, Fence, FencedLog, LogStore, Marker, Outcome
from onewriter_core.ids import EARLIEST, Position, TopicName

TOPIC, OTHER, THIRD = topics_of_bucket(0, 3)


async def test_a_fence_opens_the_log_sets_its_state_and_is_audited(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store, generation=3)
    assert await own.fence(TOPIC) is Outcome.DONE
    (marker,) = await store.read_blocks(TOPIC, EARLIEST, count=10)
    assert marker == Marker(Position(5, 0), {"owner": "broker-a", "gen": "3", "epoch": "5"})
    state = await store.read_state(TOPIC)
    assert state == {"tok": "5:broker-a", "ledger": "5", "holder": "broker-a"}
    ((_, record),) = await store.read_audit(0, count=10)
    assert record == {"event": "fence", "ledger": "5"}
    assert (await store.observe([0])).units[0].last_ledger == 5


async def test_a_log_that_must_exist_but_does_not_is_lost(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    assert await own.fence(TOPIC, create=False) is Outcome.LOST
    assert await positions(store, TOPIC) == []
    assert await store.read_audit(0, count=10) == []


@pytest.mark.parametrize("ledger", [4, 5])
async def test_a_ledger_that_is_not_above_the_last_is_refused(
    world: World, store: LogStore, ledger: int
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    successor = await writer(world, store, owner="broker-b", version=2, ledger=ledger)
    assert await successor.fence(TOPIC) is Outcome.FENCED
    assert await positions(store, TOPIC) == ["5-0"]
    assert (await store.read_state(TOPIC))["tok"] == "5:broker-a"


async def test_the_last_ledger_of_a_bucket_never_falls(world: World, store: LogStore) -> None:
    own = await writer(world, store, ledger=9)
    await own.fence(TOPIC)
    await Writer(store, own.binding, 6).fence(OTHER)
    assert (await store.observe([0])).units[0].last_ledger == 9


async def test_a_repeated_fence_answers_the_same_and_is_audited_once(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"first")
    assert await own.fence(TOPIC) is Outcome.DONE
    assert await own.fence(TOPIC, create=False) is Outcome.DONE
    assert await positions(store, TOPIC) == ["5-0", "5-1"]
    assert len(await store.read_audit(0, count=10)) == 1


async def test_a_group_is_fenced_as_a_whole_or_not_at_all(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await Writer(store, own.binding, 7).fence(THIRD)
    group = Writer(store, own.binding, 6)
    assert await group.fence(TOPIC, OTHER, THIRD) is Outcome.FENCED
    assert await group.fence(TOPIC, OTHER, create=False) is Outcome.LOST
    assert await positions(store, TOPIC) == ["5-0"]
    assert await positions(store, OTHER) == []
    assert await positions(store, THIRD) == ["7-0"]
    assert await store.read_state(OTHER) == {}

    later = Writer(store, own.binding, 8)
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
    own = await writer(world, store)
    log = FencedLog(TOPIC, True, {name: "x"}, {})
    with pytest.raises(ValueError, match=name):
        await fence_once(store, Fence(own.binding, 5, (log,), {}))


# ------------------------------------------------------------ several fences in one call


async def test_fences_of_one_call_open_ledgers_of_their_own(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    requests = [
        one_fence(own.binding, 5, TOPIC),
        one_fence(own.binding, 6, OTHER),
        one_fence(own.binding, 7, THIRD),
    ]
    assert await store.fence(requests) == [Outcome.DONE] * 3
    assert [await positions(store, topic) for topic in (TOPIC, OTHER, THIRD)] == [
        ["5-0"],
        ["6-0"],
        ["7-0"],
    ]
    assert (await store.read_state(OTHER))["tok"] == "6:broker-a"
    records = await store.read_audit(0, count=10)
    assert [fields["ledger"] for _, fields in records] == ["5", "6", "7"]
    assert (await store.observe([0])).units[0].last_ledger == 7


async def test_a_refused_fence_changes_nothing_for_the_others_of_its_call(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await Writer(store, own.binding, 9).fence(OTHER)
    requests = [
        one_fence(own.binding, 5, TOPIC),
        one_fence(own.binding, 6, OTHER),  # its log is at a newer ledger
        one_fence(own.binding, 7, THIRD, create=False),
        one_fence(own.binding, 10, THIRD),
    ]
    expected = [Outcome.DONE, Outcome.FENCED, Outcome.LOST, Outcome.DONE]
    assert await store.fence(requests) == expected
    assert await positions(store, TOPIC) == ["5-0"]
    assert await positions(store, OTHER) == ["9-0"]
    assert await positions(store, THIRD) == ["10-0"]
    assert len(await store.read_audit(0, count=10)) == 3


async def test_a_repeated_call_answers_the_same_and_opens_what_the_first_one_did_not(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    requests = [one_fence(own.binding, 5, TOPIC), one_fence(own.binding, 6, OTHER)]
    assert await store.fence(requests[:1]) == [Outcome.DONE]
    assert await store.fence(requests) == [Outcome.DONE] * 2
    assert await store.fence(requests) == [Outcome.DONE] * 2
    assert len(await store.read_audit(0, count=10)) == 2


async def test_two_fences_of_one_log_in_a_call_are_executed_in_their_order(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    upwards = [one_fence(own.binding, 5, TOPIC), one_fence(own.binding, 6, TOPIC)]
    assert await store.fence(upwards) == [Outcome.DONE] * 2
    downwards = [one_fence(own.binding, 8, TOPIC), one_fence(own.binding, 7, TOPIC)]
    assert await store.fence(downwards) == [Outcome.DONE, Outcome.FENCED]
    assert await positions(store, TOPIC) == ["5-0", "6-0", "8-0"]


async def test_a_deposed_owner_fences_none_of_its_topics(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await writer(world, store, owner="broker-b", version=2, ledger=20)
    requests = [one_fence(own.binding, 5, TOPIC), one_fence(own.binding, 6, OTHER)]
    assert await store.fence(requests) == [Outcome.FENCED] * 2
    assert await positions(store, TOPIC) == []
    assert (await store.observe([0])).units[0].last_ledger == 0


async def test_a_call_without_fences_has_no_answers(store: LogStore) -> None:
    assert await store.fence([]) == []


def one_fence(binding: Binding, ledger: int, topic: TopicName, *, create: bool = True) -> Fence:
    log = FencedLog(topic, create, {"epoch": str(ledger)}, {"holder": binding.owner})
    return Fence(binding, ledger, (log,), {"event": "fence", "ledger": str(ledger)})
