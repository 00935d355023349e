"""Shared state under fences, lost answers and broken connections; and its checkers under mutants."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.state.campaign import Campaign, fold
from tests.state.map_contract import counter
from tests.state.registers import History

from onewriter import Closed, NotSent, OutcomeUnknown
from onewriter.state import MemoryLog, SharedMap, SharedState, StateGap, StateLimits
from onewriter.state.fold import Fold
from onewriter.state.log import LogEntry
from onewriter.state.memory import MemoryGrant
from onewriter.state.writer import Writer
from onewriter_core.ids import Position

LIMITS = StateLimits(timeout_seconds=20, tenure_seconds_min=0.005)


class JitteryLog(MemoryLog):
    """Whatever it is asked for takes a turn of the loop, or some."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    async def pause(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def acquire(self, on_change: Callable[[], None]) -> Any:
        grant = await super().acquire(on_change)
        await self.pause()
        return grant

    async def follow(self, after: Position | None) -> AsyncGenerator[LogEntry, None]:
        async for entry in super().follow(after):
            await self.pause()
            yield entry

    async def end(self) -> Position:
        await self.pause()
        position = await super().end()
        await self.pause()
        return position


def map_on(log: MemoryLog, **options: Any) -> SharedMap[str, int]:
    options.setdefault("limits", LIMITS)
    return SharedMap.in_memory(str, int, log=log, **options)


async def played(log: JitteryLog, seed: int, operations: int = 150) -> Campaign:
    """A campaign of three instances on a log to which everything happens."""

    async def fault() -> None:
        match log.random.randrange(4):
            case 0:
                log.fence()
            case 1:
                log.lose_answers(1, loses_entries=log.random.random() < 0.5)
            case 2:
                log.break_followers()
            case _:
                pass

    async with AsyncExitStack() as stack:
        maps = [await stack.enter_async_context(map_on(log)) for _ in range(3)]
        campaign = Campaign(maps, seed)
        await campaign.play(operations, fault)
    return campaign


@pytest.mark.parametrize("seed", range(12))
async def test_a_map_is_linearizable_per_key_under_faults(seed: int) -> None:
    log = JitteryLog(seed)
    campaign = await played(log, seed)
    assert campaign.history.violations() == []
    assert campaign.done > 100
    assert log.grants > 3, "nothing happened to it"
    async with map_on(log) as afterwards:
        content, _ = afterwards.state.present()
    assert dict(content.items()) == fold(log.entries)


async def test_every_write_is_applied_exactly_once() -> None:
    log = JitteryLog(0)
    assert await _sum_of_a_hundred(log) == 100


async def _sum_of_a_hundred(log: JitteryLog) -> int:
    async with counter().in_memory(log) as state:
        for number in range(100):
            if number % 10 == 5:
                log.lose_answers(1, loses_entries=number % 20 == 5)
            await state.write(lambda _value: [1], lambda value: value)
        return await state.read(lambda value: value, latest=True)


# ------------------------------------------------------------ the checkers find mutants


async def test_mutant_applies_at_the_ack_and_again_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M18. What is found: a sum that is too large."""
    take = Fold.take

    def take_twice(self: Any, entry: LogEntry, memo: Any, **options: Any) -> Any:
        base = self.base()
        take(self, entry, memo, **options)
        self.position, self.version, self._writers = base.position, base.version, {}
        return take(self, entry, lambda _stamp: None, **options)

    monkeypatch.setattr(Fold, "take", take_twice)
    assert await _sum_of_a_hundred(JitteryLog(0)) != 100


async def test_mutant_reads_without_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    async def as_known_here(_state: Any, _seconds: float) -> None:
        return

    assert (await _put_here_get_there()).violations() == []
    monkeypatch.setattr(SharedState, "_freshen", as_known_here)
    assert (await _put_here_get_there()).violations() != []


async def _put_here_get_there() -> History:
    """One instance puts, another one gets at once."""
    log, history = JitteryLog(3), History()
    async with map_on(log) as one, map_on(log) as other:
        for number in range(50):
            put = history.begin("k", f"put {number}", lambda old, n=number: (n, old))  # type: ignore[misc]
            history.end(put, await one.put("k", number))
            get = history.begin("k", "get", lambda old: (old, old))
            history.end(get, await other.get("k", latest=True))
    return history


async def test_mutant_takes_what_has_no_answer_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It generates again at once, without reading the log to where its new grant begins."""

    async def as_known_here(_writer: Any) -> None:
        return

    monkeypatch.setattr(Writer, "_read_to_the_end", as_known_here)
    assert await _some_violation()


async def _some_violation() -> bool:
    """Whether one of some seeds shows it, by the history or by what the log folds to."""
    for seed in range(40):
        log = JitteryLog(seed)
        try:
            async with asyncio.timeout(2):
                campaign = await played(log, seed)
        except (TimeoutError, ExceptionGroup):
            return True
        if campaign.history.violations():
            return True
    return False


def test_the_checker_of_registers_knows_what_cannot_be() -> None:
    history = History()
    put = history.begin("k", "put 1", lambda old: (1, old))
    history.end(put, None)
    stale = history.begin("k", "get", lambda old: (old, old))
    history.end(stale, None)
    assert history.violations() == ["k: get cannot have returned None"]


def test_the_checker_lets_an_unknown_write_take_effect_late_or_never() -> None:
    history = History()
    history.begin("k", "put 1", lambda old: (1, old))
    for seen in (None, None, 1, 1):
        history.end(history.begin("k", "get", lambda old: (old, old)), seen)
    assert history.violations() == []
    history.end(history.begin("k", "get", lambda old: (old, old)), None)
    assert history.violations() == ["k: get cannot have returned None"]


