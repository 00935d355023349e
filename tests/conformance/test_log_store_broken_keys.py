"""The contract of LogStore if another process wrote to one of its keys: other topics are not affected."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from tests.conformance.log_store_worlds import (
    BUCKETS,
    World,
    Writer,
    append_all,
    topics_of_bucket,
    writer,
)

from onewriter_broker.log.store.api import BrokenKey, LogStore, Outcome
from onewriter_broker.log.store.keys import Keys
from onewriter_core.ids import EARLIEST, Position, TopicName

TOPIC, OTHER = topics_of_bucket(0, 2)
(ELSEWHERE,) = topics_of_bucket(1, 1)
KEYS = Keys(BUCKETS)
LOG, STATE = KEYS.of(TOPIC)
UNIT, AUDIT, CATALOG = KEYS.unit(0), KEYS.audit(0), KEYS.topics(0)


async def positions(store: LogStore, topic: TopicName) -> list[str]:
    stored = await store.read_blocks(topic, EARLIEST, count=1000)
    return [str(block.position) for block in stored]


# --- appending


@pytest.mark.parametrize("key", [LOG, STATE])
async def test_a_broken_key_stops_its_own_log_and_no_other(
    world: World, store: LogStore, key: str
) -> None:
    own = await writer(world, store)
    other_bucket = await writer(world, store, bucket=1)
    await own.fence(TOPIC, OTHER)
    await other_bucket.fence(ELSEWHERE)
    world.put_foreign_key(key)
    blocks = [
        own.appending(OTHER, b"before"),
        own.appending(TOPIC, b"1"),
        other_bucket.appending(ELSEWHERE, b"elsewhere"),
        own.appending(TOPIC, b"2"),
        own.appending(OTHER, b"behind"),
    ]
    one, broken, two, broken_too, three = await append_all(store, blocks)
    assert [one, two, three] == [Outcome.DONE] * 3
    for answer in (broken, broken_too):
        assert isinstance(answer, BrokenKey)
        assert key in str(answer)
        assert "WRONGTYPE" in str(answer)
    assert await positions(store, OTHER) == ["5-0", "5-1", "5-2"]
    assert await positions(store, ELSEWHERE) == ["5-0", "5-1"]


async def test_a_broken_bucket_record_stops_its_bucket_and_no_other(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    other_bucket = await writer(world, store, bucket=1)
    await own.fence(TOPIC, OTHER)
    await other_bucket.fence(ELSEWHERE)
    world.put_foreign_key(UNIT)
    blocks = [own.appending(TOPIC, b"1"), other_bucket.appending(ELSEWHERE, b"1")]
    blocks.append(own.appending(OTHER, b"1"))
    broken, done, broken_too = await append_all(store, blocks)
    assert done is Outcome.DONE
    assert isinstance(broken, BrokenKey)
    assert isinstance(broken_too, BrokenKey)
    assert await positions(store, TOPIC) == ["5-0"]


async def test_a_retry_across_a_break_appends_the_others_once(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC, OTHER)
    blocks = [own.appending(OTHER, b"1"), own.appending(TOPIC, b"1")]
    assert await store.append(blocks) == [Outcome.DONE] * 2
    world.put_foreign_key(LOG)  # and the answer to that call was lost
    done, broken = await store.append(blocks)
    assert done is Outcome.DONE
    assert isinstance(broken, BrokenKey)
    assert await positions(store, OTHER) == ["5-0", "5-1"]


async def test_broken_key_is_still_reported_after_a_successor_rejects_the_write(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    sent = own.appending(TOPIC, b"1")
    await writer(world, store, owner="broker-b", version=2)
    world.put_foreign_key(LOG)
    (broken,) = await store.append([sent])  # it can no longer be decided whether it was stored
    assert isinstance(broken, BrokenKey)


@pytest.mark.parametrize(
    ("key", "expected"), [(LOG, Outcome.LOST), (STATE, Outcome.LOST), (UNIT, Outcome.LOST)]
)
async def test_overwritten_key_is_lost_after_the_foreign_key_is_deleted(
    world: World, store: LogStore, key: str, expected: Outcome
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    world.put_foreign_key(key)
    block = own.appending(TOPIC, b"1")
    (broken,) = await store.append([block])
    assert isinstance(broken, BrokenKey)
    world.delete_key(key)
    assert await store.append([block]) == [expected]


# --- fencing


@pytest.mark.parametrize("key", [LOG, STATE, UNIT, AUDIT])
async def test_a_fence_that_meets_a_broken_key_writes_nothing(
    world: World, store: LogStore, key: str
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC, OTHER)
    audited = len(await store.read_audit(0, count=10))
    world.put_foreign_key(key)
    later = Writer(store, own.binding, 6)
    with pytest.raises(BrokenKey) as caught:
        await later.fence(OTHER, TOPIC)
    assert key in str(caught.value)
    assert await positions(store, OTHER) == ["5-0"]
    assert (await store.read_state(OTHER))["tok"] == own.token
    if key != AUDIT:
        assert len(await store.read_audit(0, count=10)) == audited


async def test_a_broken_log_holds_up_no_other_fence(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC, OTHER)
    world.put_foreign_key(LOG)
    later = Writer(store, own.binding, 6)
    with pytest.raises(BrokenKey):
        await later.fence(TOPIC)
    assert await later.fence(OTHER) is Outcome.DONE


async def test_a_repaired_log_begins_above_every_granted_epoch(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    world.put_foreign_key(LOG)
    world.delete_key(LOG)
    assert await Writer(store, own.binding, 6).fence(TOPIC, create=False) is Outcome.LOST
    assert await own.fence(TOPIC) is Outcome.FENCED  # the state contains the ledger
    assert await Writer(store, own.binding, 6).fence(TOPIC) is Outcome.DONE
    assert await positions(store, TOPIC) == ["6-0"]


async def test_a_log_pushed_beyond_every_ledger_is_broken_not_overtaken(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC, OTHER)
    world.move_end(TOPIC, Position(10**12, 7))
    with pytest.raises(BrokenKey, match="never opened"):
        await Writer(store, own.binding, 6).fence(TOPIC)
    assert await Writer(store, own.binding, 9).fence(OTHER) is Outcome.DONE
    world.move_end(OTHER, Position(9, 50))  # this ledger exists; a later one is accepted
    assert await Writer(store, own.binding, 9).fence(OTHER) is Outcome.DONE
    assert await Writer(store, own.binding, 8).fence(OTHER) is Outcome.FENCED


# --- everything else


async def test_every_write_names_the_key_that_it_cannot_use(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    binding, token, end = own.binding, own.token, Position(5, 1)
    writes: dict[str, list[Callable[[], Awaitable[object]]]] = {
        STATE: [
            lambda: store.set_state(binding, TOPIC, token, {"cursor": "5-1"}),
            lambda: store.swap_state(binding, TOPIC, token, "witness:t", None, "{}"),
            lambda: store.trim(binding, TOPIC, token, end, {}),
        ],
        AUDIT: [lambda: store.write_audit(binding, {"event": "x"})],
        CATALOG: [lambda: store.set_catalog(binding, {"topic": "{}"}, ["other"])],
        UNIT: [
            lambda: store.stamp(dataclasses.replace(binding, version=2)),
            lambda: store.set_state(binding, TOPIC, token, {"cursor": "5-1"}),
        ],
    }
    for key, calls in writes.items():
        world.put_foreign_key(key)
        for call in calls:
            with pytest.raises(BrokenKey) as caught:
                await call()
            assert key in str(caught.value)


async def test_a_trim_that_cannot_read_the_log_changes_no_state(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    world.put_foreign_key(LOG)
    with pytest.raises(BrokenKey, match="WRONGTYPE"):
        await store.trim(own.binding, TOPIC, own.token, Position(5, 1), {"trimmed": "5-1"})
    assert "trimmed" not in await store.read_state(TOPIC)


async def test_every_read_names_the_key_that_it_cannot_use(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    replid = own.binding.replid
    reads: dict[str, list[Callable[[], Awaitable[object]]]] = {
        LOG: [
            lambda: store.read_blocks(TOPIC, EARLIEST, count=1),
            lambda: store.read_blocks(TOPIC, EARLIEST, count=1, reverse=True, replid=replid),
        ],
        STATE: [lambda: store.read_state(TOPIC), lambda: store.read_state(TOPIC, replid=replid)],
        CATALOG: [lambda: store.read_catalog(0)],
        AUDIT: [lambda: store.read_audit(0, count=1)],
        UNIT: [lambda: store.observe([0])],
    }
    for key, calls in reads.items():
        world.put_foreign_key(key)
        for call in calls:
            with pytest.raises(BrokenKey) as caught:
                await call()
            assert key in str(caught.value)
    assert (await store.observe([1])).is_primary
