"""``onewriter-pipeline snapshot``: the newest message of each key, as a file, a table, or a compacted topic.

It has what Pulsar's compaction keeps: the last message of each key, unless that message has no value or an empty
one. Messages without a key are omitted. A published snapshot is in the topic once for an app and a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from onewriter_core.property_names import STAMP_PROPERTY
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
    storage_of,
)
from onewriter_pipeline.schema import (
    BATCH_INDEX,
    DELTA,
    ENTRY,
    EVENT_TIME,
    FORMATS,
    KEY,
    LEDGER,
    PARQUET,
    PROPERTIES,
    SNAPSHOT_COLUMNS,
    VALUE,
)
from onewriter_pipeline.tables.files import Place, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAGIC: Final = "OWS1"

_HAS_VALUE: Final = f"{KEY} IS NOT NULL AND length(newest.{VALUE}) > 0"

NEWEST: Final = f"""max_by(
    struct({", ".join(name for name in SNAPSHOT_COLUMNS if name != KEY)}),
    struct({LEDGER}, {ENTRY}, {BATCH_INDEX}))"""

SHARED_STATE: Final = f"""count_if({PROPERTIES}['{STAMP_PROPERTY}'] IS NOT NULL
    OR ({KEY} IS NULL AND substring({VALUE}, 1, 4) = X'{_MAGIC.encode().hex()}'))"""
"""Entries of shared state are operations (docs/shared-state.md); the newest one is not the state."""


@dataclass(frozen=True, slots=True)
class SnapshotCounts:
    """The number of keys, and of keys with a value."""

    keys: int
    values: int


def newest(spark: SparkSession, options: Mapping[str, str]) -> tuple[DataFrame, SnapshotCounts]:
    """One row per key, from options of ``format("onewriter")``, and their number. Raises Invalid for shared state.

    The rows are cached until they are unpersisted.
    """
    topic = options["topic"]
    messages = spark.read.format("onewriter").options(**dict(options)).load()
    grouped = messages.groupBy(KEY).agg(
        _expr(NEWEST).alias("newest"), _expr(SHARED_STATE).alias("operations")
    )
    kept = grouped.persist()
    (found,) = kept.agg(
        _expr("coalesce(sum(operations), 0)").alias("operations"),
        _expr(f"count({KEY})").alias("keys"),
        _expr(f"count_if({_HAS_VALUE})").alias("values"),
    ).collect()
    if found["operations"]:
        kept.unpersist()
        raise Invalid(
            f"{topic} holds shared state: its entries are operations, and the newest one of a key is not"
            f" its value. `onewriter map list {topic}` reads it, and its checkpoints are its snapshots"
        )
    return kept, SnapshotCounts(found["keys"], found["values"])


def values(kept: DataFrame) -> DataFrame:
    """The rows of ``newest`` as messages, without removed keys, in the order of the log."""
    return kept.filter(_HAS_VALUE).select(KEY, "newest.*").orderBy(LEDGER, ENTRY, BATCH_INDEX)


def _expr(text: str) -> Any:
    from pyspark.sql.functions import expr  # noqa: PLC0415 - the command's help needs no Spark

    return expr(text)


@dataclass(frozen=True, slots=True)
class SnapshotTarget:
    """The target of a snapshot: a path, a topic, or both."""

    path: str
    kind: str
    overwrites: bool
    topic: str
    app: str
    version: int | None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options of an object store."""

    def check(self) -> None:
        """Raise Invalid for contradictory targets."""
        if not self.path and not self.topic:
            raise Invalid("the snapshot has no target: give --to PATH, --publish-to TOPIC, or both")
        if self.topic and (not self.app or self.version is None):
            raise Invalid(
                "--publish-to needs --app, a name, and --version, a number that rises with each snapshot. A"
                " snapshot that is published again under the same name and version is stored once"
            )
        place = place_of(self.path, self.storage)
        if self.path and self.kind == PARQUET and urlsplit(self.path).scheme == "s3":
            raise Invalid(
                f"Spark cannot write Parquet to {self.path}: use s3a:// with hadoop-aws installed, or --format delta"
            )
        if self.path and not self.overwrites and _exists(place, self.kind):
            raise Invalid(f"{self.path} exists already; replace it with --overwrite")

    def write(self, rows: DataFrame) -> None:
        """Write to the path. A Delta table is replaced in one commit; Spark writes Parquet."""
        if self.kind == DELTA:
            from onewriter_pipeline.jobs import snapshot_table  # noqa: PLC0415 - needed only here

            snapshot_table.replace(rows, place_of(self.path, self.storage))
            return
        mode = "overwrite" if self.overwrites else "errorifexists"
        rows.write.mode(mode).parquet(self.path)


def _exists(place: Place, kind: str) -> bool:
    if place.is_local:
        return Path(place.location).exists()
    if kind == PARQUET:
        return False  # Spark checks it (errorifexists)
    from onewriter_pipeline.jobs import snapshot_table  # noqa: PLC0415 - as above

    return snapshot_table.existing(place) is not None


@click.command("snapshot")
@access_options
@optional_table_options
@click.option("--topic", required=True, help="The source topic, with all its partitions.")
@tier_option
@click.option("--to", "path", default="", help="The folder or URL to write.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    default=PARQUET,
    show_default=True,
    help="delta: replaced in one commit, also on object stores.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing data.")
@click.option("--publish-to", "target", default="", help="The target: a topic, or one partition.")
@click.option("--app", default="", help="Name of the app that publishes.")
@click.option("--version", type=click.IntRange(0), help="A number that rises with each snapshot.")
@epoch_options
@output_option
@spark_options
def command(**options: Any) -> None:
    """Write the newest message of each key of a topic: as Parquet, as Delta, or to another topic."""
    target = SnapshotTarget(
        path=options["path"],
        kind=options["kind"],
        overwrites=options["overwrite"],
        topic=options["target"],
        app=options["app"],
        version=options["version"],
        storage=storage_of(options),
    )
    target.check()
    reading = read_options(options) | {"topic": options["topic"]}
    with running("onewriter snapshot", options["master"], options["conf"]) as spark:
        progress(f"reading {options['topic']} ({options['tier']})")
        kept, counts = newest(spark, reading)
        rows = values(kept)
        if target.path:
            target.write(rows)
        is_new = None
        if target.topic:
            is_new = publish(
                rows.select(KEY, VALUE, EVENT_TIME, PROPERTIES),
                access_of(options),
                topic=target.topic,
                app=target.app,
                version=int(target.version or 0),
                epoch=options["epoch"],
                capability=options["capability"],
            )
        kept.unpersist()
    removed = counts.keys - counts.values
    lines = [f"{counts.values:,} keys of {options['topic']}; {removed:,} were removed"]
    lines += [f"written to {target.path}"] if target.path else []
    if is_new is not None:
        outcome = "published to" if is_new else "was published before to"
        lines.append(f"{outcome} {target.topic} as {target.app} {target.version}")
    document = {"topic": options["topic"], "keys": counts.values, "removed": removed}
    print_report(
        options["output"],
        document
        | {"path": target.path or None, "publishedTo": target.topic or None, "isNew": is_new},
        lines,
    )
