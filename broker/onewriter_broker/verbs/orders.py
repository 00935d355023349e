"""``onewriter fence``, ``handover`` and ``reassign``: orders of an administrator about a topic's writer and
namespace.
"""

from __future__ import annotations

import click

from onewriter_broker.verbs.options import Reach, broker_options
from onewriter_core import tables
from onewriter_core.broker_http import topic_path


@click.command()
@click.argument("topic")
@click.option(
    "--if-epoch", type=click.IntRange(min=0), help="Only if TOPIC's epoch is still this number."
)
@broker_options
def fence(topic: str, if_epoch: int | None, reach: Reach, output: str) -> None:
    """Fence the writer of TOPIC. The first waiter becomes the holder; the fenced writer does not return by itself.

    After the command returns, nothing of the old epoch enters the log.
    """
    body = {} if if_epoch is None else {"ifEpoch": if_epoch}
    answer = reach.broker().post(topic_path(topic) + "/fence", body)
    if output == "json":
        tables.as_json(answer)
    else:
        click.echo(
            f"fenced: epoch {answer['oldEpoch']} ended; the next holder gets one above {answer['epoch']}"
        )


@click.command()
@click.argument("topic")
@click.option(
    "--to", default="", help="Name of a waiting producer or its claim; default: the first waiter."
)
@click.option(
    "--if-epoch", type=click.IntRange(min=0), help="Only if TOPIC's epoch is still this number."
)
@broker_options
def handover(topic: str, to: str, if_epoch: int | None, reach: Reach, output: str) -> None:
    """Hand TOPIC to a waiter, without a gap between the two writers."""
    body: dict[str, object] = {"to": to} if to else {}
    if if_epoch is not None:
        body["ifEpoch"] = if_epoch
    answer = reach.broker().post(topic_path(topic) + "/handover", body)
    if output == "json":
        tables.as_json(answer)
    else:
        holder = answer["holder"] or {}
        click.echo(
            f"handed over: epoch {answer['epoch']} is {holder.get('producerName', 'nobody')}"
            f" from {holder.get('address', '?')}"
        )


@click.command()
@click.argument("topic")
@click.option("--to", required=True, help="The Kubernetes namespace that gets TOPIC.")
@click.option("--reason", default="", help="The reason; written to the audit stream.")
@broker_options
def reassign(topic: str, to: str, reason: str, reach: Reach, output: str) -> None:
    """Assign TOPIC, with its log, to another namespace than the one that declared it first."""
    body = {"to": to, "reason": reason}
    answer = reach.broker().post(topic_path(topic) + "/reassign", body)
    if output == "json":
        tables.as_json(answer)
    else:
        click.echo(f"{answer['topic']}: from {answer['from'] or 'no namespace'} to {answer['to']}")
