"""The contract of guarded appends and of checks; the fake server and real ones keep it alike.

This module covers every case of an append whose answer was lost: the effect of an earlier attempt, the changes of
the guard since then, and the answer that the later attempt must get.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.conformance.log_store_worlds import BUCKETS, World, Writer, topics_of_bucket, writer
from tests.stamps import fence_once

from onewriter_broker.log.store.api import (
    Append,
    EpochStatus,
    Fence,
    FencedLog,
    Guard,
    GuardKind,
    LogStore,
    Outcome,
    OwnedRecord,
    OwnWrite,
)
from onewriter_broker.log.store.keys import Keys
from onewriter_core.ids import EARLIEST, TopicName
from onewriter_core.own.floors import COMMON, FLOOR_MARK
from onewriter_core.own.names import own_field

TARGET, GUARDING, OTHER = topics_of_bucket(0, 3)
DONE, STALE, AHEAD = Outcome.DONE, Outcome.STALE, Outcome.AHEAD
HELD, REFENCE = Outcome.HELD, Outcome.REFENCE


@pytest.fixture
async def mine(world: World, store: LogStore) -> Writer:
    """Return a writer of the target and of another log, at ledger 5."""
    found = await writer(world, store)
    await found.fence(TARGET, OTHER)
    return found


async def leads(
    mine: Writer, epoch: int, *, tenure: int | None = None, generation: int | None = None
) -> None:
    """Fence the guarding topic's log: its newest epoch is this one, under this tenure."""
    state = {
        "epoch": str(epoch),
        "leads": str(epoch if tenure is None else tenure),
        "generation": str(mine.binding.generation if generation is None else generation),
    }
    log = FencedLog(GUARDING, create=True, marker={}, state=state)
    assert await fence_once(mine.store, Fence(mine.binding, epoch, (log,), {})) is DONE


def guarded(append: Append, guard: Guard, *, again: bool = False) -> Append:
    return dataclasses.replace(append, guard=guard, never_sent=not again)


def again(append: Append) -> Append:
    return dataclasses.replace(append, never_sent=False)


def epoch(number: int) -> Guard:
    return Guard(GuardKind.EPOCH, str(GUARDING), number)


def floor(number: int) -> Guard:
    return Guard(GuardKind.FLOOR, "persistent://public/default/far", number)


async def stored(store: LogStore, topic: TopicName = TARGET) -> list[str]:
    found = await store.read_blocks(topic, EARLIEST, count=100)
    return [str(block.position) for block in found][1:]


# --- the epoch of another log of the bucket


async def test_a_guarded_block_enters_while_its_guard_holds(mine: Writer) -> None:
    await leads(mine, 7)
    append = guarded(mine.appending(TARGET, b"a", b"b"), epoch(7))
    assert await mine.store.append([append]) == [DONE]
    assert await stored(mine.store) == ["5-1"]


@pytest.mark.parametrize(
    ("expected", "answer"),
    [(6, STALE), (8, AHEAD)],
    ids=["an epoch that is over", "an epoch that nobody was granted"],
)
async def test_a_block_with_another_epoch_is_refused(
    mine: Writer, expected: int, answer: Outcome
) -> None:
    await leads(mine, 6)
    await leads(mine, 7)
    append = guarded(mine.appending(TARGET, b"a"), epoch(expected))
    assert await mine.store.append([append]) == [answer]
    assert await stored(mine.store) == []


async def test_a_tenure_without_a_right_to_resume_guards_nothing(mine: Writer) -> None:
    await leads(mine, 7, tenure=0)
    append = guarded(mine.appending(TARGET, b"a"), epoch(7))
    assert await mine.store.append([append]) == [STALE]


async def test_a_topic_without_a_state_guards_nothing(mine: Writer) -> None:
    append = guarded(mine.appending(TARGET, b"a"), epoch(1))
    assert await mine.store.append([append]) == [AHEAD]


