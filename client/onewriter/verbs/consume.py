"""``onewriter consume``: print a topic's messages, one per line."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import click

from onewriter._consume.consumer import Consumer, ConsumerOptions, SubscriptionType
from onewriter._consume.reader import Reader, ReaderOptions
from onewriter._errors import EndOfTopic, NoMessage, Unreadable
from onewriter._message import EARLIEST, LATEST, Message, MessageId
from onewriter.verbs.options import Connect, connecting, line, output
from onewriter_core.errors import ConfigurationError

LAST_SECONDS = 5.0
"""Without ``--follow``: time limit for a message that exists according to the broker."""

_PLACES = {"earliest": EARLIEST, "latest": LATEST}
_KINDS = {kind.name.lower(): kind for kind in SubscriptionType}


def _place(_context: click.Context, _parameter: click.Parameter, given: str | None) -> Any:
    if given is None or given in _PLACES:
        return None if given is None else _PLACES[given]
    try:
        return MessageId.parse(given)
    except ConfigurationError as error:
        raise click.BadParameter(f"earliest, latest, or an id: {error}") from error


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "place",
    metavar="earliest|latest|ID",
    callback=_place,
    help="Where to start: earliest, latest, or an id as `produce` prints it. Default: earliest, "
    "and for an existing subscription its position. An id moves the subscription.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this number of messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages.")
@click.option(
    "--subscription",
    help="Subscription that acknowledges the printed messages, so that they "
    "are not delivered again.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(_KINDS)),
    default="exclusive",
    show_default=True,
    help="Type of the subscription: how consumers share it.",
)
@click.option("--compacted", is_flag=True, help="Only the last message of each key.")
@click.option("--timeout-seconds", type=float, help="Timeout for connecting. Default: 30 s.")
@output
@connecting
def consume(topic: str, **given: Any) -> None:
    """Print the messages of TOPIC, present or new ones.

    Without a subscription the command only reads, and leaves no trace. With --follow it ends after the
    last message of a terminated topic, and says so. Exit code 1: refused, or an entry could not be
    read (the command names it and prints the others); 3: no broker answered.
    """
    asyncio.run(_consume(topic, **given))


async def _consume(
    topic: str,
    *,
    connect: Connect,
    place: MessageId | None,
    count: int | None,
    follow: bool,
    subscription: str | None,
    kind: str,
    compacted: bool,
    timeout_seconds: float | None,
    output: str,
) -> None:
    async with connect.client() as client:
        source: Reader | Consumer
        if subscription is None:
            source = await client.create_reader(
                topic,
                EARLIEST if place is None else place,
                ReaderOptions(read_compacted=compacted),
                is_inclusive=True,
                timeout_seconds=timeout_seconds,
            )
        else:
            options = ConsumerOptions(
                kind=_KINDS[kind],
                start=LATEST if place == LATEST else EARLIEST,
                read_compacted=compacted,
            )
            source = await client.subscribe(
                topic, subscription, options, timeout_seconds=timeout_seconds
            )
            if place is not None and place not in _PLACES.values():
                await source.seek(place)
        try:
            unreadable = await _print_all(source, count, follow=follow, as_json=output == "json")
        finally:
            await source.close()
    if unreadable is not None:
        raise unreadable


async def _print_all(
    source: Reader | Consumer, count: int | None, *, follow: bool, as_json: bool
) -> Unreadable | None:
    """Print until the end, or without end; return the first entry that could not be read."""
    unreadable: Unreadable | None = None
    last: Message | None = None
    printed = 0
    while count is None or printed < count:
        try:
            message = await _next(source, follow=follow)
        except Unreadable as error:
            unreadable = unreadable or error
            _print_unreadable(error, as_json=as_json)
            continue
        except EndOfTopic as end:
            click.echo(f"onewriter consume: {end}", err=True)
            break
        if message is None:
            break
        _print(message, as_json=as_json)
        printed += 1
        if isinstance(source, Consumer):
            source.acknowledge_soon(message)
            last = message
    if isinstance(source, Consumer) and last is not None:
        await source.acknowledge(last)  # its receipt confirms the earlier acknowledgements, too
    return unreadable


async def _next(source: Reader | Consumer, *, follow: bool) -> Message | None:
    """Return the next message; None: there is none."""
    receive = source.next if isinstance(source, Reader) else source.receive
    if follow:
        return await receive()
    nowait = source.next_nowait if isinstance(source, Reader) else source.receive_nowait
    message = nowait()
    if message is not None:
        return message
    if not await source.has_message_available():
        return None
    try:
        return await receive(timeout_seconds=LAST_SECONDS)
    except NoMessage:
        return None  # another consumer has it, or it is incomplete


def _print(message: Message, *, as_json: bool) -> None:
    if not as_json:
        click.echo(message.content)
        return
    document: dict[str, Any] = {
        "messageId": str(message.id),
        "ledger": message.id.ledger,
        "entry": message.id.entry,
        "batchIndex": message.id.batch_index,
        "key": message.key,
        "properties": dict(message.properties),
        "publishTimeMs": message.publish_time_ms,
        "eventTimeMs": message.event_time_ms or None,
        "producer": message.producer_name,
        "redeliveryCount": message.redelivery_count,
    }
    if message.is_null:
        line({**document, "content": None})
        return
    try:
        line({**document, "content": message.content.decode()})
    except UnicodeDecodeError:
        line({**document, "contentBase64": base64.b64encode(message.content).decode()})


def _print_unreadable(error: Unreadable, *, as_json: bool) -> None:
    if as_json:
        document = {"messageId": str(error.message_id), "error": "Unreadable", "reason": str(error)}
        line(document, to_errors=True)
    else:
        click.echo(f"onewriter consume: {error}", err=True)
