"""``onewriter lead TOPIC -- COMMAND``: a command that runs only while we lead.

What ``flock`` and ``consul lock`` do, with a fence: the command knows the epoch that it runs under,
and whatever it publishes under it is refused once another leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import enum
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from onewriter._client import Client
from onewriter._errors import OnewriterError, Unavailable
from onewriter._leadership import Leadership
from onewriter.verbs.options import SERVICE_URL_VARIABLE, Connect, connecting, line, output

EXIT_LOST = 120
"""We were deposed, or nobody confirmed that we lead, while the command ran."""
EXIT_NOT_LED = 121
"""It was not our turn in the time that was given."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNAL_BASE = 128
"""As in a shell: and the number of the signal that ended the command, or us."""

CONFIRMATIONS_PER_LIMIT = 5
"""How often a broker is asked in the time after which the command is stopped for want of an answer."""
CONFIRM_SECONDS_MAX = 1.0

PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""

HANDOVER_SECONDS = 5.0
"""For leaving; a broker that is away finds out by itself."""


class _End(enum.Enum):
    """Why a command does not run any more."""

    ITSELF = "it ended"
    LOST = "the leadership was lost"
    UNCONFIRMED = "no broker confirmed that we lead"
    STOPPED = "we were asked to stop"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("topic")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--priority", type=int, help="Place in the waiting line, higher first.")
@click.option("--identity", default="", help="Who we are, for others. Default: the host name.")
@click.option("--metadata", help="What a successor needs, published at the takeover.")
@click.option(
    "--announce/--no-announce", default=True, show_default=True, help="Publish who leads."
)
@click.option(
    "--timeout-seconds", type=float, help="To become the leader. Default: as long as it takes."
)
@click.option(
    "--once/--again",
    default=True,
    show_default=True,
    help="After a loss: end, or wait for the next turn and run the command anew.",
)
@click.option(
    "--grace-seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="From SIGTERM to SIGKILL.",
)
@click.option(
    "--unconfirmed-seconds",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Stop the command when no broker has confirmed for so long that we lead; 0: never.",
)
@output
@connecting
@click.pass_context
def lead(context: click.Context, /, **given: Any) -> None:
    r"""Wait until we lead TOPIC, run COMMAND, and hand over when it ends.

    COMMAND runs in a process group of its own, with ONEWRITER_TOPIC, ONEWRITER_EPOCH and
    ONEWRITER_SESSION in its environment. When the leadership is lost it gets SIGTERM, and SIGKILL
    after the grace; so does what is left of its group when it ends. SIGTERM and SIGINT that we get are
    passed on to it, then we hand over. If we are killed, it is killed (Linux).

    \b
    Exit codes: COMMAND's own (128 + N when signal N ended it), and
      1    refused, there is no claim
      2    wrong usage
      120  the leadership was lost while COMMAND ran
      121  not the leader within --timeout-seconds
      126  COMMAND cannot be executed
      127  COMMAND is not found
    """

    async def whole() -> int:
        return await _Leading(**given).run()

    code = asyncio.run(whole())
    context.exit(code)