async def test_a_log_that_was_not_fenced_since_the_dataset_was_registered_guards_nothing_yet(
    world: World, store: LogStore
) -> None:
    before = await writer(world, store, version=1, generation=1)
    await leads(before, 7)
    own = await writer(world, store, version=2, generation=2, ledger=9)
    await own.fence(TARGET)
    append = guarded(own.appending(TARGET, b"a"), epoch(7))
    assert await store.append([append]) == [AHEAD]
    later = Writer(store, own.binding, 10)
    await leads(later, 10, tenure=7)
    assert await store.append([append]) == [DONE]


async def test_a_broken_guard_key_fails_only_its_block(world: World, mine: Writer) -> None:
    world.put_foreign_key(Keys(BUCKETS).state(GUARDING))
    append = guarded(mine.appending(TARGET, b"a"), epoch(7))
    assert await mine.store.append([append]) == [AHEAD]
    assert await mine.store.append([dataclasses.replace(append, guard=None)]) == [DONE]


@pytest.mark.parametrize(("expected", "answer"), [(6, STALE), (8, AHEAD)])
async def test_after_a_refused_block_the_log_waits_and_other_logs_continue(
    mine: Writer, expected: int, answer: Outcome
) -> None:
    await leads(mine, 7)
    first = mine.appending(TARGET, b"in", never_sent=True)
    refused = guarded(mine.appending(TARGET, b"out"), epoch(expected))
    later = mine.appending(TARGET, b"waits", never_sent=True)
    last = guarded(mine.appending(TARGET, b"waits, too"), epoch(7))
    elsewhere = mine.appending(OTHER, b"other log", never_sent=True)
    answers = await mine.store.append([first, refused, later, last, elsewhere])
    assert answers == [DONE, answer, HELD, HELD, DONE]
    assert await stored(mine.store) == ["5-1"]


async def test_the_position_of_a_refused_block_is_free_again(world: World, mine: Writer) -> None:
    await leads(mine, 7)
    following = Writer(mine.store, mine.binding, 5)
    refused = guarded(mine.appending(TARGET, b"out"), epoch(6))
    later = mine.appending(TARGET, b"waits", never_sent=True)
    assert await mine.store.append([refused, later]) == [STALE, HELD]
    await following.append(TARGET, b"waits")
    assert await stored(mine.store) == ["5-1"]
    assert await mine.store.append([again(refused)]) != [DONE], "a copy that comes late"


# --- lost answers


async def test_a_block_that_is_there_counts_although_its_guard_is_over(mine: Writer) -> None:
    await leads(mine, 7)
    append = guarded(mine.appending(TARGET, b"a"), epoch(7))
    assert await mine.store.append([append]) == [DONE]
    await leads(mine, 8)
    later = mine.appending(TARGET, b"b")
    assert await mine.store.append([again(append), later]) == [DONE, DONE]
    assert await stored(mine.store) == ["5-1", "5-2"]


async def test_an_absent_block_may_still_arrive_so_the_result_stays_unknown(
    mine: Writer,
) -> None:
    await leads(mine, 7)
    append = guarded(mine.appending(TARGET, b"a"), epoch(6))
    later = mine.appending(TARGET, b"b")
    assert await mine.store.append([again(append), later]) == [REFENCE, REFENCE]
    assert await stored(mine.store) == []


async def test_a_block_held_behind_a_refused_one_is_in_doubt_if_it_was_sent_before(
    mine: Writer,
) -> None:
    await leads(mine, 7)
    refused = guarded(mine.appending(TARGET, b"out"), epoch(6))
    later = mine.appending(TARGET, b"sent before")
    assert await mine.store.append([refused, later]) == [STALE, REFENCE]


