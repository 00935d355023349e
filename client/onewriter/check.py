"""``onewriter check``: prove on a running installation that a fenced writer is rejected.

The command runs two writers. The first one claims a topic and publishes, the second one takes the topic
over, and the broker must reject the first one, also when it names its epoch. The command uses the public
API only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from onewriter._client import Client
from onewriter._errors import Fenced, Refused, Unavailable
from onewriter._produce.producer import Producer
from onewriter._produce.tenure import AccessMode, ProducerOptions
from onewriter.verbs.options import Connect, connecting

Report = Callable[[str], None]

CLAIM_SECONDS = 0.5
"""Pause between two attempts to take a topic. A topic that was just declared is not known to all brokers yet."""


class NotProved(click.ClickException):
    """The brokers accepted what they must reject, or rejected what they must accept."""


@click.command()
@click.argument("topic")
@click.option(
    "--timeout-seconds",
    type=float,
    default=60,
    show_default=True,
    help="Timeout of the whole command.",
)
@connecting
def check(topic: str, timeout_seconds: float, connect: Connect) -> None:
    """Write TOPIC exclusively, take it over, and check that the former writer is refused.

    The command fences the holder of the topic: use a topic for this purpose only. Exit code 1: a
    writer was wrongly refused or accepted; 3: there was no proof in time.
    """
    reported: list[str] = []

    def report(text: str) -> None:
        if not reported or reported[-1] != text:
            click.echo(text)
        reported.append(text)

    async def whole() -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                async with connect.client() as client:
                    await _prove(client, topic, report)
        except TimeoutError as error:
            last = reported[-1] if reported else "no broker answered"
            raise Unavailable(f"not proved within {timeout_seconds:g} s: {last}") from error

    asyncio.run(whole())


async def _prove(client: Client, topic: str, report: Report) -> None:
    former = await _claim(client, topic, report)
    first = await former.send(b"the former writer's")
    report(f"claimed: epoch {former.epoch}, published at {first}")
    successor = await _take(client, topic)
    if successor.epoch is None or former.epoch is None or successor.epoch <= former.epoch:
        raise NotProved(
            f"the takeover did not raise the epoch: it was {former.epoch} and is {successor.epoch}"
        )
    report(f"taken over: epoch {successor.epoch}")
    try:
        late = await former.send(b"too late")
    except Fenced as fenced:
        report(f"the former writer is refused: {fenced}")
    else:
        raise NotProved(f"the former writer published at {late} after it was deposed")
    await _must_not_return(client, topic, former.epoch, report)
    last = await successor.send(b"the successor's")
    report(f"the successor publishes at {last}")
    await successor.close()


async def _claim(client: Client, topic: str, report: Report) -> Producer:
    """Take the topic; retry while the brokers do not know the topic or the claim yet."""
    while True:
        try:
            return await _take(client, topic)
        except Refused as refused:
            report(f"refused, retrying: {refused}")
            await asyncio.sleep(CLAIM_SECONDS)


async def _take(client: Client, topic: str) -> Producer:
    options = ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    return await client.create_producer(topic, options)


async def _must_not_return(client: Client, topic: str, epoch: int, report: Report) -> None:
    """Check that a request that names the former epoch is rejected, too."""
    options = ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING, if_epoch=epoch)
    try:
        returned = await client.create_producer(topic, options)
    except Refused as refused:
        report(f"the former epoch is not given again: {refused}")
    else:
        raise NotProved(f"epoch {epoch} deposed its successor: now {returned.epoch}")