class _Leading:
    """One run of the command line."""

    def __init__(
        self,
        *,
        connect: Connect,
        topic: str,
        command: Sequence[str],
        once: bool,
        grace_seconds: float,
        unconfirmed_seconds: float,
        output: str,
        **asked: Any,
    ) -> None:
        self._connect = connect
        self._topic = topic
        self._command = command
        self._is_once = once
        self._grace_seconds = grace_seconds
        self._unconfirmed_seconds = unconfirmed_seconds
        self._is_json = output == "json"
        self._asked = asked
        self._signal: signal.Signals | None = None
        self._signalled = asyncio.Event()
        self._waiting: asyncio.Task[Any] | None = None

    async def run(self) -> int:
        """The exit code. Raises OnewriterError when it never came to leading."""
        loop = asyncio.get_running_loop()
        for which in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(which, self._asked_to_stop, which)
        async with self._connect.client() as client:
            while True:
                async with contextlib.AsyncExitStack() as stack:
                    leadership = await self._win(client, stack)
                    if leadership is None:
                        return EXIT_NOT_LED if self._signal is None else _exit_code(-self._signal)
                    self._tell("leading", epoch=leadership.epoch, session=leadership.session)
                    end, code = await self._serve(leadership)
                is_over = end in {_End.ITSELF, _End.STOPPED}
                self._tell("ended" if is_over else "lost", reason=end.value, code=code)
                if is_over:
                    return code
                if self._is_once:
                    return EXIT_LOST

    async def _win(self, client: Client, stack: contextlib.AsyncExitStack) -> Leadership | None:
        """Wait for our turn; None when the time is over, or a signal came."""
        self._waiting = asyncio.current_task()
        try:
            return await stack.enter_async_context(
                client.lead(self._topic, handover_timeout_seconds=HANDOVER_SECONDS, **self._asked)
            )
        except asyncio.CancelledError:
            if self._signal is None or self._waiting is None:
                raise
            self._waiting.uncancel()
            return None
        except Unavailable as error:
            if self._asked["timeout_seconds"] is None:
                raise
            self._tell("not-led", reason=str(error))
            return None
        finally:
            self._waiting = None

    async def _serve(self, leadership: Leadership) -> tuple[_End, int]:
        """Run the command for as long as we lead."""
        if self._signal is not None:
            return _End.STOPPED, _exit_code(-self._signal)
        environment = {
            **os.environ,
            "ONEWRITER_TOPIC": leadership.topic,
            "ONEWRITER_EPOCH": str(leadership.epoch),
            "ONEWRITER_SESSION": leadership.session,
            SERVICE_URL_VARIABLE: self._connect.service_url,
        }
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                process_group=0,
                preexec_fn=_end_with_parent(),
            )
        except OSError as error:
            click.echo(f"onewriter: {self._command[0]}: {error.strerror}", err=True)
            is_missing = isinstance(error, FileNotFoundError)
            return _End.ITSELF, EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE
        try:
            end = await self._until_over(child, leadership)
            if end is not _End.ITSELF:
                await self._stop(child, self._signal or signal.SIGTERM)
        finally:
            _kill(child, signal.SIGKILL)
        return end, _exit_code(await child.wait())

    async def _until_over(self, child: asyncio.subprocess.Process, leadership: Leadership) -> _End:
        """What happened first; the command's own end before everything else."""
        async with asyncio.TaskGroup() as tasks:
            waits: dict[asyncio.Task[Any], _End] = {
                tasks.create_task(child.wait()): _End.ITSELF,
                tasks.create_task(leadership.lost.wait()): _End.LOST,
                tasks.create_task(self._signalled.wait()): _End.STOPPED,
            }
            if self._unconfirmed_seconds:
                waits[tasks.create_task(self._until_unconfirmed(leadership))] = _End.UNCONFIRMED
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
        return next(end for each, end in waits.items() if each in done)

    async def _until_unconfirmed(self, leadership: Leadership) -> None:
        """Ask again and again; returns when no broker confirmed for too long, or it is over."""
        limit = self._unconfirmed_seconds
        pause = min(limit / CONFIRMATIONS_PER_LIMIT, CONFIRM_SECONDS_MAX)
        while True:
            try:
                async with asyncio.timeout(limit):
                    await leadership.producer.verify()
            except (TimeoutError, OnewriterError):
                return
            await asyncio.sleep(pause)

    async def _stop(self, child: asyncio.subprocess.Process, which: signal.Signals) -> None:
        """Ask it and everything that it started to end; after the grace nobody asks any more."""
        _kill(child, which)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_seconds):
                await child.wait()

    def _asked_to_stop(self, which: signal.Signals) -> None:
        self._signal = self._signal or which
        self._signalled.set()
        if self._waiting is not None:
            self._waiting.cancel()

    def _tell(self, event: str, **facts: Any) -> None:
        """On the error stream: the other one is the command's."""
        if self._is_json:
            line({"event": event, "topic": self._topic, **facts}, to_errors=True)
        else:
            said = ", ".join(f"{name} {value}" for name, value in facts.items())
            click.echo(f"onewriter: {event}: {said}", err=True)


def _kill(child: asyncio.subprocess.Process, which: signal.Signals) -> None:
    """The whole group, as far as it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, which)


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


def _exit_code(returned: int) -> int:
    return returned if returned >= 0 else EXIT_SIGNAL_BASE - returned
