"""onewriter itself under measurement: ``onewriter up`` on loopback ports with a temporary store.

The counterpart of pulsar_lab.py: started as a user starts it, with the embedded Valkey, and asked
from outside what it used. What is measured on it is in scenarios.py, takeover.py and go_perf.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.machine import ProcessUsage, last_lines, process_usage, stop_process

from onewriter_testing.ports import free_ports

START_TIMEOUT_SECONDS = 30.0
STOP_GRACE_SECONDS = 15.0
POLL_SECONDS = 0.02

# A proxy from the environment is no way to a server on this machine.
_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_ROLES = {"broker": b"onewriter_broker.process", "store": b"valkey-server"}
"""What a process's command line holds, by the part it plays."""


class Onewriter:
    """One ``onewriter up`` with a fresh store, listening on 127.0.0.1 only.

    A context manager: entering starts it and returns once it serves; leaving stops it and removes
    its data. ``fsync``: ``always`` (the default), or ``everysec``, where
    acknowledgements promise nothing. ``environment`` sets further limits (``ONEWRITER_...``), ``arguments``
    are for ``onewriter up``.
    """

    def __init__(
        self,
        *,
        fsync: str = "always",
        environment: dict[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.fsync = fsync
        self._arguments = arguments
        self._environment = {"ONEWRITER_UNDECLARED_RETENTION_BYTES": "0"} | (environment or {})
        self.broker_port = free_ports(2)
        self.http_port = self.broker_port + 1
        self._process: subprocess.Popen[bytes] | None = None
        self._cleanup = contextlib.ExitStack()

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.broker_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """The supervisor's; broker and store are its children."""
        if self._process is None:
            raise RuntimeError("onewriter is not running")
        return self._process.pid

    def usage(self) -> ProcessUsage:
        """CPU time since the start and resident memory now: supervisor, broker and store."""
        return process_usage([self.pid])

    def pid_of(self, role: str) -> int:
        """The process that plays ``broker`` or ``store``; raises LookupError when none does."""
        mark = _ROLES[role]
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            if mark in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise LookupError(f"no {role} among the children of {self.pid}")

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onewriter-")))
            log = stack.enter_context((directory / "onewriter.log").open("wb"))
            command = Path(sys.executable).with_name("onewriter")
            self._process = subprocess.Popen(
                [
                    *(str(command), "up", "--data-dir", str(directory / "data")),
                    *("--port", str(self.broker_port), "--http-port", str(self.http_port)),
                    *("--fsync", self.fsync),
                    *("--minimum-durability", "Local" if self.fsync == "always" else "None"),
                    *self._arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Ctrl-C is ours to handle, in order
            )
            stack.callback(self._stop_process)
            self._await_ready(directory / "onewriter.log")
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _stop_process(self) -> None:
        if self._process is not None:
            stop_process(self._process, STOP_GRACE_SECONDS)
            self._process = None

    def _await_ready(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                with _LOOPBACK.open(self.admin_url + "/readyz") as response:
                    buckets = json.load(response)["buckets"]
                if buckets["held"] == buckets["all"]:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"onewriter did not start:\n{last_lines(log.read_text())}")
