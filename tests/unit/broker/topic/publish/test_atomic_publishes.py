"""An atomic publish on its way through a log: what waits, what readers see, and all ways to end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from tests.stamps import fence_once, stamp_anew
from tests.unit.broker.topic.fence_path_world import ORDERS, entry, serving, until
from tests.unit.broker.topic.publish.publish_world import (
    APP,
    SIZE,
    Calls,
    asked,
    contents,
    ended,
    log_of,
    request,
    whole,
)

from onewriter_broker.log.joint_append import JointAppend, JointEntry
from onewriter_broker.log.store.api import (
    Binding,
    Block,
    Fence,
    FencedLog,
    Guard,
    GuardKind,
    Marker,
    Outcome,
)
from onewriter_broker.log.topic_log.atomic_publish import Publish, Published
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.errors import Fenced, Unavailable, Undecided
from onewriter_core.ids import Position
from onewriter_core.log_format.field_names import OPEN_PUBLISH, VERSION_PREFIX
from onewriter_core.topic.events import LedgerFull
from onewriter_core.topic.model import WHOLE, AccessMode
from onewriter_core.wire.values import Send
from onewriter_testing.fake_store.store import Moment

# --- what readers see of it


async def test_readers_see_nothing_of_it_and_then_all_of_it() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        seen: list[Position] = []
        log._watchers.append(lambda: seen.append(log.committed))
        publish = request(world, log, asked(12))
        assert await ended(publish) == Published(Position(1, 1), Position(1, 12))
        assert seen == [Position(1, 12)]
        assert await contents(log) == [f"1/{number}" for number in range(12)]
        blocks = await whole(world)
        assert [block.publish for block in blocks] == ["query/1"] * 12
        assert [block.commits for block in blocks] == [False] * 11 + [True]
        state = await world.store.read_state(ORDERS)
        assert (state[f"{VERSION_PREFIX}{APP}"], OPEN_PUBLISH in state) == ("1", False)
        assert log.state[f"{VERSION_PREFIX}{APP}"] == "1"


@pytest.mark.parametrize("tail_bytes_max", [100, 3 * SIZE, 100 * SIZE])
async def test_a_view_is_readable_with_any_share_of_it_in_memory(tail_bytes_max: int) -> None:
    async with serving() as world:
        runner, log = await log_of(world)
        log.tail_bytes_max = tail_bytes_max
        producer, _ = world.ask(runner, AccessMode.SHARED, "plain")
        await until(lambda: producer.is_active)
        world.send(producer, 0)
        await until(lambda: producer.pending == 0)
        publish = request(world, log, asked(12))
        world.send(producer, 1)
        await ended(publish)
        await until(lambda: producer.pending == 0)
        found = await contents(log)
        assert found[1:13] == [f"1/{number}" for number in range(12)]
        assert len(found) == 14
        for one, other in pairwise(log.tail):
            assert isinstance(other, Marker) or other.position.previous <= _last(one)


def _last(block: Block | Marker) -> Position:
    return block.last if isinstance(block, Block) else block.position


async def test_entries_sent_during_a_publish_are_stored_after_it_in_order() -> None:
    async with serving() as world:
        runner, log = await log_of(world)
        producer, channel = world.ask(runner, AccessMode.EXCLUSIVE, "holder")
        await until(lambda: producer.is_active)
        for number in range(3):
            world.send(producer, number)
        publish = request(world, log, asked(12))
        for number in range(3, 6):
            world.send(producer, number)
        assert await ended(publish) == Published(Position(2, 4), Position(2, 15))
        await until(lambda: producer.pending == 0)
        assert (channel.drops, channel.closed) == ([], 0)
        blocks = await whole(world)
        assert [len(block.lengths) for block in blocks] == [3, *[1] * 12, 3]


async def test_other_logs_are_written_between_its_calls() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        log = runner.logs[0]
        producer, _ = world.ask(runner, AccessMode.SHARED, "other", partition=1, alone=True)
        await until(lambda: producer.is_active)
        committed: list[TopicLog] = []
        for each in runner.logs.values():
            each._watchers.append(partial(committed.append, each))
        publish = request(world, log, asked(50))
        world.send(producer, 0)
        await ended(publish)
        assert committed == [runner.logs[1], log]


async def test_several_publishes_are_stored_one_after_the_other() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        publishes = [request(world, log, asked(7, version=version)) for version in (1, 2, 5)]
        found = [await ended(each) for each in publishes]
        assert found == [
            Published(Position(1, first), Position(1, first + 6)) for first in (1, 8, 15)
        ]
        assert len(await whole(world)) == 21


# --- other answers


@pytest.mark.parametrize("version", [3, 2])
async def test_a_known_version_leaves_no_trace(version: int) -> None:
    async with serving() as world:
        runner, log = await log_of(world)
        assert await ended(request(world, log, asked(12, version=3)))
        producer, channel = world.ask(runner, AccessMode.SHARED, "plain")
        await until(lambda: producer.is_active)
        before = (log.next_entry, log.ledger_bytes, log.entries_in, log.messages_in)
        duplicate = request(world, log, asked(12, version=version))
        following = request(world, log, asked(2, version=4))
        assert await ended(duplicate) is None
        assert await ended(following) == Published(
            Position(log.ledger, 13), Position(log.ledger, 14)
        )
        world.send(producer, 0)
        await until(lambda: producer.pending == 0)
        assert channel.drops == []
        assert len(await whole(world)) == 15
        assert log.entries_in == before[2] + 3
        assert world.deposed == []


async def test_crossing_publishes_of_one_version_are_stored_once() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        publishes = [request(world, log, asked(7)) for _ in range(3)]
        found = [await ended(each) for each in publishes]
        assert found == [Published(Position(1, 1), Position(1, 7)), None, None]
        assert len(await whole(world)) == 7


async def test_a_waiter_that_lost_its_right_is_refused_and_delays_no_other() -> None:
    async with serving() as world:
        _, log = await log_of(world)
        stale = request(world, log, asked(7, may_write=lambda: False))
        other = request(world, log, asked(7))
        assert isinstance(await ended(stale), Unavailable)
        assert await ended(other) == Published(Position(1, 1), Position(1, 7))


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("kind", ["fail_before", "fail_after"])
async def test_lost_answers_cost_only_time(call: int, kind: str) -> None:
    async with serving() as world:
        _, log = await log_of(world)

        def fail() -> None:
            setattr(world.store.faults, kind, 2)

        Calls(world, call, fail)
        publish = request(world, log, asked(12))
        assert await ended(publish) == Published(Position(1, 1), Position(1, 12))
        assert len(await whole(world)) == 12
        assert OPEN_PUBLISH not in await world.store.read_state(ORDERS)


async def test_a_publish_continues_after_withdrawn_blocks() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        one, other = runner.logs[0], runner.logs[1]
        far = Guard(GuardKind.FLOOR, "persistent://public/default/far", 4)
        other._state[far.floor_field] = "9"
        assert other.binding is not None
        token = other.binding.token(other.ledger)
        fields = {far.floor_field: "9"}
        assert await world.store.set_state(other.binding, other.name, token, fields) is Outcome.DONE
        parts = [
            JointEntry(log, Send(1, 0), memoryview(entry("x", 0)), guard)
            for log, guard in ((one, None), (other, far))
        ]
        together = JointAppend(parts, lambda: True)
        publishes: list[Publish] = []
        Calls(
            world,
            1,
            lambda: publishes.append(request(world, one, asked(3))),
            call="append_together",
        )
        with pytest.raises(Fenced):
            await world.appender.append_jointly(together)
        assert await ended(publishes[0]) == Published(Position(1, 1), Position(1, 3))


# --- ways to end it early


async def test_a_roll_waits_for_it() -> None:
    async with serving() as world:
        runner, log = await log_of(world)
        Calls(world, 2, lambda: runner.roll_if_full(1, 1e9))
        publish = request(world, log, asked(12))
        assert await ended(publish) == Published(Position(1, 1), Position(1, 12))
        assert world.owner.ledgers == 1
        runner.roll_if_full(1, 1e9)
        await until(lambda: log.ledger == 2 and log.is_writable)


@pytest.mark.parametrize("call", [1, 2])
async def test_a_fence_that_cuts_it_short_leaves_nothing_and_the_others_continue(call: int) -> None:
    async with serving() as world:
        runner, log = await log_of(world)
        producer, channel = world.ask(runner, AccessMode.SHARED, "plain")
        await until(lambda: producer.is_active)

        def fence() -> None:
            world.send(producer, 0)
            runner.post(LedgerFull(WHOLE, 0.0))

        Calls(world, call, fence, "after")
        publish = request(world, log, asked(40))
        later = request(world, log, asked(3, version=2))
        assert isinstance(await ended(publish), Unavailable)
        assert await ended(later) == Published(Position(2, 1), Position(2, 3))
        await until(lambda: producer.pending == 0)
        assert channel.drops == []
        assert [block.publish for block in await whole(world)] == ["query/2"] * 3 + [""]
        markers = [block for block in await world.stored() if isinstance(block, Marker)]
        assert [each.fields.get("aborted") for each in markers] == [None, "query/1"]
        again = request(world, log, asked(3, version=1))
        assert await ended(again) is None, "an older version of the app"


async def test_a_takeover_ends_begun_and_waiting_publishes() -> None:
    async with serving() as world:
        runner, log = await log_of(world)

        def take() -> None:
            world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "next")

        Calls(world, 2, take)
        begun = request(world, log, asked(40))
        waiting = request(world, log, asked(3, version=2))
        assert isinstance(await ended(begun), Unavailable)
        assert isinstance(await ended(waiting), Unavailable)
        await until(lambda: log.ledger == 2 and log.is_writable)
        assert await whole(world) == []
        assert await ended(request(world, log, asked(3))) == Published(
            Position(2, 1), Position(2, 3)
        )


async def test_a_closed_log_reports_only_definite_results() -> None:
    async with serving() as world:
        runner, log = await log_of(world)
        Calls(world, 2, lambda: runner.unload("moving"))
        publish = request(world, log, asked(40))
        assert isinstance(await ended(publish), Unavailable)
        _, anew = await log_of(world)
        assert await whole(world) == []
        assert await ended(request(world, anew, asked(40))) == Published(
            Position(2, 1), Position(2, 40)
        )


@pytest.mark.parametrize("is_executed", [False, True])
async def test_a_last_block_without_an_answer_is_unknown_and_asked_again_definite(
    is_executed: bool,
) -> None:
    async with serving() as world:
        runner, log = await log_of(world)

        def leave() -> None:
            runner.unload("moving")
            raise Undecided("the answer was lost")

        Calls(world, 2, leave, "after" if is_executed else "before")
        publish = request(world, log, asked(8))
        assert isinstance(await ended(publish), Undecided)
        _, anew = await log_of(world)
        found = await ended(request(world, anew, asked(8)))
        if is_executed:
            assert found is None
            assert [block.position.ledger for block in await whole(world)] == [1] * 8
        else:
            assert found == Published(Position(2, 1), Position(2, 8))
            assert [block.position.ledger for block in await whole(world)] == [2] * 8


@pytest.mark.parametrize("call", [2, 3])
async def test_another_owner_drops_what_this_one_left(call: int) -> None:
    """This broker is deposed during the publish. It cannot continue what its successor has fenced."""
    async with serving() as world:
        _, log = await log_of(world)
        assert log.binding is not None
        own = log.binding
        other = Binding(own.bucket, own.replid, 1, "broker-1~two", 2)
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold(name: str, moment: Moment) -> None:
            if name == "append" and moment == "before":
                counted[0] += 1
                if counted[0] == call:
                    reached.set()
                    await go_on.wait()

        counted = [0]
        world.store.faults.hook = hold
        publish = request(world, log, asked(20))
        await reached.wait()
        successor = type(world.store)(world.server.resolve)
        assert await stamp_anew(successor, other) is Outcome.DONE
        part = FencedLog(ORDERS, create=False, marker={}, state={})
        assert await fence_once(successor, Fence(other, 50, (part,), {})) is Outcome.DONE
        go_on.set()
        assert isinstance(await ended(publish), Unavailable | Undecided)
        assert await whole(world) == []
        await until(lambda: world.deposed)


async def test_a_failover_that_lost_a_part_leaves_nothing() -> None:
    async with serving() as world:
        runner, log = await log_of(world)
        replica = world.server.add_replica("node-1")

        def fail_over() -> None:
            world.server.primary.is_reachable = False
            world.server.promote(replica)

        publish = request(world, log, asked(40))
        Calls(world, 2, lambda: setattr(replica, "holds_replication", True))
        await until(lambda: replica.holds_replication)
        Calls(world, 1, fail_over)
        await later(lambda: world.deposed)
        held = world.owner.held
        assert held is not None
        rebound = Binding(held.binding.bucket, replica.replid, 2, held.binding.owner, 2)
        assert await stamp_anew(world.store, rebound) is Outcome.DONE
        assert len(await whole(world)) == 6, "what was replicated of it"
        world.owner.held = type(held)(rebound, grants_known=True, known_since=0)
        runner.dataset_changed()
        assert isinstance(await ended(publish), Unavailable)
        await until(lambda: log.is_writable)
        assert await whole(world) == []
        assert await ended(request(world, log, asked(3))) == Published(
            Position(log.ledger, 1), Position(log.ledger, 3)
        )


async def later(condition: Callable[[], object]) -> None:
    """As ``until``, for a condition that depends on a retry after a pause."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")
