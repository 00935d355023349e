"""Unexpected errors near the fence: no request waits forever, and each loss is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.contents import stored_in
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, Gates, serving, until

from onewriter_broker.log.store.api import BrokenKey, Fence, Outcome
from onewriter_broker.topic import runner as runner_module
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST
from onewriter_core.topic.effects import Step
from onewriter_core.topic.events import Event, FenceRequested, PolicyChanged, Unloaded
from onewriter_core.topic.machine import step
from onewriter_core.topic.model import WHOLE, AccessMode, ImpossibleStep, PromotionPolicy, Topic


def fail_at(monkeypatch: pytest.MonkeyPatch, *kinds: type[Event]) -> None:
    """From now on, these events of a topic raise."""

    def broken_step(topic: Topic, event: Event) -> Step:
        if isinstance(event, kinds):
            raise ImpossibleStep("a bug")
        return step(topic, event)

    monkeypatch.setattr(runner_module, "step", broken_step)


async def test_a_failed_topic_notifies_its_holder_and_its_waiters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        runner = await world.load()
        world.failed = lambda _: runner.unload("the topic failed")
        _, holder = await world.granted(runner, AccessMode.EXCLUSIVE)
        _, waiter = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        assert waiter.waits
        fail_at(monkeypatch, PolicyChanged)
        runner.post(PolicyChanged(PromotionPolicy.FIFO, 0.0))
        assert holder.closed
        assert waiter.refusals


async def test_an_administrator_is_answered_although_the_topic_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        runner = await world.load()
        world.failed = lambda _: runner.unload("the topic failed")
        fail_at(monkeypatch, FenceRequested)
        with pytest.raises(Unavailable, match="failed"):
            await runner.administer(FenceRequested("f1", None, 0.0), "f1")


async def test_an_administrator_is_answered_although_the_topic_cannot_even_be_unloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as world:
        runner = await world.load()
        gates = Gates(world.store, "fence")
        request = asyncio.gather(
            runner.administer(FenceRequested("f1", None, 0.0), "f1"), return_exceptions=True
        )
        await gates.reached("fence")
        fail_at(monkeypatch, PolicyChanged, Unloaded)
        runner.post(PolicyChanged(PromotionPolicy.FIFO, 0.0))
        assert isinstance((await request)[0], Unavailable)
        gates.open("fence")


async def test_an_administrator_is_answered_although_the_topic_leaves() -> None:
    async with serving() as world:
        runner = await world.load()
        gates = Gates(world.store, "fence")
        request = asyncio.gather(runner.administer(FenceRequested("f1", None, 0.0), "f1"))
        await gates.reached("fence")
        runner.unload("the topic is moving")
        (answer,) = await request
        assert answer.refusal == "the topic is moving"
        gates.open("fence")


async def test_a_log_whose_token_was_replaced_is_fenced_again_where_the_bucket_is_kept() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        # A fence of an earlier load of the topic on this broker was still in progress.
        await world.load()
        world.send(holder, 0)
        await until(lambda: world.deposed)
        assert channel.drops == ["the store refused a message"]
        runner.refence_where_refused()
        await until(lambda: runner.logs[WHOLE].is_writable)


async def test_a_log_that_vanished_is_reported_as_lost_by_the_fence_that_finds_out() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        world.send(holder, 0)
        await until(lambda: channel.receipts)
        del stored_in(world.server.primary).logs[ORDERS]
        assert await world.store.read_blocks(ORDERS, EARLIEST, count=1) == []
        await world.granted(runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        assert world.owner.refenced == [Outcome.LOST]
        assert [loss.entries for loss in world.losses] == [1]


async def test_reads_come_from_the_registered_dataset() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        world.send(holder, 0)
        await until(lambda: channel.receipts)
        log = runner.logs[WHOLE]
        log.forget_tail()
        assert len(await log.read(EARLIEST, 10, 10_000)) == 1
        world.server.renew_identity(world.server.primary)
        with pytest.raises(Undecided):
            await log.read(EARLIEST, 10, 10_000)


async def test_a_fence_that_cannot_be_encoded_fails_only_its_topic() -> None:
    async with serving() as world:
        runner = await world.load()
        await world.granted(runner, AccessMode.EXCLUSIVE)

        async def refuse(fences: Sequence[Fence]) -> list[Outcome | BrokenKey]:
            raise ValueError("too many fields")

        world.store.fence = refuse  # type: ignore[method-assign]
        world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        await until(lambda: world.failures)
        assert not world.appender_task.done()


async def test_a_producer_that_claims_epochs_never_granted_does_not_fill_the_audit() -> None:
    async with serving() as world:
        runner = await world.load()
        before = len(await world.store.read_audit(BUCKET, count=1_000))
        for _ in range(100):
            _, channel = world.ask(runner, AccessMode.EXCLUSIVE, "liar", topic_epoch=10**6)
            assert channel.refusals
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(await world.store.read_audit(BUCKET, count=1_000)) == before + 1
