"""The lock of a data directory, which keeps two users of it apart.

A lock file with ``flock``: the kernel releases the lock when its holder has ended, however it ended. A child
that inherits the descriptor shares the lock, which is then held until the child has ended, too.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from onewriter_core.errors import ConfigurationError


class DirectoryLock:
    """The exclusive use of a directory, from ``acquire`` until ``release`` or the end of the process.

    ``what`` names the user in the error for a second one. ``name`` is the name of the lock file.
    """

    def __init__(self, directory: Path, *, what: str, name: str = "lock") -> None:
        self._directory = directory
        self._what = what
        self._path = directory / name
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open lock file, for a child that shares the lock. Raises ValueError if the lock is not held."""
        if self._descriptor is None:
            raise ValueError(f"the lock on {self._directory} is not held")
        return self._descriptor

    def acquire(self) -> None:
        """Take the lock; creates the directory.

        Raises ConfigurationError if another process holds it (with its process id), or if the directory
        cannot be used.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"the data directory {self._directory} cannot be used: {error}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigurationError(
                f"{self._directory} is in use by {self._what} with process id {holder}:"
                " stop it first, or choose another data directory"
            ) from error
        self._descriptor = descriptor
        self.write_holder(os.getpid())

    def write_holder(self, process_id: int) -> None:
        """Store the process id that the error for a second user names."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{process_id}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. A child that shares it keeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
