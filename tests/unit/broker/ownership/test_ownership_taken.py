"""Taking buckets: what is read and written in which order, and the race for them."""

from __future__ import annotations

import asyncio

import pytest
from tests.contents import stored_in
from tests.unit.broker.ownership.ownership_world import World, addresses

from onewriter_broker.anchor.api import Record
from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.errors import Unavailable, Undecided

pytestmark = pytest.mark.looptime


@pytest.fixture
def world() -> World:
    return World()


async def test_a_new_bucket_is_registered_stamped_and_announced(world: World) -> None:
    broker = world.broker()
    holding = await broker.acquire(0)
    assert holding is not None
    assert await world.record() == Record(
        generation=1,
        replid=world.server.primary.replid,
        owner="broker-0~a",
        addresses=addresses("broker-0~a"),
        ledger_high_water=LEDGERS_PER_BLOCK,
    )
    unit = stored_in(world.server.primary).units[0]
    assert (unit.owner, unit.generation, unit.version) == ("broker-0~a", 1, 1)
    assert holding.grants_known
    assert holding.may_resume(1)
    assert world.events["broker-0~a"].history == [("acquired", 0)]
    assert broker.held() == {0: holding}
    assert await broker.acquire(0) == holding, "asking again changes nothing"


async def test_the_anchor_is_read_before_the_store_and_written_before_the_stamp(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    broker = world.broker()
    store = world.stores["broker-0~a"]

    def note(owner: object, name: str) -> None:
        original = getattr(owner, name)

        async def noted(*arguments: object, **options: object) -> object:
            steps.append(name)
            return await original(*arguments, **options)

        monkeypatch.setattr(owner, name, noted)

    note(world.anchor, "read")
    note(world.anchor, "compare_and_set")
    note(store, "observe")
    note(store, "write_birthmark")
    note(store, "stamp")
    await broker.acquire(0)
    assert steps == ["read", "observe", "write_birthmark", "observe", "compare_and_set", "stamp"]
    await broker.give_back(0)
    steps.clear()
    await broker.acquire(0)
    assert steps == ["read", "observe", "compare_and_set", "stamp"], "it has its record"


async def test_a_live_broker_s_bucket_is_not_taken(world: World) -> None:
    await world.broker("broker-1~x").acquire(0)
    world.view = LiveView(alive=frozenset({"broker-1"}), complete=True)
    broker = world.broker()
    assert await broker.acquire(0) is None
    assert broker.held() == {}
    assert (await world.record()).owner == "broker-1~x"


async def test_while_the_store_is_away_nothing_is_taken(world: World) -> None:
    world.view = None
    with pytest.raises(Unavailable, match="the store does not answer"):
        await world.broker().acquire(0)


async def test_of_brokers_that_race_for_a_bucket_one_gets_it(world: World) -> None:
    brokers = [world.broker(f"broker-{n}~x") for n in range(5)]
    world.view = LiveView(alive=frozenset(f"broker-{n}" for n in range(5)), complete=True)
    holdings = await asyncio.gather(*(broker.acquire(0) for broker in brokers))
    winners = [n for n, holding in enumerate(holdings) if holding is not None]
    assert len(winners) == 1
    assert stored_in(world.server.primary).units[0].owner == f"broker-{winners[0]}~x"


async def test_a_lost_compare_and_set_starts_over_from_the_anchor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, races = world.anchor.compare_and_set, [1, 2]

    async def raced(bucket: int, version: int, record: Record) -> int | None:
        if races:
            races.pop()
            await original(bucket, version, Record(owner="", ledger_high_water=100 * version + 100))
        return await original(bucket, version, record)

    monkeypatch.setattr(world.anchor, "compare_and_set", raced)
    broker = world.broker()
    assert await broker.acquire(0) is not None
    assert await broker.reserve_ledger(0) == 201, "above what the others reserved"


async def test_a_race_lost_again_and_again_is_put_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(bucket: int, version: int, record: Record) -> int | None:
        return None

    monkeypatch.setattr(world.anchor, "compare_and_set", lost)
    with pytest.raises(Unavailable, match="could not be taken yet"):
        await world.broker().acquire(0)


async def test_a_takeover_that_broke_off_before_the_stamp_is_finished_by_the_next(
    world: World,
) -> None:
    broker = world.broker()
    store = world.stores["broker-0~a"]

    async def break_off(call: str, moment: str) -> None:
        if call == "stamp":
            store.faults.is_cut_off = True

    store.faults.hook = break_off
    with pytest.raises(Undecided):
        await broker.acquire(0)
    assert broker.held() == {}
    assert (await world.record()).owner == "broker-0~a"

    other = world.broker("broker-1~x")
    assert await other.acquire(0) is not None
    assert await other.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1, "the lost block is thrown away"


async def test_a_stamp_without_an_answer_is_repeated(world: World) -> None:
    broker = world.broker()
    store = world.stores["broker-0~a"]
    stamps = []

    async def fail_once(call: str, moment: str) -> None:
        if call == "stamp" and moment == "after":
            stamps.append(call)
            if len(stamps) == 1:
                raise Undecided("no answer")

    store.faults.hook = fail_once
    assert await broker.acquire(0) is not None
    assert len(stamps) == 2
    assert (await world.record()).ledger_high_water == LEDGERS_PER_BLOCK, "one claim, one block"


async def test_a_store_that_changes_during_the_takeover_is_observed_again(world: World) -> None:
    broker = world.broker()
    restarts = [1]

    async def restart_before_stamp(call: str, moment: str) -> None:
        if call == "stamp" and moment == "before" and restarts:
            restarts.pop()
            world.server.renew_identity(world.server.primary)

    world.stores["broker-0~a"].faults.hook = restart_before_stamp
    holding = await broker.acquire(0)
    assert holding is not None
    assert holding.binding.replid == world.server.primary.replid
    assert holding.binding.generation == 2
