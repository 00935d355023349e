"""Ledgers of a bucket that is held, and grants that are recorded before they count."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.broker.ownership.ownership_world import World, acquired, running

from onewriter_broker.anchor.api import Record
from onewriter_broker.anchor.memory import MemoryAnchor
from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK
from onewriter_broker.ownership.bucket_events import LostReason
from onewriter_core.errors import Unavailable
from onewriter_core.ids import NUMBER_MAX

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


async def test_a_claim_knows_when_the_former_owner_was_heard_of_last(world: World) -> None:
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
    with pytest.raises(Unavailable, match="not served here"):
        await world.broker().reserve_ledger(0)


async def test_used_up_numbers_are_refused_not_reused(world: World) -> None:
    broker = world.broker()
    await world.change(lambda record: replace(record, ledger_high_water=NUMBER_MAX - 70))
    await broker.acquire(0)
    for _ in range(LEDGERS_PER_BLOCK):
        assert await broker.reserve_ledger(0) <= NUMBER_MAX
    with pytest.raises(Unavailable, match="used up"):
        await broker.reserve_ledger(0)


async def test_the_newest_ledger_is_known(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    first = await broker.reserve_ledger(0)
    assert broker.is_newest_ledger(0, first)
    await broker.reserve_ledger(0)
    assert not broker.is_newest_ledger(0, first)
    assert not broker.is_newest_ledger(1, first)


async def test_a_grant_is_recorded_before_it_may_be_answered(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    ledger = await world.grant(broker)
    assert (await world.record()).last_ledger == ledger


async def test_grants_that_come_together_share_a_write(world: World) -> None:
    broker = world.broker()
    await broker.acquire(0)
    before = (await world.anchor.read(0)).version
    await asyncio.gather(*(broker.record_grant(0, ledger) for ledger in range(1, 21)))
    after = await world.anchor.read(0)
    assert after.record.last_ledger == 20
    assert after.version <= before + 2


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


async def test_an_anchor_that_wants_no_grants_is_left_alone(world: World) -> None:
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
