"""``onewriter ownerships``: list the owners of resources, and drop the records of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from onewriter_broker.verbs.options import Reach, broker_options
from onewriter_core import tables
from onewriter_core.broker_http import Broker
from onewriter_core.command import EXIT_UNKNOWN
from onewriter_core.errors import ConfigurationError, Refused, Unavailable, Undecided

PAGES_MAX: Final = 1_000
"""Pages that one broker is asked for at most."""

_PATH: Final = "/onewriter/v1/ownerships"

Json = dict[str, Any]


@click.command()
@click.option("--group", help="Only ownerships of this group; '' means resources without a group.")
@click.option("--resource", help="Only this resource: a full topic name, or other text.")
@click.option("--drop", is_flag=True, help="Drop the records of --group that have no owner.")
@broker_options
@click.pass_context
def ownerships(
    context: click.Context,
    /,
    group: str | None,
    resource: str | None,
    *,
    drop: bool,
    reach: Reach,
    output: str,
) -> None:
    """List the owners of resources, or with --drop drop a group's records that have no owner.

    The command asks every broker. The next owner of a dropped resource gets a higher generation than
    all before, and stale owners stay refused. But until the topic has an owner again, the group's
    consumers may read it without owning it. After records were dropped, no broker may go back to a
    version without floors (docs/operations.md, "Ownership records").
    """
    if drop and group is None:
        raise ConfigurationError("--drop needs --group: whose records are to be dropped")
    brokers = reach.broker().get("/onewriter/v1/brokers")
    urls = [each["httpUrl"] for each in brokers["brokers"] if each["alive"]]
    if drop:
        answers, is_whole = _each(
            urls, reach, lambda broker: broker.delete(_PATH, group=group, resource=resource)
        )
        _print_dropped(answers, output)
    else:
        answers, is_whole = _each(urls, reach, lambda broker: _listed(broker, group))
        rows = [row for answer in answers for row in answer["ownerships"]]
        _print(sorted(rows, key=_order), resource, output)
    if brokers["unowned"]:
        unowned = len(brokers["unowned"])
        click.echo(
            f"onewriter: {unowned} buckets have no broker: what is in them is left out", err=True
        )
        is_whole = False
    context.exit(0 if is_whole else EXIT_UNKNOWN)


def _each(urls: list[str], reach: Reach, ask: Callable[[Broker], Json]) -> tuple[list[Json], bool]:
    """The answers of the brokers, and whether all answered; a warning names those that did not.

    Raises the refusal of the first broker that answers: then nothing was done, and the others would refuse,
    too.
    """
    answers: list[Json] = []
    for url in urls:
        try:
            answers.append(ask(reach.broker(url)))
        except (Refused, ConfigurationError) as error:
            if not answers:
                raise
            click.echo(f"onewriter: {url}: {error}", err=True)
        except (Unavailable, Undecided) as error:
            click.echo(f"onewriter: {error}", err=True)
    return answers, len(answers) == len(urls)


def _listed(broker: Broker, group: str | None) -> Json:
    rows: list[Json] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = broker.get(_PATH, group=group, after=after)
        rows += page["ownerships"]
        after = page["next"]
        if after is None:
            break
    return {"ownerships": rows}


def _order(row: Json) -> tuple[str, str]:
    return row["group"], row["resource"]


def _print(rows: list[Json], resource: str | None, output: str) -> None:
    rows = [row for row in rows if resource in {None, row["resource"]}]
    if output == "json":
        tables.as_json({"ownerships": rows})
    else:
        tables.ownerships(rows)


def _print_dropped(answers: list[Json], output: str) -> None:
    dropped = sum(answer["dropped"] for answer in answers)
    kept = sum(answer["kept"] for answer in answers)
    if output == "json":
        tables.as_json({"dropped": dropped, "kept": kept, "brokers": answers})
    else:
        still = f"; {kept} are owned, or were just now: they stay" if kept else ""
        click.echo(f"{dropped} dropped{still}")
