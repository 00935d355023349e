"""Brokers of an earlier release and of this tree serve one store together, forward and back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.compatibility.releases import RELEASES, MixedBrokers, archive_of
from tests.integration.continuous_writer import (
    ContinuousWriter,
    check,
    reported_losses,
    stored_topic,
)
from tests.servers import StoreServer, running_server

ACKNOWLEDGED_PER_STEP = 100
LATEST = max((path.stem for path in RELEASES.glob("*.zip")), default="")
"""A rolling update is supported from the release before."""

BROKERS = 2


@pytest.fixture
def store() -> Iterator[StoreServer]:
    with running_server() as server:
        yield server


def replace_broker(brokers: MixedBrokers, number: int) -> None:
    """Stop one broker in order, and start it with the code that it has now."""
    process_id = brokers.pid(number)
    brokers._signal(number, signal.SIGTERM)
    assert brokers._processes[number].wait() == 0, f"broker {process_id} did not stop in order"
    brokers.restart(number)
    brokers.wait_ready()


def runs_earlier_release(brokers: MixedBrokers, number: int) -> bool:
    """Whether a broker runs the code of the earlier release."""
    environment = Path(f"/proc/{brokers.pid(number)}/environ").read_bytes()
    return str(archive_of(LATEST)).encode() in environment


def test_the_archive_of_a_release_is_what_python_imports() -> None:
    program = "import onewriter_broker, onewriter_core; print(onewriter_broker.__file__)"
    reported = subprocess.run(
        ["env", f"PYTHONPATH={archive_of(LATEST)}", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert reported.stdout.startswith(str(archive_of(LATEST)))


def test_an_update_and_a_downgrade_under_writers_lose_nothing(
    store: StoreServer, tmp_path: Path
) -> None:
    brokers = MixedBrokers(
        tmp_path,
        LATEST,
        brokers=BROKERS,
        redis_url=store.url,
        settings={"resume_window_seconds": 60.0},
    )
    with ExitStack() as stack:
        stack.callback(brokers.stop)
        brokers.start()
        topics = [
            next(name for at in range(1000) if brokers.target_of(name := f"rolled-{at}") == number)
            for number in range(BROKERS)
        ]
        writers = [stack.enter_context(ContinuousWriter(topic, brokers)) for topic in topics]

        def all_continue() -> None:
            for writer in writers:
                writer.has_acked(ACKNOWLEDGED_PER_STEP)

        all_continue()
        steps: list[tuple[int, ...]] = [(1,), (), (0,), (0, 1)]  # forward, and back again
        for earlier in steps:
            changed = [
                number
                for number in range(BROKERS)
                if runs_earlier_release(brokers, number) != (number in earlier)
            ]
            brokers.earlier = earlier
            for number in changed:
                replace_broker(brokers, number)
            assert [
                number for number in range(BROKERS) if runs_earlier_release(brokers, number)
            ] == list(earlier)
            all_continue()
        for writer in writers:
            writer.stop()
            stored = stored_topic(store.url, writer.topic)
            assert check(writer, stored, reported_losses([brokers], writer.topic)) == 0
            assert writer.epochs == sorted(writer.epochs)
    program = "from onewriter_broker.verify.cli import verify_command; verify_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--all", "--redis-url", store.url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
