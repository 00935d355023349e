"""The contract of LogStore: a replaced broker changes nothing, whatever it tries."""

from __future__ import annotations

import dataclasses

import pytest
from tests.conformance.log_store_worlds import World, Writer, topics_of_bucket, writer

from onewriter_broker.log.store.api import LogStore, Outcome
from onewriter_core.ids import EARLIEST, Position

(TOPIC,) = topics_of_bucket(0, 1)


async def zombie_and_successor(world: World, store: LogStore) -> tuple[Writer, Writer]:
    """Return a broker that was replaced without knowing it, and its successor, each with one block."""
    zombie = await writer(world, store)
    await zombie.fence(TOPIC)
    await zombie.append(TOPIC, b"by the first owner")
    successor = await writer(world, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC, create=False)
    await successor.append(TOPIC, b"by the second")
    return zombie, successor


async def stored_history(store: LogStore) -> object:
    return (
        await store.read_blocks(TOPIC, EARLIEST, count=100),
        await store.read_state(TOPIC),
        await store.read_catalog(0),
        await store.read_audit(0, count=100),
        (await store.observe([0])).units,
    )


@pytest.mark.parametrize("shown", ["its own", "the successor's"])
async def test_zombie_broker_changes_nothing(world: World, store: LogStore, shown: str) -> None:
    zombie, successor = await zombie_and_successor(world, store)
    used = zombie if shown == "its own" else successor
    late = used.appending(TOPIC, b"late")
    late = dataclasses.replace(late, binding=zombie.binding, never_sent=True)
    before = await stored_history(store)
    assert await store.append([late]) == [Outcome.FENCED]
    assert await Writer(store, zombie.binding, 7).fence(TOPIC) is Outcome.FENCED
    assert await store.stamp(zombie.binding) is Outcome.FENCED
    position = Position(6, 1)
    assert await store.trim(zombie.binding, TOPIC, used.token, position, {}) is Outcome.FENCED
    cursor = {"cursor": "5-1"}
    assert await store.set_state(zombie.binding, TOPIC, used.token, cursor) is Outcome.FENCED
    swapped = await store.swap_state(zombie.binding, TOPIC, used.token, "a", None, "b")
    assert swapped is Outcome.FENCED
    assert await store.set_catalog(zombie.binding, {"topic": "{}"}) is Outcome.FENCED
    assert await store.set_catalog(zombie.binding, {}) is Outcome.FENCED
    assert await store.write_audit(zombie.binding, {"event": "lie"}) is Outcome.FENCED
    assert await stored_history(store) == before


async def test_calls_from_before_a_loss_of_the_bucket_do_not_count_afterwards(
    world: World, store: LogStore
) -> None:
    # A had the bucket, B acquired it, A acquired it again: the same incarnation, two ownerships.
    first = await writer(world, store)
    await first.fence(TOPIC)
    await writer(world, store, owner="broker-b", version=2, ledger=6)
    again = await writer(world, store, version=3, ledger=7)
    before = await stored_history(store)
    assert await store.set_catalog(first.binding, {"topic": "{}"}) is Outcome.REFENCE
    assert await store.write_audit(first.binding, {"event": "late"}) is Outcome.REFENCE
    assert await Writer(store, first.binding, 8).fence(TOPIC) is Outcome.REFENCE
    cursor = {"cursor": "5-1"}
    assert await store.set_state(first.binding, TOPIC, first.token, cursor) is Outcome.REFENCE
    position = Position(6, 1)
    assert await store.trim(first.binding, TOPIC, first.token, position, {}) is Outcome.REFENCE
    late = first.appending(TOPIC, b"late", never_sent=True)
    assert await store.append([late]) == [Outcome.REFENCE]
    assert await store.stamp(first.binding) is Outcome.FENCED
    assert await stored_history(store) == before
    assert await again.fence(TOPIC) is Outcome.DONE


async def test_the_token_of_an_older_ledger_changes_nothing(world: World, store: LogStore) -> None:
    older = await writer(world, store)
    await older.fence(TOPIC)
    newer = Writer(store, older.binding, 6)
    await newer.fence(TOPIC)
    before = await stored_history(store)
    late = older.appending(TOPIC, b"late", never_sent=True)
    assert await store.append([late]) == [Outcome.FENCED]
    position = Position(6, 0)
    assert await store.trim(older.binding, TOPIC, older.token, position, {}) is Outcome.FENCED
    assert await store.set_state(older.binding, TOPIC, older.token, {"a": "b"}) is Outcome.FENCED
    swapped = await store.swap_state(older.binding, TOPIC, older.token, "a", None, "b")
    assert swapped is Outcome.FENCED
    assert await stored_history(store) == before


async def test_an_older_registration_of_the_dataset_changes_nothing(
    world: World, store: LogStore
) -> None:
    older = await writer(world, store)
    await older.fence(TOPIC)
    await writer(world, store, generation=2, version=2)
    before = await stored_history(store)
    assert await store.append([older.appending(TOPIC, b"late")]) == [Outcome.REFENCE]
    assert await Writer(store, older.binding, 9).fence(TOPIC) is Outcome.REFENCE
    assert await stored_history(store) == before
