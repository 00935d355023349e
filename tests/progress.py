"""A pytest plugin that reports how far a run is, for ``tests/run.py``.

It appends one JSON object per change to the file that ``ONEWRITER_PROGRESS`` names: ``total`` tests, ``done`` so
far, how many of them ``failed`` or were ``skipped`` (with reasons), and how many were ``deselected``. Loaded with
``-p tests.progress``; without the variable it does nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "ONEWRITER_PROGRESS"


@dataclass(slots=True)
class Counts:
    """Where a run of pytest stands. ``skipped`` counts the tests that gave each reason."""

    total: int = 0
    done: int = 0
    failed: int = 0
    deselected: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        return self.done - self.failed - sum(self.skipped.values())


def last_counts(text: str) -> Counts:
    """The newest complete report in a progress file; zeros if there is none yet."""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return Counts(**json.loads(lines[-1])) if lines else Counts()


class Progress:
    """Counts the reports that reach the process that prints pytest's output."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts = Counts()
        self._failed: set[str] = set()
        self._deselected: dict[str, int] = {}

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._counts.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._counts.total = len(session.items)
            self._write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        del node  # every worker collects the same tests
        self._counts.total = len(ids)
        self._write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._counts.deselected = getattr(node, "workeroutput", {}).get("deselected", 0)
        self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.add(report.nodeid)
            self._counts.failed += 1
            # A test whose teardown fails was counted as done when its call passed.
            self._counts.done += report.when != "teardown"
        elif report.skipped:
            self._counts.done += 1
            reason = (
                report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
            )
            reasons = Counter(self._counts.skipped)
            reasons[reason.removeprefix("Skipped: ")] += 1
            self._counts.skipped = dict(reasons)
        elif report.when == "call" and report.passed:
            self._counts.done += 1
        else:
            return
        self._write()

    def _write(self) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(self._counts)) + "\n")


class WorkerProgress:
    """Hands the number of deselected tests from a worker of pytest-xdist to the main process."""

    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]  # set by xdist

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._output["deselected"] = self._output.get("deselected", 0) + len(items)


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(VARIABLE)
    if not path:
        return
    plugin = WorkerProgress(config) if hasattr(config, "workerinput") else Progress(Path(path))
    config.pluginmanager.register(plugin, "onewriter-progress")
