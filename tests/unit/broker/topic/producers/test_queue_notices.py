"""Holders receive the number of waiters if their clients understand the notice; no other client does."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.topic.fence_path_world import FakeChannel, World, serving, until

from onewriter_broker.topic.producers import queue_notices as queue_news
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.topic.model import AccessMode, TransitionCause

pytestmark = pytest.mark.looptime

EXCLUSIVE = AccessMode.EXCLUSIVE
WAITING = AccessMode.WAIT_FOR_EXCLUSIVE


async def holder_of(world: World, runner: TopicRunner, *, notices: bool = True) -> FakeChannel:
    channel = world.ask(runner, EXCLUSIVE, "holder", receives_queue_notices=notices)[1]
    await until(lambda: channel.ready)
    return channel


async def received(channel: FakeChannel, *numbers: int) -> None:
    """Wait until the connection has received exactly these notices, and check that no more follow."""
    async with asyncio.timeout(60):
        while len(channel.waiting) < len(numbers):  # noqa: ASYNC110 - a timer sends the notices
            await asyncio.sleep(queue_news.QUEUE_NOTICE_SECONDS / 10)
    await asyncio.sleep(2 * queue_news.QUEUE_NOTICE_SECONDS)
    assert channel.waiting == list(numbers)


async def test_a_holder_is_notified_of_its_queue_at_the_grant_and_at_changes() -> None:
    async with serving() as world:
        runner = await world.load()
        channel = await holder_of(world, runner)
        await received(channel, 0)
        waiter, waiter_told = world.ask(runner, WAITING, "next", receives_queue_notices=True)
        await received(channel, 0, 1)
        runner.gone(waiter, TransitionCause.CLOSED)
        await received(channel, 0, 1, 0)
        assert waiter_told.waiting == [], "who waits is told nothing"


async def test_consecutive_changes_are_reported_as_one() -> None:
    async with serving() as world:
        runner = await world.load()
        channel = await holder_of(world, runner)
        await received(channel, 0)
        for number in range(100):
            world.ask(runner, WAITING, f"waiter-{number}")
            await asyncio.sleep(queue_news.QUEUE_NOTICE_SECONDS / 40)
        await asyncio.sleep(queue_news.QUEUE_NOTICE_SECONDS)
        assert channel.waiting[0] == 0
        assert channel.waiting[-1] == 100
        assert channel.waiting == sorted(channel.waiting)
        assert len(channel.waiting) == 1 + 1 + 3, "granted, at once, and three periods"


async def test_a_successor_is_notified_of_the_remaining_queue() -> None:
    async with serving() as world:
        runner = await world.load()
        producer, channel = await world.granted(
            runner, EXCLUSIVE, "first", receives_queue_notices=True
        )
        await received(channel, 0)
        successor = world.ask(runner, WAITING, "second", receives_queue_notices=True)[1]
        world.ask(runner, WAITING, "third")
        await received(channel, 0, 2)
        runner.gone(producer, TransitionCause.CLOSED)
        await until(lambda: successor.ready)
        await received(successor, 1)
        assert channel.waiting == [0, 2], "who has left is told nothing more"


async def test_a_stock_client_and_a_shared_producer_get_no_notification() -> None:
    async with serving() as world:
        runner = await world.load()
        channel = await holder_of(world, runner, notices=False)
        world.ask(runner, WAITING, "next", receives_queue_notices=True)
        await received(channel)
    async with serving() as world:
        runner = await world.load()
        shared = world.ask(runner, AccessMode.SHARED, "shared", receives_queue_notices=True)[1]
        await until(lambda: shared.ready)
        world.ask(runner, WAITING, "next", receives_queue_notices=True)
        await received(shared)


async def test_each_partition_is_notified_of_its_waiters() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)

        def ask(
            mode: AccessMode, name: str, partition: int, *, alone: bool
        ) -> tuple[Producer, FakeChannel]:
            return world.ask(
                runner,
                mode,
                name,
                partition=partition,
                connection=name,
                receives_queue_notices=True,
                alone=alone,
            )

        first = [ask(EXCLUSIVE, "holder", partition, alone=False)[1] for partition in (0, 1)]
        await until(lambda: all(channel.ready for channel in first))
        for channel in first:
            await received(channel, 0)
        ask(WAITING, "all", 0, alone=False)
        ask(WAITING, "one", 1, alone=True)
        await received(first[0], 0, 1)
        await received(first[1], 0, 2)


async def test_a_topic_that_moved_sends_no_more_reports() -> None:
    async with serving() as world:
        runner = await world.load()
        channel = await holder_of(world, runner)
        runner.unload("moves")
        await received(channel)
