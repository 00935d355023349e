"""The serving deadline: renewal by checks; its end with the connection, the topic or the clock."""

from __future__ import annotations

import asyncio
import math

import pytest

from onewriter import Fenced, OnewriterError, Unavailable
from onewriter._lead.deadline import DRIFT, ServingDeadline

SECONDS = 2.0


class World:
    """A leader whose clock and whose broker are the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.holds = True
        self.answer: OnewriterError | None = None
        self.asking_takes = 0.0
        self.serving = ServingDeadline(SECONDS, self._prove, lambda: self.holds, lambda: self.now)

    async def _prove(self) -> None:
        self.now += self.asking_takes
        if self.answer is not None:
            raise self.answer


@pytest.fixture
def world() -> World:
    return World()


def test_before_the_first_proof_it_may_not(world: World) -> None:
    assert not world.serving.may()
    assert world.serving.until == -math.inf


async def test_the_deadline_counts_from_before_the_question(world: World) -> None:
    world.asking_takes = 0.5
    await world.serving.renew()
    assert world.serving.until == 100.0 + SECONDS * (1 - DRIFT)
    assert world.serving.may()
    world.now = world.serving.until
    assert not world.serving.may()


async def test_an_answer_that_took_too_long_proves_nothing(world: World) -> None:
    world.asking_takes = SECONDS + 1
    await world.serving.renew()
    assert not world.serving.may()


async def test_a_proof_counts_to_its_end_while_no_broker_answers(world: World) -> None:
    await world.serving.renew()
    world.answer = Unavailable("away")
    world.now += 1
    await world.serving.renew()
    assert world.serving.may()
    world.now += 1
    assert not world.serving.may()


async def test_a_fenced_leader_may_not_serve(world: World) -> None:
    await world.serving.renew()
    world.answer = Fenced("somebody else leads")
    await world.serving.renew()
    assert not world.serving.may()


async def test_without_the_topic_or_its_connection_it_may_not(world: World) -> None:
    await world.serving.renew()
    world.holds = False
    assert not world.serving.may()
    assert world.serving.until == -math.inf
    world.holds = True
    assert world.serving.may(), "it resumed: nobody came between"


async def test_the_deadline_is_renewed_until_the_task_is_stopped() -> None:
    request = asyncio.Event()
    count = 0

    async def prove() -> None:
        nonlocal count
        count += 1
        if count == 3:
            request.set()

    async with asyncio.TaskGroup() as tasks:
        renewal = tasks.create_task(ServingDeadline(0.01, prove, lambda: True).run())
        await asyncio.wait_for(request.wait(), 60)
        renewal.cancel()
