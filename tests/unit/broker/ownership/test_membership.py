"""Who counts as alive, by one observer's clock."""

from __future__ import annotations

import asyncio

import pytest
from tests.contents import stored_in

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.ownership.heartbeats import Beat, newest
from onewriter_broker.ownership.member_observer import (
    BEAT_SECONDS,
    CLOCK_MS_MAX,
    DEAD_SECONDS,
    FORGET_SECONDS,
    HELD_UP_SECONDS,
    MEMBERS_MAX,
    RETURN_SECONDS,
    SETTLE_SECONDS,
    MemberObserver,
)
from onewriter_broker.ownership.membership import Membership
from onewriter_broker.ownership.placement import LiveView
from onewriter_core.errors import ConfigurationError
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Moment

ME = "broker-0~me"
OTHER = "broker-1~x"
ADDRESSES = Addresses("pulsar://h:1", "http://h:2")


def test_last_sign_of_life_of_a_process_is_known_after_its_death() -> None:
    observer = MemberObserver(ME)
    observer.feed(1.0, {OTHER: Beat(1, ADDRESSES, at_ms=5_000).encode(), "old~x": "{}"})
    observer.feed(1.5, {OTHER: Beat(2, ADDRESSES, at_ms=5_500).encode()})
    observer.feed(5.0, {})
    assert observer.last_seen_ms(OTHER) == 5_500
    assert observer.last_seen_ms("unknown~x") is None
    before = Beat.decode('{"counter": 1, "leaving": false, "brokerUrl": "a", "httpUrl": "b"}')
    assert before == Beat(
        1, Addresses("a", "b"), keeps_floors=False
    )  # of a version that did not say
    observer.feed(5.5, {"broker-2~y": before.encode()})
    assert observer.last_seen_ms("broker-2~y") is None


@pytest.mark.parametrize("ahead_ms", [CLOCK_MS_MAX + 1, -86_400_000])
def test_a_clock_that_differs_is_known_from_the_last_heartbeat(ahead_ms: int) -> None:
    observer, wall_ms = MemberObserver(ME), 200_000_000
    observer.feed(1.0, {OTHER: Beat(1, ADDRESSES, at_ms=wall_ms + ahead_ms).encode()}, wall_ms)
    assert observer.clock_ahead_ms(OTHER) == 0, "the time of its first heartbeat is unknown"
    beat = Beat(2, ADDRESSES, at_ms=wall_ms + 500 + ahead_ms).encode()
    observer.feed(1.5, {OTHER: beat}, wall_ms + 500)
    observer.feed(2.0, {OTHER: beat}, wall_ms + 1_000)
    assert observer.clock_ahead_ms(OTHER) == ahead_ms
    assert observer.clocks_ahead_ms == {OTHER: ahead_ms}
    observer.feed(5.0, {OTHER: Beat(3, ADDRESSES, at_ms=wall_ms + 1_000).encode()}, wall_ms + 4_000)
    assert observer.clock_ahead_ms(OTHER) == ahead_ms, "this heartbeat waited for the reading"
    beat = Beat(4, ADDRESSES, at_ms=wall_ms + 4_500 + CLOCK_MS_MAX).encode()
    observer.feed(5.5, {OTHER: beat}, wall_ms + 4_500)
    assert observer.clock_ahead_ms(OTHER) == 0, "so little is no difference"
    assert observer.clocks_ahead_ms == {}
    assert observer.clock_ahead_ms("unknown~x") == 0


def test_membership_knows_whether_all_brokers_keep_floors() -> None:
    observer = MemberObserver(ME)
    assert not observer.all_keep_floors(0.0), "no other broker was seen yet"
    before = Beat(1, ADDRESSES).encode().replace(', "keepsFloors": true', "")
    assert '"keepsFloors"' not in before
    observer.feed(0.0, {OTHER: Beat(1, ADDRESSES).encode(), "broker-2~y": before})
    assert observer.alive == 2
    assert not observer.all_keep_floors(0.0)
    for number in range(1, 6):
        observer.feed(number * 0.5, {OTHER: Beat(1 + number, ADDRESSES).encode()})
    assert observer.alive == 1, "the one of the version before is dead"
    assert observer.all_keep_floors(2.5)
    assert not observer.all_keep_floors(9.0), "who came since is not known"


