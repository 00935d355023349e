"""``onewriter produce``: publish lines or arguments as messages."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import click

from onewriter._errors import Fenced, OnewriterError, OutcomeUnknown, Refused, ServerError
from onewriter._message import MessageId
from onewriter._produce.packer import Batching, Compression
from onewriter._produce.producer import Producer
from onewriter._produce.tenure import AccessMode, ProducerOptions
from onewriter.verbs.options import Connect, connecting, line, output, pairs

LINES_AHEAD_MAX = 64
"""Largest number of unpublished reads of the input; each has at most READ_BYTES."""
READ_BYTES = 64 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024
"""Largest line; no broker accepts a longer message."""

ANSWERS_MAX = 1_000
"""Largest number of messages whose answers are not printed yet; above it, none is sent."""

_MODES = {mode.name.lower().replace("_", "-"): mode for mode in AccessMode}
_CODECS = {codec.name.lower(): codec for codec in Compression}

PrintReceipt = Callable[[Producer, MessageId | OnewriterError], None]


@click.command()
@click.argument("topic")
@click.argument("messages", nargs=-1)
@click.option(
    "--mode",
    type=click.Choice(list(_MODES)),
    default="shared",
    show_default=True,
    help="Access mode; wait-for-exclusive waits in the queue.",
)
@click.option("--key", help="The key of each message.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    callback=pairs,
    help="NAME=VALUE of each message; may be repeated.",
)
@click.option("--name", default="", help="The producer's name. Default: the broker chooses one.")
@click.option("--priority", type=int, help="Priority in the queue, higher first.")
@click.option("--if-epoch", type=int, help="Take over only if this is still the topic's epoch.")
@click.option(
    "--compression",
    type=click.Choice(list(_CODECS)),
    default="none",
    show_default=True,
    help="Compression of the messages.",
)
@click.option(
    "--batch/--no-batch",
    default=False,
    show_default=True,
    help="Send several messages as one batch.",
)
@click.option(
    "--timeout-seconds",
    type=float,
    help="Timeout for becoming the writer. Default: 30 s, none while it waits in the queue.",
)
@output
@connecting
def produce(topic: str, messages: tuple[str, ...], **given: Any) -> None:
    """Publish MESSAGES, or each line of the standard input, to TOPIC.

    Prints the position of each message, in their order. After the first failure nothing more is sent; the
    results of messages that were already sent are still printed. Exit code 1: definitely not stored;
    3: unknown.
    """
    asyncio.run(_produce(topic, messages, **given))


async def _produce(
    topic: str,
    messages: Sequence[str],
    *,
    connect: Connect,
    mode: str,
    key: str | None,
    properties: dict[str, str],
    name: str,
    priority: int | None,
    if_epoch: int | None,
    compression: str,
    batch: bool,
    timeout_seconds: float | None,
    output: str,
) -> None:
    options = ProducerOptions(
        access_mode=_MODES[mode],
        name=name,
        queue_priority=priority,
        if_epoch=if_epoch,
        compression=_CODECS[compression],
        batching=Batching() if batch else None,
    )
    about = {"key": key, "properties": properties}
    async with connect.client() as client:
        producer = await client.create_producer(topic, options, timeout_seconds=timeout_seconds)
        contents = _given(messages) if messages else _lines_of_input()
        print_receipt = _print_json if output == "json" else _print_text
        failure = await _publish(producer, contents, about, print_receipt)
        await producer.close()
    if failure is not None:
        raise failure


async def _publish(
    producer: Producer,
    contents: AsyncIterator[bytes],
    about: dict[str, Any],
    print_receipt: PrintReceipt,
) -> OnewriterError | None:
    """Publish until the contents end or a message fails; return the first failure."""
    receipts: asyncio.Queue[asyncio.Future[MessageId] | None] = asyncio.Queue(ANSWERS_MAX)
    failures: list[OnewriterError] = []
    is_stopped = False

    async def hand_in() -> None:
        try:
            async for content in contents:
                await receipts.put(await producer.submit(content, **about))
        except OnewriterError as error:
            if not failures:
                print_receipt(producer, error)
            failures.append(error)
        finally:
            await receipts.put(None)

    def stop() -> None:
        nonlocal is_stopped
        if not is_stopped:
            is_stopped = True
            handing_in.cancel()

    async def stop_when_it_is_over() -> None:
        """End the wait for input when the producer ends."""
        failures.append(await producer.ended())
        print_receipt(producer, failures[-1])
        stop()

    async with asyncio.TaskGroup() as tasks:
        handing_in = tasks.create_task(hand_in())
        watching = tasks.create_task(stop_when_it_is_over())
        while (receipt := await receipts.get()) is not None:
            try:
                print_receipt(producer, await receipt)
            except OnewriterError as error:
                print_receipt(producer, error)
                failures.append(error)
                stop()
        watching.cancel()
    return failures[0] if failures else None


def _print_text(producer: Producer, ending: MessageId | OnewriterError) -> None:
    del producer
    if isinstance(ending, MessageId):
        click.echo(str(ending))


def _print_json(producer: Producer, ending: MessageId | OnewriterError) -> None:
    document: dict[str, Any]
    if isinstance(ending, MessageId):
        document = {
            "messageId": str(ending),
            "ledger": ending.ledger,
            "entry": ending.entry,
            "batchIndex": ending.batch_index,
            "stored": True,
        }
    else:
        document = {
            "error": type(ending).__name__,
            "reason": str(ending),
            "stored": None if isinstance(ending, OutcomeUnknown) else False,
        }
        if isinstance(ending, Fenced):
            document["currentEpoch"] = ending.current_epoch
    line({**document, "epoch": producer.epoch})


async def _given(messages: Sequence[str]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message.encode()


async def _lines_of_input() -> AsyncIterator[bytes]:
    """Yield each line without its end. A daemon thread reads, because input may never arrive."""
    chunks: asyncio.Queue[bytes] = asyncio.Queue(LINES_AHEAD_MAX)
    loop = asyncio.get_running_loop()

    def read() -> None:
        while True:
            chunk = os.read(0, READ_BYTES)
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, CancelledError):
                return  # the command has ended
            if not chunk:
                return

    threading.Thread(target=read, name="onewriter-input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for each in lines:
            yield each
        if len(rest) > LINE_BYTES_MAX:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR, f"a line has more than {LINE_BYTES_MAX} bytes"
            )
    if rest:
        yield rest
