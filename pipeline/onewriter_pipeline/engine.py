"""Where the work of jobs is done: a Spark session, and the tasks that it runs."""

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

SAID_CHARACTERS_MAX: Final = 300
"""Of what Spark says of a failure."""

_OURS: Final = re.compile(r"^(?:\s*pyspark[\w.]+: )?onewriter_\w+\.[\w.]+: (.+)$", re.MULTILINE)
"""The last line of a traceback of one of our errors, which Spark passes on as text."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_OTHERS: Final = re.compile(r"^[A-Za-z_][\w.]*: .+$", re.MULTILINE)

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
}
"""What jobs set of Spark; ``--conf`` and spark-submit may say otherwise."""

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
"""Without it Spark says several lines of its own before each job, and some in between."""

LOCAL_SETTINGS: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    f" -Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
    "spark.sql.shuffle.partitions": "8",
}
"""And where all runs on one machine: most of the work is Python's, Java should start quickly, and Spark's
200 tasks for each shuffle would take longer than what they do. Java's better compiler costs 5 s of a processor
at the start, and gains them back over some ten million rows of a shuffle.
"""

Task = TypeVar("Task")
Result = TypeVar("Result")

Runner = Callable[[Callable[[Task], Result], Sequence[Task]], Iterable[Result]]
"""Does something for each task, and gives the results in order."""


def session(name: str, master: str = "", settings: Sequence[str] = ()) -> SparkSession:
    """A Spark session for a job; the one that runs here already, if there is one.

    ``master`` as Spark takes it, ``local[*]`` if nothing says another; ``settings``: NAME=VALUE. Of a
    session that runs already they change what Spark lets one change.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - most of the pipeline does without Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not os.environ.get("SPARK_ENV_LOADED") and SparkSession.getActiveSession() is None:
        use_java()
    chosen = dict(SETTINGS)
    if not os.environ.get("SPARK_ENV_LOADED"):  # set by spark-submit, which knows the master
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
    """What a failure of Spark's is about, in one line: what our own code said, where it was that."""
    text = str(error)
    said = _OURS.findall(text) or _OTHERS.findall(text.partition(_TRACEBACK)[2])
    return said[-1][:SAID_CHARACTERS_MAX] if said else _line(error)


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:SAID_CHARACTERS_MAX]


@contextmanager
def running(name: str, master: str = "", settings: Sequence[str] = ()) -> Iterator[SparkSession]:
    """A ``session`` for as long as the block; one that ran before goes on behind it, for whoever started it.

    What Spark says in the block, or at its start, is EngineFailed.
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
    """Make a session the active one of this thread for a block; behind it the one before is, if there was one.

    Spark looks up a registered format that it writes to in the active session, whichever session the rows are of.
    """
    before = type(spark).getActiveSession()
    _activate(spark)
    try:
        yield
    finally:
        if before is not None:
            _activate(before)


def _activate(spark: SparkSession) -> None:
    """Spark's Python offers nothing else: who makes a frame in a session makes the session active."""
    spark.createDataFrame([], "nothing INT")


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
            raise EngineFailed(f"Spark gave up: {said_by(error)}") from error
        return found

    return run


def in_process(what: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
    """Runs tasks here, one after the other: for tests, and where there is no Java."""
    return [what(task) for task in tasks]


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at once, as far as Spark knows now."""
    return max(1, int(spark.sparkContext.defaultParallelism))
