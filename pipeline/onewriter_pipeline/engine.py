"""Where the work of jobs is done: a Spark session, and the tasks that it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from onewriter_pipeline.errors import EngineFailed, Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
"""What jobs set of Spark; ``--conf`` and spark-submit may say otherwise."""

LOCAL_SETTINGS: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "8",
}
"""And where all runs on one machine: most of the work is Python's, Java should start quickly, and Spark's
200 tasks for each shuffle would take longer than what they do.
"""

Task = TypeVar("Task")
Result = TypeVar("Result")

Runner = Callable[[Callable[[Task], Result], Sequence[Task]], Iterable[Result]]
"""Does something for each task, and gives the results in order."""


def session(name: str, master: str = "", settings: Sequence[str] = ()) -> SparkSession:
    """A Spark session for a job; the one that runs here already, if there is one.

    ``master`` as Spark takes it, ``local[*]`` if nothing says another; ``settings``: NAME=VALUE.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - most of the pipeline does without Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = dict(SETTINGS)
    if not os.environ.get("SPARK_ENV_LOADED"):  # set by spark-submit, which knows the master
        chosen["spark.master"] = master or "local[*]"
    elif master:
        chosen["spark.master"] = master
    if chosen.get("spark.master", "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        chosen |= LOCAL_SETTINGS
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise Invalid(f"--conf {setting!r}: write NAME=VALUE")
        chosen[key.strip()] = value.strip()
    builder = SparkSession.builder.appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise EngineFailed(
            f"Spark could not be started; it needs Java 17 or later: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]


@contextmanager
def running(name: str, master: str = "", settings: Sequence[str] = ()) -> Iterator[SparkSession]:
    """The same, ended at the end."""
    spark = session(name, master, settings)
    try:
        yield spark
    finally:
        spark.stop()


def on_spark(spark: SparkSession) -> Runner[Task, Result]:
    """Runs tasks on the executors of a session, one Spark task each."""

    def run(what: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
        if not tasks:
            return []
        from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with Spark

        work = spark.sparkContext.parallelize(tasks, len(tasks)).map(what)
        try:
            found: list[Result] = work.collect()
        except (Py4JError, OSError) as error:  # OSError: Spark is gone altogether
            raise EngineFailed(f"Spark gave up: {_line(error)}") from error
        return found

    return run


def in_process(what: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
    """Runs tasks here, one after the other: for tests, and where there is no Java."""
    return [what(task) for task in tasks]


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at once, as far as Spark knows now."""
    return max(1, int(spark.sparkContext.defaultParallelism))
