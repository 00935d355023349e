"""Ports for tests: concurrent processes never get the same one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onewriter_testing import ports
from onewriter_testing.ports import PORTS_OF_A_PROCESS, free_ports

ASK = """
import sys
from onewriter_testing.ports import free_ports
print(*(free_ports(2) for _ in range(100)), flush=True)
sys.stdin.read()
"""


def test_no_two_processes_are_given_the_same_ports() -> None:
    others = [
        subprocess.Popen(
            [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        reported = [other.stdout.readline() for other in others if other.stdout]
        own = {free_ports(1) for _ in range(100)}  # while all live: who ends gives its part back
    finally:
        for other in others:
            other.communicate()
    given = [{port + n for port in map(int, line.split()) for n in range(2)} for line in reported]
    given.append(own)
    assert len(set().union(*given)) == sum(map(len, given)) == 3 * 200 + 100


def test_a_port_is_given_again_only_when_all_others_were() -> None:
    given = [free_ports(1) for _ in range(PORTS_OF_A_PROCESS // 2)]
    assert len(set(given)) == len(given)


def test_a_forked_process_takes_a_part_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    free_ports(1)
    before = ports._PORTS.first
    monkeypatch.setattr(ports._PORTS, "process_id", 0)  # as if this were another one
    assert not before <= free_ports(1) < before + PORTS_OF_A_PROCESS
