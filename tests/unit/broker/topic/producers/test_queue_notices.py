"""Holders receive the number of waiters if their clients understand the notice; no other client does."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.topic.fence_path_world import Told, World, serving, until

from onewriter_broker.topic.producers import queue_notices as queue_news
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.topic.model import AccessMode, Departure

pytestmark = pytest.mark.looptime

EXCLUSIVE = AccessMode.EXCLUSIVE
WAITING = AccessMode.WAIT_FOR_EXCLUSIVE


async def holder_of(world: World, runner: TopicRunner, *, hears: bool = True) -> Told:
    told = world.ask(runner, EXCLUSIVE, "holder", hears_of_queue=hears)[1]
    await until(lambda: told.ready)
    return told


async def heard(told: Told, *numbers: int) -> None:
    """Wait until the connection has received exactly these notices, and check that no more follow."""
    async with asyncio.timeout(60):
        while len(told.waiting) < len(numbers):  # noqa: ASYNC110 - a timer sends the notices
            await asyncio.sleep(queue_news.QUEUE_NOTICE_SECONDS / 10)
    await asyncio.sleep(2 * queue_news.QUEUE_NOTICE_SECONDS)
    assert told.waiting == list(numbers)


async def test_a_holder_hears_of_its_queue_when_granted_and_when_it_changes() -> None:
    async with serving() as world:
        runner = await world.load()
        told = await holder_of(world, runner)
        await heard(told, 0)
        waiter, waiter_told = world.ask(runner, WAITING, "next", hears_of_queue=True)
        await heard(told, 0, 1)
        runner.gone(waiter, Departure.CLOSED)
        await heard(told, 0, 1, 0)
        assert waiter_told.waiting == [], "who waits is told nothing"


async def test_changes_that_follow_each_other_are_told_as_one() -> None:
    async with serving() as world:
        runner = await world.load()
        told = await holder_of(world, runner)
        await heard(told, 0)
        for number in range(100):
            world.ask(runner, WAITING, f"waiter-{number}")
            await asyncio.sleep(queue_news.QUEUE_NOTICE_SECONDS / 40)
        await asyncio.sleep(queue_news.QUEUE_NOTICE_SECONDS)
        assert told.waiting[0] == 0
        assert told.waiting[-1] == 100
        assert told.waiting == sorted(told.waiting)
        assert len(told.waiting) == 1 + 1 + 3, "granted, at once, and three periods"


async def test_a_successor_hears_who_still_waits() -> None:
    async with serving() as world:
        runner = await world.load()
        producer, told = world.ask(runner, EXCLUSIVE, "first", hears_of_queue=True)
        await until(lambda: told.ready)
        await heard(told, 0)
        successor = world.ask(runner, WAITING, "second", hears_of_queue=True)[1]
        world.ask(runner, WAITING, "third")
        await heard(told, 0, 2)
        runner.gone(producer, Departure.CLOSED)
        await until(lambda: successor.ready)
        await heard(successor, 1)
        assert told.waiting == [0, 2], "who has left is told nothing more"


async def test_a_stock_client_and_a_shared_producer_are_told_nothing() -> None:
    async with serving() as world:
        runner = await world.load()
        told = await holder_of(world, runner, hears=False)
        world.ask(runner, WAITING, "next", hears_of_queue=True)
        await heard(told)
    async with serving() as world:
        runner = await world.load()
        shared = world.ask(runner, AccessMode.SHARED, "shared", hears_of_queue=True)[1]
        await until(lambda: shared.ready)
        world.ask(runner, WAITING, "next", hears_of_queue=True)
        await heard(shared)


async def test_each_partition_hears_of_those_who_want_it() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)

        def ask(
            mode: AccessMode, name: str, partition: int, *, alone: bool
        ) -> tuple[Producer, Told]:
            return world.ask(
                runner,
                mode,
                name,
                partition=partition,
                connection=name,
                hears_of_queue=True,
                alone=alone,
            )

        first = [ask(EXCLUSIVE, "holder", partition, alone=False)[1] for partition in (0, 1)]
        await until(lambda: all(told.ready for told in first))
        for told in first:
            await heard(told, 0)
        ask(WAITING, "all", 0, alone=False)
        ask(WAITING, "one", 1, alone=True)
        await heard(first[0], 0, 1)
        await heard(first[1], 0, 2)


async def test_a_topic_that_moves_tells_nobody_any_more() -> None:
    async with serving() as world:
        runner = await world.load()
        told = await holder_of(world, runner)
        runner.unload("moves")
        await heard(told)
