"""A takeover during other work: nothing of the old epoch gets into the new ledger."""

from __future__ import annotations

import asyncio

from tests.unit.broker.topic.fence_path_world import ORDERS, Gates, serving, until

from onewriter_core.errors import ServerError
from onewriter_core.topic.model import WHOLE, AccessMode, TransitionCause


async def test_a_holder_that_resumes_while_it_is_deposed_writes_nothing_into_the_next_ledger() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")

        # The broker restarts. The holder returns with its epoch, and the log is read for it.
        runner = await world.load()
        gates = Gates(world.store, "read_blocks", "fence")
        back, _channel = world.ask(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=holder.epoch, reconnects=1
        )
        await gates.reached("read_blocks")

        # Meanwhile another producer takes over, and the fence is slow.
        winner, won = world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "rival")
        await gates.reached("fence")
        gates.open("read_blocks")
        for number in range(20):
            await asyncio.sleep(0)
            world.send(back, number)
        gates.open("fence")

        await until(lambda: won.ready)
        world.send(winner, 0)
        await until(lambda: won.receipts)
        assert winner.epoch is not None
        assert (await world.entries_by_ledger())[winner.epoch] == 1


async def test_a_partition_that_joins_a_holder_being_deposed_writes_nothing_afterwards() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        await world.granted(runner, AccessMode.EXCLUSIVE, "writer", partition=0)
        gates = Gates(world.store, "fence")
        winner, won = world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "rival", partition=0)
        world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING, "rival", partition=1)
        await gates.reached("fence")

        late, _ = world.ask(runner, AccessMode.EXCLUSIVE, "writer", partition=1)
        world.send(late, 0)
        gates.open("fence")

        await until(lambda: won.ready)
        for _ in range(20):
            await asyncio.sleep(0)
        assert winner.epoch is not None
        assert (await world.entries_by_ledger(ORDERS.with_partition(1)))[winner.epoch] == 0


async def test_a_roll_of_a_busy_log_does_not_keep_the_others_waiting() -> None:
    async with serving() as world:
        world.store.faults.hook = lambda *_: asyncio.sleep(0)  # a call takes a few ticks
        runner = await world.load(0, 1)
        (busy, busy_told), (other, channel) = (
            world.ask(runner, AccessMode.SHARED, f"p{partition}", partition=partition)
            for partition in (0, 1)
        )
        await until(lambda: busy.is_active and other.is_active)
        world.send(busy, 0)
        await until(lambda: busy_told.receipts)

        def publish_again(number: int) -> None:
            """The busy producer has a waiting entry whenever a call ends."""
            if number < 1_000:
                world.send(busy, number)
                asyncio.get_running_loop().call_soon(publish_again, number + 1)

        publish_again(1)
        runner.roll_if_full(0, 0.0)
        await until(lambda: world.appender.statistics.calls > 5)
        world.send(other, 0)
        await until(lambda: channel.receipts, turns=300)
        await until(lambda: world.appender.statistics.fences == 2, turns=300)


async def test_entries_of_a_departed_holder_are_not_appended_after_its_right_to_resume_ends() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        log = runner.logs[WHOLE]
        holder, _ = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        log._is_writable = False  # the store has just rejected a write
        world.send(holder, 0)
        runner.gone(holder, TransitionCause.CONNECTION_LOST)
        await world.granted(runner, AccessMode.SHARED)
        _, refused = world.ask(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=holder.epoch, reconnects=1
        )
        assert [code for code, _ in refused.refusals] == [ServerError.PRODUCER_FENCED]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any((await world.entries_by_ledger()).values())
