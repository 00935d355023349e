"""examples/compacted_leader.py: leaders that are killed one after the other lose no change."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from onewriter_testing.processes import LocalBrokers

EXAMPLE = Path(__file__).parents[2] / "examples" / "compacted_leader.py"


@contextlib.contextmanager
def leader(broker: LocalBrokers, topic: str, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(EXAMPLE), "--url", broker.service_url]
    command += ["--admin", broker.http_url, "--name", name, "--interval", "0.002"]
    command += ["--topic", f"persistent://public/default/{topic}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def lines_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def said(process: subprocess.Popen[str], word: str) -> str:
    """Return the next line that contains the word."""
    return next(line for line in lines_of(process) if word in line)


def number_of(line: str) -> int:
    return int(line.split("change ")[1].split(":", maxsplit=1)[0])


def test_the_next_leader_continues_where_the_last_one_stopped(
    broker: LocalBrokers, topic: str
) -> None:
    done = 0
    for name in ("first", "second", "third"):
        with leader(broker, topic, name) as process:
            replayed = int(said(process, "leading").split("; ")[1].split(" ")[0])
            assert replayed <= done + 1
            if name == "third":
                assert replayed < done  # the view, and the entries after it
            first = number_of(said(process, "change"))
            assert first in {done + 1, done + 2}  # the last one may be unreported
            done = first
            while done < first + 200:
                done = number_of(said(process, "change"))
            if name == "second":  # it had the changes of the first compacted, with its own
                broker.wait_for_event(
                    "compaction.done",
                    lambda event: topic in str(event["topic"]) and event["entries"] != 0,
                )
            process.send_signal(signal.SIGKILL)
            for line in lines_of(process):
                if "change" in line and line.endswith("\n"):
                    done = number_of(line)
