"""``onewriter own RESOURCE...``: own resources, and run a command for as long as they are ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

import click

from onewriter._client import Client
from onewriter._errors import Fenced, OnewriterError, Refused
from onewriter._own import GENERATION_FIRST, Ownership, Ownerships
from onewriter.verbs.options import SERVICE_URL_VARIABLE, Connect, connecting, line, output

EXIT_DENIED = 1
EXIT_LOST = 120
"""An ownership was lost, or nobody confirmed it, while the command ran: as for ``lead``."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNAL_BASE = 128
"""As in a shell."""

CONFIRMATIONS_PER_LIMIT = 5
"""How often brokers are asked in the time after which the command is stopped for want of an answer."""
CONFIRM_SECONDS_MAX = 1.0

_COMMAND = "onewriter.verbs.own.command"
"""Of the context's meta: the words behind ``--``."""


class _WithCommand(click.Command):
    """Keeps what stands behind ``--``, which click would put among the arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=_WithCommand, options_metavar="[OPTIONS]")
@click.argument("resources", nargs=-1, required=True)
@click.option("--group", default="", help="The group that owns; its name is the subscription's.")
@click.option(
    "--generation",
    type=int,
    default=GENERATION_FIRST,
    show_default=True,
    help="A higher one than the owner's takes over; 0 always does, where that is permitted.",
)
@click.option("--identity", default="", help="Who we are: our next life takes over from us.")
@click.option("--timeout-seconds", type=float, help="Until every broker has answered.")
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
    help="Stop the command when no broker has confirmed for so long that we own; 0: never.",
)
@output
@connecting
@click.pass_context
def own(context: click.Context, /, resources: tuple[str, ...], **given: Any) -> None:
    """Own RESOURCES as the only one of a group: RESOURCE... [-- COMMAND].

    A resource is a full topic or partition name (persistent://...) or any other text. One line per
    resource says its generation, or why it was denied. Without COMMAND they are owned until we are
    stopped, or until one of them is lost. COMMAND runs in a process group of its own, only if all of
    them are ours, with ONEWRITER_GENERATIONS (in the order of the resources, by commas) and
    ONEWRITER_GROUP in its environment; when one is lost it gets SIGTERM, and SIGKILL after the grace.

    \b
    Exit codes: COMMAND's own (128 + N when signal N ended it), and
      1    one of the resources was denied
      2    wrong usage
      3    nobody answered in time
      120  an ownership was lost while COMMAND ran, or while we waited
      126  COMMAND cannot be executed
      127  COMMAND is not found
    """  # noqa: D301 - click looks for the character itself
    command = context.meta.get(_COMMAND, ())
    context.exit(asyncio.run(_Owning(resources, command, **given).run()))


class _Owning:
    """One run of the command line."""

    def __init__(
        self,
        resources: Sequence[str],
        command: Sequence[str],
        *,
        connect: Connect,
        group: str,
        generation: int,
        identity: str,
        timeout_seconds: float | None,
        grace_seconds: float,
        unconfirmed_seconds: float,
        output: str,
    ) -> None:
        self._resources = resources
        self._command = command
        self._connect = connect
        self._group = group
        self._generation = generation
        self._identity = identity
        self._timeout_seconds = timeout_seconds
        self._grace_seconds = grace_seconds
        self._unconfirmed_seconds = unconfirmed_seconds
        self._is_json = output == "json"
        self._signal: signal.Signals | None = None
        self._signalled = asyncio.Event()

    async def run(self) -> int:
        """The exit code. Raises OnewriterError when nobody answered."""
        loop = asyncio.get_running_loop()
        for which in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(which, self._asked_to_stop, which)
        async with self._connect.client() as client:
            return await self._run(client)

    async def _run(self, client: Client) -> int:
        wanted = [(resource, self._generation) for resource in self._resources]
        async with client.own(
            self._group or None,
            wanted,
            identity=self._identity,
            timeout_seconds=self._timeout_seconds,
        ) as owned:
            for each in owned:
                self._tell(each)
            ends = [each.end for each in owned if each.end is not None]
            if any(isinstance(end, Refused) for end in ends):
                return EXIT_DENIED
            if ends:
                raise ends[0]
            if not self._command:
                return await self._wait(owned)
            return await self._serve(owned)

    async def _wait(self, owned: Ownerships) -> int:
        """Own until we are stopped or one is lost."""
        if await self._first_of(_lost(owned), self._signalled.wait()) == 0:
            self._tell_lost(owned)
            return EXIT_LOST
        return 0

    async def _serve(self, owned: Ownerships) -> int:
        """Run the command for as long as all of it is ours."""
        environment = {
            **os.environ,
            "ONEWRITER_GROUP": self._group,
            "ONEWRITER_GENERATIONS": ",".join(str(each.generation) for each in owned),
            SERVICE_URL_VARIABLE: self._connect.service_url,
        }
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command, env=environment, process_group=0
            )
        except OSError as error:
            click.echo(f"onewriter: {self._command[0]}: {error.strerror}", err=True)
            is_missing = isinstance(error, FileNotFoundError)
            return EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE
        try:
            first = await self._first_of(
                child.wait(), _lost(owned), self._until_unconfirmed(owned), self._signalled.wait()
            )
            if first != 0:
                _kill(child, self._signal or signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._grace_seconds):
                        await child.wait()
        finally:
            _kill(child, signal.SIGKILL)
        code = await child.wait()
        if first in {1, 2}:
            self._tell_lost(owned)
            return EXIT_LOST
        return code if code >= 0 else EXIT_SIGNAL_BASE - code

    async def _first_of(self, *waits: Any) -> int:
        """Which of them came first; an earlier one before a later one."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(_until(each)) for each in waits]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            first = next(number for number, each in enumerate(running) if each.done())
            for each in running:
                each.cancel()
        return first

    async def _until_unconfirmed(self, owned: Ownerships) -> None:
        """Ask again and again; returns when nobody confirmed for too long, or it is over."""
        limit = self._unconfirmed_seconds
        if not limit:
            await asyncio.Event().wait()
        while True:
            try:
                async with asyncio.timeout(limit):
                    await owned.go_on(list(owned))
            except (TimeoutError, OnewriterError):
                return
            await asyncio.sleep(min(limit / CONFIRMATIONS_PER_LIMIT, CONFIRM_SECONDS_MAX))

    def _asked_to_stop(self, which: signal.Signals) -> None:
        self._signal = self._signal or which
        self._signalled.set()

    def _tell(self, ownership: Ownership) -> None:
        end = ownership.end
        if self._is_json:
            facts: dict[str, Any] = {"resource": ownership.resource, "group": ownership.group}
            if end is None:
                line({**facts, "generation": ownership.generation})
                return
            line({**facts, "error": str(end), "currentGeneration": _current(end)})
            return
        said = f"denied: {end}" if end is not None else f"generation {ownership.generation}"
        click.echo(f"{ownership.resource}: {said}")

    def _tell_lost(self, owned: Ownerships) -> None:
        for each in owned:
            if each.end is not None:
                if self._is_json:
                    facts = {"resource": each.resource, "currentGeneration": _current(each.end)}
                    line({"event": "lost", **facts, "error": str(each.end)}, to_errors=True)
                else:
                    click.echo(f"onewriter: lost {each.resource}: {each.end}", err=True)


def _current(end: OnewriterError) -> int | None:
    return end.current_epoch if isinstance(end, Fenced) else None


async def _until(wait: Any) -> None:
    await wait


async def _lost(owned: Ownerships) -> None:
    """Wait until one of them is over."""
    over = asyncio.Event()
    for each in owned:
        each.lost.call(lambda _reason: over.set())
    await over.wait()


def _kill(child: asyncio.subprocess.Process, which: signal.Signals) -> None:
    """The whole group, as far as it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, which)
