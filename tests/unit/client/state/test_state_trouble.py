"""Shared state whose log cannot be read or is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.state.map_contract import counter

from onewriter import Closed, OutcomeUnknown, Unavailable
from onewriter.state import (
    CheckpointStore,
    MemoryLog,
    SharedMap,
    StateLimits,
    UnreadableEntry,
)
from onewriter.state.checkpoints import Checkpoints
from onewriter.state.log import LogEntry, LogMessage
from onewriter.state.memory import MemoryGrant
from onewriter_core.ids import Position

LIMITS = StateLimits(timeout_seconds=20)
SECONDS_MAX = 60.0
GARBAGE = (LogMessage(b"\xff\xff garbage"),)


class ClosableLog(MemoryLog):
    """It breaks as topics do: followers are refused for a while, or its client is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.is_closed = False
        self.refused = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def follow(self, after: Position | None) -> AsyncGenerator[LogEntry, None]:
        if self.is_closed:
            raise Closed("the client was closed")
        if self.is_away:
            self.refused += 1
            raise Unavailable("no broker")
        async for entry in super().follow(after):
            yield entry

    async def acquire(self, on_change: Callable[[], None]) -> MemoryGrant:
        self._check()
        return await super().acquire(on_change)

    async def end(self) -> Position:
        self._check()
        await self.may_end.wait()
        return await super().end()

    def _check(self) -> None:
        if self.is_closed:
            raise Closed("the client was closed")

    def close(self) -> None:
        self.is_closed = True
        self.break_followers()


class SpoiltLog(MemoryLog):
    """In front of the next entry somebody else writes one that nobody can read."""

    is_spoilt = False

    def store(self, grant: MemoryGrant, messages: Sequence[LogMessage]) -> Position:
        if self.is_spoilt:
            self.is_spoilt = False
            super().store(grant, GARBAGE)
        return super().store(grant, messages)


class DamagedLog(MemoryLog):
    """Entries of one content cannot be taken apart; ``is_silent``: no entry comes at all."""

    is_silent = False

    async def follow(self, after: Position | None) -> AsyncGenerator[LogEntry, None]:
        if self.is_silent:
            await asyncio.Event().wait()
        async for entry in super().follow(after):
            if entry.messages == GARBAGE:
                raise UnreadableEntry("damaged", position=entry.position)
            yield entry


def map_on(log: MemoryLog, limits: StateLimits = LIMITS) -> SharedMap[str, int]:
    return SharedMap.in_memory(str, int, log=log, limits=limits)


async def spoil(log: MemoryLog) -> None:
    await append(log, GARBAGE)


async def append(log: MemoryLog, messages: Sequence[LogMessage]) -> None:
    grant = await log.acquire(lambda: None)
    await (await grant.append(messages))
    await grant.hand_over()


# ------------------------------------------------------------ a suspicion is never lost


async def test_a_suspicion_during_a_pause_of_the_follower_folds_the_log_again() -> None:
    log = ClosableLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as one, map_on(log) as other:
        for number in range(4):
            await one.put(str(number), number)
        assert await other.size(latest=True) == 4
        log.is_away = True
        log.break_followers()
        while log.refused < 2:  # noqa: ASYNC110 - both have begun their pauses
            await asyncio.sleep(0)
        log.lose_tail(2)
        reading = asyncio.get_running_loop().create_task(other.scan(dict, latest=True))
        await asyncio.sleep(0.01)
        log.is_away = False
        assert await reading == {"0": 0, "1": 1}
        log.lose_tail(1)
        assert await other.scan(dict, latest=True) == {"0": 0}, "the next suspicion counts, too"


# ------------------------------------------------------------ an entry that cannot be read


async def test_a_write_after_an_unreadable_entry_is_unknown_and_requests_no_grant() -> None:
    log = SpoiltLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as shared:
        await shared.put("a", 1)
        log.is_spoilt = True
        with pytest.raises(OutcomeUnknown, match="cannot be read back"):
            await shared.put("a", 2, timeout_seconds=60)
        grants = log.grants
        for _ in range(3):
            with pytest.raises(UnreadableEntry):
                await shared.put("b", 1)
        assert log.grants == grants
        assert await shared.get("a") == 1


async def test_a_watcher_gets_an_error_after_the_changes_before_it() -> None:
    log = MemoryLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as shared, shared.watch() as watch:
        await shared.put("a", 1)
        waiting = asyncio.get_running_loop().create_task(_all(watch))
        await asyncio.sleep(0)
        await spoil(log)
        with pytest.raises(UnreadableEntry):
            await waiting
        async with shared.watch(initial=True) as late:  # so is who comes later
            change = await anext(late)
            assert (change.key, change.value) == ("a", 1)
            with pytest.raises(UnreadableEntry):
                await anext(late)


