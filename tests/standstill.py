"""A machine that is suspended for a while in the middle of every test: ``make standstill``.

A plugin of pytest (``-p tests.standstill``). The clocks of the process jump ahead in each test between two ticks of
its event loop, as if a virtual machine had been suspended for some seconds: everything scheduled up to then is due at
once, and the actions of other processes have not happened. Or the same seconds pass over several ticks, as on a
machine that gives the process a little time now and then. ``ONEWRITER_SEED`` chooses the ticks, so a failure can be
repeated with its seed. ``ONEWRITER_TICK`` sets one tick for all tests: the first forty, one after the other, find what
depends on two steps that usually follow each other at once. Tests on a virtual clock are not affected.
"""

from __future__ import annotations

import asyncio.base_events
import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

SECONDS = float(os.environ.get("ONEWRITER_STANDSTILL_SECONDS", "2.5"))
"""Duration of the suspension."""

SEED = os.environ.get("ONEWRITER_SEED", "0")

TICK = int(os.environ.get("ONEWRITER_TICK", "0"))
"""The tick of the loop at which the clocks jump at once; 0: the seed chooses."""

ROUNDS_MAX = 400
"""The latest tick of the loop at which it begins; early ones are as likely as all late ones together."""


JUMPS = (1, 10, 50)
"""The number of ticks over which the seconds pass: at once, or a part of them in each."""


class Standstill:
    """The clocks of this process, and the times of their jumps."""

    def __init__(self) -> None:
        self._first = self._jumps = self._rounds = 0
        self._ahead_seconds = 0.0
        for name in ("monotonic", "perf_counter", "time"):
            setattr(time, name, self._ahead(getattr(time, name)))
        for name in ("monotonic_ns", "time_ns"):
            setattr(time, name, self._ahead_ns(getattr(time, name)))
        self._watch_loops()

    def begin(self, first: int, jumps: int) -> None:
        """From tick ``first`` on (the next is 1) the clocks jump ``jumps`` times."""
        self._first, self._jumps, self._rounds = first, jumps, 0

    def end(self) -> None:
        """Stop the jumps."""
        self._jumps = 0

    def _ahead(self, clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() + self._ahead_seconds

    def _ahead_ns(self, clock: Callable[[], int]) -> Callable[[], int]:
        return lambda: clock() + int(self._ahead_seconds * 1e9)

    def _watch_loops(self) -> None:
        loops = asyncio.base_events.BaseEventLoop
        run_once = loops._run_once  # type: ignore[attr-defined]  # nothing public sees a round

        def round_of(loop: asyncio.base_events.BaseEventLoop) -> None:
            self._rounds += 1
            if self._first <= self._rounds < self._first + self._jumps:
                self._ahead_seconds += SECONDS / self._jumps
            run_once(loop)

        loops._run_once = round_of  # type: ignore[attr-defined]


_STANDSTILL = Standstill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    chance = random.Random(SEED + item.nodeid)
    first, jumps = int(ROUNDS_MAX ** chance.random()), chance.choice(JUMPS)
    if TICK:
        first, jumps = TICK, 1
    _STANDSTILL.begin(first, jumps)
    item.add_report_section("call", "standstill", f"from round {first} on, in {jumps} rounds")
    try:
        yield
    finally:
        _STANDSTILL.end()
