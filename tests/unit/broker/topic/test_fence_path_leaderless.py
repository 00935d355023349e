"""How long the topic had no writer: one number, which is equal in its status and its history."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, Gates, World, serving, until
from tests.unit.broker.topic.test_fence_path_partitions import topics_of

from onewriter_broker.http.onewriter import history
from onewriter_broker.topic.history.presence import FormerClock, absent_since
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.topic.model import AccessMode, TransitionCause

pytestmark = pytest.mark.looptime


def let_time_pass(world: World) -> None:
    """The wall clock advances with the clock of the event loop, from some day on."""
    clock = asyncio.get_running_loop()
    world.wall_ms = lambda: 1_700_000_000_000 + round(clock.time() * 1000)


async def notices(world: World, runner: TopicRunner) -> list[tuple[str, int | None]]:
    """Kind and gap of each transition. The status and the history must be equal."""
    for _ in range(50):
        await asyncio.sleep(0)
    page = await history.newest(world.store, BUCKET, str(ORDERS), 20)
    stored = [
        (record["kind"], record.get("leaderlessMs"))
        for record in page.records
        if record["kind"] in {"grant", "resume", "fence"}
    ]
    shown = [(each.kind, each.leaderless_ms) for each in runner.history.transitions]
    assert shown == stored[-len(shown) :]
    return shown


async def test_status_and_history_measure_until_the_successor_may_write() -> None:
    async with serving() as world:
        let_time_pass(world)
        runner = await world.load()
        first, received = world.ask(runner, AccessMode.EXCLUSIVE)
        _, waits = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        await until(lambda: received.ready)
        gates = Gates(world.store, "fence")
        runner.gone(first, TransitionCause.CONNECTION_LOST)
        await gates.reached("fence")
        await asyncio.sleep(0.7)  # the store is slow, and no producer can write
        gates.open("fence")
        await until(lambda: waits.ready)
        assert await notices(world, runner) == [("grant", None), ("grant", 700)]

        # A takeover from a connected writer has no gap.
        second, received = await world.granted(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "second")
        # The gap of a returning holder is reported, too.
        runner.gone(second, TransitionCause.CONNECTION_LOST)
        await asyncio.sleep(0.3)
        await world.granted(
            runner, AccessMode.EXCLUSIVE, "second", topic_epoch=second.epoch, reconnects=1
        )
        assert (await notices(world, runner))[2:] == [("grant", 0), ("resume", 300)]


async def test_a_gap_with_a_change_of_broker_begins_when_the_writer_left() -> None:
    async with serving() as world:
        let_time_pass(world)
        topics = topics_of(world)
        runner = (await topics.serve(ORDERS)).runner
        holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE)
        runner.gone(holder, TransitionCause.CLOSED)
        await asyncio.sleep(4.0)

        runner = (await topics_of(world).serve(ORDERS)).runner  # another broker
        await asyncio.sleep(1.0)
        await world.granted(runner, AccessMode.EXCLUSIVE)
        assert (await notices(world, runner))[-1] == ("grant", 5000)


async def test_a_gap_that_a_clean_move_makes_begins_when_the_topic_is_given_away() -> None:
    async with serving() as world:
        let_time_pass(world)
        topics = topics_of(world)
        runner = (await topics.serve(ORDERS)).runner
        holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        await asyncio.sleep(60.0)
        await topics.drain(BUCKET)
        await asyncio.sleep(0.25)

        runner = (await topics_of(world).serve(ORDERS)).runner  # another broker
        await world.granted(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=holder.epoch, reconnects=1
        )
        assert (await notices(world, runner))[-1] == ("resume", 250)


async def test_a_clean_move_before_does_not_lengthen_the_gap_that_a_dead_broker_makes() -> None:
    async with serving() as world:
        let_time_pass(world)
        topics = topics_of(world)
        runner = (await topics.serve(ORDERS)).runner
        holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        await topics.drain(BUCKET)

        async def resumed_at_another_broker(reconnects: int, dead_seconds: float) -> TopicRunner:
            assert world.owner.held is not None
            last_seen_ms = world.wall_ms() - round(dead_seconds * 1000)
            world.owner.held = replace(world.owner.held, last_seen_ms=last_seen_ms)
            runner = (await topics_of(world).serve(ORDERS)).runner
            await world.granted(
                runner,
                AccessMode.EXCLUSIVE,
                "writer",
                topic_epoch=holder.epoch,
                reconnects=reconnects,
            )
            return runner

        await resumed_at_another_broker(1, 0.0)
        await asyncio.sleep(60.0)  # it writes until its broker dies
        runner = await resumed_at_another_broker(2, 2.0)
        assert (await notices(world, runner))[-1] == ("resume", 2_000)


@pytest.mark.parametrize(("seen_before_ms", "gap"), [(2_000, 2_000), (None, None)])
async def test_a_gap_that_a_dead_broker_makes_begins_with_its_last_sign_of_life(
    seen_before_ms: int | None, gap: int | None
) -> None:
    async with serving() as world:
        let_time_pass(world)
        runner = (await topics_of(world).serve(ORDERS)).runner
        holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        await asyncio.sleep(60.0)  # it writes until its broker dies

        assert world.owner.held is not None
        last_seen_ms = None if seen_before_ms is None else world.wall_ms() - seen_before_ms
        world.owner.held = replace(world.owner.held, last_seen_ms=last_seen_ms)
        runner = (await topics_of(world).serve(ORDERS)).runner
        await world.granted(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=holder.epoch, reconnects=1
        )
        assert (await notices(world, runner))[-1] == ("resume", gap)


@pytest.mark.parametrize(
    ("state", "last_seen_ms", "expected"),
    [
        ({}, 9_000, None),
        ({"present": "1", "presentSince": "5000"}, 9_000, 99.0),
        ({"present": "1", "presentSince": "5000"}, None, None),
        ({"present": "1", "presentSince": "9500"}, 9_000, 99.5),
        ({"present": "1", "presentSince": "9500"}, 5_000, None),
        ({"present": "0", "absentSince": "8000"}, 9_000, 98.0),
        ({"present": "0", "absentSince": ""}, 9_000, None),
        ({"present": "0", "absentSince": "11000"}, None, 100.0),
    ],
    ids=[
        "nothing is known",
        "present until its broker died",
        "of whose broker nothing is known",
        "granted after its broker's last heartbeat",
        "noted by another broker than the one that was heard of",
        "absent",
        "absent, and nobody knows since when",
        "by a clock that is ahead",
    ],
)
def test_the_record_states_since_when_no_producer_could_write(
    state: dict[str, str], last_seen_ms: int | None, expected: float | None
) -> None:
    assert absent_since(state, 100.0, FormerClock(10_000, 0, last_seen_ms)) == expected
