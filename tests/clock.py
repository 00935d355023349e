"""Time that passes when a test advances it."""

from __future__ import annotations

import asyncio


def skip(seconds: float) -> None:
    """Advance the time of the running loop at once, so that all waits up to then are due.

    For tests of time limits: the limit is long, so that everything that must happen before it has happened on a
    machine of any speed. Then the test skips the remaining time.
    """
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]
