"""Events from kopf's thread reach the operator's loop: all of them, in order, with any timing."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from onewriter_operator.engine import Engine, EngineFailed, Handover

Json = dict[str, Any]


async def arrive(count: int, handover: Handover, taken: list[int]) -> None:
    """Wait until this number of events, delivered by another thread, has been taken in."""

    async def deliver() -> None:
        for number in range(count):
            await handover.deliver("ADDED", {"n": number})
            if number % 7 == 0:
                await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: asyncio.run(deliver()))
    thread.start()
    async with asyncio.timeout(60):
        while len(taken) < count:  # noqa: ASYNC110 - another thread fills it
            await asyncio.sleep(0.01)
    await asyncio.to_thread(thread.join)


async def test_no_event_is_lost_by_a_slow_reader() -> None:
    taken: list[int] = []

    def intake(kind: str, document: Json) -> None:
        time.sleep(0.0005)  # the other thread runs meanwhile, and finds events still in line
        taken.append(document["n"])

    await arrive(2_000, Handover(intake, asyncio.get_running_loop()), taken)
    assert taken == list(range(2_000))


async def test_the_line_is_bounded() -> None:
    taken: list[int] = []
    longest = 0

    def intake(kind: str, document: Json) -> None:
        nonlocal longest
        longest = max(longest, len(handover._waiting))
        taken.append(document["n"])

    handover = Handover(intake, asyncio.get_running_loop(), waiting_max=5, full_seconds=0.001)
    await arrive(500, handover, taken)
    assert taken == list(range(500))
    assert longest <= 5


async def test_an_event_that_fails_holds_back_no_other() -> None:
    taken: list[int] = []

    def intake(kind: str, document: Json) -> None:
        if document["n"] == 3:
            taken.append(-1)
            raise KeyError("metadata")
        taken.append(document["n"])

    await arrive(10, Handover(intake, asyncio.get_running_loop()), taken)
    assert taken == [0, 1, 2, -1, 4, 5, 6, 7, 8, 9]


async def test_other_tasks_run_while_many_events_are_queued() -> None:
    loop = asyncio.get_running_loop()
    taken: list[int] = []
    between: list[int] = []
    handover = Handover(lambda _, document: taken.append(document["n"]), loop, batch_max=10)
    for number in range(25):
        await handover.deliver("ADDED", {"n": number})
    while len(taken) < 25:
        await asyncio.sleep(0)
        between.append(len(taken))
    assert between[:3] == [10, 20, 25]


async def test_an_engine_that_ends_by_itself_reports_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends(*, stop_flag: threading.Event, **_: Any) -> None:
        """Fail as kopf does, which waits for the flag in a thread."""
        waits = asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
        await asyncio.sleep(0)
        waits.cancel()
        raise RuntimeError("no more")

    monkeypatch.setattr("kopf.operator", ends)
    with pytest.raises(EngineFailed, match="no more"):
        async with asyncio.timeout(60):
            await Engine(lambda *_: None, None).run()
