"""Child processes that end with their parent.

Only Linux can do this itself (PR_SET_PDEATHSIG). On other systems, children watch their parent in another way
(supervisor.Heartbeat, or the lock that an embedded server inherits).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _dies_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    set_option = ctypes.CDLL(None, use_errno=True).prctl  # loaded here, not after the fork
    parent = os.getpid()

    def in_child() -> None:
        set_option(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the option was set

    return in_child


async def start_child(
    command: Sequence[str], *, pass_descriptors: Sequence[int] = (), death_signal: signal.Signals
) -> Process:
    """Start a program in its own process group, so that Ctrl-C reaches only the parent.

    The kernel sends ``death_signal`` to it when the calling thread, which must be the main thread, ends.
    Raises OSError if the program cannot be started.
    """
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=pass_descriptors,
        process_group=0,
        # One system call between fork and exec; the parent is a small process without busy threads.
        preexec_fn=_dies_with_parent(death_signal),
    )


def processor_seconds(process_id: int) -> float | None:
    """The processor time of a process and its threads; None on systems that do not report it.

    Linux reports it in hundredths of a second.
    """
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may contain anything; the state and numbers follow it (proc(5)).
    fields = stat.rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def send_signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a child, which may have ended."""
    if process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            return  # it ended and is about to be reaped


async def stop_child(process: Process, grace_seconds: float) -> int:
    """Send SIGTERM, and SIGKILL after ``grace_seconds``; returns the exit code."""
    send_signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_seconds):
            return await process.wait()
    except TimeoutError:
        send_signal(process, signal.SIGKILL)
        return await process.wait()
