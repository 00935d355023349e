"""``onewriter topics``, ``status`` and ``history``: the writers of topics, their queues and transitions."""

from __future__ import annotations

from typing import Any

import click

from onewriter_broker.verbs.options import Reach, broker_options
from onewriter_core import tables
from onewriter_core.broker_http import Broker, topic_path
from onewriter_core.errors import Unavailable, Undecided

PAGES_MAX = 1_000
"""Pages of topics that ``topics`` asks one broker for at most."""


@click.command()
@click.option("--namespace", help="Only topics of this TENANT/NAMESPACE.")
@broker_options
def topics(namespace: str | None, reach: Reach, output: str) -> None:
    """List all topics with epoch, holder, number of waiters, and broker."""
    broker = reach.broker()
    rows = _pages(broker, namespace)
    others = {
        row["owner"]["httpUrl"] for row in rows if row["owner"] is not None and "epoch" not in row
    }
    for url in sorted(others):  # topics that another broker serves are known there
        try:
            known = {row["name"]: row for row in _pages(reach.broker(url), namespace)}
        except (Unavailable, Undecided) as error:
            click.echo(f"onewriter: {error}", err=True)
            continue
        rows = [row if "epoch" in row else known.get(row["name"], row) for row in rows]
    if output == "json":
        tables.as_json({"topics": rows})
    else:
        tables.topics(rows)


def _pages(broker: Broker, namespace: str | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = broker.get("/onewriter/v1/topics", namespace=namespace, after=after)
        rows += page["topics"]
        after = page["next"]
        if after is None:
            break
    return rows


@click.command()
@click.argument("topic")
@broker_options
def status(topic: str, reach: Reach, output: str) -> None:
    """Show the writer of TOPIC, its queue, and the last transitions."""
    answer = reach.broker().get(topic_path(topic))
    if output == "json":
        tables.as_json(answer)
    else:
        tables.status(answer)


@click.command()
@click.argument("topic")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=50,
    show_default=True,
    help="Number of records: the newest, or with --after the next ones.",
)
@click.option("--after", help="Continue after the record with this id.")
@broker_options
def history(topic: str, limit: int, after: str | None, reach: Reach, output: str) -> None:
    """Show every transition of TOPIC that the brokers recorded, newest last."""
    path = topic_path(topic) + "/history"
    answer = reach.broker().get(path, limit=limit, after=after)
    if output == "json":
        tables.as_json(answer)
    else:
        tables.history(answer)