# ------------------------------------------------------------ single stories


async def test_a_write_without_an_answer_is_found_in_the_log() -> None:
    log = MemoryLog()
    async with map_on(log) as shared:
        log.lose_answers(1)
        assert await shared.put("a", 1) is None
        assert len(log.entries) == 1


async def test_an_exception_is_reported_after_the_state_that_caused_it_is_stored() -> None:
    log = MemoryLog()
    async with map_on(log) as shared:
        log.lose_answers(1, loses_entries=True)
        seen: list[int | None] = []

        def refuse(value: int | None) -> int:
            seen.append(value)
            raise ValueError("it is there already")

        async with asyncio.TaskGroup() as tasks:
            put = tasks.create_task(shared.put("a", 1))
            await asyncio.sleep(0)  # it comes first
            with pytest.raises(ValueError, match="there already"):
                await shared.update("a", refuse)
            assert len(log.entries) == 1, "nobody may act on what is not in the log"
        assert put.result() is None
        assert seen == [1, 1]


async def test_a_generator_may_raise_what_no_future_takes() -> None:
    async with map_on(MemoryLog()) as shared:

        def stop(_value: int | None) -> int:
            raise StopIteration

        with pytest.raises(RuntimeError, match="StopIteration"):
            await shared.update("a", stop)
        assert await shared.put("a", 1) is None


async def test_a_write_that_was_certainly_not_stored_is_generated_again() -> None:
    log = MemoryLog()
    async with map_on(log) as shared:
        await shared.put("a", 1)
        log.lose_answers(1, loses_entries=True)
        seen: list[int | None] = []

        def add(value: int | None) -> int:
            seen.append(value)
            return (value or 0) + 1

        assert await shared.update("a", add) == 2
        assert seen == [1, 1]


@pytest.mark.looptime
async def test_a_write_without_a_result_in_time_is_unknown() -> None:
    log = MemoryLog()
    async with map_on(log) as shared:
        await shared.put("a", 1)
        log.fence()
        holder = await log.acquire(lambda: None)
        with pytest.raises(NotSent):
            await shared.put("a", 2, timeout_seconds=0.05)
        await holder.hand_over()
        await shared.put("a", 3)
        log.break_followers()
        log.lose_answers(1, loses_entries=True)
        writing = asyncio.get_running_loop().create_task(shared.put("a", 4, timeout_seconds=1.5))
        holder = await _next_holder(log)
        with pytest.raises(OutcomeUnknown):
            await writing
        await holder.hand_over()
        assert await shared.get("a", latest=True) == 3


async def _next_holder(log: MemoryLog) -> MemoryGrant:
    """Stand in line before the writer does."""
    return await log.acquire(lambda: None)


async def test_more_writes_than_the_queue_limit_are_stored_in_order() -> None:
    limits = StateLimits(timeout_seconds=20, queued_writes_max=10)
    log = MemoryLog()
    async with map_on(log, limits=limits) as shared:
        await asyncio.gather(*(shared.put(str(n), n) for n in range(500)))
        assert await shared.size() == 500
    assert len(log.entries) >= 50


async def test_closing_sees_writes_through() -> None:
    log = MemoryLog()
    loop = asyncio.get_running_loop()
    async with map_on(log) as shared:
        writing = [loop.create_task(shared.put(str(n), n)) for n in range(50)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*writing) == [None] * 50
    async with map_on(log) as shared:
        assert await shared.size() == 50


@pytest.mark.looptime
async def test_closing_without_a_grant_reports_that_nothing_was_stored() -> None:
    log = MemoryLog()
    holder = await log.acquire(lambda: None)
    limits = StateLimits(timeout_seconds=0.1)
    loop = asyncio.get_running_loop()
    async with map_on(log, limits=limits) as shared:
        writing = loop.create_task(shared.put("a", 1, timeout_seconds=60))
        await asyncio.sleep(0)
    with pytest.raises(Closed):
        await writing
    await holder.hand_over()
    assert log.entries == []


async def test_a_cut_log_is_a_gap_never_a_partial_state() -> None:
    log = MemoryLog()
    async with map_on(log) as shared:
        for number in range(10):
            await shared.put(str(number), number)
    log.trim(log.entries[5].position)
    with pytest.raises(StateGap) as gap:
        async with map_on(log):
            pass
    assert gap.value.position == log.entries[0].position


async def test_a_log_that_lost_its_tail_is_folded_again_and_watchers_see_it() -> None:
    log = MemoryLog()
    async with map_on(log) as one, map_on(log) as other, other.watch() as watch:
        for number in range(4):
            await one.put("a", number)
        await other.get("a", latest=True)
        log.lose_tail(2)
        await one.put("b", 1)
        assert await other.scan(dict, latest=True) == {"a": 1, "b": 1}
        assert await one.scan(dict, latest=True) == {"a": 1, "b": 1}
        seen = [(await anext(watch)) for _ in range(6)]
    assert [(change.key, change.value) for change in seen[:4]] == [("a", n) for n in range(4)]
    assert sorted((change.key, change.value) for change in seen[4:]) == [("a", 1), ("b", 1)]


async def test_a_holder_that_is_waited_for_hands_over_within_its_bound() -> None:
    log = MemoryLog()
    async with map_on(log, limits=StateLimits(tenure_seconds_min=0.05)) as shared:
        await shared.put("a", 1)
        async with asyncio.timeout(60):
            grant = await log.acquire(lambda: None)
        assert grant.epoch == 2
        await grant.hand_over()
        await shared.put("a", 2)
        assert log.grants == 3
