"""Runs a command while a topic is led or resources are owned: the common part of ``lead`` and ``own``.

The command has a process group of its own, and receives the signals of this process. When the leadership or
ownership is lost, or no broker confirms it any more, the command and all its children are ended. The command does
not outlive this process.
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
"""The leadership or ownership was lost, or no broker confirmed it any more."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNAL_BASE = 128
"""As in a shell: this number plus that of the signal that ended the command or this process."""

CONFIRMATIONS_PER_LIMIT = 5
"""Number of confirmations that are requested within ``unconfirmed_seconds``."""
CONFIRM_SECONDS_MAX = 1.0

PR_SET_PDEATHSIG = 1
"""The option of prctl(2)."""

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

Wait = Callable[[], Awaitable[object]]


def supervising(what: str) -> Callable[[Command], Command]:
    """Add the options of a verb that runs a command; ``what`` completes the sentence "has confirmed that"."""
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
    """The reasons for the end of a command."""

    ITSELF = "the command ended"
    LOST = "it was lost"
    UNCONFIRMED = "no broker confirmed it"
    STOPPED = "onewriter received a signal"

    @property
    def is_loss(self) -> bool:
        """Whether the leadership or ownership is lost, or may be."""
        return self in {End.LOST, End.UNCONFIRMED}


class Stop:
    """Receives SIGTERM and SIGINT of this process. The first one counts."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._came = asyncio.Event()
        self._waiting: asyncio.Task[Any] | None = None
        loop = asyncio.get_running_loop()
        for which in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(which, self._on_signal, which)

    @property
    def exit_code(self) -> int:
        """The exit code of a process that a signal ended."""
        return EXIT_SIGNAL_BASE + (self.signal or 0)

    async def wait(self) -> None:
        """Wait for a signal."""
        await self._came.wait()

    async def unless(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return the result of ``work``; on a signal, also an earlier one, cancel it and return None."""
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

    def _on_signal(self, which: signal.Signals) -> None:
        self.signal = self.signal or which
        self._came.set()
        if self._waiting is not None:
            self._waiting.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A command and its end.

    ``grace_seconds``: time between SIGTERM and SIGKILL. ``unconfirmed_seconds``: the command is stopped after this
    time without a broker's confirmation; 0: never.
    """

    command: Sequence[str]
    service_url: str
    grace_seconds: float
    unconfirmed_seconds: float

    async def run(
        self, environment: Mapping[str, str], stop: Stop, *, lost: Wait, confirm: Wait
    ) -> tuple[End, int]:
        """Run the command until it ends; return the reason and the exit code, as a shell reports it.

        ``environment`` is added to this process's. ``lost`` waits for the loss of the leadership or ownership.
        ``confirm`` asks a broker, and raises OnewriterError if it is lost or the broker cannot be asked.
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
        """Confirm periodically; return when no broker has confirmed for too long, or after the loss."""
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
        """Send the signal to the command and its children, and wait up to the grace period for the end."""
        _kill(process, which)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.grace_seconds):
                await process.wait()


async def first_of(waits: Mapping[End, Wait]) -> End:
    """Return the first event; of several at once, the one that is first in ``waits``."""
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
    """Send a signal to the whole process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, which)


def _end_with_parent() -> Callable[[], None] | None:
    """Return a function for the command's process that lets the kernel kill it together with this process.

    It works on Linux only, and only for the command itself, not for its children.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent was killed already
            os._exit(EXIT_SIGNAL_BASE + signal.SIGKILL)

    return prepare
