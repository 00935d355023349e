"""``onewriter own`` as a process: its output, the command that it runs, and its end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import RawClients
from tests.integration.owners import lost, own

from onewriter_testing.processes import LocalBrokers

PROGRAM = str(Path(sys.executable).with_name("onewriter"))
SECONDS_MAX = 120.0

SLEEP = [sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(600)"]

_numbers = itertools.count()

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def resource() -> str:
    return f"command, number {next(_numbers)}"


@pytest.fixture
def start(broker: LocalBrokers) -> Iterator[Start]:
    """Start ``onewriter own`` with these arguments. Processes that still run at the end are killed."""
    with contextlib.ExitStack() as stack:

        def run(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [PROGRAM, "own", *words],
                env={**os.environ, "ONEWRITER_SERVICE_URL": broker.service_url},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(_end, process)
            return process

        yield run


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_command_owns_until_it_is_stopped(
    broker: LocalBrokers, raw: RawClients, start: Start, resource: str
) -> None:
    process = start(resource, resource + "2", "--group", "group")
    assert said(process) == f"{resource}: generation 1"
    assert said(process) == f"{resource}2: generation 1"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS_MAX) == 0
    assert own(raw(broker.address()), resource, identity="next") == 2, "it was given back"


def test_a_command_runs_while_all_of_it_is_owned(start: Start, resource: str) -> None:
    program = "import os; print(os.environ['ONEWRITER_GENERATIONS'], os.environ['ONEWRITER_GROUP'])"
    words = [resource, resource + "2", "--group", "g", "--", sys.executable, "-c"]
    process = start(*words, program + "; raise SystemExit(7)")
    out, _ = process.communicate(timeout=SECONDS_MAX)
    assert out.splitlines()[-1] == "1,1 g"
    assert process.returncode == 7


def test_a_command_is_stopped_when_one_is_lost(
    broker: LocalBrokers, raw: RawClients, start: Start, resource: str
) -> None:
    process = start(resource, "--group", "group", "-o", "json", "--", *SLEEP)
    assert json.loads(said(process)) == {
        "resource": resource,
        "group": "group",
        "generation": 1,
    }
    assert said(process) == "runs"
    assert own(raw(broker.address()), resource, 2) == 2
    _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 120
    reported = json.loads(errors.splitlines()[-1])
    assert (reported["event"], reported["resource"], reported["currentGeneration"]) == (
        "lost",
        resource,
        2,
    )


def test_a_higher_generation_takes_over_and_an_equal_one_is_denied(
    broker: LocalBrokers, raw: RawClients, start: Start, resource: str
) -> None:
    owner = raw(broker.address())
    own(owner, resource, identity="one")
    process = start(resource, resource + " free", "--group", "group", "-o", "json")
    out, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    answers = [json.loads(line) for line in out.splitlines()]
    assert "identity" in answers[0]["error"]
    assert answers[1]["generation"] == 1
    process = start(resource, "--group", "group", "--generation", "5")
    assert said(process) == f"{resource}: generation 5"
    assert lost(owner).current_generation == 5


@pytest.mark.parametrize(
    ("words", "code"), [([], 2), (["a", "a"], 2), (["a", "--generation", "-1"], 1)]
)
def test_invalid_requests_are_refused(start: Start, words: list[str], code: int) -> None:
    process = start(*words)
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == code


def test_a_command_that_is_not_there(start: Start, resource: str) -> None:
    process = start(resource, "--", "/no/such/program")
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 127


def test_a_command_does_not_outlive_us(start: Start, resource: str) -> None:
    program = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    process = start(resource, "--", sys.executable, "-c", program)
    assert said(process) == f"{resource}: generation 1"
    pid = int(said(process))
    process.kill()
    process.wait(SECONDS_MAX)  # its pipes stay open while the command runs
    deadline = time.monotonic() + SECONDS_MAX
    try:
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.01)
            raise AssertionError("it is still there")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_signals_are_passed_on_and_everything_is_given_back(
    broker: LocalBrokers, raw: RawClients, start: Start, resource: str
) -> None:
    process = start(resource, "--group", "group", "--", *SLEEP)
    assert said(process) == f"{resource}: generation 1"
    assert said(process) == "runs"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS_MAX) == 128 + signal.SIGTERM
    assert own(raw(broker.address()), resource, identity="next") == 2


def test_a_command_that_waits_for_an_answer_can_be_stopped(start: Start, resource: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(SECONDS_MAX)
        process = start(resource, "--service-url", f"pulsar://127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS_MAX) == 128 + signal.SIGTERM