async def test_a_watcher_ends_when_the_map_is_closed() -> None:
    log = MemoryLog()
    async with asyncio.timeout(SECONDS_MAX):
        async with map_on(log) as shared:
            watch = shared.watch()
            await watch.__aenter__()
            waiting = asyncio.get_running_loop().create_task(_all(watch))
            await asyncio.sleep(0)
            await shared.put("a", 1)
        assert await waiting == [("a", 1)]
        with pytest.raises(Closed):
            await shared.watch().__aenter__()


async def _all(watch: Any) -> list[tuple[str, int | None]]:
    return [(change.key, change.value) async for change in watch]


async def test_a_watch_begins_with_the_whole_state_though_it_is_being_folded_again() -> None:
    log = ClosableLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as one, map_on(log) as other:
        for number in range(4):
            await one.put(str(number), number)
        assert await other.size(latest=True) == 4
        log.is_away = True  # nothing is folded anew yet
        other.state._replica.suspect()
        while log.refused == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        watch = other.watch(initial=True)
        entering = asyncio.get_running_loop().create_task(watch.__aenter__())
        await asyncio.sleep(0)
        log.is_away = False
        await entering
        seen = {(await anext(watch)).key for _ in range(4)}
        await watch.__aexit__(None, None, None)
    assert seen == {"0", "1", "2", "3"}


# ------------------------------------------------------------ checkpoints


class Brittle:
    """Its checkpoints were written by another version of the application."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def dump(self, state: int) -> Iterator[bytes]:
        yield b"%d" % state

    def load(self, chunks: Iterable[bytes]) -> int:
        raise self.error


@pytest.mark.parametrize("error", [KeyError("renamed"), StopIteration(), AttributeError("gone")])
async def test_a_checkpoint_that_does_not_load_is_left_out(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    log, store = MemoryLog(), CheckpointStore.in_memory()
    builder = counter(snapshots=Brittle(error))
    async with asyncio.timeout(SECONDS_MAX):
        async with builder.in_memory(log, store) as state:
            await state.write(lambda _value: [3], lambda value: value)
            await state.checkpoint()
        async with builder.in_memory(log, store) as state:
            assert await state.read(lambda value: value) == 3
    assert "a checkpoint does not count" in caplog.text


@pytest.mark.parametrize("is_behind", [True, False])
async def test_a_damaged_entry_among_the_checkpoints_is_left_out(*, is_behind: bool) -> None:
    log, companion = MemoryLog(), DamagedLog()
    store = CheckpointStore(companion)
    builder = counter(snapshots=Numbers())
    async with asyncio.timeout(SECONDS_MAX):
        async with builder.in_memory(log, store) as state:
            await state.write(lambda _value: [3], lambda value: value)
            if not is_behind:
                await spoil(companion)
            await state.checkpoint()
            if is_behind:
                await spoil(companion)
            else:
                await append(companion, [LogMessage(b"so that all is read")])
            await state.write(lambda _value: [4], lambda value: value)
        log.trim(log.entries[1].position)  # the checkpoint is needed
        async with builder.in_memory(log, store) as state:
            assert await state.read(lambda value: value) == 7


class Numbers:
    def dump(self, state: int) -> Iterator[bytes]:
        yield b"%d" % state

    def load(self, chunks: Iterable[bytes]) -> int:
        return int(b"".join(chunks))


async def test_a_checkpoint_is_read_back_in_time_or_does_not_count() -> None:
    companion = DamagedLog()
    builder = replace(
        counter(snapshots=Numbers()), checkpoints=Checkpoints(read_timeout_seconds=0.05)
    )
    async with builder.in_memory(MemoryLog(), CheckpointStore(companion)) as state:
        await state.write(lambda _value: [3], lambda value: value)
        companion.is_silent = True
        with pytest.raises(Unavailable, match="in time"):
            async with asyncio.timeout(SECONDS_MAX):
                await state.checkpoint()


# ------------------------------------------------------------ the client is closed first


async def test_a_state_whose_client_is_closed_stays_readable_and_reports_the_closure() -> None:
    log = ClosableLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as shared, shared.watch() as watch:
        await shared.put("a", 1)
        log.close()
        assert await _all(watch) == [("a", 1)]
        assert isinstance(shared.state.trouble, Closed)
        assert await shared.get("a") == 1
        with pytest.raises(Closed):
            await shared.put("a", 2)
        with pytest.raises(Closed):
            await shared.get("a", latest=True)


async def test_a_write_through_a_closed_client_reports_that_nothing_was_stored() -> None:
    log = ClosableLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as shared:
        log.is_closed = True  # its follower has not heard of it yet
        with pytest.raises(Closed):
            await shared.put("a", 1)
    assert log.entries == []
