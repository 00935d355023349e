"""A task that fails in the middle is read again: every row once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.conftest import Fill

from onewriter_broker.testing import LocalBrokers

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM_SECONDS_MAX = 240

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_task_that_is_tried_again_reads_the_same_rows(
    broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    sent = [f"{number}" for number in range(2000)]
    fill(topic, [value.encode() for value in sent], batching_enabled=True)
    mark = tmp_path / "failed"
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.retried_read", broker.http_url, topic, str(mark)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert mark.exists()
    assert json.loads(done.stdout) == sent
