"""A port-forward to one pod, opened by kubectl and closed at the end of the command.

It reaches a pod in spite of network policies, needs the right to ``create pods/portforward`` in the pod's
namespace, and keeps all headers: the API server's proxy removes ``Authorization``.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections import deque
from typing import Final

from onewriter_core.errors import ConfigurationError, Unavailable
from onewriter_kubectl.kubectl import Kubectl

OPEN_SECONDS: Final = 20.0
"""Time for kubectl to report the port on which it listens."""

CLOSE_SECONDS: Final = 5.0
"""Time for kubectl to end; afterwards it is killed."""

LINES_KEPT: Final = 20
"""Lines of kubectl's output to keep for an error message."""

_LISTENS: Final = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")


class Tunnel:
    """One port of one pod, on a free loopback port of this machine."""

    def __init__(self, kubectl: Kubectl, namespace: str, pod: str, port: int) -> None:
        self._command = kubectl.command(
            "port-forward", "--address=127.0.0.1", f"pod/{pod}", f":{port}", namespace=namespace
        )
        self._pod = pod
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._decided = threading.Event()
        self._port = 0

    def open(self) -> str:
        """The local URL. Raises Unavailable with kubectl's message, ConfigurationError without kubectl."""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - no shell, and our own words
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except FileNotFoundError as error:
            raise ConfigurationError(f"{self._command[0]} is not installed") from error
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self._decided.wait(OPEN_SECONDS)
        if not self._port:
            self.close()
            output = " ".join(self._lines) or f"no port within {OPEN_SECONDS:g} s"
            raise Unavailable(
                f"cannot connect to pod {self._pod}: kubectl port-forward reported: {output}"
            )
        return f"http://127.0.0.1:{self._port}"

    def close(self) -> None:
        """Close the port-forward."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Read kubectl's output until it ends: its port, then each connection."""
        if process.stdout is None:
            raise AssertionError("it was started with a pipe")
        with process.stdout:
            for line in process.stdout:
                found = _LISTENS.match(line)
                if found and not self._port:
                    self._port = int(found[1])
                    self._decided.set()
                self._lines.append(line.strip())
        self._decided.set()
