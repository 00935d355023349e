"""``onewriter own RESOURCE...``: own resources, and run a command while they are owned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import click

from onewriter._errors import Fenced, OnewriterError, Refused
from onewriter._own.own import GENERATION_FIRST, Ownership, Ownerships
from onewriter.verbs.child import EXIT_LOST, Child, End, Stop, first_of, supervising
from onewriter.verbs.options import Connect, connecting, line, output

EXIT_DENIED = 1

_COMMAND = "onewriter.verbs.own.command"
"""Key of click's context.meta for the words after ``--``."""


class _WithCommand(click.Command):
    """Separates the words after ``--``, which click would add to the arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=_WithCommand, options_metavar="[OPTIONS]")
@click.argument("resources", nargs=-1, required=True)
@click.option(
    "--group",
    default="",
    help="The group that owns the resources; its name is the name of the subscription.",
)
@click.option(
    "--generation",
    type=int,
    default=GENERATION_FIRST,
    show_default=True,
    help="A higher generation than the owner's takes over; 0 always takes over, if permitted.",
)
@click.option(
    "--identity",
    default="",
    help="Name of this owner: a restarted process with the same name takes over.",
)
@click.option("--timeout-seconds", type=float, help="Timeout for the answers of all brokers.")
@supervising("this process owns the resources")
@output
@connecting
@click.pass_context
def own(context: click.Context, /, resources: tuple[str, ...], **given: Any) -> None:
    """Own RESOURCES as the only owner in a group: RESOURCE... [-- COMMAND].

    A resource is a full topic or partition name (persistent://...) or any other text. For each
    resource the command prints one line with its generation, or why it was denied.

    Without COMMAND, onewriter owns the resources until it is stopped, or until it loses one of them.

    COMMAND runs only if onewriter owns all resources. COMMAND runs in its own process group. Its
    environment has ONEWRITER_GENERATIONS (in the order of the resources, separated by commas) and
    ONEWRITER_GROUP. When a resource is lost, onewriter sends SIGTERM to COMMAND, and SIGKILL after the
    grace period. When COMMAND ends, the other processes of its group get the same signals. onewriter
    passes SIGTERM and SIGINT on to COMMAND, waits for its end, and releases all resources. If onewriter
    is killed, COMMAND is killed too (Linux).

    \b
    Exit codes: COMMAND's own (128 + N when signal N ended it), and
      1    a resource was denied
      2    wrong usage
      3    no broker answered in time
      120  an ownership was lost
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
        self._child = Child(
            command=command,
            service_url=connect.service_url,
            grace_seconds=grace_seconds,
            unconfirmed_seconds=unconfirmed_seconds,
        )
        self._connect = connect
        self._group = group
        self._generation = generation
        self._identity = identity
        self._timeout_seconds = timeout_seconds
        self._is_json = output == "json"

    async def run(self) -> int:
        """Return the exit code. Raises OnewriterError if no broker answered."""
        stop = Stop()
        async with self._connect.client() as client, contextlib.AsyncExitStack() as stack:
            requested = client.own(
                self._group or None,
                [(resource, self._generation) for resource in self._resources],
                identity=self._identity,
                timeout_seconds=self._timeout_seconds,
            )
            owned = await stop.unless(stack.enter_async_context(requested))
            return stop.exit_code if owned is None else await self._use(owned, stop)

    async def _use(self, owned: Ownerships, stop: Stop) -> int:
        for each in owned:
            self._print(each)
        ends = [each.end for each in owned if each.end is not None]
        if any(isinstance(end, Refused) for end in ends):
            return EXIT_DENIED
        if ends:
            raise ends[0]
        if self._child.command:
            end, code = await self._serve(owned, stop)
        else:
            code = 0
            end = await first_of({End.LOST: lambda: _lost(owned), End.STOPPED: stop.wait})
        if end.is_loss:
            self._print_lost(owned, end)
            return EXIT_LOST
        return code

    async def _serve(self, owned: Ownerships, stop: Stop) -> tuple[End, int]:
        """Run the command while all resources are owned."""
        environment = {
            "ONEWRITER_GROUP": self._group,
            "ONEWRITER_GENERATIONS": ",".join(str(each.generation) for each in owned),
        }
        return await self._child.run(
            environment,
            stop,
            lost=lambda: _lost(owned),
            confirm=lambda: owned.confirm(list(owned)),
        )

    def _print(self, ownership: Ownership) -> None:
        end = ownership.end
        if self._is_json:
            facts: dict[str, Any] = {"resource": ownership.resource, "group": ownership.group}
            if end is None:
                line({**facts, "generation": ownership.generation})
                return
            line({**facts, "error": str(end), "currentGeneration": _current(end)})
            return
        text = f"denied: {end}" if end is not None else f"generation {ownership.generation}"
        click.echo(f"{ownership.resource}: {text}")

    def _print_lost(self, owned: Ownerships, end: End) -> None:
        lost = [each for each in owned if each.end is not None]
        if not lost:
            self._print_loss({}, end.value)
        for each in lost:
            current = _current(each.end)
            self._print_loss(
                {"resource": each.resource, "currentGeneration": current}, str(each.end)
            )

    def _print_loss(self, facts: dict[str, Any], reason: str) -> None:
        """Print an event on standard error; standard output is the command's."""
        if self._is_json:
            line({"event": "lost", **facts, "error": reason}, to_errors=True)
        else:
            click.echo(f"onewriter: lost {facts.get('resource', 'all')}: {reason}", err=True)


def _current(end: OnewriterError | None) -> int | None:
    return end.current_epoch if isinstance(end, Fenced) else None


async def _lost(owned: Ownerships) -> None:
    """Wait until one of the ownerships is over."""
    over = asyncio.Event()
    for each in owned:
        each.lost.call(lambda _reason: over.set())
    await over.wait()
