"""The outage of a change of holder: detection, handover and the first message, in the status, the history and the log."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.topic.fence_path_world import (
    BUCKET,
    ORDERS,
    FakeChannel,
    Gates,
    World,
    serving,
    until,
)
from tests.unit.broker.topic.test_fence_path_leaderless import let_time_pass
from tests.unit.broker.topic.test_fence_path_partitions import topics_of

from onewriter_broker.http.onewriter import history
from onewriter_broker.topic.history.audit import AuditTail
from onewriter_broker.topic.history.presence import FormerClock, absent_since, ending_of
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.topic.model import AccessMode, Ending, TransitionCause

pytestmark = pytest.mark.looptime

NAMES = ("detectionMs", "handoverMs", "outageMs", "firstMessageMs")

Times = tuple[int | None, ...]


async def times(world: World, runner: TopicRunner, kind: str = "grant") -> Times:
    """The times of the last transition. Status, history and the next broker's memory must be equal."""
    for _ in range(50):
        await asyncio.sleep(0)
    last = [each for each in runner.history.transitions if each.kind == kind][-1]
    shown = (last.detection_ms, last.handover_ms, last.outage_ms, last.first_message_ms)
    page = await history.newest(world.store, BUCKET, str(ORDERS), 20)
    granted = [record for record in page.records if record["kind"] == "grant"]
    if kind == "grant":
        assert tuple(granted[-1].get(name) for name in NAMES) == shown
    return shown


def heard_now(channel: FakeChannel) -> None:
    channel.last_inbound = asyncio.get_running_loop().time()


async def test_the_outage_of_a_silent_holder_begins_with_its_last_byte() -> None:
    async with serving() as world:
        let_time_pass(world)
        runner = await world.load()
        first, channel = world.ask(runner, AccessMode.EXCLUSIVE)
        _, waits = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        await until(lambda: channel.ready)
        assert await times(world, runner) == (None, None, None, None)

        await asyncio.sleep(10.0)
        heard_now(channel)
        await asyncio.sleep(2.5)
        gates = Gates(world.store, "fence")
        with capture_logs() as logged:
            runner.gone(first, TransitionCause.SILENT)
            await gates.reached("fence")
            await asyncio.sleep(0.3)  # the store is slow
            gates.open("fence")
            await until(lambda: waits.ready)
        assert await times(world, runner) == (2500, 300, 2800, None)
        (line,) = [each for each in logged if each["event"] == "topic.transition"]
        names = ("detection_ms", "handover_ms", "outage_ms", "leaderless_ms")
        assert [line[name] for name in names] == [2500, 300, 2800, 300]


@pytest.mark.parametrize(
    ("cause", "silent", "detection"),
    [(TransitionCause.CLOSED, 1.0, 0), (TransitionCause.CONNECTION_LOST, 0.5, 500)],
)
async def test_a_holder_that_closes_its_producer_was_alive_until_then(
    cause: TransitionCause, silent: float, detection: int
) -> None:
    async with serving() as world:
        runner = await world.load()
        first, channel = world.ask(runner, AccessMode.EXCLUSIVE)
        _, waits = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        await until(lambda: channel.ready)
        heard_now(channel)
        await asyncio.sleep(silent)
        runner.gone(first, cause)
        await until(lambda: waits.ready)
        assert (await times(world, runner))[:3] == (detection, 0, detection)


async def test_a_takeover_counts_from_the_last_byte_of_the_writer_that_the_fence_stops() -> None:
    async with serving() as world:
        runner = await world.load()
        _, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        heard_now(channel)
        await asyncio.sleep(0.4)
        gates = Gates(world.store, "fence")
        _, wins = world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "second")
        await gates.reached("fence")
        await asyncio.sleep(0.2)
        gates.open("fence")
        await until(lambda: wins.ready)
        assert await times(world, runner) == (400, 200, 600, None)


async def test_the_first_message_is_reported_when_it_follows_within_a_minute() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        await asyncio.sleep(1.5)
        world.send(holder, 1)
        await until(lambda: channel.receipts)
        assert (await times(world, runner))[3] == 1500
        world.send(holder, 2)
        await until(lambda: channel.receipts == 2)
        assert (await times(world, runner))[3] == 1500

        late, channel = await world.granted(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "late")
        await asyncio.sleep(61.0)
        world.send(late, 1)
        await until(lambda: channel.receipts)
        assert (await times(world, runner))[3] is None


