"""The anchor is unavailable: what continues, what waits, and which producers are not affected.

A grant may be answered before it is recorded only if no producer could return with the right that it ends. If
the store then lost the marker, only the record would keep that producer out.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.topic.fence_path_world import serving, until

from onewriter_core.errors import ServerError
from onewriter_core.topic.events import FenceRequested
from onewriter_core.topic.model import AccessMode, TransitionCause

pytestmark = pytest.mark.looptime


async def test_grants_continue_if_no_holder_can_return_and_are_recorded() -> None:
    async with serving() as world:
        runner = await world.load()
        world.owner.anchor_answers = False
        first, channel = world.ask(runner, AccessMode.EXCLUSIVE)
        _, waits = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        await until(lambda: channel.ready)
        world.send(first, 0)
        await until(lambda: channel.receipts)
        runner.gone(first, TransitionCause.CLOSED)
        await until(lambda: waits.ready)
        assert not {*channel.ready, *waits.ready} & set(world.owner.recorded)
        assert {*channel.ready, *waits.ready} <= set(world.owner.noted)


@pytest.mark.parametrize("cause", [TransitionCause.CONNECTION_LOST, TransitionCause.SILENT])
async def test_a_waiter_is_granted_what_a_lost_holder_had_once_the_anchor_answers(
    cause: TransitionCause,
) -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = world.ask(runner, AccessMode.EXCLUSIVE)
        _, waits = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        await until(lambda: channel.ready)
        world.owner.anchor_answers = False
        runner.gone(holder, cause)
        await until(lambda: runner.topic.pending_fence is not None)
        await asyncio.sleep(0.02)
        assert not waits.ready
        assert not waits.refusals
        world.owner.anchor_answers = True
        async with asyncio.timeout(60):
            while not waits.ready:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert waits.ready[0] in world.owner.recorded


async def test_a_holder_is_not_stopped_for_a_takeover_that_could_not_be_noted() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        ledger = world.owner.ledgers
        world.owner.anchor_answers = False
        _, rival = world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        world.send(holder, 0)
        await until(lambda: channel.receipts)
        async with asyncio.timeout(60):
            while not rival.refusals:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert [code for code, _ in rival.refusals] == [ServerError.SERVICE_NOT_READY]
        answer = await runner.administer(FenceRequested("f1", None, 0.0), "f1")
        assert "the anchor is away" in answer.refusal
        assert world.owner.ledgers == ledger, "ledgers were used up for nothing"
        world.send(holder, 1)
        await until(lambda: channel.receipts == 2)
        assert not channel.closed


async def test_a_topic_is_loaded_again_while_the_anchor_is_away() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE, "writer")
        world.owner.anchor_answers = False
        runner = await world.load()
        _, channel = await world.granted(
            runner, AccessMode.EXCLUSIVE, "writer", topic_epoch=holder.epoch, reconnects=1
        )
        assert channel.ready == [holder.epoch]


async def test_a_load_is_no_grant_and_is_not_recorded() -> None:
    async with serving() as world:
        runner = await world.load()
        await world.granted(runner, AccessMode.EXCLUSIVE)
        before = (list(world.owner.noted), list(world.owner.recorded))
        await world.load()
        assert (world.owner.noted, world.owner.recorded) == before


async def test_a_takeover_that_is_given_up_after_its_topic_left_is_nobodys_business() -> None:
    async with serving() as world:
        runner = await world.load()
        await world.granted(runner, AccessMode.EXCLUSIVE)
        world.owner.anchor_answers = False
        _, rival = world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        assert runner.topic.pending_fence is not None
        runner.unload("the topic is moving")
        assert [text for _, text in rival.refusals] == ["the topic is moving"]
        await runner.settled()
        assert world.failures == []
