"""The contract of LogStore on one dataset; the fake server and real ones keep it alike.

This module tests appending, reading, retries, state, catalog, audit and trim. The neighbouring modules test stamps,
fences, zombies, changes of the dataset, broken keys, guards, blocks stored together, ownership and compacted views.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.conformance.log_store_worlds import (
    World,
    Writer,
    append_all,
    positions,
    topics_of_bucket,
    writer,
)

from onewriter_broker.log.store.api import Append, Block, LogStore, Outcome
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position

TOPIC, OTHER, THIRD = topics_of_bucket(0, 3)
(ELSEWHERE,) = topics_of_bucket(1, 1)
EVERY_BYTE = bytes(range(256))


# --- appending and reading


async def test_appended_blocks_are_read_byte_for_byte(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    plain = own.block(TOPIC, EVERY_BYTE, b"", b"\r\n$5\r\n", b"x" * 300_000)
    batched = own.block(TOPIC, b"batch", b"\x00\xff", counts=[1000, 4_000_000_000])
    appends = [Append(own.binding, TOPIC, own.token, block) for block in (plain, batched)]
    assert await store.append(appends) == [Outcome.DONE] * 2
    assert await store.read_blocks(TOPIC, Position(5, 1), count=10) == [plain, batched]
    assert plain.last == Position(5, 4)
    assert batched.position == Position(5, 5)


async def test_reading_forward_and_backward_keeps_to_its_bounds(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    for _ in range(4):
        await own.append(TOPIC, b"a", b"b")

    async def read(start: int, end: int | None = None, **options: Any) -> list[int]:
        stored = await store.read_blocks(
            TOPIC, Position(5, start), None if end is None else Position(5, end), **options
        )
        return [block.position.entry for block in stored]

    assert await read(0, count=3) == [0, 1, 3]
    assert await read(2, count=10) == [3, 5, 7]
    assert await read(3, 5, count=10) == [3, 5]
    assert await read(0, count=2, reverse=True) == [7, 5]
    assert await read(0, 4, count=1, reverse=True) == [3]
    assert await read(8, count=10) == []
    assert await store.read_blocks(OTHER, EARLIEST, count=10) == []


async def test_one_call_serves_many_logs_and_one_deposed_log_stops_no_other(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    beside = await writer(world, store, bucket=1)
    await own.fence(TOPIC, OTHER)
    await beside.fence(ELSEWHERE)
    await Writer(store, own.binding, 6).fence(OTHER)
    appends = [
        own.appending(TOPIC, b"1"),
        own.appending(OTHER, b"2", never_sent=True),
        beside.appending(ELSEWHERE, b"3"),
        own.appending(TOPIC, b"4"),
        own.appending(THIRD, b"5"),
    ]
    done, fenced, lost = Outcome.DONE, Outcome.FENCED, Outcome.LOST
    assert await append_all(store, appends) == [done, fenced, done, done, lost]
    assert await positions(store, TOPIC) == ["5-0", "5-1", "5-2"]
    assert await positions(store, OTHER) == ["5-0", "6-0"]
    assert await positions(store, ELSEWHERE) == ["5-0", "5-1"]
    assert await positions(store, THIRD) == []


async def test_an_empty_append_sends_no_request(world: World, store: LogStore) -> None:
    assert await store.append([]) == []


async def test_calls_take_effect_in_the_order_they_were_made(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await store.close()
    fresh = world.open()
    own.store = fresh
    fencing = own.fence(TOPIC)
    appends = [fresh.append([own.appending(TOPIC, b"%d" % n)]) for n in range(20)]
    outcomes = await asyncio.gather(fencing, *appends)
    assert outcomes == [Outcome.DONE, *[[Outcome.DONE]] * 20]
    assert await positions(fresh, TOPIC) == [f"5-{n}" for n in range(21)]
    await fresh.close()


async def test_after_a_refused_block_no_later_one_of_that_log_is_appended(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"there already")
    other = Writer(store, own.binding, 5)
    clash = other.appending(TOPIC, b"another block at the same position")
    follower = other.appending(TOPIC, b"behind it")
    assert await store.append([clash, follower]) == [Outcome.FENCED, Outcome.FENCED]
    assert await positions(store, TOPIC) == ["5-0", "5-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"position": Position(6, 1)},
        {"position": Position(5, 0)},
        {"lengths": []},
        {"lengths": [1]},
        {"counts": [1, 1]},
        {"chain": b"short"},
    ],
    ids=["other ledger", "marker's place", "no entries", "wrong lengths", "counts", "chain"],
)
async def test_a_block_that_no_reader_could_read_is_a_mistake(
    world: World, store: LogStore, change: dict[str, Any]
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    broken = dataclasses.replace(own.block(TOPIC, b"four"), **change)
    with pytest.raises(ValueError, match="block"):
        await store.append([Append(own.binding, TOPIC, own.token, broken)])
    assert await positions(store, TOPIC) == ["5-0"]


# --- retries


async def test_a_retry_of_what_got_in_answers_done_and_adds_nothing(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    first, second = await own.append(TOPIC, b"1"), await own.append(TOPIC, b"2")
    third = own.appending(TOPIC, b"3")
    assert await store.append([first, second, third]) == [Outcome.DONE] * 3
    assert await positions(store, TOPIC) == ["5-0", "5-1", "5-2", "5-3"]


async def test_the_owner_that_fenced_itself_on_can_still_settle_its_last_block(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    got_in = await own.append(TOPIC, b"1")
    stayed_out = own.appending(TOPIC, b"2")
    await Writer(store, own.binding, 6).fence(TOPIC)
    assert await store.append([got_in, stayed_out]) == [Outcome.DONE, Outcome.FENCED]
    assert await positions(store, TOPIC) == ["5-0", "5-1", "6-0"]


async def test_a_deposed_owner_gets_fenced_only_for_writes_that_are_certainly_absent(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    # Larger than a node of the stream, so that a server's trim is exact.
    got_in = await own.append(TOPIC, b"1" * 5000)
    stayed_out = own.appending(TOPIC, b"2" * 5000)
    successor = await writer(world, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC, create=False)
    assert await store.append([got_in]) == [Outcome.UNKNOWN]
    assert await store.append([stayed_out]) == [Outcome.FENCED]

    await store.trim(successor.binding, TOPIC, successor.token, Position(6, 0), {})
    assert await positions(store, TOPIC) == ["6-0"]
    assert await store.append([got_in, stayed_out]) == [Outcome.UNKNOWN, Outcome.UNKNOWN]
    first_attempt = dataclasses.replace(stayed_out, never_sent=True)
    assert await store.append([first_attempt]) == [Outcome.FENCED]


# --- state, catalog, audit, trim


async def test_state_fields_are_set_and_removed_under_the_token(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    fields = {"cursor:ü": "5-1", "leer": ""}
    assert await store.set_state(own.binding, TOPIC, own.token, fields) is Outcome.DONE
    removed = ["leer", "never set"]
    outcome = await store.set_state(own.binding, TOPIC, own.token, {"x": "y"}, removed)
    assert outcome is Outcome.DONE
    state = await store.read_state(TOPIC)
    assert state == {
        "tok": "5:broker-a",
        "ledger": "5",
        "holder": "broker-a",
        "cursor:ü": "5-1",
        "x": "y",
    }
    assert await store.set_state(own.binding, TOPIC, own.token, {}, []) is Outcome.DONE
    assert await store.set_state(own.binding, OTHER, own.token, {"a": "b"}) is Outcome.LOST
    assert await store.read_state(OTHER) == {}


async def test_a_field_is_swapped_only_if_it_has_the_expected_value(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)

    async def swap(expected: str | None, value: str | None) -> Outcome:
        return await store.swap_state(own.binding, TOPIC, own.token, "seen", expected, value)

    async def stored() -> str | None:
        return (await store.read_state(TOPIC)).get("seen")

    assert await swap("a", "b") is Outcome.STALE
    assert await swap(None, "") is Outcome.DONE
    assert await swap(None, "a") is Outcome.STALE, "an empty value is a value"
    assert await swap("", "a") is Outcome.DONE
    assert await swap("", "a") is Outcome.DONE, "a repetition"
    assert await swap("a", "b") is Outcome.DONE
    assert await swap("", "a") is Outcome.STALE, "executed after a later one"
    assert await swap("a", None) is Outcome.STALE
    assert await stored() == "b"
    assert await swap("b", None) is Outcome.DONE
    assert await swap("b", None) is Outcome.DONE, "a repetition"
    assert await stored() is None


@pytest.mark.parametrize("name", ["tok", "ledger"])
async def test_only_a_fence_changes_the_token(world: World, store: LogStore, name: str) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    with pytest.raises(ValueError, match=name):
        await store.set_state(own.binding, TOPIC, own.token, {name: "9"})
    with pytest.raises(ValueError, match=name):
        await store.swap_state(own.binding, TOPIC, own.token, name, None, "9")
    with pytest.raises(ValueError, match=name):
        await store.trim(own.binding, TOPIC, own.token, EARLIEST, {}, [name])


async def test_the_catalog_of_a_bucket_is_its_owners(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    assert await store.set_catalog(own.binding, {str(TOPIC): "{}", "b": "1"}) is Outcome.DONE
    assert await store.set_catalog(own.binding, {"b": "2"}, [str(TOPIC)]) is Outcome.DONE
    assert await store.set_catalog(own.binding, {}) is Outcome.DONE
    assert await store.read_catalog(0) == {"b": "2"}
    assert await store.read_catalog(1) == {}


async def test_audit_records_are_read_from_either_end(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    for event in ("grant", "roll", "loss"):
        assert await store.write_audit(own.binding, {"event": event}) is Outcome.DONE
    records = await store.read_audit(0, count=10)
    assert [record["event"] for _, record in records] == ["grant", "roll", "loss"]
    behind_first = await store.read_audit(0, after=records[0][0], count=1)
    assert behind_first == [records[1]]
    assert await store.read_audit(0, count=2, reverse=True) == [records[2], records[1]]
    with pytest.raises(ValueError, match="field"):
        await store.write_audit(own.binding, {})


async def test_a_trim_keeps_the_block_that_holds_the_position(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    for _ in range(300):
        await own.append(TOPIC, b"x" * 100, b"y" * 100)
    newer = Writer(store, own.binding, 6)
    await newer.fence(TOPIC)
    # Entry 500 is the second of the block that begins at 499.
    cut = await store.trim(newer.binding, TOPIC, newer.token, Position(5, 500), {"cut": "5-500"})
    assert cut is Outcome.DONE
    left = await positions(store, TOPIC)
    assert left[-52:] == [*(f"5-{n}" for n in range(499, 601, 2)), "6-0"]
    assert len(left) < 200
    assert (await store.read_state(TOPIC))["cut"] == "5-500"
    await newer.append(TOPIC, b"goes on")


async def test_the_current_marker_and_all_later_entries_stay(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    # Larger than a node of the stream, so that a server's trim is exact.
    await own.append(TOPIC, b"1" * 5000)
    newer = Writer(store, own.binding, 6)
    await newer.fence(TOPIC)
    await newer.append(TOPIC, b"2" * 5000)
    assert await store.trim(newer.binding, TOPIC, newer.token, EARLIEST, {}) is Outcome.DONE
    assert await positions(store, TOPIC) == ["5-0", "5-1", "6-0", "6-1"]
    for far in (Position(6, 1), Position(9, 99)):
        assert await store.trim(newer.binding, TOPIC, newer.token, far, {}) is Outcome.DONE
        assert await positions(store, TOPIC) == ["6-0", "6-1"]
    assert await store.trim(newer.binding, OTHER, newer.token, far, {}) is Outcome.LOST


async def test_a_late_trim_keeps_the_fields_of_a_farther_one(world: World, store: LogStore) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1" * 5000)
    newer = Writer(store, own.binding, 10)
    await newer.fence(TOPIC)

    async def cut(before: Position, fields: dict[str, str]) -> dict[str, str]:
        done = await store.trim(newer.binding, TOPIC, newer.token, before, fields)
        assert done is Outcome.DONE
        state = await store.read_state(TOPIC)
        return {name: state[name] for name in ("trimmed", "ledgerEnds", "cut") if name in state}

    far = {"trimmed": "10-0", "ledgerEnds": "10 5-1", "cut": "1"}
    assert await cut(Position(5, 1), {"trimmed": "5-1"}) == {"trimmed": "5-1"}
    assert await cut(Position(10, 0), far) == far
    for late in ("5-1", "9-99"):
        fields = {"ledgerEnds": "5 4-1", "trimmed": late, "cut": late}
        assert await cut(Position.parse(late), fields) == far | {"cut": late}
    farther = {"trimmed": "10-1", "ledgerEnds": "10 5-1", "cut": "3"}
    assert await cut(Position(10, 0), farther) == farther


async def test_a_fence_outlives_a_trim(world: World, store: LogStore) -> None:
    own = await writer(world, store, ledger=6)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"1")
    assert await store.trim(own.binding, TOPIC, own.token, Position(7, 0), {}) is Outcome.DONE
    assert await Writer(store, own.binding, 5).fence(TOPIC) is Outcome.FENCED


# --- what is not guarded


async def test_heartbeats_and_settings_are_open_to_every_broker(
    world: World, store: LogStore
) -> None:
    await store.beat("broker-a", "1")
    await store.beat("broker-b", "7")
    await store.beat("broker-a", "2")
    for reading in await store.members():
        assert reading.beats == {"broker-a": "2", "broker-b": "7"}
    await store.forget_member("broker-b")
    readings = await store.members()
    assert readings
    assert all(reading.beats == {"broker-a": "2"} for reading in readings)
    await store.set_settings({"tenant/public": "{}", "tenant/x": "{}"})
    await store.set_settings({}, ["tenant/x"])
    assert await store.read_settings() == {"tenant/public": "{}"}
    await store.set_settings({})


async def test_the_first_of_several_brokers_creates_a_setting(store: LogStore) -> None:
    assert await store.settle_setting("key", "mine") == "mine"
    assert await store.settle_setting("key", "theirs") == "mine"
    assert (await store.read_settings())["key"] == "mine"


async def test_a_closed_store_answers_nothing(world: World, store: LogStore) -> None:
    await store.close()
    with pytest.raises(Undecided):
        await store.observe([0])
    with pytest.raises(Undecided):
        await store.members()


async def test_blocks_of_one_and_of_many_entries_follow_each_other(
    world: World, store: LogStore
) -> None:
    own = await writer(world, store)
    await own.fence(TOPIC)
    await own.append(TOPIC, b"one")
    many: Append = await own.append(TOPIC, *[b"%d" % n for n in range(512)])
    await own.append(TOPIC, b"last")
    stored = await store.read_blocks(TOPIC, Position(5, 1), count=10)
    assert all(isinstance(block, Block) for block in stored)
    assert [str(block.position) for block in stored] == ["5-1", "5-2", "5-514"]
    assert stored[1] == many.block
