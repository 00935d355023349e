"""Keeping buckets through refused writes and reconnects, losing them, giving them back."""

from __future__ import annotations

import asyncio

import pytest
from tests.contents import stored_in
from tests.unit.broker.ownership.ownership_world import (
    BUCKETS,
    World,
    acquired,
    binding,
    settled,
)

from onewriter_broker.anchor.api import Addresses, Record
from onewriter_broker.log.store.api import Binding, Outcome
from onewriter_broker.ownership.acquisition import (
    ACQUIRE_ATTEMPTS_MAX,
    BucketRefused,
)
from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK
from onewriter_broker.ownership.bucket_events import LostReason, Refenced
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.errors import Unavailable, Undecided
from onewriter_testing.memory_anchor import MemoryAnchor

pytestmark = pytest.mark.looptime


@pytest.fixture
def world() -> World:
    return World()


async def test_after_a_mere_reconnect_the_owner_continues_without_the_anchor(world: World) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    world.server.primary.drop_connections()
    assert await broker.refence(0, binding(broker)) is Refenced.KEPT


async def test_a_refused_write_on_an_unchanged_dataset_keeps_the_binding(world: World) -> None:
    broker = await acquired(world)
    before = await world.anchor.read(0)
    assert await broker.refence(0, binding(broker), Outcome.REFENCE) is Refenced.KEPT
    assert await world.anchor.read(0) == before, "no write to the anchor"


async def test_a_changed_dataset_is_adopted_in_place(world: World) -> None:
    broker = await acquired(world)
    old = binding(broker)
    await world.grant(broker)
    world.server.renew_identity(world.server.primary)
    assert await broker.refence(0, old, Outcome.REFENCE) is Refenced.REBOUND
    events = world.events["broker-0~a"]
    assert events.history == [("acquired", 0), ("changed", 0)]
    assert events.holdings[0] == broker.holding(0)
    assert events.holdings[0].may_resume(1)
    assert await broker.reserve_ledger(0) == LEDGERS_PER_BLOCK + 1
    assert await broker.refence(0, old, Outcome.REFENCE) is Refenced.REBOUND, "told once more"
    assert events.history == [("acquired", 0), ("changed", 0)]


async def test_the_memory_of_a_continuing_owner_shows_whether_grants_were_lost(
    world: World,
) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    broker = await acquired(world)
    await world.grant(broker)
    node = world.server.primary
    world.server.restart(node)
    await settled(broker)
    kept = broker.holding(0)
    assert kept is not None
    assert kept.grants_known
    await world.grant(broker)
    world.server.restart(node, keep=len(node.history) - 1)
    await settled(broker)
    torn = broker.holding(0)
    assert torn is not None
    assert not torn.grants_known


async def test_a_bucket_that_was_taken_is_lost(world: World) -> None:
    broker = await acquired(world)
    old = binding(broker)
    await world.broker("broker-1~x").acquire(0)
    assert await broker.refence(0, old, Outcome.FENCED) is Refenced.LOST
    assert world.events["broker-0~a"].reasons == [LostReason.TAKEN]
    assert await broker.refence(0, old, Outcome.FENCED) is Refenced.LOST


@pytest.mark.parametrize("every_grant", [True, False])
async def test_a_first_owner_that_ended_before_its_first_stamp_is_in_nobodys_way(
    world: World, monkeypatch: pytest.MonkeyPatch, *, every_grant: bool
) -> None:
    world.anchor = MemoryAnchor(records_every_grant=every_grant)

    async def unanswered(*_: object, **__: object) -> Outcome:
        raise Undecided("no answer")

    first = world.broker()
    monkeypatch.setattr(world.stores["broker-0~a"], "stamp", unanswered)
    with pytest.raises(Undecided):
        await first.acquire(0)
    assert (await world.record()).owner == "broker-0~a"
    assert await world.broker("broker-0~b").acquire(0) is not None


async def test_a_bucket_in_use_that_was_emptied_is_refused_on_every_anchor(world: World) -> None:
    world.anchor = MemoryAnchor(records_every_grant=False)
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)
    with pytest.raises(BucketRefused):
        await world.broker("broker-0~b").acquire(0)


