"""What a returning producer sends again: answered once, stored once, never taken for another's."""

from __future__ import annotations

import asyncio

from tests.unit.broker.fence_path_world import ORDERS, Gates, World, serving, until

from onewriter_broker.log.api import Outcome
from onewriter_core.ids import Position
from onewriter_core.topic.model import WHOLE, AccessMode


async def entries(world: World) -> int:
    return sum((await world.entries_by_ledger()).values())


async def test_a_resend_is_known_after_a_change_of_broker_although_the_tail_was_trimmed() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, told = world.ask(runner, AccessMode.EXCLUSIVE, "writer")
        await until(lambda: told.ready)
        world.send(holder, 0)
        world.send(holder, 1)
        await until(lambda: told.answered_bytes and not holder.pending)
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
        back, told = world.ask(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=holder.epoch, reconnects=1
        )
        await until(lambda: told.ready)
        world.send(back, 1)
        await until(lambda: told.receipts)
        assert await entries(world) == 0


async def test_the_first_messages_of_a_new_epoch_are_not_taken_for_those_of_the_one_before() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        first, told = world.ask(runner, AccessMode.EXCLUSIVE, "writer")
        await until(lambda: told.ready)
        for number in range(5):
            world.send(first, number)
        await until(lambda: not first.pending)
        second, told = world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "writer")
        await until(lambda: told.ready)

        runner = await world.load()  # another broker, before the second has written anything
        back, told = world.ask(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=second.epoch, reconnects=1
        )
        await until(lambda: told.ready)
        world.send(back, 0)
        await until(lambda: told.receipts)
        assert await entries(world) == 6


async def test_a_store_that_refuses_what_a_returned_producer_awaits_sends_it_back_to_resend() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        holder, told = world.ask(runner, AccessMode.EXCLUSIVE, "writer")
        await until(lambda: told.ready)
        gates = Gates(world.store, "append")
        world.send(holder, 0)
        await gates.reached("append")
        runner.gone(holder, runner.topic.slots[0].departure)
        back, told = world.ask(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=holder.epoch, reconnects=1
        )
        await until(lambda: told.ready)
        world.send(back, 0)
        runner.logs[WHOLE].give_up(runner.logs[WHOLE].undecided[0], is_definite=True)
        assert told.drops
        gates.open("append")
        await asyncio.sleep(0)
