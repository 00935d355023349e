"""The fleet's delays, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from onewriter_operator.brokers import delays
from onewriter_operator.brokers.delays import Backoff, Debounce

pytestmark = pytest.mark.looptime


async def waited(gathering: Debounce) -> float:
    """The present time for which changes are collected."""
    now = asyncio.get_running_loop().time
    started = now()
    await gathering.wait()
    return now() - started


async def test_a_change_after_a_pause_is_sent_soon_even_if_the_last_send_was_slow() -> None:
    gathering = Debounce()
    assert await waited(gathering) == pytest.approx(delays.GATHER_SECONDS_MIN)
    gathering.took(60.0)
    await asyncio.sleep(delays.GATHER_SECONDS_MAX)
    assert await waited(gathering) == pytest.approx(delays.GATHER_SECONDS_MIN)


async def test_in_a_burst_what_it_costs_decides_up_to_a_bound() -> None:
    gathering = Debounce()
    gathering.took(0.1)
    gathering.took(0.02)  # another broker, at the same time: the slowest counts
    assert await waited(gathering) == pytest.approx(0.1 * delays.GATHER_SHARE)
    gathering.took(60.0)
    assert await waited(gathering) == pytest.approx(delays.GATHER_SECONDS_MAX)


async def test_attempts_are_ever_further_apart_up_to_a_bound() -> None:
    pause = Backoff()
    seconds = [pause.longer() for _ in range(20)]
    assert seconds[0] <= delays.RETRY_SECONDS_MIN
    assert delays.RETRY_SECONDS_MAX / 2 <= seconds[-1] <= delays.RETRY_SECONDS_MAX
    pause.reset()
    assert pause.longer() <= delays.RETRY_SECONDS_MIN
