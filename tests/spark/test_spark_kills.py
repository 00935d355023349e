"""Kills spread over everything that takes part while a stream is written: every row once, in order.

A soak: ``ONEWRITER_ROUNDS=100 pytest tests/spark -m campaign --timeout 7200`` (``make soak-pipeline``).
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
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.conftest import StockClients
from tests.spark.standalone import Standalone, kill_all, standalone, wait_until
from tests.spark.stored import stored

from onewriter_broker.testing import LocalBrokers, running_brokers
from onewriter_pipeline.connection import Access
from onewriter_pipeline.staging import Staging

ROUNDS = int(os.environ.get("ONEWRITER_ROUNDS", "4"))
"""Kills: each kind of victim once, unless told otherwise."""

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS_PER_ROUND = 600
ROWS_PER_ENTRY = 5
PROGRESS_SECONDS = 150.0
PAUSE_SECONDS_MAX = 2.0

pytestmark = [pytest.mark.spark, pytest.mark.campaign, pytest.mark.timeout(300 + 60 * ROUNDS)]


class Story:
    """A stream from one topic to another, whose driver is started again whenever it has ended."""

    def __init__(self, cluster: Standalone, brokers: LocalBrokers, folder: Path) -> None:
        self.brokers = brokers
        self.cluster = cluster
        self._folder = folder
        self._driver: subprocess.Popen[bytes] | None = None
        self._rows = 0

    def feed(self, version: int) -> None:
        """More rows for the stream, once, whatever dies meanwhile."""
        start, self._rows = self._rows, self._rows + ROWS_PER_ROUND
        values = [str(number) for number in range(start, self._rows)]
        batch = pa.RecordBatch.from_pydict({"value": values})
        with Staging(Access(self.brokers.http_url), "source", "feed", version) as staging:
            staging.publish(staging.stage(0, 0, [batch], frame_rows=ROWS_PER_ENTRY), None)

    def keep_running(self) -> bool:
        """Start the driver unless it runs; whether it had ended well."""
        if self._driver is not None and self._driver.poll() is None:
            return False
        if self._driver is not None and self._driver.returncode == 0:
            return True
        self.end_driver()
        words = (self.cluster.url, self.brokers.http_url, "source", "target")
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

    def end_driver(self) -> None:
        """Kill it with its Java process and all others that come from it."""
        if self._driver is not None:
            kill_all(self._driver)

    def kill_executor(self) -> None:
        kill_one(self.cluster.executors)

    def kill_python(self) -> None:
        kill_one(self.cluster.python_processes)

    def kill_broker(self) -> None:
        self.brokers.kill()

    def batches(self) -> int:
        """How many batches the stream has noted as done."""
        folder = self._folder / "checkpoint" / "commits"
        return sum(each.name.isdigit() for each in folder.glob("*"))

    def finish(self) -> list[int]:
        """Let it come to its end; all numbers that were fed, in order."""
        (self._folder / "ends").touch()
        wait_until(self.keep_running, PROGRESS_SECONDS * 2)
        return list(range(self._rows))


def kill_one(found: Callable[[], list[int]]) -> None:
    """Any of the processes that are found, as soon as there is one."""

    def is_killed() -> bool:
        processes = found()
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself just now
            if processes:
                os.kill(random.choice(processes), signal.SIGKILL)
                return True
        return False

    wait_until(is_killed, PROGRESS_SECONDS)


def test_every_row_is_there_once_whoever_is_killed(stock: StockClients, tmp_path: Path) -> None:
    pauses = random.Random(ROUNDS)
    with running_brokers() as brokers, standalone(tmp_path) as cluster:
        client = stock(brokers.service_url)
        for topic in ("source", "target"):
            client.create_producer(topic).close()
        story = Story(cluster, brokers, tmp_path)
        kinds: list[Callable[[], None]] = [
            story.kill_python,
            story.kill_executor,
            story.kill_broker,
            story.end_driver,
        ]
        try:
            for number in range(ROUNDS):
                story.feed(number + 1)
                before = story.batches()

                def goes_on(before: int = before) -> bool:
                    story.keep_running()
                    return story.batches() > before and bool(cluster.python_processes())

                wait_until(goes_on, PROGRESS_SECONDS)
                time.sleep(pauses.uniform(0, PAUSE_SECONDS_MAX))
                kinds[number % len(kinds)]()
            expected = story.finish()
        finally:
            story.end_driver()
        assert stored(client, "target") == expected
