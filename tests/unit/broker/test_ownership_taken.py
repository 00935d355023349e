"""Taking buckets: the race for them, their ledgers and grants, and whose data it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.broker.ownership_world import (
    World,
    acquired,
    addresses,
    force,
    running,
)

from onewriter_broker.anchor.api import Record
from onewriter_broker.anchor.memory import MemoryAnchor
from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK, Reason
from onewriter_broker.ownership.bucket_events import LostReason
from onewriter_broker.ownership.claims import (
    BucketRefused,
    Forced,
)
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import NUMBER_MAX

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
    unit = world.server.primary.dataset.units[0]
    assert (unit.owner, unit.generation, unit.version) == ("broker-0~a", 1, 1)
    assert holding.grants_known
    assert holding.may_resume(1)
    assert world.events["broker-0~a"].story == [("acquired", 0)]
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
    note(store, "bear")
    note(store, "stamp")
    await broker.acquire(0)
    assert steps == ["read", "observe", "bear", "observe", "compare_and_set", "stamp"]
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
    with pytest.raises(Unavailable, match="store is away"):
        await world.broker().acquire(0)


async def test_of_brokers_that_race_for_a_bucket_one_gets_it(world: World) -> None:
    brokers = [world.broker(f"broker-{n}~x") for n in range(5)]
    world.view = LiveView(alive=frozenset(f"broker-{n}" for n in range(5)), complete=True)
    holdings = await asyncio.gather(*(broker.acquire(0) for broker in brokers))
    winners = [n for n, holding in enumerate(holdings) if holding is not None]
    assert len(winners) == 1
    assert world.server.primary.dataset.units[0].owner == f"broker-{winners[0]}~x"


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


async def test_a_store_that_changes_during_the_takeover_is_looked_at_again(world: World) -> None:
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


# Ledgers.


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
    heard = {"broker-0~a": 5_000}
    holding = await world.broker("broker-1~x", heard_ms=heard.get).acquire(0)
    assert holding is not None
    assert holding.heard_ms == 5_000


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


async def test_what_is_left_of_a_block_ends_with_the_ownership(world: World) -> None:
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


# Grants.


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


async def test_who_records_no_grants_has_no_doubts(world: World) -> None:
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


# A changed dataset.


async def test_after_a_restart_that_kept_everything_holders_may_resume(world: World) -> None:
    await world.grant(await acquired(world))
    world.server.restart(world.server.primary)
    holding = await world.broker("broker-0~b").acquire(0)
    assert holding is not None
    assert holding.grants_known
    assert holding.may_resume(1)
    assert holding.binding.generation == 2


async def test_after_a_torn_restart_nobody_resumes_under_any_later_owner(world: World) -> None:
    await world.grant(await acquired(world))
    node = world.server.primary
    world.server.restart(node, keep=len(node.history) - 1)
    torn = await world.broker("broker-0~b").acquire(0)
    assert torn is not None
    assert not torn.grants_known
    assert not torn.may_resume(1)
    assert torn.may_resume(2)

    later = await world.broker("broker-0~c").acquire(0)
    assert later is not None
    assert later.grants_known, "nothing more was lost"
    assert not later.may_resume(1), "but what was lost stays lost"

    world.server.restart(node)
    restarted = await world.broker("broker-0~d").acquire(0)
    assert restarted is not None
    assert not restarted.may_resume(1)
    assert restarted.may_resume(2)


async def test_without_recorded_grants_only_a_clean_release_lets_holders_resume(
    world: World,
) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    first = await acquired(world)
    await world.grant(first)
    await first.give_back(0)
    world.server.restart(world.server.primary)
    second = world.broker("broker-0~b")
    holding = await second.acquire(0)
    assert holding is not None
    assert holding.may_resume(1)

    world.server.restart(world.server.primary)  # the second owner crashed: no clean release
    holding = await world.broker("broker-0~c").acquire(0)
    assert holding is not None
    assert not holding.may_resume(2)


async def test_a_lagging_replica_s_promotion_is_adopted_and_its_loss_known(world: World) -> None:
    replica = world.server.add_replica("node-1")
    broker = world.broker(single_node=False)
    await broker.acquire(0)
    replica.holds_replication = True
    await world.grant(broker)
    world.server.promote(replica)
    holding = await world.broker("broker-1~x", single_node=False).acquire(0)
    assert holding is not None
    assert not holding.grants_known


async def test_a_foreign_dataset_is_refused_until_it_is_forced(world: World) -> None:
    await world.grant(await acquired(world, single_node=False))
    stranger = world.server.add_primary("stranger")
    world.server.primary = stranger
    successor = world.broker("broker-1~x", single_node=False)
    with pytest.raises(BucketRefused) as refused:
        await successor.acquire(0)
    assert refused.value.verdict.reason is Reason.EMPTY_DATASET

    assert await force(world) == Forced(0, 2, stranger.replid)
    assert (await world.record()).owner == ""
    holding = await successor.acquire(0)
    assert holding is not None
    assert not holding.may_resume(1)
    store = world.stores["broker-1~x"]
    ((_, audit),) = await store.read_audit(0, count=10)
    assert audit == {
        "kind": "adopt",
        "reason": "the disk is gone",
        "by": "operator",
        "verdict": "empty-dataset",
        "generation": "2",
        "replid": stranger.replid,
        "previous_replid": world.server.nodes["node-0"].replid,
        "time": "1700000000000",
    }


async def test_force_does_nothing_to_a_bucket_that_is_well(world: World) -> None:
    broker = await acquired(world)
    before = await world.anchor.read(0)
    assert "nothing to force" in (await force(world)).problem
    assert await world.anchor.read(0) == before
    await world.grant(broker)


async def test_force_that_loses_a_race_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)

    async def lost(bucket: int, version: int, record: Record) -> int | None:
        return None

    monkeypatch.setattr(world.anchor, "compare_and_set", lost)
    assert "somebody else" in (await force(world)).problem


async def test_a_store_of_another_anchor_is_not_registered(world: World) -> None:
    await acquired(world)
    world.anchor = MemoryAnchor()
    with pytest.raises(BucketRefused, match="an anchor that is not this one"):
        await world.broker("broker-0~b").acquire(0)


async def test_force_binds_a_store_to_a_new_anchor(world: World) -> None:
    broker = await acquired(world)
    for _ in range(5):
        await world.grant(broker)
    lost_anchor, world.anchor = world.anchor, MemoryAnchor()
    assert (await force(world)).problem == ""
    successor = world.broker("broker-0~b")
    holding = await successor.acquire(0)
    assert holding is not None
    assert holding.binding.version < (await lost_anchor.read(0)).version
    assert await successor.reserve_ledger(0) == 6, "above what the store has seen"
    assert not holding.may_resume(1)


async def test_an_anchor_restored_from_a_backup_is_put_off_then_named(world: World) -> None:
    await acquired(world)
    world.server.renew_identity(world.server.primary)
    backup = await world.record()
    await world.broker("broker-0~b").acquire(0)
    await world.change(lambda _: backup)
    with pytest.raises(Unavailable, match="restored from a backup"):
        await world.broker("broker-0~c").acquire(0)