async def test_a_registration_under_way_does_not_count_as_a_takeover(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names the next generation from the compare-and-set on, the holding from the stamp."""
    broker = await acquired(world)
    ledger = await world.grant(broker)
    old = binding(broker)
    world.server.restart(world.server.primary)
    store = world.stores["broker-0~a"]
    stamp, may_stamp = store.stamp, asyncio.Event()

    async def slow(given: Binding, *, birthmark: str = "") -> Outcome:
        await may_stamp.wait()
        return await stamp(given, birthmark=birthmark)

    monkeypatch.setattr(store, "stamp", slow)
    world.view = None  # the loop reads, but plans nothing
    async with asyncio.TaskGroup() as tasks:
        refencing = tasks.create_task(broker.refence(0, old))
        await asyncio.sleep(1)
        assert (await world.record()).generation == old.generation + 1
        await broker.place_once(tasks)
        with pytest.raises(Unavailable, match="registered again"):
            await broker.record_grant(0, ledger + 1)
        assert 0 in broker.held()
        may_stamp.set()
    assert refencing.result() is Refenced.REBOUND
    assert binding(broker).generation == old.generation + 1
    assert world.events["broker-0~a"].reasons == []


async def test_an_interrupted_registration_continues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await acquired(world)
    await world.grant(broker)
    old = binding(broker)
    world.server.restart(world.server.primary)
    store = world.stores["broker-0~a"]
    stamp, left = store.stamp, [2 * ACQUIRE_ATTEMPTS_MAX]

    async def mostly_unanswered(given: Binding, *, birthmark: str = "") -> Outcome:
        left[0] -= 1
        if left[0] > 0:
            raise Undecided("no answer")
        return await stamp(given, birthmark=birthmark)

    monkeypatch.setattr(store, "stamp", mostly_unanswered)
    assert await broker.refence(0, old) is Refenced.REBOUND
    assert world.events["broker-0~a"].reasons == []


async def test_a_dataset_that_was_left_is_not_gone_back_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names the promoted replica, though its stamp never arrived; the old primary is back."""
    old, replica = world.server.primary, world.server.add_replica("node-1")
    broker = await acquired(world, single_node=False)
    await world.grant(broker)
    before = binding(broker)
    world.server.promote(replica)
    old.drop_connections()

    async def unanswered(*_: object, **__: object) -> Outcome:
        world.server.primary = old
        replica.drop_connections()
        raise Undecided("no answer")

    monkeypatch.setattr(world.stores["broker-0~a"], "stamp", unanswered)
    assert await broker.refence(0, before) is Refenced.LOST
    assert (await world.record()).generation == before.generation + 1
    assert world.events["broker-0~a"].reasons == [LostReason.DATASET_REFUSED]
    assert "an earlier dataset" in broker.waiting_reason(0)


async def test_a_bucket_that_is_given_back_is_not_taken_by_anybody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records are read when its release is written, and before its broker hears of that."""
    broker = await acquired(world)
    write = world.anchor.compare_and_set

    async def and_look(bucket: int, version: int, record: Record) -> int | None:
        written = await write(bucket, version, record)
        async with asyncio.TaskGroup() as tasks:
            await broker.place_once(tasks)
        return written

    monkeypatch.setattr(world.anchor, "compare_and_set", and_look)
    await broker.give_back(0)
    assert world.events["broker-0~a"].reasons == [LostReason.GIVEN_BACK]


async def test_after_flushall_the_bucket_is_lost_loudly(world: World) -> None:
    broker = await acquired(world)
    await world.grant(broker)
    world.server.flush_all(world.server.primary)
    assert await broker.refence(0, binding(broker), Outcome.LOST) is Refenced.LOST
    assert world.events["broker-0~a"].reasons == [LostReason.DATASET_REFUSED]
    assert "holds nothing of bucket 0" in broker.waiting_reason(0)
    assert "holds nothing of bucket 0" in broker.waiting()[0]
    assert broker.served() == []


async def test_after_flushall_a_bucket_that_granted_nothing_is_stamped_again(world: World) -> None:
    broker = await acquired(world)
    world.server.flush_all(world.server.primary)
    assert await broker.refence(0, binding(broker), Outcome.LOST) is Refenced.REBOUND
    assert stored_in(world.server.primary).units[0].owner == "broker-0~a"


async def test_a_fenced_owner_asks_the_anchor_and_waits_visibly_while_it_is_away(
    world: World,
) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(broker.refence(0, binding(broker), Outcome.FENCED))
        await asyncio.sleep(10)
        assert not answer.done()
        assert "anchor cannot be reached" in broker.waiting_reason(0)
        world.anchor.reachable = True
    assert answer.result() is Refenced.KEPT
    assert broker.waiting_reason(0) == ""


async def test_with_the_anchor_away_a_changed_dataset_waits(world: World) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    world.server.renew_identity(world.server.primary)
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(broker.refence(0, binding(broker), Outcome.REFENCE))
        await asyncio.sleep(10)
        assert not answer.done()
        world.anchor.reachable = True
    assert answer.result() is Refenced.REBOUND


async def test_topics_that_are_refused_together_share_one_answer(world: World) -> None:
    broker = await acquired(world)
    old = binding(broker)
    world.server.renew_identity(world.server.primary)
    answers = await asyncio.gather(*(broker.refence(0, old, Outcome.REFENCE) for _ in range(20)))
    assert answers == [Refenced.REBOUND] * 20
    assert world.events["broker-0~a"].history == [("acquired", 0), ("changed", 0)]


async def test_when_the_one_that_asks_is_cancelled_another_takes_over(world: World) -> None:
    broker = await acquired(world)
    world.anchor.reachable = False
    async with asyncio.TaskGroup() as tasks:
        first, second = (
            tasks.create_task(broker.refence(0, binding(broker), Outcome.FENCED)) for _ in range(2)
        )
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(1)
        world.anchor.reachable = True
    assert second.result() is Refenced.KEPT


# Giving back.


async def test_giving_back_drains_first_and_leaves_the_bucket_free(world: World) -> None:
    broker = await acquired(world)
    ledger = await world.grant(broker)
    await broker.give_back(0)
    record = await world.record()
    assert (record.owner, record.clean, record.last_ledger) == ("", True, ledger)
    assert record.addresses == Addresses()
    events = world.events["broker-0~a"]
    assert events.history == [("acquired", 0), ("drained", 0), ("lost", 0)]
    assert events.reasons == [LostReason.GIVEN_BACK]
    world.view = LiveView(alive=frozenset({"broker-0"}), complete=True)
    assert await world.broker("broker-1~x").acquire(0) is not None


async def test_a_draining_bucket_gives_out_no_ledgers(world: World) -> None:
    broker = await acquired(world)
    world.events["broker-0~a"].drain_seconds = 1
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(broker.give_back(0))
        await asyncio.sleep(0.5)
        with pytest.raises(Unavailable, match="not served by this broker"):
            await broker.reserve_ledger(0)


async def test_topics_that_never_become_idle_do_not_hold_the_bucket_forever(
    world: World,
) -> None:
    broker = await acquired(world)
    world.events["broker-0~a"].drain_seconds = 3600
    await broker.give_back(0)
    record = await world.record()
    assert (record.owner, record.clean) == ("", False)


async def test_a_bucket_that_cannot_be_released_is_released_later(world: World) -> None:
    broker = world.broker()
    await asyncio.gather(*(broker.acquire(bucket) for bucket in range(BUCKETS)))
    world.anchor.reachable = False
    await broker.give_back(0)
    assert 0 not in broker.held()
    world.anchor.reachable = True
    assert (await world.record()).owner == "broker-0~a"
    newcomers = frozenset(f"broker-{n}" for n in range(1, 50))
    world.view = LiveView(alive=newcomers, settled=newcomers, complete=True)
    async with asyncio.TaskGroup() as tasks:
        await broker.place_once(tasks)
    assert (await world.record()).owner == ""