async def test_after_the_next_ledger_a_late_copy_is_harmless(mine: Writer) -> None:
    """Why REFENCE is the right answer: whatever happens to the guard, the marker rejects the copy."""
    await leads(mine, 7)
    append = again(guarded(mine.appending(TARGET, b"a"), epoch(9)))
    assert await mine.store.append([append]) == [REFENCE]
    next_ledger = Writer(mine.store, mine.binding, 8)
    await next_ledger.fence(TARGET)
    await leads(mine, 9)
    assert await mine.store.append([append]) == [Outcome.FENCED]


# --- the floor of a guard in another bucket


async def test_a_floor_rises_with_the_append_and_keeps_older_ones_out(mine: Writer) -> None:
    assert await mine.store.append([guarded(mine.appending(TARGET, b"a"), floor(4))]) == [DONE]
    assert (await mine.store.read_state(TARGET))[floor(4).floor_field] == "4"
    assert await mine.store.append([guarded(mine.appending(TARGET, b"b"), floor(4))]) == [DONE]
    assert await mine.store.append([guarded(mine.appending(TARGET, b"c"), floor(6))]) == [DONE]
    assert await mine.store.append([guarded(mine.appending(TARGET, b"d"), floor(5))]) == [STALE]
    assert (await mine.store.read_state(TARGET))[floor(4).floor_field] == "6"
    assert await stored(mine.store) == ["5-1", "5-2", "5-3"]


async def test_floors_of_several_guards_are_apart(mine: Writer) -> None:
    other = Guard(GuardKind.FLOOR, "persistent://public/default/else", 1)
    assert await mine.store.append([guarded(mine.appending(TARGET, b"a"), floor(6))]) == [DONE]
    assert await mine.store.append([guarded(mine.appending(TARGET, b"b"), other)]) == [DONE]


async def test_within_one_call_a_floor_applies_to_later_blocks(mine: Writer) -> None:
    appends = [
        guarded(mine.appending(TARGET, b"a"), floor(6)),
        guarded(mine.appending(TARGET, b"b"), floor(5)),
        guarded(mine.appending(TARGET, b"c"), floor(6)),
    ]
    assert await mine.store.append(appends) == [DONE, STALE, HELD]


async def test_a_block_below_the_floor_counts_if_it_is_there(mine: Writer) -> None:
    below = guarded(mine.appending(TARGET, b"a"), floor(4))
    assert await mine.store.append([below]) == [DONE]
    assert await mine.store.append([guarded(mine.appending(TARGET, b"b"), floor(6))]) == [DONE]
    assert await mine.store.append([again(below)]) == [DONE]


async def test_a_fence_raises_floors_and_never_lowers_them(mine: Writer) -> None:
    assert await mine.store.append([guarded(mine.appending(TARGET, b"a"), floor(6))]) == [DONE]
    other = dataclasses.replace(floor(9), name="persistent://public/default/else")
    state = {floor(0).floor_field: "5", other.floor_field: "9"}
    log = FencedLog(TARGET, create=False, marker={}, state=state)
    assert await fence_once(mine.store, Fence(mine.binding, 8, (log,), {})) is DONE
    found = await mine.store.read_state(TARGET)
    assert (found[floor(0).floor_field], found[other.floor_field]) == ("6", "9")


async def test_a_fence_sets_more_fields_than_one_command_of_the_server_takes(mine: Writer) -> None:
    state = {f"name-{number}": str(number) for number in range(5000)} | {floor(0).floor_field: "5"}
    log = FencedLog(TARGET, create=True, marker={}, state=state)
    request = Fence(mine.binding, 6, (log,), {})
    assert [await fence_once(mine.store, request), await fence_once(mine.store, request)] == [
        DONE,
        DONE,
    ]
    found = await mine.store.read_state(TARGET)
    assert state.items() <= found.items()
    assert (found["tok"], found["ledger"]) == (mine.binding.token(6), "6")


