"""Free TCP ports of this machine, for concurrent tests and benchmarks.

This module only chooses ports; it does not listen on them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path

from onewriter_core.errors import Unavailable

PORT_MIN, PORT_END = 10_000, 32_768
"""The range of the ports."""

PORT_ATTEMPTS_MAX = 100

PORTS_OF_A_PROCESS = 512
"""Ports that are reserved for one process."""


def free_ports(count: int) -> int:
    """The first of ``count`` consecutive TCP ports of 127.0.0.1 that are free now.

    They are below the kernel's ports for outgoing connections. Otherwise, a client that reconnects while its
    broker is down could get that very port, and the broker would never get it back. Each process reserves a
    part of the range for its lifetime, so no other process gets a port between this call and the moment when
    a server listens there, or listens again.
    """
    if _PORTS.process_id != os.getpid():
        _PORTS.take_part()
    for _ in range(PORT_ATTEMPTS_MAX):
        first = _PORTS.next(count)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for number in range(count):
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", first + number))
            return first
    raise Unavailable(f"no {count} free ports in a row")


class _Ports:
    """The part of the range that a process has reserved, and the port that it returns next."""

    def __init__(self) -> None:
        self.process_id = 0
        self.first, self.end = PORT_MIN, PORT_END
        self._next = PORT_MIN

    def take_part(self) -> None:
        """Lock a part that no other process has; if there is none, share the whole range.

        The lock ends with the process: its file stays open until then, and children do not inherit it.
        """
        self.process_id, end = os.getpid(), _outgoing_port_min()
        self.first, self.end = PORT_MIN, end
        folder = Path(tempfile.gettempdir(), f"onewriter-ports-{os.getuid()}")
        folder.mkdir(exist_ok=True)
        for first in range(PORT_MIN, end - PORTS_OF_A_PROCESS + 1, PORTS_OF_A_PROCESS):
            file = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                self.first, self.end = first, first + PORTS_OF_A_PROCESS
                break
        self._next = self.first + secrets.randbelow(self.end - self.first)

    def next(self, count: int) -> int:
        """The next candidate. Ports that were returned before come last."""
        first = self._next if self._next + count <= self.end else self.first
        self._next = first + count
        return first


_PORTS = _Ports()


def _outgoing_port_min() -> int:
    """The lowest port of outgoing connections. Linux states it; on other systems it is above the range."""
    try:
        found = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return PORT_END
    return min(found, PORT_END) if found > PORT_MIN + PORT_ATTEMPTS_MAX else PORT_END
