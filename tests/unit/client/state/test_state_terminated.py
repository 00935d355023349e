"""Shared state on a terminated log: writes in flight are decided, further ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.unit.client.fake_broker import begin

from onewriter import Refused
from onewriter.state import MemoryLog, SharedMap, StateLimits
from onewriter.state.memory import MemoryGrant
from onewriter_core.errors import ServerError

LIMITS = StateLimits(timeout_seconds=20)
SECONDS_MAX = 60.0


class MortalLog(MemoryLog):
    """Nobody may append any more once it is terminated."""

    is_terminated = False

    async def acquire(self, on_change: Callable[[], None]) -> MemoryGrant:
        if self.is_terminated:
            raise Refused(ServerError.TOPIC_TERMINATED_ERROR, "Topic was already terminated")
        return await super().acquire(on_change)

    def terminate(self) -> None:
        self.is_terminated = True
        self.fence()


def map_on(log: MemoryLog) -> SharedMap[str, int]:
    return SharedMap.in_memory(str, int, log=log, limits=LIMITS)


async def refused(shared: SharedMap[str, int]) -> None:
    with pytest.raises(Refused) as caught:
        await shared.put("late", 1)
    assert caught.value.code is ServerError.TOPIC_TERMINATED_ERROR


async def test_writes_are_refused_and_reads_continue() -> None:
    log = MortalLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as ours, map_on(log) as other:
        await ours.put("a", 1)
        log.terminate()
        for shared in (ours, other):
            await refused(shared)  # the first one still believes to have the log
            assert await shared.get("a", latest=True) == 1


@pytest.mark.parametrize("is_lost", [False, True])
async def test_writes_in_flight_at_a_termination_are_stored_or_refused(*, is_lost: bool) -> None:
    """Its answer was lost; the log's end, which is final, tells."""
    log = MortalLog()
    async with asyncio.timeout(SECONDS_MAX), map_on(log) as shared:
        await shared.put("a", 1)
        log.lose_answers(loses_entries=is_lost)
        writing = begin(shared.update("a", lambda value: (value or 0) + 1))
        log.is_terminated = True
        if is_lost:
            with pytest.raises(Refused, match="terminated"):
                await writing
        else:
            assert await writing == 2
        assert await shared.get("a", latest=True) == (1 if is_lost else 2)
        await refused(shared)
