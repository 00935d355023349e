"""``onewriter lead`` as a process: it runs a command only while it leads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import OWN, Http
from tests.integration.raw import FENCING, contents_of, eventually

from onewriter_testing.processes import LocalBrokers

SECONDS_MAX = 120.0
PROGRAM = str(Path(sys.executable).with_name("onewriter"))

CHILD = """
import os, signal, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(text):
    os.write(file, text.encode() + b"\\n")
def ended(*_):
    note("terminated")
    if "slow" not in sys.argv:
        sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else ended)
note("epoch " + os.environ["ONEWRITER_EPOCH"])
note("session " + os.environ["ONEWRITER_SESSION"].partition("-")[0])
note("topic " + os.environ["ONEWRITER_TOPIC"])
note(f"pid {os.getpid()}")
while True:
    time.sleep(0.01)
"""
"""Writes without a buffer: a signal handler that writes to a buffered file in the middle of another write raises RuntimeError."""

Lead = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def lead(broker: LocalBrokers) -> Iterator[Lead]:
    """Start ``onewriter lead`` with these arguments. Processes that still run at the end are killed."""
    with contextlib.ExitStack() as stack:

        def start(*words: str, url: str = broker.service_url) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [PROGRAM, "lead", *words],
                env={**os.environ, "ONEWRITER_SERVICE_URL": url},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.callback(_end, process)
            return process

        yield start


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


class Notes:
    """The lines that the command wrote about itself."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wait_for(self, word: str, count: int = 1) -> str:
        """Return the text after the word, from the ``count``-th line that begins with it."""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            text = self._path.read_text() if self._path.exists() else ""
            found = [line for line in text.splitlines() if line.startswith(word)]
            if len(found) >= count:
                return found[count - 1].removeprefix(word).strip()
            time.sleep(0.01)
        raise AssertionError(f"no {word}: {text}")


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def child(tmp_path: Path, *words: str) -> list[str]:
    return ["--", sys.executable, "-c", CHILD, str(tmp_path / "notes"), *words]


def test_the_commands_exit_code_is_ours(lead: Lead, topic: str) -> None:
    for code in (0, 7):
        process = lead(topic, "--", "sh", "-c", f"echo led under $ONEWRITER_EPOCH; exit {code}")
        out, _ = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == code
        assert out.startswith(b"led under ")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["/nowhere/at/all"], 127),
        # tests/unit/client/verbs/test_verbs_child.py: the codes; above here: the command's own is ours
        pytest.param(["/etc/passwd"], 126, marks=pytest.mark.full),
        pytest.param(["false"], 1, marks=pytest.mark.full),
    ],
)
def test_a_command_that_cannot_run_exits_like_in_a_shell(
    lead: Lead, topic: str, command: list[str], code: int
) -> None:
    process = lead(topic, "--", *command)
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == code


def test_a_command_gets_its_epoch_and_stops_when_the_epoch_ends(
    lead: Lead, broker: LocalBrokers, raw: RawClients, topic: str, tmp_path: Path, notes: Notes
) -> None:
    process = lead(topic, "-o", "json", *child(tmp_path))
    epoch = int(notes.wait_for("epoch"))
    assert notes.wait_for("session") == str(epoch)
    assert notes.wait_for("topic") == f"persistent://public/default/{topic}"
    taker = raw(broker.address()).producer(topic, FENCING)
    _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 120
    notes.wait_for("terminated")
    events = [json.loads(line) for line in err.splitlines()]
    assert [event["event"] for event in events] == ["leading", "lost"]
    assert events[0]["epoch"] == epoch
    taker.close()


