"""Ledgers of a bucket that is held, and grants that are recorded before they count."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
from tests.unit.broker.ownership.ownership_world import World, acquired, running

from onewriter_broker.anchor.api import Record
from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK
from onewriter_broker.ownership.bucket_events import LostReason
from onewriter_broker.ownership.held_bucket import BLOCK_MAX
from onewriter_core.errors import Unavailable
from onewriter_core.ids import NUMBER_MAX
from onewriter_testing.memory_anchor import MemoryAnchor

pytestmark = pytest.mark.looptime


@pytest.fixture
def world() -> World:
    return World()


async def test_ledgers_rise_without_a_gap_and_blocks_are_refilled(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    taken = [await broker.reserve_ledger(0) for _ in range(3 * LEDGERS_PER_BLOCK)]
    assert taken == list(range(1, 3 * LEDGERS_PER_BLOCK + 1))


async def test_a_block_is_refilled_at_half_in_the_background(world: World) -> None:
    broker = world.broker()
    async with running(broker.run()):
        await asyncio.sleep(1)
        for _ in range(LEDGERS_PER_BLOCK // 2 + 1):
            await broker.reserve_ledger(0)
        await asyncio.sleep(0.5)
        assert (await world.record()).ledger_high_water == 2 * LEDGERS_PER_BLOCK


async def test_blocks_that_are_used_up_at_once_become_larger(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    reserved = [0]
    for _ in range(8):
        while (high_water := (await world.record()).ledger_high_water) == reserved[-1]:
            await broker.reserve_ledger(0)
        reserved.append(high_water)
    sizes = [after - before for before, after in itertools.pairwise(reserved)]
    assert sizes == [64, 128, 256, 512, 1024, 1024, 1024, 1024]
    assert (LEDGERS_PER_BLOCK, BLOCK_MAX) == (64, 1024)


async def test_a_block_that_is_refilled_in_time_keeps_its_size(world: World) -> None:
    broker = world.broker()
    async with running(broker.run()):
        await asyncio.sleep(1)
        for blocks in range(2, 6):
            for _ in range(LEDGERS_PER_BLOCK):
                await broker.reserve_ledger(0)
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)
            assert (await world.record()).ledger_high_water == blocks * LEDGERS_PER_BLOCK


async def test_a_claim_contains_the_last_sign_of_life_of_the_former_owner(world: World) -> None:
    await world.broker().acquire(0)
    received = {"broker-0~a": 5_000}
    holding = await world.broker("broker-1~x", last_seen_ms=received.get).acquire(0)
    assert holding is not None
    assert holding.last_seen_ms == 5_000


async def test_with_the_anchor_away_the_reserved_block_still_serves(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    world.anchor.reachable = False
    for _ in range(LEDGERS_PER_BLOCK):
        await broker.reserve_ledger(0)
    with pytest.raises(Unavailable):
        await broker.reserve_ledger(0)
    world.anchor.reachable = True
    assert await broker.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1


async def test_rest_of_a_ledger_block_ends_with_the_ownership(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    await broker.reserve_ledger(0)
    await broker.give_back(0)
    await broker.acquire(0)
    assert await broker.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1


async def test_a_bucket_that_is_not_held_has_no_ledgers(world: World) -> None:
    with pytest.raises(Unavailable, match="not served by this broker"):
        await world.broker().reserve_ledger(0)


async def test_used_up_numbers_are_refused_not_reused(world: World) -> None:
    broker = world.broker()
    await world.change(lambda record: replace(record, ledger_high_water=NUMBER_MAX - 70))
    await broker.acquire(0)
    for _ in range(LEDGERS_PER_BLOCK):
        assert await broker.reserve_ledger(0) <= NUMBER_MAX
    with pytest.raises(Unavailable, match="used up"):
        await broker.reserve_ledger(0)


async def test_a_grant_is_recorded_before_it_may_be_answered(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    ledger = await world.grant(broker)
    assert (await world.record()).last_ledger == ledger


async def test_concurrent_grants_share_a_write(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    before = (await world.anchor.read(0)).version
    await asyncio.gather(*(broker.record_grant(0, ledger) for ledger in range(1, 21)))
    after = await world.anchor.read(0)
    assert after.record.last_ledger == 20
    assert after.version <= before + 2


async def test_recorded_grants_share_a_write(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    before = (await world.anchor.read(0)).version
    async with running(broker.run()):
        for ledger in range(1, 21):
            broker.note_grant(0, ledger)
            await asyncio.sleep(0)
        await asyncio.sleep(2.0)
        assert (await world.record()).last_ledger == 20
    assert (await world.anchor.read(0)).version == before + 1


async def test_a_noted_grant_is_recorded_once_the_anchor_answers(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    async with running(broker.run()):
        world.anchor.reachable = False
        broker.note_grant(0, 5)
        await asyncio.sleep(2.0)
        assert 0 in broker.held()
        world.anchor.reachable = True
        await asyncio.sleep(20.0)
        assert (await world.record()).last_ledger == 5


async def test_a_noted_grant_of_a_bucket_that_was_given_back_is_in_its_release(
    world: World,
) -> None:
    broker = world.broker()
    await broker.acquire(0)
    broker.note_grant(0, 5)
    await broker.give_back(0)
    assert (await world.record()).last_ledger == 5


async def test_a_grant_is_noted_in_the_anchor_only_if_it_records_grants(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    broker = await acquired(world)
    before = (await world.anchor.read(0)).version
    async with running(broker.run()):
        broker.note_grant(0, 5)
        await asyncio.sleep(2.0)
        assert (await world.anchor.read(0)).version == before


async def test_a_grant_that_cannot_be_recorded_is_not_answered(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    world.anchor.reachable = False
    with pytest.raises(Unavailable):
        await broker.record_grant(0, 1)
    world.anchor.reachable = True
    await broker.record_grant(0, 1)
    assert (await world.record()).last_ledger == 1


async def test_whether_a_grant_can_be_recorded_is_asked_only_in_doubt(world: World) -> None:
    broker = await acquired(world)
    before = (await world.anchor.read(0)).version
    await broker.confirm_record(0)
    assert (await world.anchor.read(0)).version == before
    world.anchor.reachable = False
    await broker.confirm_record(0)  # nobody has noticed yet
    async with asyncio.TaskGroup() as tasks:
        await broker.place_once(tasks)
    with pytest.raises(Unavailable):
        await broker.confirm_record(0)
    world.anchor.reachable = True
    await broker.confirm_record(0)
    world.anchor.reachable = False
    await broker.confirm_record(0)


async def test_anchor_without_recorded_grants_has_no_doubts(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    broker = await acquired(world)
    world.anchor.reachable = False
    async with asyncio.TaskGroup() as tasks:
        await broker.place_once(tasks)
    await broker.confirm_record(0)


async def test_an_anchor_without_grants_is_not_changed(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    broker = world.broker()
    await broker.acquire(0)
    await broker.record_grant(0, 7)
    assert (await world.record()).last_ledger == 0
    await broker.give_back(0)
    record = await world.record()
    assert (record.last_ledger, record.clean) == (7, True)


async def test_an_owner_learns_from_its_grant_that_the_bucket_was_taken(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    await world.broker("broker-1~x").acquire(0)
    with pytest.raises(Unavailable, match="taken by 'broker-1~x'"):
        await broker.record_grant(0, 1)
    assert broker.held() == {}
    assert world.events["broker-0~a"].reasons == [LostReason.TAKEN]


async def test_a_write_that_happened_without_an_answer_is_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = world.broker()
    await broker.acquire(0)
    original, failures = world.anchor.compare_and_set, [1]

    async def unanswered(bucket: int, version: int, record: Record) -> int | None:
        answer = await original(bucket, version, record)
        if failures:
            failures.pop()
            raise Unavailable("no answer")
        return answer

    monkeypatch.setattr(world.anchor, "compare_and_set", unanswered)
    with pytest.raises(Unavailable, match="no answer"):
        await broker.record_grant(0, 1)
    await broker.record_grant(0, 2)
    assert (await world.record()).last_ledger == 2
    assert 0 in broker.held()
