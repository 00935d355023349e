"""Fences that wait at the same time go in one call of the appender, and each one gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from tests.unit.broker.topic.fence_path_world import BUCKET, World, serving, until

from onewriter_broker.log.appender import FENCE_FIELDS_MAX
from onewriter_broker.log.store.api import (
    Binding,
    Block,
    BrokenKey,
    Fence,
    FencedLog,
    LogStore,
    Outcome,
    OwnWrite,
)
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided
from onewriter_core.ids import EARLIEST, TopicName, bucket_of
from onewriter_core.topic.model import AccessMode

DONE = Outcome.DONE


def topics(number: int) -> list[TopicName]:
    """Topics of the bucket that the world serves."""
    found: list[TopicName] = []
    at = 0
    while len(found) < number:
        name = TopicName.parse(f"fenced-together-{at}")
        if bucket_of(name, 64) == BUCKET:
            found.append(name)
        at += 1
    return found


def binding_of(world: World) -> Binding:
    holding = world.owner.holding(BUCKET)
    assert holding is not None
    return holding.binding


@dataclass
class Calls:
    """The calls of ``fence`` that a store got; the next ones end as ``failures`` says."""

    world: World
    ledgers: list[list[int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fence = self.world.store.fence
        self.world.store.fence = self.fence  # type: ignore[method-assign]

    async def fence(self, fences: Sequence[Fence]) -> list[Outcome | BrokenKey]:
        self.ledgers.append([fence.ledger for fence in fences])
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise Undecided("the store does not answer")
        outcomes = await self._fence(fences)
        if failure == "after":
            raise Undecided("the store does not answer")
        return outcomes


def request(
    world: World,
    ledger: int,
    name: TopicName,
    state: Mapping[str, str] | None = None,
    *,
    create: bool = True,
) -> Fence:
    log = FencedLog(name, create, {"epoch": str(ledger)}, state or {})
    return Fence(binding_of(world), ledger, (log,), {"kind": "grant", "ledger": str(ledger)})


def log_of(world: World, name: TopicName) -> TopicLog:
    return TopicLog(name, world.store, limits=world.limits.log)


def ask(
    world: World, fence: Fence, topic_log: TopicLog, *, flush: bool = False
) -> asyncio.Task[Outcome]:
    asking = world.appender.fence(fence, [topic_log], flush=flush)
    return asyncio.get_running_loop().create_task(asking)


async def markers(store: LogStore, name: TopicName) -> list[int]:
    return [block.position.ledger for block in await store.read_blocks(name, EARLIEST, count=100)]


async def test_fences_that_wait_together_share_a_call_and_keep_their_order() -> None:
    async with serving() as world:
        calls, names = Calls(world), topics(20)
        logs = [log_of(world, name) for name in names]
        pairs = list(zip(names, logs, strict=True))
        asked = [
            ask(world, request(world, 10 + at, name), log) for at, (name, log) in enumerate(pairs)
        ]
        assert await asyncio.gather(*asked) == [DONE] * 20
        assert [ledger for call in calls.ledgers for ledger in call] == list(range(10, 30))
        assert len(calls.ledgers) <= 2
        assert [topic_log.ledger for topic_log in logs] == list(range(10, 30))
        assert world.appender.statistics.fences == 20


@pytest.mark.parametrize("failure", ["before", "after"])
async def test_a_call_with_an_unknown_outcome_is_sent_again_before_anything_else(
    failure: str,
) -> None:
    async with serving() as world:
        calls, names = Calls(world, failures=[failure, failure]), topics(4)
        asked = [
            ask(world, request(world, 10 + at, name), log_of(world, name))
            for at, name in enumerate(names[:3])
        ]
        await until(lambda: len(calls.ledgers) == 1)
        asked.append(ask(world, request(world, 13, names[3]), log_of(world, names[3])))
        assert await asyncio.gather(*asked) == [DONE] * 4
        assert calls.ledgers[0] == calls.ledgers[1] == calls.ledgers[2]
        assert calls.ledgers[3:] == [[13]]
        for at, name in enumerate(names):
            assert await markers(world.store, name) == [10 + at]
        kinds = [fields["ledger"] for _, fields in await world.store.read_audit(BUCKET, count=100)]
        assert kinds == ["10", "11", "12", "13"]  # a repeated fence audits once


async def test_a_topic_whose_log_is_at_a_newer_ledger_is_refused_alone() -> None:
    async with serving() as world:
        first, second, third = topics(3)
        assert await ask(world, request(world, 50, second), log_of(world, second)) is DONE
        calls = Calls(world)
        refused = log_of(world, second)
        asked = [
            ask(world, request(world, 10, first), log_of(world, first)),
            ask(world, request(world, 11, second), refused),
            ask(world, request(world, 12, third), log_of(world, third)),
        ]
        assert await asyncio.gather(*asked) == [DONE, Outcome.FENCED, DONE]
        assert calls.ledgers == [[10, 11, 12]]
        assert refused.ledger != 11
        assert await markers(world.store, second) == [50]


async def test_a_broken_key_fails_its_own_topic_only() -> None:
    async with serving() as world:
        first, second = topics(2)
        world.server.put_foreign_key(world.server.primary, world.store._keys.log(first))
        asked = [
            ask(world, request(world, 10, first), log_of(world, first)),
            ask(world, request(world, 11, second), log_of(world, second)),
        ]
        broken, done = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(broken, BrokenKey)
        assert done is DONE


async def test_a_broker_that_lost_the_bucket_fences_no_topic_of_the_call() -> None:
    async with serving() as world:
        calls, names = Calls(world), topics(3)
        successor = Binding(BUCKET, binding_of(world).replid, 1, "broker-1~two", 2)
        assert await world.store.stamp(successor) is DONE
        asked = [
            ask(world, request(world, 10 + at, name), log_of(world, name))
            for at, name in enumerate(names)
        ]
        assert await asyncio.gather(*asked) == [Outcome.FENCED] * 3
        assert calls.ledgers == [[10, 11, 12]]
        for name in names:
            assert await markers(world.store, name) == []


async def test_the_next_fence_of_a_log_waits_for_the_next_call() -> None:
    async with serving() as world:
        calls, (name,) = Calls(world), topics(1)
        topic_log = log_of(world, name)
        asked = [ask(world, request(world, ledger, name), topic_log) for ledger in (10, 11)]
        assert await asyncio.gather(*asked) == [DONE] * 2
        assert calls.ledgers == [[10], [11]]


async def test_a_closed_topic_is_left_out_of_the_call() -> None:
    async with serving() as world:
        calls, (first, second) = Calls(world), topics(2)
        closed = log_of(world, first)
        closed.close()
        asked = [
            ask(world, request(world, 10, first), closed),
            ask(world, request(world, 11, second), log_of(world, second)),
        ]
        assert await asyncio.gather(*asked) == [Outcome.REFENCE, DONE]
        assert calls.ledgers == [[11]]


async def test_a_fence_that_cannot_be_expressed_fails_alone() -> None:
    async with serving() as world:
        first, second = topics(2)
        asked = [
            ask(world, request(world, 10, first, {"tok": "mine"}), log_of(world, first)),
            ask(world, request(world, 11, second), log_of(world, second)),
        ]
        failed, done = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(failed, ValueError)
        assert done is DONE


async def test_a_call_has_a_bound_and_an_ownership_has_a_call_of_its_own() -> None:
    async with serving() as world:
        calls, names = Calls(world), topics(5)
        large = {f"name-{number}": "1" for number in range(FENCE_FIELDS_MAX // 2)}
        asked = [
            ask(world, request(world, 10, names[0], large), log_of(world, names[0])),
            ask(world, request(world, 11, names[1]), log_of(world, names[1])),
            ask(world, request(world, 12, names[2], large), log_of(world, names[2])),
        ]
        own = world.appender.own(OwnWrite(binding_of(world)), Durability.LOCAL)
        owning = asyncio.get_running_loop().create_task(own)
        await asyncio.sleep(0)
        asked.append(ask(world, request(world, 13, names[3]), log_of(world, names[3])))
        assert await asyncio.gather(*asked, owning) == [DONE] * 5
        assert calls.ledgers == [[10, 11], [12], [13]]


async def test_entries_of_other_topics_are_stored_while_fences_wait() -> None:
    async with serving() as world:
        runner = await world.load()
        producer, channel = world.ask(runner, AccessMode.EXCLUSIVE)
        await until(lambda: channel.ready)
        large = {f"name-{number}": "1" for number in range(FENCE_FIELDS_MAX)}  # a call each
        names = topics(6)
        asked = [
            ask(world, request(world, 1000 + at, name, large), log_of(world, name))
            for at, name in enumerate(names)
        ]
        world.send(producer, 1)
        await until(lambda: channel.receipts)
        assert not all(task.done() for task in asked)
        assert await asyncio.gather(*asked) == [DONE] * 6
        stored = await world.stored()
        assert sum(isinstance(block, Block) for block in stored) == 1
