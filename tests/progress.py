"""A pytest plugin that reports how far a run is and what failed in it, for ``tests/run.py``.

It appends one JSON object per change to the file that ``ONEWRITER_PROGRESS`` names. Loaded with
``-p tests.progress``; without the variable it does nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "ONEWRITER_PROGRESS"

FAILURES_MAX = 40
"""How many failed tests a report names; more are only counted."""

REASON_CHARACTERS_MAX = 160


@dataclass(slots=True)
class Counts:
    """Where a run of pytest stands.

    ``skipped`` counts the tests that gave each reason. ``failures`` has the first line of each failed test's reason
    by the test's id, for at most ``FAILURES_MAX`` tests. ``running`` are the tests that have begun and neither ended nor failed.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    deselected: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    @property
    def passed(self) -> int:
        return self.done - self.failed - sum(self.skipped.values())


def counts_of(text: str) -> Counts:
    """What a progress file says: the newest complete report of each process that wrote to it, added up."""
    newest: dict[int, dict[str, Any]] = {}
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            report = json.loads(line)
            newest[report.pop("process", 0)] = report
    return added(Counts(**report) for report in newest.values())


def added(parts: Iterable[Counts]) -> Counts:
    """The sum of the counts of several runs."""
    whole = Counts()
    for part in parts:
        whole = replace(
            whole,
            total=whole.total + part.total,
            done=whole.done + part.done,
            failed=whole.failed + part.failed,
            deselected=whole.deselected + part.deselected,
            skipped=dict(Counter(whole.skipped) + Counter(part.skipped)),
            failures=whole.failures | part.failures,
            running=[*whole.running, *part.running],
        )
    return whole


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test failed, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Without a crash entry the text is a traceback as it is printed: its last line says what happened.
    reason = (
        "" if not lines else lines[0] if crash is not None else lines[-1].removeprefix("E ").strip()
    )
    if report.when in {"setup", "teardown"}:
        reason = f"in {report.when}: {reason}"
    return reason[:REASON_CHARACTERS_MAX]


class Progress:
    """Counts the reports that reach the process that prints pytest's output."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts = Counts()
        self._failed: set[str] = set()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._counts.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._counts.total = len(session.items)
            self._write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report)
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

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._counts.running.append(nodeid)
        self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._fail(report)
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

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid in self._counts.running:
            self._counts.running.remove(nodeid)
            self._write()

    def _fail(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self._failed.add(report.nodeid)
        self.pytest_runtest_logfinish(report.nodeid)  # never called for a test whose process died
        self._counts.failed += 1
        if len(self._counts.failures) < FAILURES_MAX:
            self._counts.failures[report.nodeid] = reason_of(report)

    def _write(self) -> None:
        line = json.dumps({"process": os.getpid(), **asdict(self._counts)})
        with self._path.open("a") as file:
            file.write(line + "\n")


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
