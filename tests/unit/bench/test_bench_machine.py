"""What the benchmarks know about the machine: who else worked on it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bench import machine

BUSY = "import time\nwhile time.process_time() < 0.5: pass"


def test_the_work_of_children_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    knowing = machine.OtherWork()
    with monkeypatch.context() as patched:
        patched.setattr(machine, "process_usage", lambda _pids: machine.ProcessUsage(0, 0))
        blind = machine.OtherWork()
        subprocess.run([sys.executable, "-c", BUSY], check=True)
        takes_all_for_others = blind.share()
    assert 0 <= knowing.share() < takes_all_for_others <= 1


def test_requests_in_progress_on_other_brokers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "process_usage", lambda _pids: machine.ProcessUsage(0, 0))
    with subprocess.Popen([sys.executable, "-c", BUSY]):
        assert 0 < machine.others_share_now(0.3) <= 1