class Timeline:
    """An observer, a clock, and brokers that beat or do not."""

    def __init__(self) -> None:
        self.observer = MemberObserver(ME)
        self.now = 100.0
        self.counters: dict[str, int] = {}
        self.beating: set[str] = set()
        self.leaving: set[str] = set()

    def start(self, member: str) -> None:
        self.beating.add(member)

    def stop(self, member: str) -> None:
        self.beating.discard(member)

    def reading(self) -> dict[str, str]:
        for member in self.beating:
            self.counters[member] = self.counters.get(member, 0) + 1
        return {
            member: Beat(counter, ADDRESSES, member in self.leaving).encode()
            for member, counter in self.counters.items()
        }

    def run(self, seconds: float, *, store_away: bool = False) -> None:
        for _ in range(round(seconds / BEAT_SECONDS)):
            self.now += BEAT_SECONDS
            reading = self.reading()
            if not store_away:
                self.observer.feed(self.now, reading)

    def view(self) -> LiveView:
        view = self.observer.view(self.now)
        assert view is not None
        return view


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


def test_before_the_first_reading_nothing_is_known(timeline: Timeline) -> None:
    assert timeline.observer.view(timeline.now) is None


def test_a_broker_that_beats_is_alive_for_ever(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(3600)
    assert timeline.view().alive == {"broker-1"}
    assert timeline.observer.members() == {OTHER: (ADDRESSES, True)}


def test_broker_without_heartbeat_is_dead_after_two_seconds(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.run(DEAD_SECONDS - BEAT_SECONDS)
    assert timeline.view().alive == {"broker-1"}
    timeline.run(BEAT_SECONDS)
    assert timeline.view().alive == frozenset()


def test_a_heartbeat_is_late_from_the_second_missed_one_until_its_broker_beats_or_is_dead(
    timeline: Timeline,
) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    assert not timeline.observer.is_late("broker-1")
    timeline.stop(OTHER)
    timeline.run(BEAT_SECONDS)
    assert not timeline.observer.is_late("broker-1"), "the clocks of brokers are not in step"
    timeline.run(BEAT_SECONDS)
    assert timeline.observer.is_late("broker-1")
    assert timeline.view().alive == {"broker-1"}
    timeline.start(OTHER)
    timeline.run(BEAT_SECONDS)
    assert not timeline.observer.is_late("broker-1")
    timeline.stop(OTHER)
    timeline.run(DEAD_SECONDS)
    assert not timeline.observer.is_late("broker-1"), "it is not alive"
    assert timeline.view().alive == frozenset()


def test_a_process_that_replaced_another_one_of_its_name_is_not_late(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.start("broker-1~y")
    timeline.run(2 * BEAT_SECONDS)
    assert not timeline.observer.is_late("broker-1")


def test_after_an_interruption_no_heartbeat_is_late(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.observer.missed()
    timeline.stop(OTHER)
    timeline.run(DEAD_SECONDS)
    assert timeline.view().alive == {"broker-1"}
    assert not timeline.observer.is_late("broker-1"), "all brokers need time to find the store"


def test_broker_whose_heartbeat_vanished_is_dead_after_two_seconds(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.counters.clear()
    timeline.run(DEAD_SECONDS - BEAT_SECONDS)
    assert timeline.view().alive == {"broker-1"}
    timeline.run(BEAT_SECONDS)
    assert timeline.view().alive == frozenset()


def test_the_first_broker_is_settled_immediately(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(BEAT_SECONDS)
    assert timeline.view().settled == {"broker-1"}


def test_a_newcomer_settles_by_staying_alive(timeline: Timeline) -> None:
    timeline.run(5)
    timeline.start(OTHER)
    timeline.run(SETTLE_SECONDS)
    assert timeline.view().alive == {"broker-1"}
    assert timeline.view().settled == frozenset()
    timeline.run(BEAT_SECONDS)
    assert timeline.view().settled == {"broker-1"}


def test_broker_that_returns_from_the_dead_settles_again(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.run(5)
    timeline.start(OTHER)
    timeline.run(BEAT_SECONDS)
    assert (timeline.view().alive, timeline.view().settled) == (
        frozenset({"broker-1"}),
        frozenset(),
    )
    timeline.run(SETTLE_SECONDS)
    assert timeline.view().settled == {"broker-1"}


def test_a_quick_restart_keeps_a_settled_name(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.run(0.5)
    timeline.start("broker-1~y")
    timeline.run(10)
    assert timeline.view() == LiveView(
        frozenset({"broker-1"}), frozenset({"broker-1"}), complete=True
    )


def test_leaving_broker_is_alive_and_gets_no_bucket(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.leaving.add(OTHER)
    timeline.run(BEAT_SECONDS)
    assert (timeline.view().alive, timeline.view().settled) == (
        frozenset({"broker-1"}),
        frozenset(),
    )


def test_absence_proves_death_only_after_two_seconds_of_observation(timeline: Timeline) -> None:
    timeline.run(DEAD_SECONDS)
    assert not timeline.view().complete
    timeline.run(BEAT_SECONDS)
    assert timeline.view().complete


def test_no_broker_acquires_a_bucket_while_the_store_is_away(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.run(10, store_away=True)
    assert timeline.observer.view(timeline.now) is None


def test_broker_has_time_to_return_after_the_store_was_away(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.run(10, store_away=True)
    timeline.run(DEAD_SECONDS)
    assert not timeline.view().complete
    timeline.run(RETURN_SECONDS - DEAD_SECONDS)
    assert timeline.view() == LiveView(
        frozenset({"broker-1"}), frozenset({"broker-1"}), complete=True
    )
    timeline.run(BEAT_SECONDS)
    assert timeline.view() == LiveView(complete=True)


def test_observer_that_is_held_up_again_and_again_finds_a_dead_broker(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    observed = 0.0
    while timeline.observer.alive:
        timeline.run(5, store_away=True)
        timeline.run(1.5)
        observed += 1.0
    assert observed == RETURN_SECONDS


def test_returned_broker_is_dead_two_seconds_after_its_last_heartbeat(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.run(10, store_away=True)
    timeline.run(2 * BEAT_SECONDS)
    timeline.stop(OTHER)
    timeline.run(DEAD_SECONDS - BEAT_SECONDS)
    assert timeline.view().alive == {"broker-1"}
    timeline.run(BEAT_SECONDS)
    assert timeline.view().alive == frozenset()


def test_broker_that_returns_late_was_alive_all_the_time(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.run(10, store_away=True)
    timeline.run(RETURN_SECONDS - BEAT_SECONDS)
    timeline.start(OTHER)
    timeline.run(BEAT_SECONDS)
    assert (timeline.view().alive, timeline.view().settled) == (frozenset({"broker-1"}),) * 2


def test_heartbeat_from_before_the_interruption_does_not_end_the_time_to_return(
    timeline: Timeline,
) -> None:
    """The store kept a heartbeat that was written after the observer's last reading."""
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.counters[OTHER] += 1
    timeline.run(10, store_away=True)
    timeline.run(RETURN_SECONDS)
    assert timeline.view().alive == {"broker-1"}
    timeline.run(BEAT_SECONDS)
    assert timeline.view().alive == frozenset()


def test_failed_reading_is_an_interruption_however_short(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.observer.missed()
    timeline.run(RETURN_SECONDS)
    assert timeline.view().alive == {"broker-1"}
    timeline.run(BEAT_SECONDS)
    assert timeline.view().alive == frozenset()


def test_broker_that_died_before_the_store_was_away_stays_dead(timeline: Timeline) -> None:
    """Otherwise its successors would give it its buckets back."""
    timeline.start(OTHER)
    timeline.run(10)
    timeline.stop(OTHER)
    timeline.run(DEAD_SECONDS)
    timeline.run(10, store_away=True)
    timeline.run(BEAT_SECONDS)
    assert timeline.view() == LiveView()
    timeline.start(OTHER)
    timeline.run(BEAT_SECONDS)
    assert (timeline.view().alive, timeline.view().settled) == (
        frozenset({"broker-1"}),
        frozenset(),
    )


def test_new_observer_gives_others_time_to_return_if_it_began_without_a_store(
    timeline: Timeline,
) -> None:
    timeline.counters[OTHER] = 7
    timeline.observer.missed()
    timeline.run(RETURN_SECONDS)
    assert timeline.view() == LiveView(frozenset({"broker-1"}), frozenset({"broker-1"}))
    timeline.run(BEAT_SECONDS)
    assert timeline.view() == LiveView(complete=True)


def test_an_observer_that_was_paused_observes_again(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(10)
    timeline.now += 60
    timeline.observer.feed(
        timeline.now, {OTHER: Beat(timeline.counters[OTHER], ADDRESSES).encode()}
    )
    assert timeline.view().alive == {"broker-1"}
    assert not timeline.view().complete


def test_another_process_under_my_name_is_a_rival_once_it_was_seen_at_work(
    timeline: Timeline,
) -> None:
    timeline.start("broker-0~zombie")
    timeline.run(BEAT_SECONDS)
    assert timeline.view().rivals == frozenset()
    timeline.run(BEAT_SECONDS)
    assert timeline.view().rivals == {"broker-0~zombie"}
    assert timeline.view().alive == frozenset()


def test_an_earlier_process_of_the_same_name_is_not_a_competitor(timeline: Timeline) -> None:
    timeline.counters["broker-0~before"] = 7
    timeline.run(5)
    assert timeline.view() == LiveView(complete=True)


def test_my_own_heartbeat_is_not_observed(timeline: Timeline) -> None:
    timeline.start(ME)
    timeline.run(5)
    assert timeline.observer.members() == {}


def test_the_long_dead_are_forgotten_once(timeline: Timeline) -> None:
    timeline.start(OTHER)
    timeline.run(5)
    timeline.stop(OTHER)
    timeline.run(FORGET_SECONDS)
    assert timeline.observer.forgettable() == [OTHER]
    assert timeline.observer.forgettable() == []


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        "[]",
        "7",
        '{"counter": "1", "leaving": false, "brokerUrl": "", "httpUrl": ""}',
        '{"counter": 1, "leaving": false, "brokerUrl": 1, "httpUrl": ""}',
        '{"counter": 1}',
        "[" * 1000,
        "x" * 5000,
    ],
)
def test_members_that_no_broker_writes_are_ignored(timeline: Timeline, value: str) -> None:
    timeline.observer.feed(timeline.now, {OTHER: value})
    assert timeline.view() == LiveView()


def test_the_number_of_examined_members_is_limited(timeline: Timeline) -> None:
    for flood in range(4):
        reading = {
            f"broker-{flood}-{n}~x": Beat(1, ADDRESSES).encode() for n in range(10 * MEMBERS_MAX)
        }
        timeline.observer.feed(timeline.now, reading)
    assert len(timeline.observer.members()) == 2 * MEMBERS_MAX


def test_an_observer_with_a_higher_limit_examines_more_members() -> None:
    observer = MemberObserver(ME, members_max=2 * MEMBERS_MAX)
    reading = {f"broker-{n}~x": Beat(1, ADDRESSES).encode() for n in range(2 * MEMBERS_MAX)}
    observer.feed(1.0, reading)
    assert observer.alive == 2 * MEMBERS_MAX


def test_neither_a_newcomer_nor_a_dead_broker_displaces_a_living_one() -> None:
    observer = MemberObserver(ME, members_max=2)
    living = ("broker-8~x", "broker-9~x")
    for number in range(1, 30):
        now = number * BEAT_SECONDS
        reading = {name: Beat(number, ADDRESSES).encode() for name in living}
        if number > 5:
            reading["broker-1~new"] = Beat(number, ADDRESSES).encode()
            reading["broker-2~dead"] = Beat(1, ADDRESSES).encode()
        observer.feed(now, reading)
        view = observer.view(now)
        assert view is not None
        assert view.alive == {"broker-8", "broker-9"}


# The loop, over a store.


class Joining:
    """Brokers of which at most three work together, on one store."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.store = FakeLogStore(self.server.resolve)
        self.refused: list[str] = []

    def member(self, me: str) -> Membership:
        return Membership(FakeLogStore(self.server.resolve), me, ADDRESSES, members_max=3)

    async def run(self, member: Membership, me: str) -> None:
        try:
            await member.run()
        except ConfigurationError as error:
            assert "at most 3 work together" in str(error)  # noqa: PT017 - some end, and some do not
            self.refused.append(me)

    async def heartbeats(self) -> set[str]:
        (reading,) = await self.store.members()
        return set(reading.beats)


@pytest.mark.looptime
async def test_a_broker_that_is_one_too_many_ends_and_the_others_stay() -> None:
    world = Joining()
    members = {f"broker-{number}~x": world.member(f"broker-{number}~x") for number in (2, 3, 4, 1)}
    async with asyncio.TaskGroup() as group:
        tasks = []
        for me, member in members.items():
            tasks.append(group.create_task(world.run(member, me)))
            await asyncio.sleep(10.0)
            assert len(await world.heartbeats()) <= 3
        assert world.refused == ["broker-1~x"], "although its name sorts first"
        for me in ("broker-2~x", "broker-3~x", "broker-4~x"):
            view = members[me].view()
            assert view is not None
            assert len(view.alive) == 2
        for task in tasks:
            task.cancel()


@pytest.mark.looptime
async def test_of_two_brokers_that_start_for_one_place_at_least_one_ends() -> None:
    world = Joining()
    names = ["broker-8~x", "broker-9~x", "broker-1~x", "broker-2~x"]
    members = {me: world.member(me) for me in names}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(world.run(members[me], me)) for me in names[:2]]
        await asyncio.sleep(10.0)
        tasks += [group.create_task(world.run(members[me], me)) for me in names[2:]]
        for _ in range(100):
            await asyncio.sleep(0.1)
            view = members["broker-8~x"].view()
            assert view is None or "broker-9" in view.alive
        assert world.refused
        assert set(world.refused) <= set(names[2:])
        assert len(await world.heartbeats()) == 4 - len(world.refused)
        for task in tasks:
            task.cancel()


@pytest.mark.looptime
async def test_heartbeats_of_dead_brokers_take_no_place() -> None:
    world = Joining()
    for number in range(5):
        await world.store.beat(f"broker-{number}~dead", Beat(7, ADDRESSES).encode())
    member = world.member("broker-0~new")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.run(member, "broker-0~new"))
        await asyncio.sleep(2 * DEAD_SECONDS + 1.0)
        assert not world.refused
        assert "broker-0~new" in await world.heartbeats()
        task.cancel()


@pytest.mark.looptime
async def test_a_broker_waits_with_its_first_heartbeat_until_the_store_answers() -> None:
    world = Joining()
    node = world.server.resolve()
    assert node is not None
    node.is_reachable = False
    member = world.member("broker-0~x")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.run(member, "broker-0~x"))
        await asyncio.sleep(30.0)
        assert member.view() is None
        node.is_reachable = True
        await asyncio.sleep(5.0)
        assert member.view() is not None
        task.cancel()


async def test_two_brokers_find_each_other_and_miss_the_one_that_left() -> None:
    server = FakeServer()
    clock = [0.0]
    first, second = (
        Membership(FakeLogStore(server.resolve), me, ADDRESSES, clock=lambda: clock[0])
        for me in (ME, OTHER)
    )

    async def run(seconds: float, *members: Membership) -> None:
        for _ in range(round(seconds / BEAT_SECONDS)):
            clock[0] += BEAT_SECONDS
            for member in members:
                await member.beat_once()

    await run(5, first, second)
    first_view, second_view = first.view(), second.view()
    assert first_view is not None
    assert second_view is not None
    assert first_view.settled == {"broker-1"}
    assert second_view.settled == {"broker-0"}

    first.changed.clear()
    await second.announce_leaving()
    await run(BEAT_SECONDS, first)
    assert first.changed.is_set()
    await second.leave()
    await run(3, first)
    assert first.view() == LiveView(complete=True)


async def test_a_store_that_is_away_leaves_no_view_and_does_not_end_the_loop() -> None:
    server = FakeServer()
    clock = [0.0]
    store = FakeLogStore(server.resolve)
    membership = Membership(store, ME, ADDRESSES, clock=lambda: clock[0])
    await membership.beat_once()
    assert membership.view() == LiveView()
    store.faults.is_cut_off = True
    clock[0] += 5
    await membership.beat_once()
    assert membership.view() is None
    store.faults.is_cut_off = False
    await membership.beat_once()
    assert membership.view() == LiveView()


async def test_a_late_heartbeat_alone_shows_no_loss_of_the_store() -> None:
    clock = [0.0]
    store = FakeLogStore(FakeServer().resolve)
    membership = Membership(store, ME, ADDRESSES, clock=lambda: clock[0])
    assert not membership.store_answers, "it has not answered yet"
    await membership.beat_once()
    clock[0] += 10 * HELD_UP_SECONDS
    assert membership.view() is None
    assert membership.store_answers, "the event loop was held up before the next heartbeat"
    store.faults.is_cut_off = True
    await membership.beat_once()
    assert not membership.store_answers, "the store did not answer although the event loop ran"
    store.faults.is_cut_off = False
    await membership.beat_once()
    assert membership.store_answers


async def test_two_heartbeats_that_failed_while_the_event_loop_was_held_up_show_a_loss() -> None:
    clock = [0.0]
    store = FakeLogStore(FakeServer().resolve)
    membership = Membership(store, ME, ADDRESSES, clock=lambda: clock[0])
    await membership.beat_once()

    async def hold_up(call: str, moment: Moment) -> None:
        del call, moment
        clock[0] += 10 * HELD_UP_SECONDS
        store.faults.is_cut_off = True

    store.faults.hook = hold_up
    assert not await membership.beat_once()
    assert membership.store_answers
    assert not await membership.beat_once()
    assert not membership.store_answers


async def test_a_broker_that_began_without_a_store_gives_the_others_time() -> None:
    server = FakeServer()
    clock = [0.0]
    before = FakeLogStore(server.resolve)
    await before.beat(OTHER, Beat(7, ADDRESSES).encode())
    store = FakeLogStore(server.resolve)
    membership = Membership(store, ME, ADDRESSES, clock=lambda: clock[0])
    store.faults.is_cut_off = True
    assert not await membership.beat_once()
    store.faults.is_cut_off = False
    assert await membership.beat_once()
    for _ in range(round(DEAD_SECONDS / BEAT_SECONDS)):
        clock[0] += BEAT_SECONDS
        await membership.beat_once()
    view = membership.view()
    assert view is not None
    assert (view.alive, view.complete) == (frozenset({"broker-1"}), False)


async def test_the_loop_beats_until_it_is_cancelled() -> None:
    server = FakeServer()
    membership = Membership(FakeLogStore(server.resolve), ME, ADDRESSES)
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(membership.run())
        await membership.changed.wait()
        loop.cancel()
    assert list(stored_in(server.primary).members) == [ME]


def test_of_several_shards_the_newest_heartbeat_of_each_broker_counts() -> None:
    def beat(counter: int) -> str:
        return Beat(counter, ADDRESSES).encode()

    readings = [{"a": beat(3), "b": beat(9)}, {"a": beat(5), "c": "damaged"}, {}]
    assert newest(readings) == {"a": beat(5), "b": beat(9)}
    assert newest([]) == {}


def test_a_heartbeat_of_a_shard_that_returned_is_no_sign_of_life() -> None:
    """While its shard was away, the broker's newer heartbeats were read from the others."""
    observer = MemberObserver("me~1")
    for step, counter in enumerate((7, 8, 8, 8, 5, 5)):
        observer.feed(float(step), {OTHER: Beat(counter, ADDRESSES).encode()})
    assert observer.alive == 0
