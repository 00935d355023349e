"""Errors of users lose their traceback in Python processes of Spark, and nowhere else."""

from __future__ import annotations

import os

import pytest

from onewriter_pipeline.errors import Invalid
from pyspark_onewriter.user_errors import without_traceback


@pytest.mark.parametrize(
    ("runtime", "error", "is_hidden"),
    [
        ("PYTHON_WORKER", Invalid("no such option"), True),
        ("PYTHON_WORKER", TypeError("a defect"), False),
        ("", Invalid("no such option"), False),
    ],
)
def test_only_errors_of_users_in_workers_are_short(
    monkeypatch: pytest.MonkeyPatch, runtime: str, error: Exception, is_hidden: bool
) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", runtime)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(type(error)), without_traceback():
        raise error
    assert bool(os.environ["SPARK_HIDE_TRACEBACK"]) == is_hidden
