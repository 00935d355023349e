"""``onewriter lead TOPIC -- COMMAND``: run a command only while this process leads a topic.

It is like ``flock`` and ``consul lock``, with a fence: the command knows the epoch of the leadership, and what it
publishes under that epoch is rejected once another process leads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import click

from onewriter._client import Client
from onewriter._errors import Unavailable
from onewriter._lead.leadership import Leadership
from onewriter.verbs.child import EXIT_LOST, Child, End, Stop, supervising
from onewriter.verbs.options import Connect, connecting, line, output

EXIT_NOT_LED = 121
"""This process did not become the leader within the time limit."""

HANDOVER_SECONDS = 5.0
"""Time limit of the handover. A broker that is down detects the lost connection later."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("topic")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--priority", type=int, help="Priority in the queue, higher first.")
@click.option(
    "--identity", default="", help="Name of this candidate, for others. Default: the host name."
)
@click.option("--metadata", help="Data for the successor, published at the takeover.")
@click.option(
    "--announce/--no-announce", default=True, show_default=True, help="Publish who leads."
)
@click.option(
    "--timeout-seconds", type=float, help="Timeout for becoming the leader. Default: none."
)
@click.option(
    "--once/--again",
    default=True,
    show_default=True,
    help="After a loss: end, or queue again and run the command again.",
)
@supervising("this process leads")
@output
@connecting
@click.pass_context
def lead(context: click.Context, /, **given: Any) -> None:
    """Lead TOPIC, run COMMAND meanwhile, and hand over when it ends.

    COMMAND runs in its own process group, with ONEWRITER_TOPIC, ONEWRITER_EPOCH and
    ONEWRITER_SESSION in its environment. When the leadership is lost, it gets SIGTERM, and SIGKILL
    after the grace period. When it ends, the rest of its group gets the same signals. SIGTERM and
    SIGINT are passed on to COMMAND, and then the topic is handed over. If onewriter is killed, COMMAND
    is killed too (Linux).

    \b
    Exit codes: COMMAND's own (128 + N when signal N ended it), and
      1    refused, for example because no ProducerClaim allows it
      2    wrong usage
      120  the leadership was lost while COMMAND ran
      121  not the leader within --timeout-seconds
      126  COMMAND cannot be executed
      127  COMMAND is not found
    """  # noqa: D301 - click looks for the character itself

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
        **requested: Any,
    ) -> None:
        self._connect = connect
        self._topic = topic
        self._is_once = once
        self._child = Child(
            command=command,
            service_url=connect.service_url,
            grace_seconds=grace_seconds,
            unconfirmed_seconds=unconfirmed_seconds,
        )
        self._is_json = output == "json"
        self._asked = requested

    async def run(self) -> int:
        """Return the exit code. Raises OnewriterError if this process never led."""
        stop = Stop()
        async with self._connect.client() as client:
            while True:
                async with contextlib.AsyncExitStack() as stack:
                    leadership = await self._win(client, stack, stop)
                    if leadership is None:
                        return EXIT_NOT_LED if stop.signal is None else stop.exit_code
                    self._print("leading", epoch=leadership.epoch, session=leadership.session)
                    end, code = await self._serve(leadership, stop)
                self._print("lost" if end.is_loss else "ended", reason=end.value, code=code)
                if not end.is_loss:
                    return code
                if self._is_once:
                    return EXIT_LOST

    async def _win(
        self, client: Client, stack: contextlib.AsyncExitStack, stop: Stop
    ) -> Leadership | None:
        """Wait for the grant; None after the time limit or a signal."""
        turn = client.lead(self._topic, handover_timeout_seconds=HANDOVER_SECONDS, **self._asked)
        try:
            return await stop.unless(stack.enter_async_context(turn))
        except Unavailable as error:
            if self._asked["timeout_seconds"] is None:
                raise
            self._print("not-led", reason=str(error))
            return None

    async def _serve(self, leadership: Leadership, stop: Stop) -> tuple[End, int]:
        """Run the command while this process leads."""
        environment = {
            "ONEWRITER_TOPIC": leadership.topic,
            "ONEWRITER_EPOCH": str(leadership.epoch),
            "ONEWRITER_SESSION": leadership.session,
        }
        return await self._child.run(
            environment, stop, lost=leadership.lost.wait, confirm=leadership.producer.verify
        )

    def _print(self, event: str, **facts: Any) -> None:
        """Print an event on standard error; standard output is the command's."""
        if self._is_json:
            line({"event": event, "topic": self._topic, **facts}, to_errors=True)
        else:
            text = ", ".join(
                str(value) if name == "reason" else f"{name} {value}"
                for name, value in facts.items()
            )
            click.echo(f"onewriter: {event}: {text}", err=True)
