"""The operator as a process, with a real API server and real or fake brokers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.control_plane import ControlPlane

from onewriter_testing.ports import free_ports

PROGRAM = "from onewriter_operator.cli import operator; operator()"

SECONDS_MAX = 240.0
"""Time limit of every wait, for slow machines."""

STOP_SECONDS = 90.0
ANSWER_SECONDS = 30.0

LEASE = {"durationSeconds": 120, "renewSeconds": 90, "retrySeconds": 0.5}
"""Longer than a test: an operator that gets no processor time for a while remains the leader."""

OPTED_IN = {"leaderServices": {"enabled": True}, "podDeletion": {"enabled": True}}
"""Rights that an operator has only if the chart's values grant them."""


class OperatorProcess:
    """One replica. ``options`` are ``operator`` of the configuration, ``settings`` its environment."""

    def __init__(
        self,
        directory: Path,
        cluster: ControlPlane,
        namespace: str,
        brokers: Mapping[str, str],
        *,
        name: str = "operator-0",
        kubeconfig: Path | None = None,
        options: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        settings: Mapping[str, str] | None = None,
        program: str = PROGRAM,
    ) -> None:
        self.name = name
        self._program = program
        self.directory = directory
        self.http_port = free_ports(2)
        wanted = {
            "release": "onewriter",
            "namespace": namespace,
            "image": {"reference": "localhost/onewriter:dev"},
            "operator": {"namespaces": [namespace], "lease": LEASE, **OPTED_IN, **(options or {})},
            **(configuration or {}),
        }
        self._file = directory / f"{name}.yaml"
        self._file.write_text(yaml.safe_dump(wanted))
        self._environment = {
            "ONEWRITER_OPERATOR_NAME": name,
            "ONEWRITER_OPERATOR_CONFIGURATION": str(self._file),
            "ONEWRITER_OPERATOR_KUBECONFIG": str(kubeconfig or cluster.kubeconfig),
            "ONEWRITER_OPERATOR_BROKER_URLS": ",".join(f"{k}={v}" for k, v in brokers.items()),
            "ONEWRITER_OPERATOR_HOST": "127.0.0.1",
            "ONEWRITER_OPERATOR_HTTP_PORT": str(self.http_port),
            "ONEWRITER_OPERATOR_WEBHOOK_PORT": str(self.http_port + 1),
            "ONEWRITER_OPERATOR_INSTALLS": "false",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> OperatorProcess:
        """Start it and wait until it serves. It may not lead yet."""
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._program],
                env=os.environ | self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        wait_until(
            lambda: self.get("/healthz") is not None or not self.is_running, explain=self.log
        )
        assert self.is_running, self.log()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def stop(self) -> int:
        """End it in order; return its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        return self.wait_ended()

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait_ended(self) -> int:
        """Wait for its end; return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def get(self, path: str) -> str | None:
        """Return the answer of its HTTP server, or None if there is none."""
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}{path}", timeout=ANSWER_SECONDS
            ) as answer,
        ):
            return str(answer.read().decode())
        return None

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all its labels. Fails if there is no answer."""
        text = self.get("/metrics")
        assert text is not None, f"{self.name} does not answer:\n{self.log()}"
        lines = text.splitlines()
        values = [
            line.rpartition(" ")[2] for line in lines if line.startswith((f"{name}{{", f"{name} "))
        ]
        return sum(float(value) for value in values)

    @property
    def leads(self) -> bool:
        """Whether it reports that it leads. One that has ended does not."""
        return "onewriter_leader 1.0" in (self.get("/metrics") or "").splitlines()

    def log(self) -> str:
        """Return all of its output."""
        return (self.directory / f"{self.name}.log").read_text(errors="replace")[-20_000:]

    def resident_bytes(self) -> int:
        """Return the size of its resident memory (Linux)."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def running(*operators: OperatorProcess) -> Iterator[Sequence[OperatorProcess]]:
    """Run operators, and end them at the end. If a test fails, their output is shown."""
    try:
        for each in operators:
            each.start()
        yield operators
    except BaseException as error:
        for each in operators:
            error.add_note(f"{each.name} said:\n{each.log()}")
        raise
    finally:
        for each in operators:
            if each.is_running:
                each.stop()


def wait_until(
    holds: Callable[[], Any],
    seconds: float = SECONDS_MAX,
    explain: Callable[[], object] = lambda: "",
) -> Any:
    """Wait until the result of ``holds`` is true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {explain()}")
        time.sleep(0.05)
