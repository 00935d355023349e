"""Event loops in threads of their own, for tests that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Final

ANSWER_SECONDS_MAX: Final = 120.0
"""Time limit for a call into such a loop, on a busy machine."""


def end_loop(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, leaving: Awaitable[object]
) -> None:
    """Wait for ``leaving`` in the loop, cancel its other tasks, and end loop and thread.

    A task that is pending when its loop is closed can fail when it is collected: in whichever test runs then.
    """

    async def ended() -> None:
        await leaving
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(ended(), loop).result(ANSWER_SECONDS_MAX)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(ANSWER_SECONDS_MAX)
    loop.close()
