"""What a refused guard does to a log, its other senders and its numbers: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.contents import stored_in
from tests.unit.broker.topic.fence_path_world import (
    ORDERS,
    FakeChannel,
    Gates,
    World,
    entry,
    serving,
    until,
)

from onewriter_broker.log.joint_append import JointAppend, JointEntry
from onewriter_broker.log.limits import FLOORS_MAX
from onewriter_broker.log.store.api import (
    Binding,
    Block,
    Fence,
    FencedLog,
    Guard,
    GuardKind,
    Outcome,
)
from onewriter_broker.log.store.keys import Keys
from onewriter_broker.log.store.redis.script_calls import FIELDS_MAX, fence
from onewriter_broker.log.topic_log.log import ENTRY_BYTES, TopicLog
from onewriter_broker.topic.epoch_checks import raise_floor as seal
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import Fenced, OnewriterError, Refused, Unavailable, Undecided
from onewriter_core.ids import Position
from onewriter_core.log_format.chain import chain
from onewriter_core.topic.events import LedgerFull
from onewriter_core.topic.model import WHOLE, AccessMode
from onewriter_core.wire.values import Send
from onewriter_testing.fake_store.store import Moment

FAR = "persistent://shop/default/far"
FIELD = f"guard:{FAR}"


def floor(number: int) -> Guard:
    return Guard(GuardKind.FLOOR, FAR, number)


async def ready(
    world: World,
    runner: TopicRunner,
    name: str,
    guard: Guard | None = None,
    *,
    partition: int = WHOLE,
) -> tuple[Producer, FakeChannel]:
    producer, channel = world.ask(runner, AccessMode.SHARED, name, partition=partition, alone=True)
    producer.guard = guard
    await until(lambda: channel.ready)
    return producer, channel


async def later(condition: Callable[[], object]) -> None:
    """As ``until``, where a retry pauses meanwhile."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def raise_floor(world: World, runner: TopicRunner, partition: int = WHOLE) -> None:
    """Somebody whose number is 9 wrote meanwhile, as far as the store knows."""
    log = runner.logs[partition]
    assert log.binding is not None
    token = log.binding.token(log.ledger)
    assert await world.store.set_state(log.binding, log.name, token, {FIELD: "9"}) is Outcome.DONE


async def numbers(world: World) -> list[tuple[str, int]]:
    """The log's blocks, by position and entries; numbers and chain are seen to be whole."""
    blocks = [block for block in await world.stored() if isinstance(block, Block)]
    for one, other in pairwise(blocks):
        if one.position.ledger == other.position.ledger:
            assert other.position.entry == one.last.entry + 1
            assert other.chain == chain(one.chain, other.position, other.lengths, other.payload)
    return [(str(block.position), len(block.lengths)) for block in blocks]


async def test_entries_with_different_guards_never_share_a_block() -> None:
    async with serving() as world:
        runner = await world.load()
        producers = [
            (await ready(world, runner, name, guard))[0]
            for name, guard in (("a", floor(4)), ("b", floor(4)), ("c", None), ("d", floor(5)))
        ]
        for producer in producers:
            world.send(producer, 0)
            world.send(producer, 1)
        await until(lambda: all(producer.pending == 0 for producer in producers))
        assert [count for _, count in await numbers(world)] == [4, 2, 2]
        assert runner.logs[WHOLE]._guarded == {}
        assert runner.logs[WHOLE].state[FIELD] == "5"
        assert (await world.store.read_state(ORDERS))[FIELD] == "5"


async def test_a_refused_guard_closes_only_its_producer() -> None:
    async with serving() as world:
        runner = await world.load()
        stale, stale_told = await ready(world, runner, "stale", floor(4))
        newer, newer_told = await ready(world, runner, "newer", floor(5))
        plain, plain_told = await ready(world, runner, "plain")
        world.send(stale, 0)
        await until(lambda: stale.pending == 0)
        for number in range(3):  # one call with all of them
            world.send(newer, number)
            world.send(stale, number + 1)
            world.send(plain, number)
        await until(lambda: newer.pending == plain.pending == stale.pending == 0)
        assert stale_told.guards_refused == [Outcome.STALE]
        assert not stale.is_active
        assert (stale_told.drops, newer_told.drops, plain_told.drops) == ([], [], [])
        log = runner.logs[WHOLE]
        assert sum(count for _, count in await numbers(world)) == 7
        assert (log.ledger_entries, log.entries_in, log.messages_in) == (7, 7, 7)
        assert log.next_entry == 8
        assert log.ledger_bytes == log.bytes_in
        assert (log.waiting, log.undecided, log._guarded) == ([], [], {})
        assert world.deposed == []
        world.send(plain, 3)
        await until(lambda: plain.pending == 0)
        assert (await numbers(world))[-1][0] == "1-8"


