"""The anchor in files of one machine: compare-and-set without a lock.

This module contains the file protocol and its format. ownership/ decides who may own a bucket.

Each bucket has a directory; each version of its record is one file there, ``<version>.json``,
never changed once it has its name. The highest version is the record. A compare-and-set from
version v writes a temporary file, syncs it, and **links** it to ``<v+1>.json``: the file system lets
only one of all attempts succeed. Then the directory is synced. Old versions are cleaned, lowest
first; the newest ``VERSIONS_KEPT`` stay.

A successful link alone is not sufficient. A process may be paused after it read version v, while
other processes continue and clean v+1. Its link then succeeds although it is too late. So every file
carries a random *nonce* and its predecessor's nonce, and after linking the process lists the
directory:

* **Its file is the highest version: success.** If v+1 had been linked and cleaned before, at least
  ``VERSIONS_KEPT`` higher versions would exist from then on (cleaning keeps the newest), and the
  listing would show one of them. So its file was the first of that name, and it is the record.
* **v+2 exists and names its nonce as the predecessor: success**, but already replaced. The writer of
  v+2 saw its file as the highest version, so it had been the record.
* **Otherwise: failure.** Its file is below the newest versions; readers use the highest version, and
  cleaning removes the file. This answer is wrong in one case: the file was the record, and more than
  ``VERSIONS_KEPT`` versions followed before the listing. The caller then gives up a record that was
  replaced long ago, which only wastes a reserved block.

A late file cannot mislead a reader either: a reader lists, reads the highest file, and lists again. If
the highest version is the same, that file had the name all the time (versions only rise), so its
contents are the record at the time of the second listing. Otherwise the reader starts again.

With one directory per bucket a listing needs one system call, during which the kernel lets no process
change the directory. The file system must have an atomic ``link``, listings that are not cached
(local file systems, not NFS), and ``fsync`` on directories.

Durability: the file is synced before it has its name and the directory before success is reported;
a later version's sync covers the earlier ones, since they share the directory. After a failed sync
the caller gets Unavailable, and this object syncs again before it reads that bucket.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from onewriter_broker.anchor.api import Addresses, Record, Versioned
from onewriter_core.errors import ConfigurationError, Unavailable
from onewriter_core.ids import NUMBER_MAX

FORMAT = 1
"""The version of the file format; files of another version are refused."""

VERSIONS_KEPT = 16
"""Number of newest versions that cleaning keeps in a bucket's directory."""

FILE_BYTES_MAX = 64 * 1024
"""Largest size of a version file; a larger file is invalid."""

READ_ATTEMPTS_MAX = 100
"""Largest number of listings of one read; before each retry another process made progress."""

STAGED_SECONDS_MAX = 3600
"""An older temporary file belongs to a process that died, and is removed."""

THREADS = 4
"""Largest number of concurrent file operations, so that the takeover of many buckets shares disk syncs."""

