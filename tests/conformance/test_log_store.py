"""The contract of LogStore, kept by the memory store and by real servers alike: one dataset.

What happens when the dataset itself changes is in test_log_store_datasets.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.conformance.log_store_worlds import (
    WORLD_KINDS,
    World,
    Writer,
    open_world,
    topics_of_bucket,
    writer,
)
from tests.stamps import stamp_anew

from onewriter_broker.log.api import (
    Append,
    Binding,
    Block,
    Fence,
    FencedLog,
    LogStore,
    Marker,
    Outcome,
    Unit,
)
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, Position, TopicName

TOPIC, OTHER, THIRD = topics_of_bucket(0, 3)
(ELSEWHERE,) = topics_of_bucket(1, 1)
EVERY_BYTE = bytes(range(256))


@pytest.fixture(params=WORLD_KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with open_world(request.param) as opened:
        yield opened


@pytest.fixture
async def store(world: World) -> AsyncIterator[LogStore]:
    opened = world.open()
    yield opened
    await opened.close()


async def positions(store: LogStore, topic: TopicName = TOPIC) -> list[str]:
    stored = await store.read_blocks(topic, EARLIEST, count=1000)
    return [str(block.position) for block in stored]


# --- observing and stamping


async def test_a_fresh_store_is_a_primary_that_nobody_stamped(
    world: World, store: LogStore
) -> None:
    seen = await store.observe([0, 3])
    assert seen.is_primary
    assert seen.replid == world.replid()
    assert seen.previous_replid == ""
    assert seen.replicas == 0
    assert seen.units == {0: Unit(), 3: Unit()}


async def test_a_stamp_names_the_owner_and_may_be_repeated(world: World, store: LogStore) -> None:
    binding = Binding(0, world.replid(), 2, "broker-a", 7)
    assert await stamp_anew(store, binding) is Outcome.DONE
    assert await store.stamp(binding) is Outcome.DONE
    assert (await store.observe([0])).units[0] == Unit(2, "broker-a", 7, 0)


async def test_a_stamp_brings_no_bucket_back_that_has_no_record(
    world: World, store: LogStore
) -> None:
    binding = Binding(0, world.replid(), 2, "broker-a", 7)
    assert await store.stamp(binding) is Outcome.LOST
    assert (await store.observe([0])).units[0] == Unit()


async def test_a_first_stamp_needs_the_birthmark_that_stands(world: World, store: LogStore) -> None:
    binding = Binding(0, world.replid(), 1, "broker-a", 7)
    await store.bear(0, "one")
    assert (await store.observe([0])).units[0] == Unit(birthmark="one")
    assert await store.stamp(binding, birthmark="another") is Outcome.LOST
    assert await store.stamp(binding) is Outcome.LOST
    assert await store.write_audit(binding, {"event": "early"}) is Outcome.LOST
    assert await store.stamp(binding, birthmark="one") is Outcome.DONE
    assert (await store.observe([0])).units[0] == Unit(1, "broker-a", 7, 0)
    assert await store.stamp(binding, birthmark="one") is Outcome.DONE, "a repetition"


async def test_a_first_stamp_that_arrives_behind_an_emptying_is_refused(
    world: World, store: LogStore
) -> None:
    await store.bear(0, "one")
    early = Binding(0, world.replid(), 1, "broker-b", 7)
    await store.stamp(Binding(0, world.replid(), 1, "broker-a", 8), birthmark="one")
    world.flush_all()
    assert await store.stamp(early, birthmark="one") is Outcome.LOST
    await store.bear(0, "two")  # also late
    assert await store.stamp(early, birthmark="one") is Outcome.LOST
    assert (await store.observe([0])).units[0].generation == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 6}, Outcome.FENCED),
        ({"owner": "broker-b"}, Outcome.FENCED),
        ({"generation": 1, "version": 8}, Outcome.REFENCE),
        ({"replid": "f" * 40, "version": 8}, Outcome.REFENCE),
    ],
    ids=["older version", "same version, other owner", "older generation", "other dataset"],
)
async def test_a_late_stamp_replaces_nothing(
    world: World, store: LogStore, change: dict[str, Any], expected: Any
) -> None:
    binding = Binding(0, world.replid(), 2, "broker-a", 7)
    await stamp_anew(store, binding)
    assert await store.stamp(dataclasses.replace(binding, **change)) is expected
    assert (await store.observe([0])).units[0] == Unit(2, "broker-a", 7, 0)


# --- fencing


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
    assert await positions(store) == []
    assert await store.read_audit(0, count=10) == []


@pytest.mark.parametrize("ledger", [4, 5])
async def test_a_ledger_that_is_not_above_the_last_is_refused(
    world: World, store: LogStore, ledger: int
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    successor = await writer(world, store, owner="broker-b", version=2, ledger=ledger)
    assert await successor.fence(TOPIC) is Outcome.FENCED
    assert await positions(store) == ["5-0"]
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
    assert await positions(store) == ["5-0", "5-1"]
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
    assert await positions(store) == []


@pytest.mark.parametrize("name", ["k", "owner", "gen"])
async def test_a_marker_field_of_the_stores_own_is_a_mistake(
    world: World, store: LogStore, name: str
) -> None:
    mine = await writer(world, store)
    log = FencedLog(TOPIC, True, {name: "x"}, {})
    with pytest.raises(ValueError, match=name):
        await store.fence(Fence(mine.binding, 5, (log,), {}))


# --- appending and reading


async def test_what_is_appended_comes_back_byte_for_byte(world: World, store: LogStore) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    plain = mine.block(TOPIC, EVERY_BYTE, b"", b"\r\n$5\r\n", b"x" * 300_000)
    batched = mine.block(TOPIC, b"batch", b"\x00\xff", counts=[1000, 4_000_000_000])
    appends = [Append(mine.binding, TOPIC, mine.token, block) for block in (plain, batched)]
    assert await store.append(appends) == [Outcome.DONE] * 2
    assert await store.read_blocks(TOPIC, Position(5, 1), count=10) == [plain, batched]
    assert plain.last == Position(5, 4)
    assert batched.position == Position(5, 5)


async def test_reading_forward_and_backward_keeps_to_its_bounds(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    for _ in range(4):
        await mine.append(TOPIC, b"a", b"b")

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
    mine = await writer(world, store)
    beside = await writer(world, store, bucket=1)
    await mine.fence(TOPIC, OTHER)
    await beside.fence(ELSEWHERE)
    await Writer(store, mine.binding, 6).fence(OTHER)
    appends = [
        mine.appending(TOPIC, b"1"),
        mine.appending(OTHER, b"2", never_sent=True),
        beside.appending(ELSEWHERE, b"3"),
        mine.appending(TOPIC, b"4"),
        mine.appending(THIRD, b"5"),
    ]
    done, fenced, lost = Outcome.DONE, Outcome.FENCED, Outcome.LOST
    assert await store.append(appends) == [done, fenced, done, done, lost]
    assert await positions(store, TOPIC) == ["5-0", "5-1", "5-2"]
    assert await positions(store, OTHER) == ["5-0", "6-0"]
    assert await positions(store, ELSEWHERE) == ["5-0", "5-1"]
    assert await positions(store, THIRD) == []


async def test_an_append_of_nothing_asks_nobody(world: World, store: LogStore) -> None:
    assert await store.append([]) == []


async def test_calls_take_effect_in_the_order_they_were_made(world: World, store: LogStore) -> None:
    mine = await writer(world, store)
    await store.close()
    fresh = world.open()
    mine.store = fresh
    fencing = mine.fence(TOPIC)
    appends = [fresh.append([mine.appending(TOPIC, b"%d" % n)]) for n in range(20)]
    outcomes = await asyncio.gather(fencing, *appends)
    assert outcomes == [Outcome.DONE, *[[Outcome.DONE]] * 20]
    assert await positions(fresh) == [f"5-{n}" for n in range(21)]
    await fresh.close()


async def test_after_a_refused_block_no_later_one_of_that_log_is_appended(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    await mine.append(TOPIC, b"there already")
    other = Writer(store, mine.binding, 5)
    clash = other.appending(TOPIC, b"another block at the same position")
    follower = other.appending(TOPIC, b"behind it")
    assert await store.append([clash, follower]) == [Outcome.FENCED, Outcome.FENCED]
    assert await positions(store) == ["5-0", "5-1"]


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
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    broken = dataclasses.replace(mine.block(TOPIC, b"four"), **change)
    with pytest.raises(ValueError, match="block"):
        await store.append([Append(mine.binding, TOPIC, mine.token, broken)])
    assert await positions(store) == ["5-0"]


# --- retries


async def test_a_retry_of_what_got_in_answers_done_and_adds_nothing(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    first, second = await mine.append(TOPIC, b"1"), await mine.append(TOPIC, b"2")
    third = mine.appending(TOPIC, b"3")
    assert await store.append([first, second, third]) == [Outcome.DONE] * 3
    assert await positions(store) == ["5-0", "5-1", "5-2", "5-3"]


async def test_the_owner_that_fenced_itself_on_can_still_settle_its_last_block(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    got_in = await mine.append(TOPIC, b"1")
    stayed_out = mine.appending(TOPIC, b"2")
    await Writer(store, mine.binding, 6).fence(TOPIC)
    assert await store.append([got_in, stayed_out]) == [Outcome.DONE, Outcome.FENCED]
    assert await positions(store) == ["5-0", "5-1", "6-0"]


async def test_a_deposed_owner_hears_fenced_only_of_what_is_certainly_not_there(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    # Larger than a node of the stream, so that a server's trim is exact.
    got_in = await mine.append(TOPIC, b"1" * 5000)
    stayed_out = mine.appending(TOPIC, b"2" * 5000)
    successor = await writer(world, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC, create=False)
    assert await store.append([got_in]) == [Outcome.UNKNOWN]
    assert await store.append([stayed_out]) == [Outcome.FENCED]

    await store.trim(successor.binding, TOPIC, successor.token, Position(6, 0), {})
    assert await positions(store) == ["6-0"]
    assert await store.append([got_in, stayed_out]) == [Outcome.UNKNOWN, Outcome.UNKNOWN]
    first_attempt = dataclasses.replace(stayed_out, never_sent=True)
    assert await store.append([first_attempt]) == [Outcome.FENCED]


# --- zombies


async def zombie_and_successor(world: World, store: LogStore) -> tuple[Writer, Writer]:
    """A broker that was replaced without knowing it, and its successor, each with one block."""
    zombie = await writer(world, store)
    await zombie.fence(TOPIC)
    await zombie.append(TOPIC, b"by the first owner")
    successor = await writer(world, store, owner="broker-b", version=2, ledger=6)
    await successor.fence(TOPIC, create=False)
    await successor.append(TOPIC, b"by the second")
    return zombie, successor


async def stored_story(store: LogStore) -> object:
    return (
        await store.read_blocks(TOPIC, EARLIEST, count=100),
        await store.read_state(TOPIC),
        await store.read_catalog(0),
        await store.read_audit(0, count=100),
        (await store.observe([0])).units,
    )


@pytest.mark.parametrize("shown", ["its own", "the successor's"])
async def test_whatever_a_zombie_broker_tries_changes_nothing(
    world: World, store: LogStore, shown: str
) -> None:
    zombie, successor = await zombie_and_successor(world, store)
    used = zombie if shown == "its own" else successor
    late = used.appending(TOPIC, b"late")
    late = dataclasses.replace(late, binding=zombie.binding, never_sent=True)
    before = await stored_story(store)
    assert await store.append([late]) == [Outcome.FENCED]
    assert await Writer(store, zombie.binding, 7).fence(TOPIC) is Outcome.FENCED
    assert await store.stamp(zombie.binding) is Outcome.FENCED
    position = Position(6, 1)
    assert await store.trim(zombie.binding, TOPIC, used.token, position, {}) is Outcome.FENCED
    cursor = {"cursor": "5-1"}
    assert await store.set_state(zombie.binding, TOPIC, used.token, cursor) is Outcome.FENCED
    assert await store.set_catalog(zombie.binding, {"topic": "{}"}) is Outcome.FENCED
    assert await store.write_audit(zombie.binding, {"event": "lie"}) is Outcome.FENCED
    assert await stored_story(store) == before


async def test_what_an_owner_sent_before_it_lost_the_bucket_is_not_its_word_now(
    world: World, store: LogStore
) -> None:
    # A had the bucket, B took it, A took it again: the same incarnation, two ownerships.
    first = await writer(world, store)
    await first.fence(TOPIC)
    await writer(world, store, owner="broker-b", version=2, ledger=6)
    again = await writer(world, store, version=3, ledger=7)
    before = await stored_story(store)
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
    assert await stored_story(store) == before
    assert await again.fence(TOPIC) is Outcome.DONE


async def test_the_token_of_an_older_ledger_changes_nothing(world: World, store: LogStore) -> None:
    older = await writer(world, store)
    await older.fence(TOPIC)
    newer = Writer(store, older.binding, 6)
    await newer.fence(TOPIC)
    before = await stored_story(store)
    late = older.appending(TOPIC, b"late", never_sent=True)
    assert await store.append([late]) == [Outcome.FENCED]
    position = Position(6, 0)
    assert await store.trim(older.binding, TOPIC, older.token, position, {}) is Outcome.FENCED
    assert await store.set_state(older.binding, TOPIC, older.token, {"a": "b"}) is Outcome.FENCED
    assert await stored_story(store) == before


async def test_an_older_registration_of_the_dataset_changes_nothing(
    world: World, store: LogStore
) -> None:
    older = await writer(world, store)
    await older.fence(TOPIC)
    await writer(world, store, generation=2, version=2)
    before = await stored_story(store)
    assert await store.append([older.appending(TOPIC, b"late")]) == [Outcome.REFENCE]
    assert await Writer(store, older.binding, 9).fence(TOPIC) is Outcome.REFENCE
    assert await stored_story(store) == before


# --- state, catalog, audit, trim


async def test_state_fields_are_set_and_removed_under_the_token(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    fields = {"cursor:ü": "5-1", "leer": ""}
    assert await store.set_state(mine.binding, TOPIC, mine.token, fields) is Outcome.DONE
    removed = ["leer", "never set"]
    outcome = await store.set_state(mine.binding, TOPIC, mine.token, {"x": "y"}, removed)
    assert outcome is Outcome.DONE
    state = await store.read_state(TOPIC)
    assert state == {
        "tok": "5:broker-a",
        "ledger": "5",
        "holder": "broker-a",
        "cursor:ü": "5-1",
        "x": "y",
    }
    assert await store.set_state(mine.binding, TOPIC, mine.token, {}, []) is Outcome.DONE
    assert await store.set_state(mine.binding, OTHER, mine.token, {"a": "b"}) is Outcome.LOST
    assert await store.read_state(OTHER) == {}


@pytest.mark.parametrize("name", ["tok", "ledger"])
async def test_only_a_fence_changes_the_token(world: World, store: LogStore, name: str) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    with pytest.raises(ValueError, match=name):
        await store.set_state(mine.binding, TOPIC, mine.token, {name: "9"})
    with pytest.raises(ValueError, match=name):
        await store.trim(mine.binding, TOPIC, mine.token, EARLIEST, {}, [name])


async def test_the_catalog_of_a_bucket_is_its_owners(world: World, store: LogStore) -> None:
    mine = await writer(world, store)
    assert await store.set_catalog(mine.binding, {str(TOPIC): "{}", "b": "1"}) is Outcome.DONE
    assert await store.set_catalog(mine.binding, {"b": "2"}, [str(TOPIC)]) is Outcome.DONE
    assert await store.read_catalog(0) == {"b": "2"}
    assert await store.read_catalog(1) == {}


async def test_audit_records_are_read_from_either_end(world: World, store: LogStore) -> None:
    mine = await writer(world, store)
    for event in ("grant", "roll", "loss"):
        assert await store.write_audit(mine.binding, {"event": event}) is Outcome.DONE
    records = await store.read_audit(0, count=10)
    assert [record["event"] for _, record in records] == ["grant", "roll", "loss"]
    behind_first = await store.read_audit(0, after=records[0][0], count=1)
    assert behind_first == [records[1]]
    assert await store.read_audit(0, count=2, reverse=True) == [records[2], records[1]]
    with pytest.raises(ValueError, match="field"):
        await store.write_audit(mine.binding, {})


async def test_a_trim_keeps_the_block_that_holds_the_position(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    for _ in range(300):
        await mine.append(TOPIC, b"x" * 100, b"y" * 100)
    newer = Writer(store, mine.binding, 6)
    await newer.fence(TOPIC)
    # Entry 500 is the second of the block that begins at 499.
    cut = await store.trim(newer.binding, TOPIC, newer.token, Position(5, 500), {"cut": "5-500"})
    assert cut is Outcome.DONE
    left = await positions(store)
    assert left[-52:] == [*(f"5-{n}" for n in range(499, 601, 2)), "6-0"]
    assert len(left) < 200
    assert (await store.read_state(TOPIC))["cut"] == "5-500"
    await newer.append(TOPIC, b"goes on")


async def test_the_current_marker_and_all_behind_it_stay(world: World, store: LogStore) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    # Larger than a node of the stream, so that a server's trim is exact.
    await mine.append(TOPIC, b"1" * 5000)
    newer = Writer(store, mine.binding, 6)
    await newer.fence(TOPIC)
    await newer.append(TOPIC, b"2" * 5000)
    assert await store.trim(newer.binding, TOPIC, newer.token, EARLIEST, {}) is Outcome.DONE
    assert await positions(store) == ["5-0", "5-1", "6-0", "6-1"]
    for far in (Position(6, 1), Position(9, 99)):
        assert await store.trim(newer.binding, TOPIC, newer.token, far, {}) is Outcome.DONE
        assert await positions(store) == ["6-0", "6-1"]
    assert await store.trim(newer.binding, OTHER, newer.token, far, {}) is Outcome.LOST


async def test_a_fence_outlives_a_trim(world: World, store: LogStore) -> None:
    mine = await writer(world, store, ledger=6)
    await mine.fence(TOPIC)
    await mine.append(TOPIC, b"1")
    assert await store.trim(mine.binding, TOPIC, mine.token, Position(7, 0), {}) is Outcome.DONE
    assert await Writer(store, mine.binding, 5).fence(TOPIC) is Outcome.FENCED


# --- what is not guarded


async def test_heartbeats_and_settings_are_open_to_every_broker(
    world: World, store: LogStore
) -> None:
    await store.beat("broker-a", "1")
    await store.beat("broker-b", "7")
    await store.beat("broker-a", "2")
    assert await store.members() == {"broker-a": "2", "broker-b": "7"}
    await store.forget_member("broker-b")
    assert await store.members() == {"broker-a": "2"}
    await store.set_settings({"tenant/public": "{}", "tenant/x": "{}"})
    await store.set_settings({}, ["tenant/x"])
    assert await store.read_settings() == {"tenant/public": "{}"}
    await store.set_settings({})


async def test_a_closed_store_answers_nothing(world: World, store: LogStore) -> None:
    await store.close()
    with pytest.raises(Undecided):
        await store.observe([0])
    with pytest.raises(Undecided):
        await store.members()


async def test_blocks_of_one_and_of_many_entries_follow_each_other(
    world: World, store: LogStore
) -> None:
    mine = await writer(world, store)
    await mine.fence(TOPIC)
    await mine.append(TOPIC, b"one")
    many: Append = await mine.append(TOPIC, *[b"%d" % n for n in range(512)])
    await mine.append(TOPIC, b"last")
    stored = await store.read_blocks(TOPIC, Position(5, 1), count=10)
    assert all(isinstance(block, Block) for block in stored)
    assert [str(block.position) for block in stored] == ["5-1", "5-2", "5-514"]
    assert stored[1] == many.block
