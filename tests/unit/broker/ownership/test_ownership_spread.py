"""Several brokers: who serves what, who comes, dies, leaves, and wakes too late."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from tests.unit.broker.ownership.ownership_world import (
    BUCKETS,
    World,
    acquired,
    addresses,
    force,
    running,
)

from onewriter_broker.anchor.api import Record, Versioned
from onewriter_broker.ownership import buckets as buckets_module
from onewriter_broker.ownership.bucket_events import LostReason
from onewriter_broker.ownership.departure import (
    NOTICE_SECONDS,
    STAY_SECONDS_MAX,
    STORE_SECONDS_MAX,
    leave,
)
from onewriter_broker.ownership.membership import Membership
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.errors import Unavailable
from onewriter_testing.fake_store.store import FakeLogStore

pytestmark = pytest.mark.looptime


@pytest.fixture
def world() -> World:
    return World()


async def test_alone_a_broker_serves_every_bucket(world: World) -> None:
    broker = world.broker()
    async with running(broker.run()):
        await asyncio.sleep(0.5)
        assert set(broker.held()) == set(range(BUCKETS))
        assert all(broker.owner_of(bucket) == addresses("broker-0~a") for bucket in range(BUCKETS))


@dataclass
class Process:
    """A broker with membership, as the application runs it."""

    world: World
    me: str

    def __post_init__(self) -> None:
        self.is_prepared = True
        self.store = FakeLogStore(self.world.server.resolve, buckets=BUCKETS)
        self.membership = Membership(
            self.store, self.me, addresses(self.me), is_prepared=lambda: self.is_prepared
        )
        self.broker = self.world.broker(
            self.me,
            live_view=self.membership.view,
            wake=self.membership.changed,
            is_late=self.membership.observer.is_late,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.membership.run())
            tasks.create_task(self.broker.run())


async def test_a_newcomer_gets_its_share_and_lookups_follow(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    async with running(first.run(), second.run()):
        await asyncio.sleep(10)
        shares = set(first.broker.held()), set(second.broker.held())
        assert shares[0] | shares[1] == set(range(BUCKETS))
        assert shares[0] & shares[1] == set()
        assert all(shares)
        for bucket in range(BUCKETS):
            owner = "broker-0~a" if bucket in shares[0] else "broker-1~x"
            assert first.broker.owner_of(bucket) == addresses(owner)
            assert second.broker.owner_of(bucket) == addresses(owner)


async def test_a_dead_broker_s_buckets_are_taken_within_three_seconds(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    async with running(first.run(), second.run()) as (first_task, _):
        await asyncio.sleep(10)
        lost = set(first.broker.held())
        first_task.cancel()
        assert not any(second.broker.is_in_doubt(bucket) for bucket in range(BUCKETS))
        await asyncio.sleep(1.5)
        assert all(second.broker.owner_of(b) == addresses("broker-0~a") for b in lost)
        in_doubt = {bucket for bucket in range(BUCKETS) if second.broker.is_in_doubt(bucket)}
        assert in_doubt == lost, "its look-ups wait already"
        await asyncio.sleep(1.5)
        assert not any(second.broker.is_in_doubt(bucket) for bucket in range(BUCKETS))
        assert set(second.broker.held()) == set(range(BUCKETS))


async def test_a_broker_that_stops_cleanly_is_replaced_at_once(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    async with running(first.run(), second.run()):
        await asyncio.sleep(10)
        await first.membership.announce_leaving()
        await asyncio.sleep(1)
        await first.broker.give_back_all()
        assert first.broker.held() == {}
        await asyncio.sleep(0.3)
        assert set(second.broker.held()) == set(range(BUCKETS))


async def test_leaving_broker_serves_until_others_know_and_stays_until_they_own_its_buckets(
    world: World,
) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    now = asyncio.get_running_loop().time
    async with running(first.run(), second.run()), asyncio.TaskGroup() as tasks:
        await asyncio.sleep(10)
        (moving, *_) = first.broker.held()
        began = now()
        leaving = tasks.create_task(leave(first.membership, first.broker))
        given_at = taken_at = 0.0
        while not leaving.done():
            reported = first.broker.owner_of(moving)
            if moving in first.broker.held():
                assert reported in {addresses("broker-0~a"), None}
            else:
                given_at = given_at or now()
                assert reported in {addresses("broker-1~x"), None}, "nobody is led back"
            if moving in second.broker.held():
                taken_at = taken_at or now()
            await asyncio.sleep(0.01)
        await leaving
        assert given_at - began >= NOTICE_SECONDS
        assert taken_at - given_at < 2 * buckets_module.EXPECTING_SECONDS, "it was waited for"
        assert taken_at < now() < taken_at + 2 * buckets_module.EXPECTING_SECONDS
        assert first.broker.owner_of(moving) == addresses("broker-1~x")


async def test_the_last_broker_leaves_without_a_successor_and_so_do_all_together(
    world: World,
) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    now = asyncio.get_running_loop().time
    async with running(first.run()):
        await asyncio.sleep(10)
        async with running(second.run()):
            await asyncio.sleep(10)
            began = now()
            async with asyncio.TaskGroup() as tasks:
                for each in (first, second):
                    tasks.create_task(leave(each.membership, each.broker))
            assert now() - began <= NOTICE_SECONDS + 0.1, "nobody waits for one that goes too"
    third = Process(world, "broker-2~z")
    async with running(third.run()):
        await asyncio.sleep(10)
        assert len(third.broker.held()) == BUCKETS
        began = now()
        await leave(third.membership, third.broker)
        assert now() == began


async def test_leaving_broker_waits_a_little_for_a_store_that_is_away(world: World) -> None:
    """Else nothing is given back in order, and epochs are lost that nobody had to lose."""
    first = Process(world, "broker-0~a")
    now = asyncio.get_running_loop().time
    async with running(first.run()), asyncio.TaskGroup() as tasks:
        await asyncio.sleep(10)
        faults = first.store.faults
        faults.is_cut_off = True
        leaving = tasks.create_task(leave(first.membership, first.broker))
        await asyncio.sleep(STORE_SECONDS_MAX - 1)
        assert len(first.broker.held()) == BUCKETS
        faults.is_cut_off = False
        await leaving
        assert (await world.record()).clean
        faults.is_cut_off = True
        began = now()
        await leave(first.membership, first.broker)
        assert now() == began, "there is nothing to give back"


async def test_leaving_broker_does_not_wait_for_ever_for_a_store(world: World) -> None:
    first = Process(world, "broker-0~a")
    now = asyncio.get_running_loop().time
    async with running(first.run()):
        await asyncio.sleep(10)
        first.store.faults.is_cut_off = True
        began = now()
        await leave(first.membership, first.broker)
        assert STORE_SECONDS_MAX <= now() - began < STORE_SECONDS_MAX + 1
        assert first.broker.held() == {}


async def test_leaving_broker_does_not_wait_for_ever_for_a_successor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    now = asyncio.get_running_loop().time
    async with running(first.run(), second.run()):
        await asyncio.sleep(10)

        async def refuse(bucket: int) -> None:
            raise Unavailable(f"{bucket} is not taken")

        monkeypatch.setattr(second.broker, "acquire", refuse)
        began = now()
        await leave(first.membership, first.broker)
        assert NOTICE_SECONDS + STAY_SECONDS_MAX <= now() - began < NOTICE_SECONDS + 3.5


async def test_broker_that_cannot_serve_yet_gets_no_bucket(world: World) -> None:
    first, second = Process(world, "broker-0~a"), Process(world, "broker-1~x")
    second.is_prepared = False
    async with running(first.run()):
        await asyncio.sleep(5)
        async with running(second.run()):
            await asyncio.sleep(20)
            assert len(first.broker.held()) == BUCKETS
            second.is_prepared = True
            await asyncio.sleep(5)
            assert second.broker.held(), "it gets its share"
            assert len(first.broker.held()) + len(second.broker.held()) == BUCKETS


async def test_a_zombie_broker_learns_what_it_lost(world: World) -> None:
    zombie = Process(world, "broker-0~a")
    async with running(zombie.run()):
        await asyncio.sleep(1)
    assert len(zombie.broker.held()) == BUCKETS, "frozen, it still believes"
    other = Process(world, "broker-1~x")
    async with running(other.run()):
        await asyncio.sleep(5)
        assert len(other.broker.held()) == BUCKETS
        async with running(zombie.broker.run()):
            await asyncio.sleep(0.5)
            assert zombie.broker.held() == {}
    assert set(world.events["broker-0~a"].reasons) == {LostReason.TAKEN}


async def test_a_restarted_broker_acquires_its_buckets_again_immediately(world: World) -> None:
    async with running(Process(world, "broker-0~a").run()):
        await asyncio.sleep(1)
    again = Process(world, "broker-0~b")
    async with running(again.run()):
        await asyncio.sleep(0.3)
        assert len(again.broker.held()) == BUCKETS


async def test_with_the_anchor_away_takeovers_wait_visibly_and_owners_continue(
    world: World,
) -> None:
    first = Process(world, "broker-0~a")
    async with running(first.run()):
        await asyncio.sleep(5)
        world.anchor.reachable = False
        second = Process(world, "broker-1~x")
        async with running(second.run()):
            await asyncio.sleep(10)
            assert len(first.broker.held()) == BUCKETS
            assert first.broker.waiting_reason(0) == ""
            assert "anchor cannot be reached" in second.broker.waiting_reason(0)
            assert second.broker.owner_of(0) is None
            world.anchor.reachable = True
            await asyncio.sleep(15)
            assert second.broker.held()
            assert second.broker.waiting_reason(0) == ""


async def test_with_the_store_away_lookups_follow_the_records_of_others(world: World) -> None:
    owners = {0: "broker-1~x", 1: "broker-0~earlier", 2: ""}
    for bucket, owner in owners.items():
        taken = Record(generation=1, owner=owner, addresses=addresses(owner))
        assert await world.anchor.compare_and_set(bucket, 0, taken) is not None
    broker = world.broker()
    world.view = None
    async with running(broker.run()):
        await asyncio.sleep(0.5)
        assert [broker.owner_of(bucket) for bucket in owners] == [
            addresses("broker-1~x"),
            None,
            None,
        ]
        world.view = LiveView(complete=True)  # back, and broker-1 is found dead
        assert broker.owner_of(0) is None


async def test_a_reading_older_than_the_claim_does_not_end_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.change(lambda record: replace(record, owner=""))
    broker = world.broker()
    original = world.anchor.read
    world.view = None  # the loop reads, but plans nothing

    async def slow(bucket: int) -> Versioned:
        answer = await original(bucket)
        await asyncio.sleep(1)
        return answer

    async with running(broker.run()):
        monkeypatch.setattr(world.anchor, "read", slow)
        await asyncio.sleep(0.5)
        monkeypatch.setattr(world.anchor, "read", original)
        world.view = LiveView(complete=True)
        assert await broker.acquire(0) is not None
        await asyncio.sleep(1)
        assert 0 in broker.held()
        assert world.events["broker-0~a"].reasons == []


async def test_a_refused_bucket_is_tried_again_and_served_once_it_is_forced(
    world: World,
) -> None:
    await world.grant(await acquired(world))
    world.server.flush_all(world.server.primary)
    broker = world.broker("broker-0~b")
    async with running(broker.run()):
        await asyncio.sleep(60)
        assert "holds nothing of bucket 0" in broker.waiting_reason(0)
        assert set(broker.held()) == set(range(1, BUCKETS))
        assert (await force(world, single_node=True)).problem == ""
        await asyncio.sleep(buckets_module.PLACEMENT_SECONDS + 6)
        assert set(broker.held()) == set(range(BUCKETS))


async def test_a_leaving_broker_takes_nothing_more(world: World) -> None:
    broker = world.broker()
    async with running(broker.run()):
        await asyncio.sleep(1)
        await broker.give_back_all()
        await asyncio.sleep(5)
        assert broker.held() == {}