def test_a_command_that_does_not_listen_is_killed_after_the_grace(
    lead: Lead, broker: LocalBrokers, raw: RawClients, topic: str, tmp_path: Path, notes: Notes
) -> None:
    process = lead(topic, "--grace-seconds", "0.2", *child(tmp_path, "deaf"))
    pid = int(notes.wait_for("pid"))
    raw(broker.address()).producer(topic, FENCING)
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 120
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_command_does_not_outlive_us(
    lead: Lead, topic: str, tmp_path: Path, notes: Notes
) -> None:
    process = lead(topic, *child(tmp_path, "deaf"))
    pid = int(notes.wait_for("pid"))
    process.kill()
    process.communicate(timeout=SECONDS_MAX)
    deadline = time.monotonic() + SECONDS_MAX
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.01)
        raise AssertionError("it is still there")


def test_again_queues_for_the_next_term(
    lead: Lead, broker: LocalBrokers, raw: RawClients, topic: str, tmp_path: Path, notes: Notes
) -> None:
    process = lead(topic, "--again", *child(tmp_path))
    first = int(notes.wait_for("epoch"))
    raw(broker.address()).producer(topic, FENCING).close()
    second = int(notes.wait_for("epoch", 2))
    assert second > first
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS_MAX)
    notes.wait_for("terminated", 2)
    assert process.returncode == 3, "the command's own"


def test_a_signal_during_the_end_of_a_lost_command_does_not_queue_again(
    lead: Lead, broker: LocalBrokers, raw: RawClients, topic: str, tmp_path: Path, notes: Notes
) -> None:
    process = lead(topic, "--again", "--grace-seconds", "2", *child(tmp_path, "slow"))
    notes.wait_for("pid")
    taker = raw(broker.address()).producer(topic, FENCING)
    notes.wait_for("terminated")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 128 + signal.SIGTERM
    taker.close()


def test_the_next_in_line_runs_once_the_first_has_ended(
    lead: Lead, broker: LocalBrokers, topic: str, tmp_path: Path, notes: Notes
) -> None:
    first = lead(topic, *child(tmp_path))
    notes.wait_for("pid")
    second = lead(topic, "--", "sh", "-c", f"echo next >> {tmp_path / 'notes'}")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=SECONDS_MAX)
    assert first.returncode == 128 + signal.SIGINT
    second.communicate(timeout=SECONDS_MAX)
    assert second.returncode == 0
    notes.wait_for("next")
    document = [json.loads(each) for each in contents_of(broker.address(), topic)]
    assert [each["kind"] for each in document] == ["leader", "leader"]
    assert document[0]["epoch"] < document[1]["epoch"]


def test_a_waiting_command_can_be_stopped_or_time_out(
    lead: Lead, broker: LocalBrokers, topic: str, tmp_path: Path, notes: Notes
) -> None:
    lead(topic, *child(tmp_path))
    notes.wait_for("pid")
    impatient = lead(topic, "--timeout-seconds", "0.3", "--", "true")
    impatient.communicate(timeout=SECONDS_MAX)
    assert impatient.returncode == 121
    patient = lead(topic, "--", "true")
    http = Http(broker.http_url)
    eventually(lambda: len(http("GET", f"{OWN}/{topic}")[1]["waiters"]) == 1)
    with pytest.raises(subprocess.TimeoutExpired):
        patient.communicate(timeout=0.2)
    patient.send_signal(signal.SIGTERM)
    patient.communicate(timeout=SECONDS_MAX)
    assert patient.returncode == 128 + signal.SIGTERM


def test_a_definite_no_is_not_waited_for(lead: Lead) -> None:
    manifest = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: guarded}
spec: {access: {requireClaim: true}}
"""
    with forked_brokers(manifests=manifest) as brokers:
        process = lead("guarded", "--", "true", url=brokers.service_url)
        _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert b"ProducerClaim" in err


def test_a_command_is_stopped_when_no_broker_confirms_the_leadership(
    lead: Lead, topic: str, tmp_path: Path, notes: Notes
) -> None:
    with forked_brokers() as brokers:
        process: Any = lead(
            topic, "--unconfirmed-seconds", "1", *child(tmp_path), url=brokers.service_url
        )
        notes.wait_for("pid")
        frozen = brokers.freeze()
        try:
            notes.wait_for("terminated")
        finally:
            brokers.thaw(frozen)
        process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 120
