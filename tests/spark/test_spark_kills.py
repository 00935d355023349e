"""Kills of all participants while a stream is written: every row is there once, in order.

A long run: ``ONEWRITER_ROUNDS=100 pytest tests/spark -m campaign --timeout 7200`` (``make soak-pipeline``). Each
kill happens in the middle of a batch, at a random time. Then the stream must continue by itself, or from its
checkpoint if its driver died. The test checks the written rows before the next kill.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.conftest import StockClients
from tests.integration.leaders import granted
from tests.spark.copying_stream import ENTRIES_PER_BATCH
from tests.spark.standalone import Standalone, is_gone, kill_all, standalone, wait_until
from tests.spark.stored import Rows, faults

from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.lead.requests import WAIT_FOR_EXCLUSIVE
from onewriter_pipeline.publish.staging import Staging
from onewriter_testing.processes import LocalBrokers, running_brokers

ROUNDS = int(os.environ.get("ONEWRITER_ROUNDS", "4"))
"""The number of kills, by default one of each kind."""

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS_PER_ENTRY = 5
ROWS_PER_BATCH_MAX = ROWS_PER_ENTRY * ENTRIES_PER_BATCH
ROWS_FED = 6 * ROWS_PER_BATCH_MAX
ROWS_AHEAD_MIN = 3 * ROWS_PER_BATCH_MAX
"""The test sends more rows while there may be fewer than these to copy, so that the stream is busy at each kill."""

PROGRESS_SECONDS = 600.0
PAUSE_SECONDS_MAX = 0.5
"""A batch of this stream takes approximately this long."""

# tests/integration/test_sink_attempts.py tests failed, repeated and late attempts without a cluster.
pytestmark = [
    pytest.mark.full,
    pytest.mark.spark,
    pytest.mark.campaign,
    pytest.mark.timeout(1_200 + 60 * ROUNDS),
]


class Stream:
    """A stream from one topic to another. Its driver is started again whenever it has ended."""

    def __init__(self, cluster: Standalone, brokers: LocalBrokers, folder: Path) -> None:
        self.fed = 0
        """The number of rows in the source."""
        self._cluster, self._brokers, self._folder = cluster, brokers, folder
        self._driver: subprocess.Popen[bytes] | None = None
        self._version = 0

    def feed(self) -> None:
        """Send more rows if there may be too few, each once, whichever process has just died."""
        if self.fed - self.batches() * ROWS_PER_BATCH_MAX >= ROWS_AHEAD_MIN:
            return
        start, self.fed, self._version = self.fed, self.fed + ROWS_FED, self._version + 1
        batch = pa.RecordBatch.from_pydict({"value": list(map(str, range(start, self.fed)))})
        access, version = Access(self._brokers.http_url), self._version
        with (
            granted(access, "source", "feed", WAIT_FOR_EXCLUSIVE) as grant,
            Staging(access, "source", "feed", version, grant) as staging,
        ):
            staging.publish(staging.stage(0, 0, [batch], frame_rows=ROWS_PER_ENTRY))

    def keep_running(self) -> bool:
        """Start the driver unless it runs. Returns whether it had ended successfully."""
        if self._driver is not None and self._driver.poll() is None:
            return False
        if self._driver is not None and self._driver.returncode == 0:
            return True
        self.kill_driver()
        words = (self._cluster.url, self._brokers.http_url, "source", "target")
        files = (str(self._folder / "checkpoint"), str(self._folder / "ends"))
        with (self._folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.copying_stream", *words, *files],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return False

    def kill_driver(self) -> int:
        """Kill the driver with its Java process and all descendants."""
        if self._driver is None:
            return 0
        kill_all(self._driver)
        return self._driver.pid

    def kill_executor(self) -> int:
        """Kill the Java process of an executor."""
        return kill_one(self._cluster.executors)

    def kill_python(self) -> int:
        """Kill a Python process of an executor."""
        return kill_one(self._cluster.python_processes)

    def kill_broker(self) -> int:
        """Kill the only broker, and start it again."""
        return self._brokers.kill()

    def batches(self, folder: str = "commits") -> int:
        """The number of batches in the checkpoint: completed ones, or with ``offsets`` those that began."""
        notes = (self._folder / "checkpoint" / folder).glob("*")
        return max((int(each.name) + 1 for each in notes if each.name.isdigit()), default=0)

    def wait_for_batches(self, completed: int = 0) -> None:
        """Wait until the stream has completed more than ``completed`` batches. Its processes may be killed meanwhile."""

        def progresses() -> bool:
            self.keep_running()
            self.feed()
            return self.batches() > completed and bool(self._cluster.python_processes())

        wait_until(progresses, PROGRESS_SECONDS)

    def work(self) -> None:
        """Wait until the stream is in the middle of a batch."""

        def works() -> bool:
            self.keep_running()
            self.feed()
            return self.batches("offsets") > self.batches()

        wait_until(works, PROGRESS_SECONDS)

    def finish(self) -> None:
        """Let the stream end."""
        (self._folder / "ends").touch()
        wait_until(self.keep_running, PROGRESS_SECONDS * 2)


def kill_one(found: Callable[[], list[int]]) -> int:
    """Kill one of the found processes, as soon as there is one."""
    killed: list[int] = []

    def is_killed() -> bool:
        processes = found()
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself just now
            if processes:
                chosen = random.choice(processes)
                os.kill(chosen, signal.SIGKILL)
                killed.append(chosen)
        return bool(killed)

    wait_until(is_killed, PROGRESS_SECONDS)
    return killed[0]


def test_every_row_is_written_once_despite_kills(
    stock: StockClients, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses = random.Random(ROUNDS)
    with running_brokers() as brokers, standalone(tmp_path) as cluster:
        client = stock(brokers.service_url)
        for topic in ("source", "target"):
            client.create_producer(topic).close()
        stream, target = Stream(cluster, brokers, tmp_path), Rows(client, "target")
        victims: list[tuple[str, Callable[[], int]]] = [
            ("executor's Python", stream.kill_python),
            ("executor's Java", stream.kill_executor),
            ("broker", stream.kill_broker),
            ("driver", stream.kill_driver),
        ]
        try:
            stream.wait_for_batches()
            for number in range(ROUNDS):
                time.sleep(pauses.uniform(0, PAUSE_SECONDS_MAX))
                stream.work()
                began, completed = time.monotonic(), stream.batches()
                name, kill = victims[number % len(victims)]
                killed = kill()
                wait_until(partial(is_gone, killed))
                stream.wait_for_batches(completed)
                found = target.read()
                assert faults(found, len(found)) == []
                with capsys.disabled():
                    print(  # noqa: T201 - a soak is long
                        f"kill {number + 1} of {ROUNDS}, {name}, after {completed} batches: continues after"
                        f" {time.monotonic() - began:.1f} s, {len(found)} rows are right",
                        flush=True,
                    )
            stream.finish()
        finally:
            stream.kill_driver()
        assert faults(target.read(), stream.fed) == []
        assert stream.fed > ROUNDS * ROWS_PER_BATCH_MAX