async def test_rejected_sender_loses_its_later_entries_too() -> None:
    """The guard may hold again by then; a gap in what one sender sent would be a loss."""
    async with serving() as world:
        runner = await world.load()
        newer, _ = await ready(world, runner, "newer", floor(5))
        world.send(newer, 0)
        await until(lambda: newer.pending == 0)
        stale, channel = await ready(world, runner, "stale", floor(4))
        gates = Gates(world.store, "append")
        world.send(stale, 0)
        await gates.reached("append")
        world.send(stale, 1)
        world.send(newer, 1)
        gates.open("append")
        await until(lambda: stale.pending == newer.pending == 0)
        assert channel.guards_refused == [Outcome.STALE]
        assert [count for _, count in await numbers(world)] == [1, 1]
        assert channel.answered_bytes == 2 * (ENTRY_BYTES + len(entry("stale", 0)))


async def test_the_last_receipts_precede_the_close() -> None:
    async with serving() as world:
        runner = await world.load()
        guarded, channel = await ready(world, runner, "guarded", floor(4))
        newer, _ = await ready(world, runner, "newer", floor(5))
        gates = Gates(world.store, "append")
        world.send(guarded, 0)
        world.send(newer, 0)
        world.send(guarded, 1)
        await gates.reached("append")
        assert channel.guards_refused == []
        gates.open("append")
        await until(lambda: channel.guards_refused)
        assert channel.receipts == 1
        assert guarded.is_idle


async def test_a_lost_answer_is_found_although_the_guard_is_over_by_then() -> None:
    """PRESENT wins: the retry must not say that what is in the log was refused."""
    async with serving() as world:
        runner = await world.load()
        guarded, channel = await ready(world, runner, "guarded", floor(4))
        world.store.faults.fail_after = 1
        world.send(guarded, 0)
        await until(lambda: world.appender.statistics.undecided_calls == 1)
        await raise_floor(world, runner)
        await later(lambda: guarded.pending == 0)
        assert channel.receipts == 1
        assert channel.guards_refused == []
        assert await numbers(world) == [("1-1", 1)]


async def test_a_refused_retry_stays_unknown_until_the_next_ledger() -> None:
    """The first copy may still be under way: only the next marker makes its absence certain."""
    async with serving() as world:
        runner = await world.load()
        guarded, channel = await ready(world, runner, "guarded", floor(4))
        plain, _ = await ready(world, runner, "plain")
        world.store.faults.fail_before = 1
        world.send(guarded, 0)
        world.send(plain, 0)
        await until(lambda: world.appender.statistics.undecided_calls == 1)
        await raise_floor(world, runner)
        await later(lambda: world.deposed)
        assert set(world.deposed) == {Outcome.REFENCE}
        assert channel.guards_refused == []
        runner.refence_where_refused()  # what the broker does once the bucket was found kept
        await later(lambda: guarded.pending == plain.pending == 0)
        assert channel.guards_refused == [Outcome.STALE]
        assert await numbers(world) == [("2-1", 1)]


async def test_a_roll_keeps_guards_and_floors() -> None:
    async with serving() as world:
        runner = await world.load()
        newer, _ = await ready(world, runner, "newer", floor(5))
        stale, channel = await ready(world, runner, "stale", floor(4))
        world.send(newer, 0)
        await until(lambda: newer.pending == 0)
        world.send(stale, 0)
        runner.post(LedgerFull(WHOLE, 0.0))
        await until(lambda: runner.logs[WHOLE].ledger == 2 and stale.pending == 0)
        assert channel.guards_refused == [Outcome.STALE]
        assert (await world.store.read_state(ORDERS))[FIELD] == "5"
        assert await numbers(world) == [("1-1", 1)]


async def test_a_floor_that_a_failover_lost_is_written_again_by_the_next_fence() -> None:
    async with serving() as world:
        runner = await world.load()
        newer, _ = await ready(world, runner, "newer", floor(5))
        world.send(newer, 0)
        await until(lambda: newer.pending == 0)
        del stored_in(world.server.primary).states[ORDERS][FIELD]
        runner.post(LedgerFull(WHOLE, 0.0))
        await until(lambda: runner.logs[WHOLE].ledger == 2)
        assert (await world.store.read_state(ORDERS))[FIELD] == "5"


