"""Checkpoints: their content, their validity, and opening from them during takeovers."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.state.campaign import Campaign, fold

from onewriter.state import (
    Checkpoints,
    CheckpointStore,
    MapSnapshots,
    MemoryLog,
    SharedMap,
    StateGap,
    StateLimits,
)
from onewriter.state.checkpoints import Closing, Collector, Stored
from onewriter.state.fold import Base, Fold
from onewriter.state.log import LogEntry, LogMessage
from onewriter.state.map_content import MapContent

RECOVERIES = int(os.environ.get("ONEWRITER_ROUNDS", "10"))
LIMITS = StateLimits(timeout_seconds=20, tenure_seconds_min=0.005)
ALWAYS = Checkpoints(writes=1, seconds_min=0.001)
NEVER = Checkpoints(writes=10**9)


class Logs:
    """A log and its checkpoints."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.store = CheckpointStore.in_memory()

    @property
    def checkpoint_topic(self) -> MemoryLog:
        assert isinstance(self.store.checkpoint_topic, MemoryLog)
        return self.store.checkpoint_topic

    def map(self, policy: Checkpoints = NEVER, limits: StateLimits = LIMITS) -> SharedMap[str, int]:
        return SharedMap.in_memory(
            str,
            int,
            log=self.log,
            checkpoint_store=self.store,
            checkpoints=policy,
            limits=limits,
        )

    async def stored(self) -> Stored:
        newest = (await self.store.newest()).newest
        assert newest is not None
        return newest


async def test_a_checkpoint_replaces_the_log_before_it() -> None:
    logs = Logs()
    async with logs.map() as shared:
        for number in range(100):
            await shared.put(str(number % 30), number)
        await shared.state.checkpoint()
        for number in range(5):
            await shared.put(str(number), -number)
        expected = await shared.scan(dict)
        version = shared.state.version
    logs.log.trim((await logs.stored()).closing.position)
    async with logs.map() as again:
        assert await again.scan(dict, latest=True) == expected
        assert again.state.version == version
        await again.put("new", 1)
    async with logs.map() as again:
        assert await again.scan(dict) == expected | {"new": 1}


async def test_the_current_writer_writes_checkpoints_when_they_are_due() -> None:
    logs = Logs()
    policy = Checkpoints(writes=20, seconds_min=0.001)
    async with logs.map(policy) as shared:
        for _ in range(3):
            for number in range(30):
                await shared.put(str(number), number + shared.state.version)
            due = shared.state.version
            async with asyncio.timeout(60):
                while (await logs.store.newest()).newest is None or (  # noqa: ASYNC110
                    await logs.stored()
                ).closing.version <= due - policy.writes:
                    await asyncio.sleep(0.002)
    assert (await logs.stored()).closing.version > due - policy.writes


async def test_a_cut_after_the_newest_checkpoint_is_a_gap() -> None:
    logs = Logs()
    async with logs.map() as shared:
        await shared.put("a", 1)
        await shared.state.checkpoint()
        await shared.put("b", 1)
        await shared.put("c", 1)
    logs.log.trim(logs.log.entries[-1].position)
    with pytest.raises(StateGap):
        async with logs.map():
            pass


async def test_entries_that_are_missing_far_after_a_checkpoint_are_a_gap() -> None:
    logs = Logs()
    async with logs.map() as shared:
        for number in range(10):
            await shared.put("a", number)
            if number == 2:
                await shared.state.checkpoint()
    del logs.log.entries[6:8]
    behind = logs.log.entries[6].position
    for _ in range(2):
        with pytest.raises(StateGap) as gap:
            async with logs.map():
                pass
        assert gap.value.position == behind
        logs.log.trim(logs.log.entries[2].position)


async def test_an_empty_log_with_a_checkpoint_is_a_gap() -> None:
    logs = Logs()
    async with logs.map() as shared:
        await shared.put("a", 1)
        await shared.state.checkpoint()
    logs.log.entries.clear()
    with pytest.raises(StateGap, match="without its checkpoints"):
        async with logs.map():
            pass


async def test_a_log_that_is_emptied_under_a_map_is_a_gap() -> None:
    logs = Logs()
    async with logs.map() as shared:
        await shared.put("a", 1)
        logs.log.entries.clear()
        with pytest.raises(StateGap, match="nothing any more"):
            await shared.get("a", latest=True)


async def test_a_checkpoint_newer_than_the_log_is_reported_and_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = Logs()
    async with logs.map() as shared:
        await shared.put("a", 1)
        await shared.put("a", 2)
        await shared.state.checkpoint()
    logs.log.lose_tail(1)
    with caplog.at_level(logging.WARNING, "onewriter"):
        async with logs.map() as again:
            assert await again.scan(dict, latest=True) == {"a": 1}
    assert "newer than the log" in caplog.text


async def test_a_checkpoint_of_entries_that_were_lost_and_overtaken_does_not_count() -> None:
    logs = Logs()
    async with logs.map() as shared:
        for number in range(5):
            await shared.put("a", number)
        await shared.state.checkpoint()
    logs.log.lose_tail(3)
    without = SharedMap.in_memory(str, int, log=logs.log, limits=LIMITS)
    async with without as overtaking:
        for number in range(10):
            await overtaking.put("b", number)
    async with logs.map() as again:
        assert await again.scan(dict, latest=True) == {"a": 1, "b": 9}


