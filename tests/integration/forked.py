"""Processes that are forked from one that has all imports, so that real processes start at once.

A broker spends a second of processor time on imports, a sidecar half a second. ``fork`` runs the same ``main`` in a
separate process, which can be killed and frozen like any other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import cast

_context: ForkServerContext = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "tests.integration.preloaded"])


def fork(
    main: Callable[..., object],
    *arguments: object,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Run ``main``, a function of a module, in a process. Its result is the exit code.

    ``log`` receives its output. The process has those methods and fields of ``subprocess.Popen`` that the tests
    use: pid, returncode, poll, wait, send_signal, terminate and kill.
    """
    inside = (main, arguments, log, dict(environment or {}))
    child = _context.Process(target=_run, args=inside, daemon=True)
    return cast("subprocess.Popen[bytes]", _Forked(child))


def _run(
    main: Callable[..., int],
    arguments: tuple[object, ...],
    log: Path,
    environment: dict[str, str],
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    sys.exit(main(*arguments))


class _Forked:
    def __init__(self, child: ForkServerProcess) -> None:
        child.start()
        self._child = child
        self.pid = child.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._child.exitcode

    def poll(self) -> int | None:
        return self._child.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._child.join(timeout)
        if self._child.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self._child.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # The fork server has reaped it, and has not reported it yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        self._child.kill()
