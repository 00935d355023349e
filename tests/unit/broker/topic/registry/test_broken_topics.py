"""One topic has a key that another process wrote to: the broker closes it, and all other topics continue."""

from __future__ import annotations

import pytest
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, World, serving, until

from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.readers import read_at_last
from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.store.api import BrokenKey, Outcome
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.registry.broken_topics import RETRY_SECONDS, TOPICS_MAX, BrokenTopics
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.topic.model import WHOLE, AccessMode

KEYS = Keys()
LOG, STATE = KEYS.of(ORDERS)
AUDIT = KEYS.audit(BUCKET)


def put_foreign(world: World, key: str) -> None:
    world.server.put_foreign_key(world.server.primary, key)


def closing(world: World, runner: TopicRunner) -> None:
    """Handle a broken topic as a broker does."""
    world.broken = lambda _name: runner.unload("the store must be repaired first")


@pytest.mark.parametrize("key", [LOG, STATE])
async def test_the_writer_of_a_broken_topic_is_closed_and_its_message_is_not_in_doubt(
    key: str,
) -> None:
    async with serving() as world:
        runner = await world.load()
        closing(world, runner)
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        put_foreign(world, key)
        world.send(holder, 0)
        await until(lambda: channel.closed)
        assert [(name, key in str(error)) for name, error in world.breaks] == [(ORDERS, True)]
        assert channel.receipts == 0
        assert channel.drops == []  # CLOSE_PRODUCER is enough, because nothing of it was written
        assert channel.answered_bytes > 0
        assert not world.deposed


async def test_a_message_of_an_earlier_attempt_is_in_doubt() -> None:
    async with serving() as world:
        runner = await world.load()
        closing(world, runner)
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        world.store.faults.fail_after = 1  # it is stored, and the answer is lost
        world.send(holder, 0)
        await until(lambda: world.appender.statistics.undecided_calls)
        put_foreign(world, LOG)
        await until(lambda: channel.closed, turns=200_000)
        assert channel.drops == ["the result of a message is unknown"]


async def test_other_topics_are_appended_by_the_same_call_and_by_later_ones() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        zero, told_zero = world.ask(runner, AccessMode.SHARED, partition=0)
        one, told_one = world.ask(runner, AccessMode.SHARED, partition=1)
        await until(lambda: told_zero.ready and told_one.ready)
        put_foreign(world, KEYS.log(ORDERS.with_partition(0)))
        world.send(zero, 0)
        world.send(one, 0)
        await until(lambda: told_one.receipts == 1)
        assert world.appender.statistics.undecided_calls == 0
        assert len(world.breaks) == 1
        world.send(one, 1)
        await until(lambda: told_one.receipts == 2)
        assert told_zero.receipts == 0
        assert not runner.logs[0].is_writable


async def test_a_fence_that_meets_a_broken_key_closes_its_topic_and_the_appender_continues() -> (
    None
):
    async with serving() as world:
        runner = await world.load()
        closing(world, runner)
        _, holder = await world.granted(runner, AccessMode.EXCLUSIVE)
        _, waiter = world.ask(runner, AccessMode.WAIT_FOR_EXCLUSIVE)
        put_foreign(world, STATE)
        _, producer_group = world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        await until(lambda: waiter.refusals and holder.closed)
        assert producer_group.refusals or producer_group.closed
        assert world.failures == []
        assert not world.appender_task.done()
        await runner.settled()


async def test_a_topic_whose_key_is_broken_is_not_loaded() -> None:
    async with serving() as world:
        await world.load()
        put_foreign(world, LOG)
        with pytest.raises(BrokenKey):
            await world.load()
        world.server.delete_key(world.server.primary, LOG)
        runner = await world.load()  # found lost, and created again
        assert world.owner.refenced == [Outcome.LOST]
        assert runner.logs[WHOLE].is_writable


async def test_an_audit_that_cannot_be_written_stops_fences_but_not_the_holder() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        put_foreign(world, AUDIT)
        runner.history.audit({"kind": "suspect"})
        world.send(holder, 0)
        await until(lambda: channel.receipts)
        assert world.breaks == []
        world.ask(runner, AccessMode.EXCLUSIVE_WITH_FENCING)
        await until(lambda: world.breaks)


async def test_a_cursor_that_cannot_be_saved_closes_the_topic() -> None:
    async with serving() as world:
        runner = await world.load()
        put_foreign(world, STATE)
        subscriptions = Subscriptions(
            runner.logs[WHOLE],
            spawn=runner.spawn,
            clock=world.dependencies.now,
            wall_clock_ms=world.dependencies.wall_ms,
        )
        with pytest.raises(BrokenKey):
            await subscriptions.ensure("sub")
        await until(lambda: world.breaks)


async def test_a_read_that_meets_the_broken_key_closes_the_topic() -> None:
    async with serving() as world:
        runner = await world.load()
        holder, channel = await world.granted(runner, AccessMode.EXCLUSIVE)
        world.send(holder, 0)
        await until(lambda: channel.receipts)
        put_foreign(world, LOG)
        log = runner.logs[WHOLE]
        log.forget_tail()

        async def read() -> None:
            await read_at_last(log, EARLIEST, 1, Limits())

        runner.spawn(read())
        await until(lambda: world.breaks)


def served_log(*ends: Position) -> TopicLog:
    async def unused() -> None: ...

    log = TopicLog(ORDERS, store=unused)  # type: ignore[arg-type]
    log._ends = list(ends)
    return log


def test_a_broken_topic_is_refused_without_looking_until_it_is_time() -> None:
    now = [100.0]
    topics = BrokenTopics(lambda: now[0])
    topics.check(ORDERS)
    topics.found(ORDERS, BrokenKey("ow:key: WRONGTYPE"))
    with pytest.raises(BrokenKey, match="ow:key"):
        topics.check(ORDERS)
    assert topics.reason(ORDERS) == "ow:key: WRONGTYPE"
    now[0] += RETRY_SECONDS
    topics.check(ORDERS)
    assert len(topics) == 1  # not repaired yet, as far as is known
    topics.served(ORDERS)
    assert (len(topics), topics.reason(ORDERS)) == (0, "")


def test_a_log_is_restored_from_memory_when_its_topic_is_served_again() -> None:
    topics = BrokenTopics(lambda: 0.0)
    ends = [Position(5, 7), Position(6, 2)]
    before = served_log(*ends)
    before._state = {"ledger": "6", "cursor:sub": "{}"}
    topics.found(ORDERS, BrokenKey("once"), [before])
    topics.found(ORDERS, BrokenKey("twice"))  # another load that failed
    fresh, other = served_log(), served_log()
    topics.recall(ORDERS, fresh)
    assert (fresh.ends, fresh.committed, fresh.needs_comparison) == (ends, ends[-1], True)
    assert fresh.state == before.state
    fresh._state = {"ledger": "6"}
    topics.recall(ORDERS, fresh)
    assert fresh.state == {"ledger": "6"}  # the existing state has precedence
    topics.recall(TopicName.parse("other"), other)
    assert not other.needs_comparison


def test_topics_of_a_lost_bucket_are_forgotten_and_the_memory_is_bounded() -> None:
    topics = BrokenTopics(lambda: 0.0)
    for number in range(TOPICS_MAX + 1):
        topics.found(TopicName.parse(f"topic-{number}"), BrokenKey("x"))
    assert len(topics) == TOPICS_MAX
    assert topics.reason(TopicName.parse("topic-0")) == ""
    topics.forget(lambda base: base != TopicName.parse("topic-5"))
    assert len(topics) == 1
