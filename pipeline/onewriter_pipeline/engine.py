"""The Spark session of a job, and runners that execute its tasks."""

from __future__ import annotations

import contextlib
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

_OURS: Final = re.compile(r"^(?:.*\s)?onewriter_\w+\.[\w.]+: (.+)$", re.MULTILINE)
"""Matches the line with the type and the message of one of our errors. Spark passes it on as text."""

_ENDED: Final = (
    "the Java process of Spark ended during the job (killed, or out of memory): what was committed is valid; run"
    " the command again"
)

_JAVA_CAUSE: Final = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
"""Matches the message of a Java exception behind the line that only names the called method."""

_JAVA_NAMES: Final = re.compile(r"^.*\b[a-z][\w.]*\.[A-Z]\w*(?:Exception|Error): ")
"""Matches everything up to the innermost exception of a message."""

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


def message_of(error: Exception) -> str:
    """The cause of a failure of Spark in one line: the message of our own error, if the failure contains one."""
    text = str(error)
    messages = _OURS.findall(text) or _OTHERS.findall(text.partition(_TRACEBACK)[2])
    return messages[-1][:ERROR_CHARACTERS_MAX] if messages else _line(error)


def _line(error: Exception) -> str:
    text = str(error).strip()
    if not text:
        return type(error).__name__
    cause = _JAVA_CAUSE.search(text)
    line = _JAVA_NAMES.sub("", cause[1]) if cause else text.splitlines()[0]
    return line[:ERROR_CHARACTERS_MAX]


@contextmanager
def running(name: str, master: str = "", settings: Sequence[str] = ()) -> Iterator[SparkSession]:
    """A ``session`` for the block. A session that was running before keeps running after the block.

    Raises EngineFailed for errors of Spark in the block or at its start, also if its Java process was killed.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    is_ours = SparkSession.getActiveSession() is None
    spark: SparkSession | None = None
    try:
        spark = session(name, master, settings)
        yield spark
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        raise _failure(error) from error
    finally:
        if is_ours and spark is not None:
            with contextlib.suppress(Py4JError, OSError):  # its Java process has ended
                spark.stop()


def _failure(error: Exception) -> EngineFailed:
    """The error of a failure of Spark. Without its Java process, Python only sees that connections break."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - part of Spark

    if isinstance(error, Py4JNetworkError | OSError | EOFError):
        return EngineFailed(_ENDED)
    return EngineFailed(f"Spark failed: {message_of(error)}")


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread within a block, and restore the previous one afterwards.

    When Spark writes to a registered format, it looks up the format in the active session, not in the session of
    the rows.
    """
    before = type(spark).getActiveSession()
    activate(spark)
    try:
        yield
    finally:
        if before is not None:
            activate(before)


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread. A new thread has none, so a write finds no format in it.

    Spark's Python API has no call for this. Creating a DataFrame in a session makes the session active.
    """
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
        except (Py4JError, OSError, EOFError) as error:
            raise _failure(error) from error
        return found

    return run


def in_process(what: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
    """Execute tasks in this process, one after the other: for tests, and without Java."""
    return [what(task) for task in tasks]


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that run in parallel, as far as Spark knows now."""
    return max(1, int(spark.sparkContext.defaultParallelism))
