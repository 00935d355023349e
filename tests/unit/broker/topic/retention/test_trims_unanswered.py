"""Trims that are unanswered, rejected, or concurrent: what readers and subscriptions then find."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.contents import stored_in
from tests.unit.broker.topic.fence_path_world import ORDERS, World, serving
from tests.unit.broker.topic.retention.test_trimming import (
    Readers,
    entry_ends,
    forgotten,
    readers,
    stored,
)
from tests.unit.broker.verify.histories import TOPIC, TopicHistory, no_subscription

from onewriter_broker.dispatch.saved_cursors import STATE_PREFIX
from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.topic_log.ranges import first_block, lacks, noted_ends, trimmed_of
from onewriter_broker.topic.retention.retention import Retention
from onewriter_broker.topic.retention.trimming import Trimmed, trim
from onewriter_core.api.topic import Retention as Policy
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import LEDGER_ENDS, TRIMMED
from onewriter_core.topic.model import WHOLE, Purpose
from onewriter_testing.fake_store.server import FakeServer
from onewriter_testing.fake_store.store import FakeLogStore, Hook, Moment

MISSED = Position(6, 2)
"""A position in the middle of a ledger that the cuts below drop."""

CUT = Position(8, 0)


def hook(history: TopicHistory, hooked: Hook | None) -> None:
    async def nothing(_call: str, _moment: Moment) -> None:
        return

    cast("FakeLogStore", history.store).faults.hook = hooked or nothing


async def unanswered(history: TopicHistory, cut: Position, moment: Moment = "after") -> None:
    """A trim without an answer, which the store has or has not executed."""

    async def lose(call: str, when: Moment) -> None:
        if (call, when) == ("trim", moment):
            raise Undecided("the store did not answer in time")

    hook(history, lose)
    with pytest.raises(Undecided):
        await trim(history.log, readers(), cut)
    hook(history, None)


async def misses(history: TopicHistory, asked: Position) -> bool:
    """Whether the broker reports to a reader at this position that entries are missing."""
    return lacks(history.log, asked, (await first_block(history.log)).position)


# ------------------------------------------------------------ unanswered


async def test_readers_do_not_skip_entries_of_a_trim_without_an_answer(
    server: FakeServer, history: TopicHistory
) -> None:
    end = entry_ends(server, CUT)
    await unanswered(history, CUT)
    forgotten(history)
    assert stored(server)[0] == str(CUT)
    assert await misses(history, MISSED)
    assert not await misses(history, Position(end.ledger, end.entry + 1)), "it had read all of it"


async def test_asked_again_the_memory_is_what_the_store_has(
    server: FakeServer, history: TopicHistory
) -> None:
    await unanswered(history, CUT)
    assert (await trim(history.log, readers(), CUT)).first == CUT
    forgotten(history)
    assert await misses(history, MISSED)
    state = stored_in(server.primary).states[TOPIC]
    for name in (TRIMMED, LEDGER_ENDS):
        assert history.log.state[name] == state[name]


async def test_a_trim_without_an_answer_is_known_after_a_failover(
    server: FakeServer, history: TopicHistory
) -> None:
    """As after a failover: the log is measured again, and found trimmed as intended."""

    async def lose(call: str, when: Moment) -> None:
        if (call, when) == ("trim", "after"):
            raise Undecided("the store did not answer in time")

    bound = Policy(max_age_seconds=1)
    hook(history, lose)
    with pytest.raises(Undecided):
        await Retention().sweep(history.log, bound, no_subscription, history.clock_ms + 10_000_000)
    hook(history, None)
    assert (
        await Retention().sweep(history.log, bound, no_subscription, history.clock_ms + 10_000_000)
        == 0
    )
    forgotten(history)
    assert stored(server)[0] == "10-0"
    assert await misses(history, MISSED)


async def test_a_reader_that_arrives_during_a_call_is_notified(history: TopicHistory) -> None:
    seen: list[bool] = []
    history.log._ends.clear()

    async def check(call: str, when: Moment) -> None:
        if call == "trim":
            first = CUT if when == "after" else Position(5, 0)
            seen.append(lacks(history.log, MISSED, first))

    hook(history, check)
    await trim(history.log, readers(), CUT)
    assert seen == [False, True]


async def test_one_that_was_never_executed_hides_nothing_and_asked_again_it_notes_all(
    server: FakeServer, history: TopicHistory
) -> None:
    before, end = stored(server), entry_ends(server, CUT)
    await unanswered(history, CUT, "before")
    assert stored(server) == before
    assert not await misses(history, MISSED)
    assert TRIMMED not in stored_in(server.primary).states[TOPIC]
    await trim(history.log, readers(), CUT)
    state = stored_in(server.primary).states[TOPIC]
    assert (state[TRIMMED], state[LEDGER_ENDS]) == ("8-0", f"8 {end}")


async def test_no_durable_subscription_begins_where_a_late_copy_may_cut(
    history: TopicHistory,
) -> None:
    await unanswered(history, CUT, "before")
    assert history.log.skip_trimmed(EARLIEST) == CUT


# ------------------------------------------------------------ rejected


async def test_entries_of_a_refused_trim_stay_readable_for_durable_subscriptions(
    server: FakeServer, history: TopicHistory
) -> None:
    before = stored(server)
    await TopicHistory.begin(history.store, owner="broker-b", version=2, ledger=64)
    with pytest.raises(Unavailable, match="nothing was trimmed"):
        await trim(history.log, readers(), CUT)
    assert stored(server) == before
    assert history.log.skip_trimmed(EARLIEST) == EARLIEST
    assert TRIMMED not in history.log.state
    assert LEDGER_ENDS not in history.log.state


async def test_a_refusal_takes_back_no_more_than_its_own_call(history: TopicHistory) -> None:
    await trim(history.log, readers(), Position(6, 0))
    await unanswered(history, Position(7, 0), "before")
    known = dict(history.log.state)
    await TopicHistory.begin(history.store, owner="broker-b", version=2, ledger=64)
    with pytest.raises(Unavailable, match="nothing was trimmed"):
        await trim(history.log, readers(), CUT)
    assert history.log.state == known
    assert history.log.skip_trimmed(EARLIEST) == Position(7, 0)
    with pytest.raises(Unavailable, match="nothing was trimmed"):  # although it is noted already
        await trim(history.log, readers(), Position(7, 0))


async def test_a_ledger_that_is_opened_while_the_cut_is_prepared_does_not_refuse_it(
    server: FakeServer, history: TopicHistory
) -> None:
    reads = 0

    async def roll(call: str, when: Moment) -> None:
        nonlocal reads
        if (call, when) == ("read_blocks", "after"):
            reads += 1
            if reads == 2:  # the first one was for the log's beginning
                await history.fence(Purpose.ROLL)

    hook(history, roll)
    assert (await trim(history.log, readers(), CUT)).first == CUT
    assert stored(server)[0] == str(CUT)


# ------------------------------------------------------------ concurrent


async def test_after_a_change_of_the_holder_nothing_is_sent(
    server: FakeServer, history: TopicHistory
) -> None:
    before = stored(server)

    async def take(call: str, when: Moment) -> None:
        if (call, when) == ("read_blocks", "after"):
            history.log._state["epoch"] = "99"

    hook(history, take)
    with pytest.raises(Unavailable, match="changed during the trim"):
        await trim(history.log, readers(), CUT)
    assert stored(server) == before
    assert history.log.skip_trimmed(EARLIEST) == EARLIEST


async def test_a_subscription_created_during_the_preparation_of_a_cut_keeps_its_backlog(
    server: FakeServer, history: TopicHistory
) -> None:
    standing: dict[str, Position] = {}
    reads = 0

    async def come(call: str, when: Moment) -> None:
        nonlocal reads
        if (call, when) == ("read_blocks", "after"):
            reads += 1
            if reads == 2:  # the first one was for the log's beginning
                standing["late"] = Position(5, 4)

    hook(history, come)
    done = await trim(history.log, cast("Subscriptions", Readers(standing)), CUT)
    assert done.first == Position(5, 5)
    assert stored(server)[0] == "5-5"


async def test_concurrent_cuts_record_the_farthest_one(
    server: FakeServer, history: TopicHistory
) -> None:
    ends = {cut.ledger: entry_ends(server, cut) for cut in (Position(6, 0), CUT)}

    async def slow(_call: str, _when: Moment) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    hook(history, slow)
    done = await asyncio.gather(
        *(trim(history.log, readers(), cut) for cut in (Position(6, 0), CUT, Position(6, 0)))
    )
    assert all(isinstance(each, Trimmed) for each in done)
    assert stored(server)[0] == str(CUT)
    assert trimmed_of(history.log) == CUT
    assert noted_ends(history.log) == ends
    assert stored_in(server.primary).states[TOPIC][TRIMMED] == "8-0"


# ------------------------------------------------------------ a topic that is loaded


async def late(world: World, cut: Position, cursor: str) -> None:
    """Unanswered calls of this broker reach the store now."""
    store = FakeLogStore(world.server.resolve)
    state = stored_in(world.server.primary).states[ORDERS]
    holding = world.owner.held
    assert holding is not None
    binding, token = holding.binding, state["tok"]
    await store.set_state(binding, ORDERS, token, {cursor: '{"v":1,"m":"1-0"}'})
    noted = {TRIMMED: str(cut), LEDGER_ENDS: f"{cut.ledger} 1-0"}
    await store.trim(binding, ORDERS, token, cut, noted)


async def test_a_block_stored_before_the_fence_is_found_after_it() -> None:
    async with serving() as world:
        await world.load()
        await world.load()
        cursor = f"{STATE_PREFIX}readers"

        async def arrive(call: str, when: Moment) -> None:
            if (call, when) == ("fence", "before"):
                await late(world, Position(2, 0), cursor)

        world.store.faults.hook = arrive
        runner = await world.load()
        log = runner.logs[WHOLE]
        assert (await first_block(log)).position == Position(2, 0)
        assert trimmed_of(log) == Position(2, 0)
        assert noted_ends(log) == {2: Position(1, 0)}
        assert cursor in log.state
        assert log.state == stored_in(world.server.primary).states[ORDERS]
