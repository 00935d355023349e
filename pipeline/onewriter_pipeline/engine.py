"""The Spark session of a job, and runners that execute its tasks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from onewriter_pipeline.errors import EngineFailed, Invalid
from onewriter_pipeline.java_runtime import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"

ERROR_CHARACTERS_MAX: Final = 300
"""Characters of Spark's error text that a message shows."""

_OURS: Final = re.compile(r"^(?:\s*pyspark[\w.]+: )?onewriter_\w+\.[\w.]+: (.+)$", re.MULTILINE)
"""Matches the last traceback line of one of our errors. Spark passes it on as text."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_OTHERS: Final = re.compile(r"^[A-Za-z_][\w.]*: .+$", re.MULTILINE)

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of Spark that jobs choose; ``--conf`` and spark-submit override them."""

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
"""Without this file Spark prints several lines before and during each job."""

LOCAL_SETTINGS: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    f" -Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
    "spark.sql.shuffle.partitions": "8",
}
"""More settings if everything runs on one machine. Most of the work is done in Python, so Java should start
quickly. Spark's default of 200 tasks per shuffle costs more than the tasks do. Java's optimizing compiler costs 5 s
of processor time at the start, and pays off after about ten million shuffled rows.
"""

Task = TypeVar("Task")
Result = TypeVar("Result")

Runner = Callable[[Callable[[Task], Result], Sequence[Task]], Iterable[Result]]
"""Executes a function for each task, and returns the results in order."""


def session(name: str, master: str = "", settings: Sequence[str] = ()) -> SparkSession:
    """A Spark session for a job: the running one if there is one.

    ``master`` as Spark takes it, by default ``local[*]``. ``settings``: NAME=VALUE. For a running session they
    change only what Spark can change at run time.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - most of the pipeline works without Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not os.environ.get("SPARK_ENV_LOADED") and SparkSession.getActiveSession() is None:
        use_java()
    chosen = dict(SETTINGS)
    if not os.environ.get("SPARK_ENV_LOADED"):  # spark-submit sets it, and knows the master
        chosen["spark.master"] = master or "local[*]"
    elif master:
        chosen["spark.master"] = master
    if chosen.get("spark.master", "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        chosen |= LOCAL_SETTINGS
    else:
        chosen["spark.log.level"] = "ERROR"
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
        raise EngineFailed(f"Spark did not start: {_line(error)}") from error


def said_by(error: Exception) -> str:
    """The cause of a failure of Spark in one line: the message of our own error, if the failure contains one."""
    text = str(error)
    said = _OURS.findall(text) or _OTHERS.findall(text.partition(_TRACEBACK)[2])
    return said[-1][:ERROR_CHARACTERS_MAX] if said else _line(error)


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:ERROR_CHARACTERS_MAX]


@contextmanager
def running(name: str, master: str = "", settings: Sequence[str] = ()) -> Iterator[SparkSession]:
    """A ``session`` for the block. A session that was running before keeps running after the block.

    Raises EngineFailed for errors of Spark in the block or at its start.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    is_ours = SparkSession.getActiveSession() is None
    spark = session(name, master, settings)
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise EngineFailed(said_by(error)) from error
    finally:
        if is_ours:
            spark.stop()


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread within a block, and restore the previous one afterwards.

    When Spark writes to a registered format, it looks up the format in the active session, not in the session of
    the rows.
    """
    before = type(spark).getActiveSession()
    _activate(spark)
    try:
        yield
    finally:
        if before is not None:
            _activate(before)


def _activate(spark: SparkSession) -> None:
    """Spark's Python API has no call for this. Creating a DataFrame in a session makes the session active."""
    spark.createDataFrame([], "nothing INT")


def on_spark(spark: SparkSession) -> Runner[Task, Result]:
    """Execute tasks on the executors of a session, one Spark task each."""

    def run(what: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
        if not tasks:
            return []
        from py4j.protocol import Py4JError  # noqa: PLC0415 - part of Spark

        work = spark.sparkContext.parallelize(tasks, len(tasks)).map(what)
        try:
            found: list[Result] = work.collect()
        except (Py4JError, OSError) as error:  # OSError: the Spark process has ended
            raise EngineFailed(f"Spark failed: {said_by(error)}") from error
        return found

    return run


def in_process(what: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
    """Execute tasks in this process, one after the other: for tests, and without Java."""
    return [what(task) for task in tasks]


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that run in parallel, as far as Spark knows now."""
    return max(1, int(spark.sparkContext.defaultParallelism))
