"""Topics as DataFrames for jobs: the options of ``format("onewriter")`` out of a verb's, and publishing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from onewriter_pipeline.broker import Broker
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.verbs import access_of, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onewriter_pipeline.connection import Access

HOT: Final = "hot"
COLD: Final = "cold"
ALL: Final = "all"

tier_option = click.option(
    "--tier",
    type=click.Choice([HOT, COLD, ALL]),
    default=HOT,
    show_default=True,
    help="The live log, the tables, or both as one.",
)


def access_names(access: Access) -> dict[str, str]:
    """How brokers are reached, as options of a data source."""
    named = {
        "admin.url": access.url,
        "authToken": access.token,
        "authTokenFile": access.token_file,
        "tls.caFile": access.ca_file,
    }
    return {name: value for name, value in named.items() if value}


def read_options(options: Mapping[str, Any]) -> dict[str, str]:
    """What a verb's options of access, tier and table mean for a read. Raises Invalid."""
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
    rows: DataFrame, access: Access, topic: str, app: str, version: int, epoch: int | None
) -> bool:
    """Publish rows as a whole, in their order, once for an app and a version.

    Answers whether anything was appended: what was published before is not, nor are no rows at all. Raises
    what Spark raises.
    """
    with Broker(access) as broker:
        before = broker.segments(topic).end
        named = access_names(access) | {
            "topic": topic,
            "txnAppId": app,
            "txnVersion": str(version),
        }
        if epoch is not None:
            named["epoch"] = str(epoch)
        rows.write.format("onewriter").options(**named).mode("append").save()
        return any(
            segment.end > before and segment.entries for segment in broker.segments(topic).segments
        )