async def test_a_change_of_state_raises_a_floor_and_never_lowers_it(mine: Writer) -> None:
    field = floor(0).floor_field
    for number, expected in [("6", "6"), ("5", "6"), ("7", "7")]:
        changes = {field: number, "cursor:a": "1"}
        assert await mine.store.set_state(mine.binding, TARGET, mine.token, changes) is DONE
        assert (await mine.store.read_state(TARGET))[field] == expected


# --- the generation of an ownership


async def test_an_ownership_guards_by_its_generation(mine: Writer) -> None:
    async def own(generation: int) -> None:
        records = {"group resource": OwnedRecord(generation, "{}")}
        assert await mine.store.own(OwnWrite(mine.binding, records=records)) is DONE

    async def answer(number: int) -> list[object]:
        guard = Guard(GuardKind.OWNERSHIP, "group resource", number)
        following = Writer(mine.store, mine.binding, 5)
        return list(await mine.store.append([guarded(following.appending(OTHER, b"a"), guard)]))

    await own(2)
    assert await answer(2) == [AHEAD], "the records may have lost their tail"
    assert await mine.store.own(OwnWrite(mine.binding, settles=True)) is DONE
    assert await answer(1) == [STALE]
    assert await answer(3) == [AHEAD]
    assert await answer(2) == [DONE]
    assert set(await mine.store.read_owned(0)) == {"group resource"}


async def test_generations_of_a_dropped_ownership_record_are_over(mine: Writer) -> None:
    name, floor_name = own_field("group", "resource"), f"{FLOOR_MARK}group"

    async def answer(number: int, name: str = name) -> object:
        guard = Guard(GuardKind.OWNERSHIP, name, number)
        following = Writer(mine.store, mine.binding, 5)
        (found,) = await mine.store.append([guarded(following.appending(OTHER, b"a"), guard)])
        return found

    async def write(**changes: Any) -> None:
        assert await mine.store.own(OwnWrite(mine.binding, **changes)) is DONE

    await write(records={name: OwnedRecord(5, "{}")})
    await write(audits=({"kind": "ownDropped"},), dropped={name: 5}, floors={floor_name: 5})
    assert await answer(5) == AHEAD, "the floors may have been forgotten"
    await write(settles=True)
    assert [await answer(number) for number in (4, 5, 6)] == [STALE, STALE, AHEAD]
    assert await answer(5, own_field("other group", "resource")) == AHEAD
    await write(audits=({"kind": "ownDropped"},), floors={COMMON: 7})
    other = own_field("other group", "resource")
    assert [await answer(number, other) for number in (7, 8)] == [STALE, AHEAD]
    assert await answer(7) == STALE
    await write(records={name: OwnedRecord(8, "{}"), other: OwnedRecord(3, "{}")})
    assert await answer(7) == STALE
    assert await answer(5, other) == AHEAD, "it has a record, and no floor is asked"
    assert await stored(mine.store, OTHER) == []
    assert await answer(8) == DONE


# --- checks


async def test_a_check_returns_the_epoch_of_the_log(mine: Writer) -> None:
    await leads(mine, 7)
    token = mine.binding.token(7)
    assert await mine.store.check(mine.binding, GUARDING, token) == EpochStatus(7, 7)
    await leads(mine, 8, tenure=7)
    assert await mine.store.check(mine.binding, GUARDING, token) is Outcome.FENCED
    token = mine.binding.token(8)
    assert await mine.store.check(mine.binding, GUARDING, token, marks=True) == EpochStatus(8, 7)


async def test_a_check_of_a_deposed_holder_is_refused(world: World, mine: Writer) -> None:
    await leads(mine, 7)
    await writer(world, mine.store, owner="broker-b", version=2)
    token = mine.binding.token(7)
    assert await mine.store.check(mine.binding, GUARDING, token) is Outcome.FENCED
    elsewhere = dataclasses.replace(mine.binding, replid="f" * 40)
    assert await mine.store.check(elsewhere, GUARDING, token) is REFENCE
    assert await mine.store.check(mine.binding, OTHER, "5:broker-b") is Outcome.FENCED