_VERSION_FILE = re.compile(r"^([1-9][0-9]{0,15})\.json$")
_STAGING = "staging"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One version file, decoded."""

    version: int
    nonce: str
    predecessor: str
    record: Record


def _no_checkpoint(_name: str) -> None:
    pass


class FileAnchor:
    """The anchor of one machine, shared by all processes that open the same directory.

    ``directory`` is created if it is missing at first. ``checkpoint`` is for tests: it is called with the
    name of the step about to be taken ("link", "verify", "clean", "confirm"), in the worker thread.
    """

    records_every_grant = True

    def __init__(
        self, directory: Path, *, checkpoint: Callable[[str], None] = _no_checkpoint
    ) -> None:
        self._directory = directory
        self._is_made = False
        self._checkpoint = checkpoint
        self._unsynced: set[int] = set()
        self._established: set[int] = set()
        self._is_closed = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="anchor")

    async def read(self, bucket: int) -> Versioned:
        """The newest record of a bucket.

        Raises Unavailable if the directory cannot be read, ConfigurationError with the file's name
        if its content is not a record.
        """
        return await self._in_thread(self._read, bucket)

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        """Write version ``version + 1``; None if another process was first.

        Raises Unavailable if the disk fails; then the record may have been written.
        """
        return await self._in_thread(self._compare_and_set, bucket, version, record)

    async def close(self) -> None:
        """Wait for the operations in flight and end the threads; later calls raise Unavailable."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        if self._is_closed:
            raise Unavailable("the anchor was closed")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work, *arguments)
        except OSError as error:
            raise Unavailable(f"the anchor in {self._directory} failed: {error}") from error

    # The rest runs in worker threads.

    def _read(self, bucket: int) -> Versioned:
        directory = self._bucket_directory(bucket)
        if bucket in self._unsynced:
            self._sync(bucket)
        for _ in range(READ_ATTEMPTS_MAX):
            highest = max(_versions(directory), default=0)
            if highest == 0:
                return Versioned(0, Record())
            try:
                entry = _load(directory, highest, bucket)
            except FileNotFoundError:
                continue  # replaced and cleaned meanwhile
            self._checkpoint("confirm")
            if max(_versions(directory), default=0) == highest:
                return Versioned(highest, entry.record)
        raise Unavailable(f"{directory} changes faster than it can be read")

    def _compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        directory = self._bucket_directory(bucket)
        if max(_versions(directory), default=0) != version:
            return None
        try:
            predecessor = _load(directory, version, bucket).nonce if version else ""
        except FileNotFoundError:
            return None
        self._establish(bucket)
        entry = _Entry(version + 1, secrets.token_hex(16), predecessor, record)
        staged = self._stage(entry, bucket)
        try:
            self._checkpoint("link")
            os.link(staged, directory / f"{entry.version}.json")
        except FileExistsError:
            return None
        finally:
            staged.unlink(missing_ok=True)
        self._unsynced.add(bucket)
        self._sync(bucket)
        self._checkpoint("verify")
        won = self._won(directory, entry, bucket)
        self._checkpoint("clean")
        _clean(directory)
        return entry.version if won else None

    def _won(self, directory: Path, entry: _Entry, bucket: int) -> bool:
        """Whether the file just linked is, or was, the record (see the module's docstring)."""
        if max(_versions(directory), default=0) == entry.version:
            return True
        try:
            successor = _load(directory, entry.version + 1, bucket)
        except FileNotFoundError:
            return False
        return successor.predecessor == entry.nonce

    def _stage(self, entry: _Entry, bucket: int) -> Path:
        """Write the entry to a synced temporary file on the same file system."""
        staged = self._directory / _STAGING / f"{bucket}.{entry.version}.{entry.nonce}"
        with staged.open("x", encoding="utf-8") as file:
            file.write(_encode(entry, bucket))
            file.flush()
            os.fsync(file.fileno())
        return staged

    def _sync(self, bucket: int) -> None:
        _sync_directory(self._bucket_directory(bucket))
        self._unsynced.discard(bucket)

    def _bucket_directory(self, bucket: int) -> Path:
        directory = self._directory / f"bucket-{bucket:02d}"
        if not self._is_made:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._is_made = True
        # From then on a missing directory is an error: it does not count as an empty anchor.
        directory.mkdir(exist_ok=True)
        return directory

    def _establish(self, bucket: int) -> None:
        """Sync a bucket's directory before the first write of this process, so that it survives a power failure."""
        if bucket in self._established:
            return
        if not self._established:
            self._sweep()
        _sync_directory(self._directory)
        _sync_directory(self._directory.parent)
        self._established.add(bucket)

    def _sweep(self) -> None:
        staging = self._directory / _STAGING
        staging.mkdir(exist_ok=True)
        os.utime(staging)  # ages are measured with the file system's clock
        oldest = staging.stat().st_mtime - STAGED_SECONDS_MAX
        for staged in staging.iterdir():
            try:
                if staged.stat().st_mtime < oldest:
                    staged.unlink()
            except FileNotFoundError:
                continue  # its process removed it meanwhile


def _versions(directory: Path) -> list[int]:
    matches = (_VERSION_FILE.match(name) for name in os.listdir(directory))  # noqa: PTH208 - one getdents call, names only
    return [int(match[1]) for match in matches if match]


def _clean(directory: Path) -> None:
    for version in sorted(_versions(directory))[:-VERSIONS_KEPT]:
        (directory / f"{version}.json").unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(entry: _Entry, bucket: int) -> str:
    document = {"format": FORMAT, "bucket": bucket, **asdict(entry)}
    return json.dumps(document, indent=1) + "\n"


def _load(directory: Path, version: int, bucket: int) -> _Entry:
    """Decode one version file; raises FileNotFoundError, or ConfigurationError naming the file."""
    path = directory / f"{version}.json"
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    try:
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
        return _decode(json.loads(content), version, bucket)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} is not an anchor record ({error}). Put the file back from a backup of the"
            " data directory; do not delete it, or epochs may be given out twice."
        ) from error


def _decode(document: Any, version: int, bucket: int) -> _Entry:
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r}, this version reads format {FORMAT}")
    if (document["bucket"], document["version"]) != (bucket, version):
        raise ValueError("its bucket and version are not those of its name")
    values = dict(document["record"])
    addresses = Addresses(**{key: _text(value) for key, value in values["addresses"].items()})
    record = Record(
        generation=_number(values["generation"]),
        replid=_text(values["replid"]),
        past_replids=tuple(_text(value) for value in _list(values["past_replids"])),
        owner=_text(values["owner"]),
        addresses=addresses,
        ledger_high_water=_number(values["ledger_high_water"]),
        last_ledger=_number(values["last_ledger"]),
        clean=_flag(values["clean"]),
        known_since=_number(values["known_since"]),
    )
    if unknown := set(values) - {field.name for field in fields(Record)}:
        raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
    return _Entry(version, _text(document["nonce"]), _text(document["predecessor"]), record)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"not a number from 0 to {NUMBER_MAX}: {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r}")  # noqa: TRY004 - one error for every bad value
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"not a list: {value!r}")  # noqa: TRY004 - as above
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"neither true nor false: {value!r}")  # noqa: TRY004 - as above
    return value
