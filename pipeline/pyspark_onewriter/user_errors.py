"""Shows the errors that a user can act on without a Python traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from onewriter_pipeline.errors import PipelineError

_RUNTIME: Final = "SPARK_PYTHON_RUNTIME"
_WORKER: Final = "PYTHON_WORKER"
"""Spark sets this variable in its Python processes, not in the program of a user."""

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""With this variable a Python process of Spark reports an exception as its type and message."""


@contextmanager
def without_traceback() -> Iterator[None]:
    """Spark reports a PipelineError of the block in one line. Other errors are defects and keep their traceback.

    A Python process of Spark ends after it has reported an error, so the variable affects no other error.
    """
    try:
        yield
    except PipelineError:
        if os.environ.get(_RUNTIME) == _WORKER:
            os.environ[_HIDE] = "1"
        raise
