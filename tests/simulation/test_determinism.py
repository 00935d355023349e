"""The same seed gives the same history, byte for byte, also in another Python process with another hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.scenario import simulate

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import hashlib, sys
from tests.simulation.scenario import simulate
print(hashlib.sha256(simulate(int(sys.argv[1])).to_text().encode()).hexdigest())
"""


@pytest.mark.parametrize(
    "seed", [2, pytest.param(13, marks=pytest.mark.full), pytest.param(58, marks=pytest.mark.full)]
)
def test_the_same_seed_gives_the_same_history(seed: int) -> None:
    first, second = simulate(seed).to_text(), simulate(seed).to_text()
    assert first == second
    elsewhere = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(seed)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONHASHSEED": "4711",
            "PYTHONPATH": os.pathsep.join(["core", "broker", "client", "."]),
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    assert elsewhere == hashlib.sha256(first.encode()).hexdigest()
    assert simulate(seed + 1).to_text() != first
