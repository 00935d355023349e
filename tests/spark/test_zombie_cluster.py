"""Tasks that wake after the commit: their rows are in the topic once nevertheless.

There are two executors, each a Java process with Python processes. In the first batch, the Java process of an
executor and the Python process of its task are stopped when the task has staged its rows, but has not received the
answer. Spark considers it lost, repeats the task on the other executor, and commits. Then the zombie continues, and
receives its answer. In the second batch, the Python process of a task is stopped before it has staged its rows, and
its executor is killed. When it wakes, after the commit, it stages them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import StockClients
from tests.spark.holding_proxy import Hold, HoldingProxy, Point
from tests.spark.standalone import is_gone, kill_all, standalone, wait_until
from tests.spark.stored import stored
from tests.spark.zombie_write import ROWS, ROWS_MORE, Attempt

from onewriter_testing.processes import LocalBrokers

ROOT = Path(__file__).resolve().parent.parent.parent
HELD_SECONDS = 600.0
"""Time limit until Spark has started and a task stages its rows."""

# tests/integration/test_sink_attempts.py tests attempts that wake after the commit, without a cluster.
pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(900)]


class Driver:
    """The program that writes."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, traces: Path) -> None:
        self._process, self._log, self._traces = process, log, traces

    def reported(self) -> bytes:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        return line

    def write_next(self) -> None:
        """Let it write the next batch."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Its exit code."""
        return self._process.wait(HELD_SECONDS)

    def held(self, hold: Hold) -> None:
        """Wait until a request is delayed."""
        wait_until(lambda: hold.held.is_set() or self._process.poll() is not None, HELD_SECONDS)
        assert hold.held.is_set(), self._log.read_text()[-4000:]

    def attempt(self, version: int, partition: int, number: int) -> Attempt:
        """The processes of an attempt of a task."""
        return Attempt.of(self._traces, version, partition, number)


@contextlib.contextmanager
def driver(folder: Path, *words: str) -> Iterator[Driver]:
    """Killed at the end, with all processes that it started."""
    log, traces = folder / "driver.log", folder / "attempts"
    traces.mkdir()
    command = [sys.executable, "-m", "tests.spark.zombie_write", *words, str(traces)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    with process:
        try:
            yield Driver(process, log, traces)
        finally:
            kill_all(process)
            for each in traces.iterdir():  # in their own sessions, some without parents
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(each.read_text().split()[1]), signal.SIGKILL)


def test_rows_of_tasks_that_wake_after_the_commit_are_stored_once(
    broker: LocalBrokers, topic: str, stock: StockClients, tmp_path: Path
) -> None:
    staged, not_staged = Hold(0, 0, Point.STAGED), Hold(1, 0, Point.NOT_STAGED)
    client = stock(broker.service_url)
    with (
        HoldingProxy(broker.http_url, [staged, not_staged]) as proxy,
        standalone(tmp_path) as cluster,
        driver(tmp_path, cluster.url, proxy.url, topic) as program,
    ):
        program.held(staged)
        stopped = program.attempt(0, 0, 0)
        assert stopped.executor in cluster.executors()
        for process in (stopped.executor, stopped.python):  # Python would wait without a limit
            os.kill(process, signal.SIGSTOP)
        assert program.reported() == b"committed\n"
        assert program.attempt(0, 0, 1).executor != stopped.executor
        assert staged.answers == [200, 200]
        assert stored(client, topic) == list(range(ROWS))
        staged.release_and_answer()
        for process in (stopped.executor, stopped.python):
            os.kill(process, signal.SIGCONT)

        program.write_next()
        program.held(not_staged)
        frozen = program.attempt(1, 0, 0)
        os.kill(frozen.python, signal.SIGSTOP)
        os.kill(frozen.executor, signal.SIGKILL)
        not_staged.release_and_answer()
        assert program.reported() == b"committed\n"
        assert program.attempt(1, 0, 1).python != frozen.python
        assert not_staged.answers == [200]
        everything = list(range(ROWS + ROWS_MORE))
        assert stored(client, topic) == everything
        os.kill(frozen.python, signal.SIGCONT)
        wait_until(lambda: is_gone(frozen.python))
        assert not_staged.answers == [200, 200]
        assert stored(client, topic) == everything
        assert program.end() == 0
    wait_until(lambda: is_gone(stopped.executor))