async def test_a_floor_raised_while_a_fence_is_under_way_is_not_forgotten() -> None:
    async with serving() as world:
        runner = await world.load()
        log = runner.logs[WHOLE]
        older, _ = await ready(world, runner, "older", floor(5))
        newer, _ = await ready(world, runner, "newer", floor(9))
        world.send(older, 0)
        await until(lambda: older.pending == 0)
        gates = Gates(world.store, "append")
        world.send(older, 1)
        await gates.reached("append")
        runner.post(LedgerFull(WHOLE, 0.0))
        await until(lambda: world.owner.ledgers == 2)
        for _ in range(20):  # until the fence waits behind the append
            await asyncio.sleep(0)
        assert log.state[FIELD] == "5"
        world.send(newer, 0)
        gates.open("append")
        await until(lambda: log.ledger == 2 and log.is_writable)
        assert await numbers(world) == [("1-1", 1), ("1-2", 1), ("1-3", 1)]
        assert log.state[FIELD] == "9"
        assert (await world.store.read_state(ORDERS))[FIELD] == "9"


# --- as many floors as a log remembers


def fill(log: TopicLog, floors: int = FLOORS_MAX) -> None:
    log._state |= {f"guard:persistent://shop/default/far-{number}": "1" for number in range(floors)}


def floors_of(log: TopicLog) -> int:
    return sum(1 for name in log.state if name.startswith("guard:"))


async def test_sender_with_a_floor_too_many_is_rejected_and_affects_no_other() -> None:
    async with serving() as world:
        runner = await world.load()
        log = runner.logs[WHOLE]
        surplus, surplus_told = await ready(world, runner, "surplus", floor(4))
        plain, plain_told = await ready(world, runner, "plain")
        fill(log)
        world.send(surplus, 0)
        world.send(plain, 0)
        world.send(surplus, 1)
        await until(lambda: surplus.pending == plain.pending == 0)
        assert surplus_told.guards_refused == [Outcome.AHEAD]
        assert surplus_told.answered_bytes == 2 * (ENTRY_BYTES + len(entry("surplus", 0)))
        assert surplus_told.receipts == 0
        assert (plain_told.receipts, plain_told.drops) == (1, [])
        assert await numbers(world) == [("1-1", 1)]
        assert (log.waiting, log.undecided, log._guarded) == ([], [], {})
        assert floors_of(log) == FLOORS_MAX


async def test_producers_admitted_together_share_the_remaining_space() -> None:
    async with serving() as world:
        runner = await world.load()
        log = runner.logs[WHOLE]
        fill(log, FLOORS_MAX - 1)
        first, first_told = await ready(world, runner, "first", floor(4))
        other = Guard(GuardKind.FLOOR, f"{FAR}-other", 4)
        second, second_told = await ready(world, runner, "second", other)
        world.send(first, 0)
        world.send(second, 0)
        await until(lambda: first.pending == second.pending == 0)
        assert (first_told.receipts, first_told.guards_refused) == (1, [])
        assert (second_told.receipts, second_told.guards_refused) == (0, [Outcome.AHEAD])
        world.send(first, 1)
        await until(lambda: first.pending == 0)
        assert await numbers(world) == [("1-1", 1), ("1-2", 1)]


async def test_a_seal_with_a_floor_too_many_is_refused() -> None:
    async with serving() as world:
        log = (await world.load()).logs[WHOLE]
        fill(log)
        with pytest.raises(Refused, match="guards of other buckets"):
            await seal(log, floor(4), world.appender.prove)
        assert FIELD not in log.state
        assert FIELD not in await world.store.read_state(ORDERS)


def test_a_fence_carries_a_log_state_of_any_size() -> None:
    state = {f"name-{number}": "1" for number in range(5 * FIELDS_MAX)}
    log = FencedLog(ORDERS, create=True, marker={}, state=state)
    request = Fence(Binding(0, "dataset", 1, "broker-0", 1), 2, (log,), {})
    words, order = fence(Keys(64), [request], audit_records_max=10)
    assert set(state) <= set(words)
    assert order == [0]


# --- together