@pytest.mark.parametrize("kind", ["cut chunk", "lost chunk", "no closing", "garbage", "wrong hash"])
async def test_a_damaged_checkpoint_is_left_out_for_the_one_before(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs = Logs()
    async with logs.map() as shared:
        await shared.put("a", 1)
        await shared.state.checkpoint()
        good = await logs.stored()
        await shared.put("b", 2)
        await shared.state.checkpoint()
    entries = logs.checkpoint_topic.entries
    chunk, closing = entries[-2], entries[-1]
    content = chunk.messages[0].content
    match kind:
        case "cut chunk":
            entries[-2] = LogEntry(chunk.position, (LogMessage(content[:-1]),))
        case "lost chunk":
            del entries[-2]
        case "no closing":
            del entries[-1]
        case "garbage":
            entries[-1] = LogEntry(closing.position, (LogMessage(b"what is this?"),))
        case _:
            entries[-2] = LogEntry(chunk.position, (LogMessage(content[:-1] + b"!"),))
    with caplog.at_level(logging.WARNING, "onewriter"):
        assert (await logs.stored()).closing == good.closing
        async with logs.map() as again:
            assert await again.scan(dict, latest=True) == {"a": 1, "b": 2}
    assert ("does not count" in caplog.text) == (kind != "no closing")


async def test_opening_in_mid_takeover_gives_the_fold_of_the_log() -> None:
    """Each time: checkpoints being written, grants going round, and the log cut behind the newest."""
    logs = Logs()
    async with AsyncExitStack() as stack:
        maps = [await stack.enter_async_context(logs.map(ALWAYS)) for _ in range(2)]
        campaign = Campaign(maps, seed=1)
        whole: list[LogEntry] = []
        recovered = 0
        stop = asyncio.Event()

        async def recover() -> None:
            nonlocal recovered
            while recovered < RECOVERIES:
                await asyncio.sleep(0.005)
                logs.log.fence()
                async with logs.map() as again:
                    content, _ = again.state.present()
                    position = again.state._replica.fold.position
                    _remember(whole, logs.log.entries)
                    assert dict(content.items()) == fold(whole, position)
                newest = (await logs.store.newest()).newest
                if newest is not None:
                    logs.log.trim(newest.closing.position)
                recovered += 1
            stop.set()

        async def write() -> None:
            while not stop.is_set():
                await campaign.play(40, _no_fault)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(recover())
    assert campaign.history.violations() == []
    await _every_checkpoint_is_the_fold(logs, whole)


async def _no_fault() -> None:
    return None


def _remember(whole: list[LogEntry], entries: list[LogEntry]) -> None:
    """Keep what is going to be cut."""
    last = whole[-1].position if whole else None
    whole += [entry for entry in entries if last is None or entry.position > last]


async def _every_checkpoint_is_the_fold(logs: Logs, whole: list[LogEntry]) -> None:
    """S10: snapshot(p) = fold(L[..p])."""
    checked = 0
    collector = Collector()
    for entry in logs.checkpoint_topic.entries:
        before = collector.newest
        collector.take(entry)
        newest = collector.newest
        if newest is not None and newest is not before:
            content = MapSnapshots().load(newest.chunks)
            if newest.closing.position <= whole[-1].position:
                assert dict(content.items()) == fold(whole, newest.closing.position)
                checked += 1
    assert checked > 0


@pytest.mark.parametrize("amount", [-1, 1])
async def test_mutant_snapshot_off_by_one(amount: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """M11: it says it covers one entry more, or one fewer, than it does."""
    base = Fold.base

    def off_by_one(self: Any) -> Base[Any]:
        true = base(self)
        ledger, number = true.position
        return Base(true.state, true.version, type(true.position)(ledger, number + amount))

    monkeypatch.setattr(Fold, "base", off_by_one)
    logs = Logs()
    async with logs.map() as shared:
        for number in range(5):
            await shared.put("a", number)
        await shared.state.checkpoint()
        await shared.put("a", 5)
    with pytest.raises(AssertionError):
        await _every_checkpoint_is_the_fold(logs, logs.log.entries)


def test_a_map_of_any_size_survives_its_chunks() -> None:
    snapshots = MapSnapshots()
    for size in (0, 1, 499, 500, 501, 60_000):
        content = MapContent({b"%d" % n: b"v" * (n % 40) for n in range(size)})
        chunks = list(snapshots.dump(content))
        assert dict(snapshots.load(chunks).items()) == dict(content.items())
        assert all(len(chunk) < 1024 * 1024 for chunk in chunks)


def test_large_values_make_chunks_that_fit_a_message() -> None:
    content = MapContent({b"%d" % n: bytes(100_000) for n in range(60)})
    assert max(map(len, MapSnapshots().dump(content))) < 1024 * 1024


@pytest.mark.parametrize("damage", [b"", b"OWM1", b"OWM1\x05\x00\x00\x00", b"nothing of ours"])
def test_a_chunk_that_is_none(damage: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        MapSnapshots().load([damage])


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"chunks": 1}', b"\xff"])
def test_a_closing_entry_that_is_none(body: bytes) -> None:
    with pytest.raises(ValueError):
        Closing.decode(body)
