"""Finds the driver process, and whether it still runs.

Spark runs the Python code of a data source in short-lived child processes of the driver's JVM. That JVM is the
driver: topics are led as long as it runs. Without a JVM above it, a program is its own driver.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

JAVA_PROGRAM: Final = "java"

ANCESTORS_MAX: Final = 32
"""Limit of the processes between a data source's Python and the JVM that started it; usually there are one or two.
"""

_PARENT_FIELD: Final = 1
_START_FIELD: Final = 19
"""In /proc/PID/stat, counted from the field after the process's name."""

_ENDED: Final = frozenset({"Z", "X"})
"""States of a process that has ended, but still has an entry in the process table."""


class Process(NamedTuple):
    """A process of this machine; ``started`` distinguishes it from a later one with the same id."""

    pid: int
    started: str

    def is_running(self) -> bool:
        """Whether it still runs."""
        found = _look_up(self.pid)
        return found is not None and found.started == self.started


class _Found(NamedTuple):
    parent: int
    name: str
    started: str


def driver_of(pid: int | None = None) -> Process:
    """The nearest JVM above a process (by default this one), or the process itself if there is none."""
    own = os.getpid() if pid is None else pid
    at = own
    for _ in range(ANCESTORS_MAX):
        found = _look_up(at)
        if found is None:
            break
        if found.name == JAVA_PROGRAM:
            return Process(at, found.started)
        at = found.parent
    found = _look_up(own)
    return Process(own, "" if found is None else found.started)


def _look_up(pid: int) -> _Found | None:
    """Information about a process; None: it has ended."""
    if pid <= 0:
        return None
    if Path("/proc/self/stat").exists():
        return _in_proc(pid)
    return _by_ps(pid)


def _in_proc(pid: int) -> _Found | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in _ENDED:
        return None
    return _Found(int(fields[_PARENT_FIELD]), name, fields[_START_FIELD])


def _by_ps(pid: int) -> _Found | None:
    """The same without /proc (macOS)."""
    command = ["ps", "-o", "ppid=,state=,lstart=,comm=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    fields = answer.stdout.split(maxsplit=7)
    if answer.returncode or len(fields) < 8 or fields[1][0] in _ENDED:
        return None
    return _Found(int(fields[0]), Path(fields[7].strip()).name, " ".join(fields[2:7]))