async def test_together_nothing_is_stored_where_a_floor_is_too_many() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        fill(runner.logs[1])
        request = Asked(world, runner, None, floor(4))
        await request.task
        assert isinstance(request.error, Refused)
        assert await counts(world) == [0, 0]
        assert FIELD not in runner.logs[1].state
        assert [log.next_entry for log in runner.logs.values()] == [1, 1]


class Asked:
    """A request for two partitions, and how it ended."""

    def __init__(self, world: World, runner: TopicRunner, *guards: Guard | None) -> None:
        self.may_write = True
        parts = [
            JointEntry(
                runner.logs[partition], Send(1, 0), memoryview(b"part %d" % partition), guard
            )
            for partition, guard in zip((0, 1), guards or (None, None), strict=True)
        ]
        self.request = JointAppend(parts, lambda: self.may_write)
        self.positions: list[Position] = []
        self.error: OnewriterError | None = None
        self.task = world.spawn(self._run(world))

    async def _run(self, world: World) -> None:
        try:
            self.positions = await world.appender.append_jointly(self.request)
        except OnewriterError as error:
            self.error = error


async def counts(world: World) -> list[int]:
    """How many entries each of the two logs holds."""
    found = []
    for partition in (0, 1):
        stored = await world.stored(ORDERS.with_partition(partition))
        found.append(sum(len(b.lengths) for b in stored if isinstance(b, Block)))
    return found


async def test_a_transaction_is_stored_after_all_earlier_messages() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        plain, channel = await ready(world, runner, "plain", partition=1)
        world.send(plain, 0)
        request = Asked(world, runner)
        world.send(plain, 1)
        await request.task
        await until(lambda: plain.pending == 0)
        assert [str(each) for each in request.positions] in (["1-1", "1-2"], ["1-1", "1-3"])
        assert await counts(world) == [1, 3]
        assert channel.drops == []


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_together_a_lost_answer_stores_them_once(moment: Moment) -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        if moment == "before":
            world.store.faults.fail_before = 1
        else:
            world.store.faults.fail_after = 1
        request = Asked(world, runner)
        await request.task
        assert request.error is None
        assert await counts(world) == [1, 1]


async def test_together_nothing_is_stored_where_a_guard_is_over() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        newer, _ = await ready(world, runner, "newer", floor(5), partition=1)
        world.send(newer, 0)
        await until(lambda: newer.pending == 0)
        request = Asked(world, runner, None, floor(4))
        await request.task
        assert isinstance(request.error, Fenced)
        assert await counts(world) == [0, 1]
        assert [log.next_entry for log in runner.logs.values()] == [1, 2]
        again = Asked(world, runner)
        await again.task
        assert await counts(world) == [1, 2]


async def test_together_nothing_is_stored_for_who_may_not_write_by_then() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        request = Asked(world, runner)
        request.may_write = False
        await request.task
        assert isinstance(request.error, Unavailable)
        assert await counts(world) == [0, 0]


async def test_an_absent_joint_append_is_not_repeated_after_the_next_ledger() -> None:
    """Some of it might succeed there, and the rest fail."""
    async with serving() as world:
        runner = await world.load(0, 1)
        world.store.faults.fail_before = 1
        request = Asked(world, runner, None, floor(4))
        await until(lambda: world.appender.statistics.undecided_calls == 1)
        await raise_floor(world, runner, 1)
        await later(lambda: world.deposed)
        assert request.error is None, "nothing definite before the next ledger"
        runner.refence_where_refused()
        await request.task
        assert isinstance(request.error, Unavailable)
        assert await counts(world) == [0, 0]


async def test_together_a_topic_that_closes_on_the_way_leaves_the_fate_unknown() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        world.store.faults.fail_after = 1
        request = Asked(world, runner)
        await until(lambda: world.appender.statistics.undecided_calls == 1)
        runner.logs[1].close()
        await request.task
        assert isinstance(request.error, Undecided)
        assert await counts(world) == [1, 1]


async def test_together_what_cannot_be_one_block_is_refused() -> None:
    async with serving() as world:
        runner = await world.load(0, 1)
        log = runner.logs[0]
        large = memoryview(bytes(200_000))
        with pytest.raises(Refused, match="bytes"):
            JointAppend([JointEntry(log, Send(1, 0), large, None)] * 2, lambda: True)
        parts = [JointEntry(log, Send(1, 0), large[:1], guard) for guard in (None, floor(1))]
        with pytest.raises(Refused, match="one guard"):
            JointAppend(parts, lambda: True)
        with pytest.raises(Refused, match="at least one"):
            JointAppend([], lambda: True)
