"""Running a command for as long as something is ours: what ``lead`` and ``own`` have in common.

The command has a process group of its own. It gets the signals that we get; it is ended, with all that
it started, once what it runs under is lost or not confirmed any more; and it does not outlive us.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import enum
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from onewriter._errors import OnewriterError
from onewriter.verbs.options import SERVICE_URL_VARIABLE

EXIT_LOST = 120
"""What the command ran under was lost, or nobody confirmed it any more."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNAL_BASE = 128
"""As in a shell: and the number of the signal that ended the command, or us."""

CONFIRMATIONS_PER_LIMIT = 5
"""How often brokers are asked in the time after which the command is stopped for want of an answer."""
CONFIRM_SECONDS_MAX = 1.0

PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

Wait = Callable[[], Awaitable[object]]


def supervising(what: str) -> Callable[[Command], Command]:
    """The options of a verb that runs a command while something is ours; ``what`` it is, after "that"."""
    grace = click.option(
        "--grace-seconds",
        type=click.FloatRange(min=0),
        default=10.0,
        show_default=True,
        help="Time between SIGTERM and SIGKILL.",
    )
    unconfirmed = click.option(
        "--unconfirmed-seconds",
        type=click.FloatRange(min=0),
        default=5.0,
        show_default=True,
        help=f"Stop the command if no broker has confirmed for this time that {what}; 0: never.",
    )
    return lambda command: grace(unconfirmed(command))


class End(enum.Enum):
    """Why a command does not run any more."""

    ITSELF = "it ended"
    LOST = "it was lost"
    UNCONFIRMED = "no broker confirmed it"
    STOPPED = "we were asked to stop"

    @property
    def is_loss(self) -> bool:
        """Whether what the command ran under is gone, or may be."""
        return self in {End.LOST, End.UNCONFIRMED}


class Stop:
    """SIGTERM and SIGINT that we get, from now on. The first one counts."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._came = asyncio.Event()
        self._waiting: asyncio.Task[Any] | None = None
        loop = asyncio.get_running_loop()
        for which in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(which, self._asked, which)

    @property
    def exit_code(self) -> int:
        """Of a process that a signal ended."""
        return EXIT_SIGNAL_BASE + (self.signal or 0)

    async def wait(self) -> None:
        """Wait until one came."""
        await self._came.wait()

    async def unless(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """What it gives; None when a signal came, now or before: then it is cancelled."""
        if self.signal is not None:
            work.close()
            return None
        task = self._waiting = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if self.signal is None or task is None:
                raise
            task.uncancel()
            return None
        finally:
            self._waiting = None

    def _asked(self, which: signal.Signals) -> None:
        self.signal = self.signal or which
        self._came.set()
        if self._waiting is not None:
            self._waiting.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A command, and how it is ended.

    ``grace_seconds``: from the signal that asks it to end to SIGKILL. ``unconfirmed_seconds``: it is
    stopped when no broker confirmed for so long what it runs under; 0: never.
    """

    command: Sequence[str]
    service_url: str
    grace_seconds: float
    unconfirmed_seconds: float

    async def run(
        self, environment: Mapping[str, str], stop: Stop, *, lost: Wait, confirm: Wait
    ) -> tuple[End, int]:
        """Run it until something ends it; what did, and the exit code, as a shell tells it.

        ``environment`` is added to ours. ``lost`` waits until what it runs under is gone; ``confirm``
        asks a broker whether it is, and raises OnewriterError when it is or cannot be asked.
        """
        if stop.signal is not None:
            return End.STOPPED, stop.exit_code
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                env={**os.environ, SERVICE_URL_VARIABLE: self.service_url, **environment},
                process_group=0,
                preexec_fn=_end_with_parent(),
            )
        except OSError as error:
            click.echo(f"onewriter: {self.command[0]}: {error.strerror}", err=True)
            is_missing = isinstance(error, FileNotFoundError)
            return End.ITSELF, EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE
        try:
            end = await first_of(
                {
                    End.ITSELF: process.wait,
                    End.LOST: lost,
                    End.STOPPED: stop.wait,
                    End.UNCONFIRMED: lambda: self._until_unconfirmed(confirm),
                }
            )
            if end is not End.ITSELF:
                await self._ask_to_end(process, stop.signal or signal.SIGTERM)
        finally:
            _kill(process, signal.SIGKILL)
        code = await process.wait()
        return end, code if code >= 0 else EXIT_SIGNAL_BASE - code

    async def _until_unconfirmed(self, confirm: Wait) -> None:
        """Ask again and again; returns when no broker confirmed for too long, or it is over."""
        limit = self.unconfirmed_seconds
        if not limit:
            await asyncio.Event().wait()
        while True:
            try:
                async with asyncio.timeout(limit):
                    await confirm()
            except (TimeoutError, OnewriterError):
                return
            await asyncio.sleep(min(limit / CONFIRMATIONS_PER_LIMIT, CONFIRM_SECONDS_MAX))

    async def _ask_to_end(self, process: asyncio.subprocess.Process, which: signal.Signals) -> None:
        """Ask it and everything that it started; after the grace nobody asks any more."""
        _kill(process, which)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.grace_seconds):
                await process.wait()


async def first_of(waits: Mapping[End, Wait]) -> End:
    """What happened first; of several at once the one that stands before the others."""
    async with asyncio.TaskGroup() as tasks:
        running = {tasks.create_task(_until(wait)): end for end, wait in waits.items()}
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        first = next(end for each, end in running.items() if each.done())
        for each in running:
            each.cancel()
    return first


async def _until(wait: Wait) -> None:
    await wait()


def _kill(process: asyncio.subprocess.Process, which: signal.Signals) -> None:
    """The whole group, as far as it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, which)


def _end_with_parent() -> Callable[[], None] | None:
    """Runs in the command's process before the command: if we are killed, it does not outlive us.

    Linux only, and only for the command itself; what it starts has to look after itself.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # killed already
            os._exit(EXIT_SIGNAL_BASE + signal.SIGKILL)

    return prepare
