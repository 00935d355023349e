"""PIP-440's uptime checkers from examples/, with stock clients: hosts die, and load is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "uptime_checkers" / "demo.py"
SECONDS_MAX = 300


@pytest.mark.parametrize(
    "arguments",
    [
        # tests/scenarios/waiting_order.txt orders candidates by priority.
        pytest.param(["--priorities", "chosen"], marks=pytest.mark.full),
        ["--priorities", "balanced", "--brokers", "2"],
    ],
    ids=["priorities chosen beforehand", "balanced by two brokers"],
)
def test_endpoints_of_a_dead_host_are_spread_and_standbys_stay(arguments: list[str]) -> None:
    played = subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        # A bucket moves to the second broker as it starts: the first host has time to follow.
        env=os.environ | {"ONEWRITER_RESUME_WINDOW_SECONDS": "60"},
    )
    assert played.returncode == 0, played.stderr + played.stdout
    # A checker says "host-0: ..." when it has lost an endpoint, which a slow machine may cause.
    words = ("host-0 ", "host-1 ", "host-2 ", "held")
    lines = [line for line in played.stdout.splitlines() if line.startswith(words)]
    assert [line.split()[0] for line in lines] == [word.strip() for word in words]
    assert all("standby-0 0  standby-1 0" in line for line in lines[:-1])
