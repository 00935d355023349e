"""The data sources' client of the driver's leader process, which it starts if necessary."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from onewriter_pipeline.errors import Away, Invalid
from onewriter_pipeline.lead.driver import Process, driver_of
from onewriter_pipeline.lead.requests import (
    LINE_BYTES_MAX,
    READY,
    SOCKET,
    STATUS,
    Grant,
    LeaderRequest,
    answer_of,
    grants_of,
)

ANSWER_SECONDS: Final = 90.0
"""Time limit of an answer, in addition to the waiting time of the request."""

SOCKET_PATH_MAX: Final = 100
"""Length of a unix socket's path; systems allow 104 to 108 characters."""

LOG_CHARACTERS: Final = 2_000
"""How much of the log is shown if a leader process fails to start."""

TRIES_MAX: Final = 3
"""Attempts of a request, because an idle leader process may end at that moment."""

_CHUNK: Final = 65536


class Leader:
    """The client of a driver's leader process; can be pickled."""

    def __init__(self, driver: Process | None = None, root: Path | None = None) -> None:
        self._driver = driver or driver_of()
        digest = hashlib.sha256(repr(self._driver).encode()).hexdigest()[:12]
        self._folder = (root or Path(tempfile.gettempdir())) / f"onewriter-{os.getuid()}-{digest}"

    def grants(self, request: LeaderRequest) -> dict[str, Grant]:
        """The grants for a request. Starts the leader process if there is none.

        Raises PipelineError.
        """
        return grants_of(self._ask(request, starts=True))

    def end(self, request: LeaderRequest) -> None:
        """Report the end of a batch. Does nothing without a leader process."""
        with contextlib.suppress(Away):
            answer_of(self._ask(request, starts=False))

    def status(self) -> dict[str, Any]:
        """The topics that are led, and for which uses; empty without a leader process."""
        try:
            return answer_of(self._ask(LeaderRequest(STATUS, ""), starts=False))
        except Away:
            return {}

    def _ask(self, request: LeaderRequest, *, starts: bool) -> bytes:
        """An answer. Each request may be repeated. Raises PipelineError."""
        for _ in range(TRIES_MAX):
            answer = self._ask_once(request, starts=starts)
            if answer:
                return answer
        raise Away("the driver's leader process ended before it answered")

    def _ask_once(self, request: LeaderRequest, *, starts: bool) -> bytes:
        """One attempt; empty if the leader process has just ended."""
        with self._connected(starts=starts) as connection:
            connection.settimeout(request.wait_seconds + ANSWER_SECONDS)
            try:
                connection.sendall(request.line())
                found = bytearray()
                while not found.endswith(b"\n") and len(found) <= LINE_BYTES_MAX:
                    chunk = connection.recv(_CHUNK)
                    if not chunk:
                        break
                    found += chunk
            except ConnectionError:
                return b""
            except OSError as error:
                raise Away(f"the driver's leader process does not answer: {error}") from error
        return bytes(found)

    @contextlib.contextmanager
    def _connected(self, *, starts: bool) -> Iterator[socket.socket]:
        self._check_folder(makes=starts)
        connection = self._connection()
        if connection is None and starts:
            with _locked(self._folder / "lock"):
                connection = self._connection()
                if connection is None:
                    self._start()
                    connection = self._connection()
        if connection is None:
            raise Away("the driver has no leader process")
        with connection:
            yield connection

    def _connection(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self._folder / SOCKET))
        except OSError:
            connection.close()
            return None
        return connection

    def _check_folder(self, *, makes: bool) -> None:
        """Check that only this user can access the folder. Raises Invalid, Away."""
        if len(str(self._folder / SOCKET)) > SOCKET_PATH_MAX:
            raise Invalid(
                f"{self._folder} is too long for the path of a socket: set TMPDIR to a shorter folder"
            )
        if makes:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
        try:
            found = self._folder.lstat()
        except FileNotFoundError:
            raise Away("the driver has no leader process") from None
        is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not is_private or found.st_uid != os.getuid():
            raise Invalid(f"{self._folder} is not a folder of this user alone: remove it")

    def _start(self) -> None:
        """Start the process, and wait until it listens. Raises Away."""
        path = os.pathsep.join(each for each in sys.path if each)
        command = [sys.executable, "-m", "onewriter_pipeline.lead", str(self._folder)]
        (self._folder / SOCKET).unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [*command, str(self._driver.pid), self._driver.started],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": path},
                cwd=self._folder,
                start_new_session=True,
            )
        line = b""
        if process.stdout is not None:
            with process.stdout as stdout:
                line = stdout.readline()
        process.returncode = 0  # it outlives this process, which does not wait for its end
        if line.strip() != READY:
            text = (self._folder / "log").read_text(errors="replace")[-LOG_CHARACTERS:]
            raise Away(f"the driver's leader process did not start: {text}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that all processes of this driver share."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
