"""DataFrames for jobs: options of ``format("onewriter")`` from the options of a verb, and publishing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.errors import Invalid, NotFound
from onewriter_pipeline.jobs.options import access_of, tables_of
from onewriter_pipeline.read.offsets import END_OF_LOG
from onewriter_pipeline.schema import COLD, HOT, TIERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onewriter_pipeline.brokers.connection import Access

Command = TypeVar("Command", bound=Callable[..., Any])

EPOCH_OPTIONS = (
    click.option(
        "--epoch",
        type=click.IntRange(1),
        help="The epoch under which another program leads the target; without it, this job "
        "leads the target.",
    ),
    click.option(
        "--capability",
        default="",
        envvar="ONEWRITER_CAPABILITY",
        help="The capability that this program passes on to the app (leadership.capability). It "
        "is a secret: use the environment variable ONEWRITER_CAPABILITY instead.",
    ),
)


def epoch_options(command: Command) -> Command:
    """The options of a job that publishes under the epoch of another program."""
    for option in reversed(EPOCH_OPTIONS):
        command = option(command)
    return command


tier_option = click.option(
    "--tier",
    type=click.Choice(TIERS),
    default=HOT,
    show_default=True,
    help="The live log, the tables, or both as one.",
)


def access_names(access: Access) -> dict[str, str]:
    """How to reach the brokers, as options of the data source."""
    named = {
        "admin.url": access.url,
        "authToken": access.token,
        "authTokenFile": access.token_file,
        "tls.caFile": access.ca_file,
    }
    return {name: value for name, value in named.items() if value}


def read_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a read, from a verb's options for access, tier and table. Raises Invalid."""
    if options["tier"] != HOT and not options["table"]:
        raise Invalid(f"--tier {options['tier']} needs --table: where the tables are")
    found = {"tier": options["tier"]}
    if options["tier"] != COLD:
        found |= access_names(access_of(options))
    if options["tier"] != HOT:
        tables = tables_of(options)
        found["table"] = tables.place.location
        found["table.format"] = options["table_format"]
        if tables.place.options:
            found["table.options"] = json.dumps(dict(tables.place.options))
    return found


def publish(
    rows: DataFrame,
    access: Access,
    *,
    topic: str,
    app: str,
    version: int,
    epoch: int | None = None,
    capability: str = "",
) -> bool:
    """Publish rows atomically, in order, once for an app and a version; separately for each partition.

    ``epoch`` and ``capability``: those of the program that leads the topic; without them, this driver leads it.
    Returns whether anything was appended: not if it was published before, or if there are no rows. Raises what
    Spark raises.
    """
    named = access_names(access) | {"topic": topic, "txnAppId": app, "txnVersion": str(version)}
    if epoch is not None:
        named["epoch"] = str(epoch)
        if capability:
            named["capabilityToken"] = capability
    with Broker(access) as broker:
        before = _versions(broker, topic, app)
        rows.write.format("onewriter").options(**named).mode("append").save()
        return _versions(broker, topic, app) != before


def _versions(broker: Broker, topic: str, app: str) -> dict[str, int]:
    """The newest version of an app in each log of a topic that has one; the topic need not exist."""
    try:
        states = {log: broker.state(log, END_OF_LOG) for log in broker.logs(topic)}
    except NotFound:  # publishing creates it
        return {}
    return {log: state.published[app] for log, state in states.items() if app in state.published}
