"""A failure of Spark becomes one sentence that names its cause."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from onewriter_pipeline import engine
from onewriter_pipeline.engine import running
from onewriter_pipeline.errors import EngineFailed, PipelineError, TableError

WORKER_KILLED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed 1 times, most recent \
failure: Lost task 1.0 in stage 0.0 (TID 1) (127.0.0.1 executor driver): org.apache.spark.SparkException: Python worker \
exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:1)
"""


class EndedSpark:
    """A session whose Java process has ended."""

    def stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.fixture(autouse=True)
def _ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: Any) -> EndedSpark:
        return EndedSpark()

    monkeypatch.setattr(engine, "session", session)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), engine._ENDED),
        (ConnectionRefusedError(111, "Connection refused"), engine._ENDED),
        (EOFError(), engine._ENDED),
        (Py4JError(WORKER_KILLED), "Spark failed: Python worker exited unexpectedly (crashed)"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_failure_of_spark_is_one_sentence(error: Exception, sentence: str) -> None:
    with pytest.raises(EngineFailed) as caught, running("a job"):
        raise error
    assert str(caught.value) == sentence
    assert "\n" not in sentence


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(TableError, match="no space"), running("a job"):
        raise TableError("no space")


def test_java_process_that_ends_at_the_start_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def session(*_: Any) -> EndedSpark:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(engine, "session", session)
    with pytest.raises(PipelineError, match="the Java process of Spark ended"), running("a job"):
        pytest.fail("the block ran")
