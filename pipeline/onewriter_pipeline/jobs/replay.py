"""``onewriter-pipeline replay``: publishes messages of a topic or a table to a topic again, once.

Order, keys, values, event times and properties are kept; otherwise they are new messages of the target. An app and
a version identify the publish, so a repeated run adds nothing, in any partition of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from onewriter_pipeline.engine import running
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.jobs.dataframes import epoch_options, publish, read_options, tier_option
from onewriter_pipeline.jobs.options import (
    access_of,
    access_options,
    optional_table_options,
    output_option,
    print_report,
    progress,
    spark_options,
)
from onewriter_pipeline.schema import EVENT_TIME, KEY, PROPERTIES, VALUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RANGE: Final = {
    "start": "startingOffsets",
    "end": "endingOffsets",
    "start_time": "startingTimestamp",
    "end_time": "endingTimestamp",
    "epochs": "epochs",
}
"""Options of the verb, and the options of ``format("onewriter")`` that they become."""


def range_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of the range to read. Raises nothing, because the data source checks them."""
    return {
        name: str(options[key]) for key, name in _RANGE.items() if options[key] not in {None, ""}
    }


def chosen(spark: SparkSession, reading: Mapping[str, str], where: str) -> DataFrame:
    """The messages of a range that satisfy a condition in SQL. Raises Invalid."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - the command's help needs no Spark

    messages = spark.read.format("onewriter").options(**dict(reading)).load()
    if where:
        try:
            messages = messages.filter(where)
        except AnalysisException as error:
            why = str(error).partition(" SQLSTATE")[0].splitlines()[0]
            raise Invalid(f"--where {where!r} is not a condition in SQL: {why}") from error
    return messages.select(VALUE, KEY, EVENT_TIME, PROPERTIES)


@click.command("replay")
@access_options
@optional_table_options
@click.option("--topic", required=True, help="The source: a topic, or one partition.")
@tier_option
@click.option("--start", default="", help='{"TOPIC": "<ledger>:<entry>"}, the first message.')
@click.option("--end", default="", help="The same for the end of the range, which is not included.")
@click.option("--start-time", type=click.IntRange(0), help="Publish time, milliseconds since 1970.")
@click.option(
    "--end-time",
    type=click.IntRange(0),
    help="The same for the end of the range, which is not included.",
)
@click.option("--epochs", default="", help="Only messages of these topic epochs: 3,5.")
@click.option("--where", default="", help="An SQL condition on the columns of messages.")
@click.option(
    "--publish-to", "target", required=True, help="The target: a topic, or one partition."
)
@click.option("--app", required=True, help="Name of the app that publishes.")
@click.option(
    "--version",
    required=True,
    type=click.IntRange(0),
    help="A number that rises with each replay; each version is published once.",
)
@epoch_options
@output_option
@spark_options
def command(**options: Any) -> None:
    """Publish messages of a topic, or of its table, to a topic: once, however often you run it."""
    reading = read_options(options) | range_options(options) | {"topic": options["topic"]}
    with running("onewriter replay", options["master"], options["conf"]) as spark:
        rows = chosen(spark, reading, options["where"])
        progress(f"publishing to {options['target']} as {options['app']} {options['version']}")
        is_new = publish(
            rows,
            access_of(options),
            topic=options["target"],
            app=options["app"],
            version=options["version"],
            epoch=options["epoch"],
            capability=options["capability"],
        )
    outcome = (
        "published" if is_new else "nothing was appended: it was published before, or is empty"
    )
    print_report(
        options["output"],
        {
            "publishedTo": options["target"],
            "app": options["app"],
            "version": options["version"],
            "isNew": is_new,
        },
        [f"{outcome}: {options['target']}, {options['app']} {options['version']}"],
    )
