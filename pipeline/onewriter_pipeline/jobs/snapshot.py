"""``onewriter-pipeline snapshot``: the newest message of each key, as a file, a table, or a compacted topic.

What Pulsar's compaction keeps: the last message of each key, and no key whose last message has no value or
an empty one. Messages without a key are in no snapshot. Published, it is one atomic publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from onewriter_pipeline.engine import running
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.schema import (
    BATCH_INDEX,
    ENTRY,
    EPOCH,
    EVENT_TIME,
    KEY,
    LEDGER,
    PROPERTIES,
    PUBLISH_TIME,
    VALUE,
)
from onewriter_pipeline.topics import publish, read_options, tier_option
from onewriter_pipeline.verbs import (
    access_of,
    access_options,
    optional_table_options,
    output_option,
    progress,
    spark_options,
    tell,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET: Final = "parquet"
DELTA: Final = "delta"

_STAMP: Final = "onewriter.write"
_MAGIC: Final = "OWS1"

NEWEST: Final = f"""max_by(
    struct({VALUE}, {EVENT_TIME}, {PROPERTIES}, {PUBLISH_TIME}, {EPOCH}, {LEDGER}, {ENTRY}, {BATCH_INDEX}),
    struct({LEDGER}, {ENTRY}, {BATCH_INDEX}))"""

SHARED_STATE: Final = f"""count_if({PROPERTIES}['{_STAMP}'] IS NOT NULL
    OR ({KEY} IS NULL AND substring({VALUE}, 1, 4) = X'{_MAGIC.encode().hex()}'))"""
"""Entries of shared state are operations (docs/shared-state.md); their newest one is not the state."""


def newest(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """One row per key, by options of ``format("onewriter")``. Raises Invalid for shared state.

    Kept until it is unpersisted.
    """
    topic = options["topic"]
    messages = spark.read.format("onewriter").options(**dict(options)).load()
    grouped = messages.groupBy(KEY).agg(
        _expr(NEWEST).alias("newest"), _expr(SHARED_STATE).alias("operations")
    )
    kept = grouped.persist()
    if not kept.filter("operations > 0").isEmpty():
        kept.unpersist()
        raise Invalid(
            f"{topic} holds shared state: its entries are operations, and the newest one of a key is not"
            f" its value. `onewriter map list {topic}` reads it, and its checkpoints are its snapshots"
        )
    return kept


def values(kept: DataFrame) -> DataFrame:
    """The rows of ``newest`` as messages, without keys that were removed, in the log's order."""
    return (
        kept.filter(f"{KEY} IS NOT NULL AND length(newest.{VALUE}) > 0")
        .select(KEY, "newest.*")
        .orderBy(LEDGER, ENTRY, BATCH_INDEX)
    )


def _expr(text: str) -> Any:
    from pyspark.sql.functions import expr  # noqa: PLC0415 - the command's help needs no Spark

    return expr(text)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a snapshot goes: to a path, to a topic, or both."""

    path: str
    kind: str
    overwrites: bool
    topic: str
    app: str
    version: int | None

    def check(self) -> None:
        """Raises Invalid."""
        if not self.path and not self.topic:
            raise Invalid("give --to PATH, or --publish-to TOPIC")
        if self.topic and (not self.app or self.version is None):
            raise Invalid(
                "--publish-to needs --app and --version: a name, and a number that rises with each"
                " snapshot; published again under the same two it is there once"
            )
        local = Path(self.path) if self.path and "://" not in self.path else None
        if local is not None and local.exists() and not self.overwrites:
            raise Invalid(f"{self.path} exists: --overwrite replaces it")

    def write(self, rows: DataFrame) -> None:
        """Write to the path. A Delta table is replaced in one commit; Parquet in Spark's way."""
        if self.kind == DELTA:
            from deltalake import write_deltalake  # noqa: PLC0415 - only this needs it

            write_deltalake(self.path, rows.toArrow(), mode="overwrite")
            return
        mode = "overwrite" if self.overwrites else "errorifexists"
        rows.write.mode(mode).parquet(self.path)


@click.command("snapshot")
@access_options
@optional_table_options
@click.option("--topic", required=True, help="Whose newest messages; all its partitions.")
@tier_option
@click.option("--to", "path", default="", help="The folder or URL that is written.")
@click.option(
    "--format",
    "kind",
    type=click.Choice([PARQUET, DELTA]),
    default=PARQUET,
    show_default=True,
    help="delta: in one commit, through the driver's memory.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@click.option(
    "--publish-to", "target", default="", help="A topic, or one partition, to publish to."
)
@click.option("--app", default="", help="Who publishes: a name.")
@click.option("--version", type=click.IntRange(0), help="A number that rises with each snapshot.")
@click.option("--epoch", type=click.IntRange(0), help="The target's epoch; without: it is taken.")
@output_option
@spark_options
def command(**options: Any) -> None:
    """Keep the newest message of each key of a topic: as Parquet, as Delta, or in another topic."""
    target = Target(
        *(options["path"], options["kind"], options["overwrite"]),
        *(options["target"], options["app"], options["version"]),
    )
    target.check()
    reading = read_options(options) | {"topic": options["topic"]}
    with running("onewriter snapshot", options["master"], options["conf"]) as spark:
        progress(f"reading {options['topic']} ({options['tier']})")
        kept = newest(spark, reading)
        rows = values(kept)
        count, keys = rows.count(), kept.filter(f"{KEY} IS NOT NULL").count()
        if target.path:
            target.write(rows)
        is_new = None
        if target.topic:
            is_new = publish(
                rows.select(KEY, VALUE, EVENT_TIME, PROPERTIES),
                access_of(options),
                *(target.topic, target.app, int(target.version or 0), options["epoch"]),
            )
        kept.unpersist()
    lines = [f"{count:,} keys of {options['topic']}; {keys - count:,} were removed"]
    lines += [f"written to {target.path}"] if target.path else []
    if is_new is not None:
        said = "published to" if is_new else "was published before to"
        lines.append(f"{said} {target.topic} as {target.app} {target.version}")
    document = {"topic": options["topic"], "keys": count, "removed": keys - count}
    tell(
        options["output"],
        document
        | {"path": target.path or None, "publishedTo": target.topic or None, "isNew": is_new},
        lines,
    )
