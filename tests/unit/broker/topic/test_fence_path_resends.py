"""Resends of a returning producer: answered once, stored once, and never taken for another producer's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.unit.broker.topic.fence_path_world import (
    ORDERS,
    FakeChannel,
    Gates,
    World,
    serving,
    until,
)

from onewriter_broker.log.store.api import Outcome
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import Undecided
from onewriter_core.ids import Position
from onewriter_core.topic.model import WHOLE, AccessMode, TransitionCause
from onewriter_testing.fake_store.store import Moment


async def entries(world: World) -> int:
    return sum((await world.entries_by_ledger()).values())


async def returned(
    world: World, runner: TopicRunner, former: Producer, *, reconnects: int = 1
) -> tuple[Producer, FakeChannel]:
    """The producer reconnects with the name and epoch that it was given at first."""
    return await world.granted(
        runner,
        former.request.mode,
        "writer",
        topic_epoch=former.epoch or 0,
        reconnects=reconnects,
    )


async def cut_off(world: World, runner: TopicRunner, *numbers: int) -> Producer:
    """A holder that lost its connection after these entries were stored."""
    holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
    for number in numbers:
        world.send(holder, number, published_at=1)
    await until(lambda: not holder.pending)
    runner.gone(holder, TransitionCause.CONNECTION_LOST)
    return holder


def told_of_receipts(channel: FakeChannel, count: int) -> Callable[[], bool]:
    return lambda: channel.receipts >= count


async def test_a_resend_is_known_after_a_change_of_broker_although_the_tail_was_trimmed() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        world.send(holder, 0)
        world.send(holder, 1)
        await until(lambda: channel.answered_bytes and not holder.pending)
        log = runner.logs[WHOLE]
        before = log.ledger
        runner.roll_if_full(0, 0.0)
        await until(lambda: log.ledger > before and log.is_writable)
        assert log.binding is not None
        trimmed = await world.store.trim(
            log.binding, ORDERS, log.binding.token(log.ledger), Position(log.ledger, 0), {}
        )
        assert trimmed is Outcome.DONE
        assert await entries(world) == 0

        runner = await world.load()  # another broker
        back, channel = await returned(world, runner, holder)
        world.send(back, 1)
        await until(lambda: channel.receipts)
        assert await entries(world) == 0


async def test_the_first_messages_of_a_new_epoch_are_not_confused_with_those_of_the_former() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        first, channel = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        for number in range(5):
            world.send(first, number)
        await until(lambda: not first.pending)
        second, channel = await world.granted(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "writer")

        runner = await world.load()  # another broker, before the second one has written
        back, channel = await returned(world, runner, second)
        world.send(back, 0)
        await until(lambda: channel.receipts)
        assert await entries(world) == 6


async def test_a_store_that_refuses_what_a_returned_producer_awaits_sends_it_back_to_resend() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        gates = Gates(world.store, "append")
        world.send(holder, 0)
        await gates.reached("append")
        runner.gone(holder, TransitionCause.CONNECTION_LOST)
        back, channel = await returned(world, runner, holder)
        world.send(back, 0)
        runner.logs[WHOLE].give_up(runner.logs[WHOLE].undecided[0], is_definite=True)
        assert channel.drops
        gates.open("append")
        await asyncio.sleep(0)


async def test_entries_of_a_shared_namesake_never_count_as_own_after_reconnects() -> None:
    async with serving() as world:
        runner = await world.load()
        former, channel = await world.granted(runner, AccessMode.SHARED, "writer")
        for number in range(3):
            world.send(former, number, published_at=1)
        await until(lambda: not former.pending)
        runner.gone(former, TransitionCause.CLOSED)
        _, channel = world.ask(runner, AccessMode.SHARED, "writer")  # starts at 0 again
        await until(lambda: channel.ready)

        runner = await world.load()  # another broker
        for number in range(3):
            back, channel = await returned(world, runner, former, reconnects=number + 1)
            world.send(back, number, published_at=2)
            await until(told_of_receipts(channel, 1))
            runner.gone(back, TransitionCause.CONNECTION_LOST)
        assert await entries(world) == 6


async def test_a_shared_producers_resends_stay_known_however_often_it_returns() -> None:
    async with serving() as world:
        runner = await world.load()
        producer, channel = await world.granted(runner, AccessMode.SHARED, "writer")
        for number in range(3):
            world.send(producer, number)
        await until(lambda: not producer.pending)

        runner = await world.load()  # another broker; the receipts never arrived
        for reconnects in (1, 2):
            back, channel = await returned(world, runner, producer, reconnects=reconnects)
            for number in range(3):
                world.send(back, number)
            await until(told_of_receipts(channel, 3))
            runner.gone(back, TransitionCause.CONNECTION_LOST)
        assert await entries(world) == 3


async def test_a_client_that_restarts_its_sequence_loses_nothing() -> None:
    """The C++ client starts at sequence id 0 again when it reconnects without a receipt."""
    async with serving() as world:
        runner = await world.load()
        holder = await cut_off(world, runner, 0, 1, 2)

        back, channel = await returned(world, runner, holder)
        for number in range(3):
            world.send(back, number, published_at=1)  # resends
        for number in range(3):
            world.send(back, number, published_at=2)  # new entries
        await until(told_of_receipts(channel, 4))
        await until(lambda: not back.pending)
        assert await entries(world) == 6
        runner.gone(back, TransitionCause.CONNECTION_LOST)

        last, channel = await returned(world, runner, holder, reconnects=2)
        world.send(last, 2, published_at=2)  # a resend
        world.send(last, 3, published_at=3)
        await until(lambda: channel.receipts == 2)
        assert await entries(world) == 7


async def test_a_client_that_writes_its_metadata_again_is_known_by_number_and_content() -> None:
    async with serving() as world:
        runner = await world.load()
        holder = await cut_off(world, runner, 0, 1, 2)
        back, channel = await returned(world, runner, holder)
        for number in range(4):
            world.send(back, number, published_at=2)
        await until(told_of_receipts(channel, 4))
        assert await entries(world) == 4


async def test_entries_of_one_number_and_other_contents_are_all_kept() -> None:
    """An application may choose the sequence ids of its messages freely."""
    async with serving() as world:
        runner = await world.load()
        holder = await cut_off(world, runner, 7, 8)
        back, channel = await returned(world, runner, holder)
        world.send(back, 2, published_at=1)
        await until(lambda: channel.receipts)
        assert await entries(world) == 3


@pytest.mark.looptime
async def test_a_returning_holder_keeps_its_connection_while_its_entries_cannot_be_read() -> None:
    """The connection may carry other holders, and a holder that loses it loses its topic to a waiter."""
    async with serving() as world:
        runner = await world.load()
        _, channel = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        epoch = channel.ready[0]
        runner = await world.load()  # another broker
        failures = 2

        async def fail(call: str, moment: Moment) -> None:
            nonlocal failures
            if call == "read_blocks" and moment == "before" and failures:
                failures -= 1
                raise Undecided("the store did not answer in time")

        world.store.faults.hook = fail
        _, channel = world.ask(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=epoch, reconnects=1
        )
        await asyncio.sleep(1.0)
        assert failures == 0
        assert (channel.ready, channel.drops) == ([epoch], [])