async def test_a_transition_keeps_its_time_and_its_parts_for_the_next_broker() -> None:
    async with serving() as world:
        let_time_pass(world)
        runner = (await topics_of(world).serve(ORDERS)).runner
        first, channel = world.ask(runner, AccessMode.EXCLUSIVE)
        next_one, waits = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE, "next")
        await until(lambda: channel.ready)
        heard_now(channel)
        await asyncio.sleep(2.0)
        runner.gone(first, TransitionCause.SILENT)
        await until(lambda: waits.ready)
        await asyncio.sleep(0.1)
        world.send(next_one, 1)
        await until(lambda: waits.receipts)
        assert await times(world, runner) == (2000, 0, 2000, 100)

        tail = AuditTail(world.store, asyncio.get_running_loop().time)
        recalled = await tail.before(BUCKET, ORDERS, "another broker", 0)
        assert len(recalled) == 2
        assert recalled == runner.history.transitions


async def test_the_next_broker_uses_what_the_former_knew_of_a_silent_holder() -> None:
    async with serving() as world:
        let_time_pass(world)
        runner = (await topics_of(world).serve(ORDERS)).runner
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        heard_now(channel)
        await asyncio.sleep(2.5)
        runner.gone(holder, TransitionCause.SILENT)
        await asyncio.sleep(4.0)

        runner = (await topics_of(world).serve(ORDERS)).runner  # another broker
        await asyncio.sleep(1.0)
        _, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        assert (await times(world, runner))[:3] == (2500, 5000, 7500)


@pytest.mark.parametrize(
    ("state", "vacant_since", "last_block_ms", "expected"),
    [
        ({}, None, 9_000, None),
        ({"present": "0"}, 95.0, 9_000, Ending(95.0)),
        ({"present": "0", "heardAt": "3000"}, 95.0, 9_000, Ending(95.0, 93.0)),
        ({"present": "0", "heardAt": "3000"}, None, 9_000, None),
        ({"present": "1", "absentSince": "8000"}, 98.0, 1_000, Ending(100.0, 98.0)),
        ({"present": "1", "presentSince": "500"}, 98.0, 7_000, Ending(100.0, 97.0)),
        ({"present": "1", "presentSince": "500"}, 98.0, 8_250, Ending(100.0, 98.25)),
        ({"present": "1", "presentSince": "500"}, 98.0, 1_000, Ending(100.0, 98.0)),
        ({"present": "1", "presentSince": "9000"}, 98.0, 7_000, Ending(100.0, 98.0)),
        ({"present": "1", "presentSince": "500"}, None, 7_000, Ending(100.0, 97.0)),
        ({"present": "1", "presentSince": "500"}, None, None, Ending(100.0)),
        ({"present": "1", "presentSince": "500"}, None, 11_000, Ending(100.0, 100.0)),
    ],
    ids=[
        "no writer",
        "it left, and an earlier release did not record its last sign of life",
        "it left",
        "it left, and nobody knows when",
        "the topic was given away",
        "it wrote until shortly before its broker's last heartbeat",
        "it wrote after its broker's last heartbeat",
        "it was idle before its broker's last heartbeat",
        "the last block is of an earlier writer",
        "only the last block is known",
        "nothing is known",
        "a clock that is ahead",
    ],
)
def test_the_sign_of_life_after_a_change_of_broker(
    state: dict[str, str],
    vacant_since: float | None,
    last_block_ms: int | None,
    expected: Ending | None,
) -> None:
    clock = FormerClock(10_000)
    assert ending_of(state, vacant_since, last_block_ms, 100.0, clock) == expected


DAY_MS = 86_400_000


@pytest.mark.parametrize("ahead_ms", [DAY_MS, -DAY_MS])
@pytest.mark.parametrize("is_set_before_grant", [True, False])
def test_a_former_broker_with_a_wrong_clock(ahead_ms: int, is_set_before_grant: bool) -> None:
    """Its clock was set before the holder was granted the topic, or afterwards."""
    clock = FormerClock(2 * DAY_MS, ahead_ms, 2 * DAY_MS - 2_000 + ahead_ms)
    granted_ms = 2 * DAY_MS - 60_000 + (ahead_ms if is_set_before_grant else 0)
    state = {"present": "1", "presentSince": str(granted_ms)}
    last_block_ms = 2 * DAY_MS - 2_100 + ahead_ms
    vacant_since = absent_since(state, 1_000.0, clock)
    assert vacant_since == 998.0
    found = ending_of(state, vacant_since, last_block_ms, 1_000.0, clock)
    assert found == Ending(1_000.0, 997.9)


@pytest.mark.parametrize("ahead_ms", [DAY_MS, -DAY_MS])
def test_a_holder_that_left_before_its_brokers_clock_was_set(ahead_ms: int) -> None:
    clock = FormerClock(2 * DAY_MS, ahead_ms)
    state = {"present": "0", "absentSince": str(2 * DAY_MS - 5_000)}
    assert absent_since(state, 1_000.0, clock) == 995.0
