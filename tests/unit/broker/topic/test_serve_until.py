"""A winner is granted only after the former holder has stopped serving; writes end at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from tests.unit.broker.topic.fence_path_world import ORDERS, FakeChannel, World, serving, until

from onewriter_broker.connection.properties import serve_seconds_of
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import Refused
from onewriter_core.property_names import SERVE_SECONDS_PROPERTY
from onewriter_core.topic.events import FenceRequested, HandoverRequested
from onewriter_core.topic.model import WHOLE, AccessMode, Draining, TransitionCause

EXCLUSIVE, WAITING = AccessMode.EXCLUSIVE, AccessMode.WAIT_FOR_EXCLUSIVE
SECONDS = 3.0

pytestmark = pytest.mark.looptime


async def served(
    world: World, *, assures: bool = True
) -> tuple[TopicRunner, Producer, FakeChannel]:
    """A topic whose holder serves, and was assured just now."""
    runner = await world.load()
    producer, channel = await world.granted(runner, EXCLUSIVE, "holder", serve_seconds=SECONDS)
    assert producer.epoch is not None
    if assures:
        assert runner.assure(WHOLE, producer.epoch)
    return runner, producer, channel


async def granted_after(channel: FakeChannel) -> float:
    """The time of the grant by the clock of the event loop."""
    async with asyncio.timeout(60):
        while not channel.ready:  # noqa: ASYNC110 - granted by a timer
            await asyncio.sleep(0.001)
    return asyncio.get_running_loop().time()


async def test_a_successor_waits_for_a_lost_holder_whose_writes_are_refused_immediately() -> None:
    async with serving() as world:
        runner, producer, _ = await served(world)
        assured_at = runner._assured_at[WHOLE]
        successor, channel = world.ask(runner, WAITING, "successor")
        runner.gone(producer, TransitionCause.CONNECTION_LOST)
        await until(lambda: isinstance(runner.topic.phase, Draining))
        assert not channel.ready
        assert runner.topic.partitions[0].epoch > (producer.epoch or 0), "the fence is stored"
        assert not runner.assure(WHOLE, producer.epoch or 0), "and nobody is assured any more"
        assert await granted_after(channel) >= assured_at + SECONDS
        world.send(successor, 0)
        await until(lambda: channel.receipts)


async def test_a_deposed_holder_is_notified_before_its_successor() -> None:
    async with serving() as world:
        runner, _, holder = await served(world)
        channel = world.ask(runner, WAITING, "successor")[1]
        answer = runner.administer(HandoverRequested("a", "", 0.0), "a")
        waits = world.tasks.create_task(answer)
        await until(lambda: holder.closed)
        assert not channel.ready
        assert not waits.done()
        await granted_after(channel)
        assert (await waits).refusal == ""


async def test_a_successor_does_not_wait_for_a_holder_that_closed() -> None:
    async with serving() as world:
        runner, producer, _ = await served(world)
        channel = world.ask(runner, WAITING, "successor")[1]
        runner.gone(producer, TransitionCause.CLOSED)
        await until(lambda: channel.ready)
        assert runner.topic.pending_fence is None


async def test_a_successor_does_not_wait_for_a_holder_that_was_never_assured() -> None:
    async with serving() as world:
        runner, producer, _ = await served(world, assures=False)
        channel = world.ask(runner, WAITING, "successor")[1]
        runner.gone(producer, TransitionCause.CONNECTION_LOST)
        await until(lambda: channel.ready)


async def test_an_administrators_fence_does_not_shorten_it() -> None:
    async with serving() as world:
        runner, _, _ = await served(world)
        assured_at = runner._assured_at[WHOLE]
        channel = world.ask(runner, WAITING, "successor")[1]
        await runner.administer(FenceRequested("a", None, 0.0), "a")
        assert await granted_after(channel) >= assured_at + SECONDS


async def test_another_broker_waits_the_whole_time_from_when_it_read_the_state() -> None:
    async with serving() as world:
        runner, _, _ = await served(world)
        runner.unload("the bucket moves")
        loaded_at = asyncio.get_running_loop().time()
        successor = await world.load()
        channel = world.ask(successor, EXCLUSIVE, "successor")[1]
        assert await granted_after(channel) >= loaded_at + SECONDS


async def test_another_broker_waits_also_if_the_grant_was_not_answered_yet() -> None:
    """A fence that grants another producer does not remove from the store how long the former may serve."""
    async with serving() as world:
        runner, producer, _ = await served(world)
        world.ask(runner, WAITING, "successor")
        runner.gone(producer, TransitionCause.CONNECTION_LOST)
        await until(lambda: isinstance(runner.topic.phase, Draining))
        runner.unload("the bucket moves")
        loaded_at = asyncio.get_running_loop().time()
        channel = world.ask(await world.load(), EXCLUSIVE, "third")[1]
        assert await granted_after(channel) >= loaded_at + SECONDS


async def test_a_returning_holder_does_not_wait_for_other_producers() -> None:
    async with serving() as world:
        runner, producer, _ = await served(world)
        runner.gone(producer, TransitionCause.CONNECTION_LOST)
        channel = world.ask(runner, EXCLUSIVE, "holder", topic_epoch=producer.epoch, reconnects=1)[
            1
        ]
        await until(lambda: channel.ready)
        assert channel.ready == [producer.epoch]


async def test_shared_producers_wait_too() -> None:
    async with serving() as world:
        runner, producer, _ = await served(world)
        assured_at = runner._assured_at[WHOLE]
        runner.gone(producer, TransitionCause.CONNECTION_LOST)
        channel = world.ask(runner, AccessMode.SHARED, "shared")[1]
        assert await granted_after(channel) >= assured_at + SECONDS


async def test_a_winner_that_has_gone_is_skipped_and_the_next_one_waits_no_longer() -> None:
    async with serving() as world:
        runner, producer, _ = await served(world)
        former, former_answers = world.ask(runner, WAITING, "ghost")
        channel = world.ask(runner, WAITING, "next")[1]
        runner.gone(producer, TransitionCause.CONNECTION_LOST)
        await until(lambda: isinstance(runner.topic.phase, Draining))
        runner.gone(former, TransitionCause.CONNECTION_LOST)
        await granted_after(channel)
        assert not former_answers.ready
        state = await world.store.read_state(ORDERS)
        assert state["serves"] == "0", "the successor did not ask to serve"


@pytest.mark.parametrize("text", ["0", "-1", "3.01", "nan", "inf", "x", ""])
def test_more_than_three_seconds_and_nonsense_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="at most 3"):
        serve_seconds_of({SERVE_SECONDS_PROPERTY: text})


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [({}, 0.0), ({SERVE_SECONDS_PROPERTY: "3"}, 3.0), ({SERVE_SECONDS_PROPERTY: "0.0001"}, 0.001)],
)
def test_requested_serve_seconds_are_stored_in_milliseconds(
    properties: Mapping[str, str], seconds: float
) -> None:
    assert serve_seconds_of(properties) == seconds
