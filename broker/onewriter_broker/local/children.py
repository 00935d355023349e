"""Child processes that do not outlive their parent, and how they are stopped.

Linux only ends them with the parent by itself (PR_SET_PDEATHSIG); elsewhere children watch their
parent in another way (supervisor.Heartbeat, the lock that an embedded server inherits).
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
    set_option = ctypes.CDLL(None, use_errno=True).prctl  # resolved here, not after the fork
    parent = os.getpid()

    def in_child() -> None:
        set_option(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the option was set

    return in_child


async def start_child(
    command: Sequence[str], *, pass_descriptors: Sequence[int] = (), death_signal: signal.Signals
) -> Process:
    """Start a program in a process group of its own, so that Ctrl-C reaches the parent alone.

    ``death_signal`` is sent to it when the calling thread, which must be the main one, ends. Raises
    OSError when the program cannot be started.
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
    """The processor time that a process and its threads have used; None where the system does not tell.

    Of Linux, which counts in hundredths of a second.
    """
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything; behind it come the state and numbers (proc(5)).
    fields = stat.rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal a child that may be gone already."""
    if process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            return  # it ended and is about to be reaped


async def stop_child(process: Process, grace_seconds: float) -> int:
    """Ask with SIGTERM, insist with SIGKILL after ``grace_seconds``; the return code."""
    send_signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_seconds):
            return await process.wait()
    except TimeoutError:
        send_signal(process, signal.SIGKILL)
        return await process.wait()
