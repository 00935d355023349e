"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio


def skip(seconds: float) -> None:
    """Let so many seconds pass at once for the running loop: all that waits for them is due.

    For what has a time limit: the limit is long, so that whatever the test needs before it ends has
    happened, however slow the machine is; then the test lets it pass.
    """
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]
