"""Free TCP ports of this machine, for tests and benchmarks that run beside each other.

What lives here: which ports a process may use. Nothing listens on them yet.
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
"""Where free ports are looked for."""

PORT_ATTEMPTS_MAX = 100

PORTS_OF_A_PROCESS = 512
"""How many of them a process has to itself."""


def free_ports(count: int) -> int:
    """The first of ``count`` consecutive TCP ports of 127.0.0.1 that nobody uses just now.

    Below those that the kernel gives to outgoing connections: else a client that comes back to a
    port while its broker is down may be given that very port, and the broker never gets it back.
    Every process that asks has a part of the range to itself for as long as it lives: between this
    answer and the moment when somebody listens there, or listens again, nobody else is given it.
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
    """The part of the range that a process has, and which ports it has given out last."""

    def __init__(self) -> None:
        self.process_id = 0
        self.first, self.end = PORT_MIN, PORT_END
        self._next = PORT_MIN

    def take_part(self) -> None:
        """Lock a part that no other process has; where there is none, all of the range is shared.

        The lock ends with the process: its file stays open until then, and no child inherits it.
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
        """Where to look next: ports that were given out come last again."""
        first = self._next if self._next + count <= self.end else self.first
        self._next = first + count
        return first


_PORTS = _Ports()


def _outgoing_port_min() -> int:
    """The lowest port of outgoing connections; Linux tells, elsewhere it is above our range."""
    try:
        found = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return PORT_END
    return min(found, PORT_END) if found > PORT_MIN + PORT_ATTEMPTS_MAX else PORT_END
