"""Publishing rows as a whole and once: executors stage their parts, one caller publishes them.

A publish is known by an app and a version: staged and published again, by whomever, it is in the log
once, whatever happened to the first attempt. docs/exactly-once.md argues why, and says where it ends.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from onewriter_core.ids import Position, TopicName
from onewriter_pipeline.brokers.connection import Access, Connection, understood
from onewriter_pipeline.brokers.names import log_name, position_of, topic_path
from onewriter_pipeline.errors import (
    Away,
    Conflict,
    Damaged,
    Invalid,
    MissingPart,
    PipelineError,
    Trimmed,
)
from onewriter_pipeline.lead.requests import Grant
from onewriter_pipeline.publish.parts import FRAME_ROWS, PackedPart, Packer

if TYPE_CHECKING:
    import pyarrow as pa

VERSION_MAX: Final = 10**15
"""Versions are below this."""

DISCARD_SECONDS: Final = 5.0
"""How long a task that fails tries to drop what it has staged: what is left expires."""

LABEL_BYTES: Final = 8
"""Random bytes in the name of an attempt."""

OVERTAKEN: Final = (
    "Another driver has continued, or this one started again or from an older checkpoint: then let it write as"
    " another app (txnAppId), or have the old one forgotten"
)
"""What to do where a later version of an app is published."""

_APP: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Part:
    """A part as the broker keeps it: whoever publishes names it so. ``rows`` is never 0.

    ``entries`` and ``entry_bytes`` are what it was packed to, which tells whether it can be published.
    """

    key: str
    rows: int
    bytes: int
    checksum: str
    entries: int = 0
    entry_bytes: int = 0

    def claimed(self) -> dict[str, object]:
        """As a broker answered it, and is told it again."""
        return {
            "key": self.key,
            "rows": self.rows,
            "bytes": self.bytes,
            "checksum": self.checksum,
        }


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of a publish.

    ``is_duplicate``: this version of the app was published before. ``first`` and ``last``: where it
    stands; None for a duplicate, and where there were no rows. ``held``: of a duplicate, the version
    that the log has.
    """

    is_duplicate: bool
    first: Position | None
    last: Position | None
    rows: int
    held: int | None = None


def check_app(app: str) -> None:
    """Raises Invalid for a name under which nobody publishes."""
    if not _APP.fullmatch(app):
        raise Invalid(f"{app[:60]!r} is not a valid app: use 1 to 200 letters, digits, or . _ : -")


def check_version(version: int) -> None:
    """Raises Invalid for a version that is too high."""
    if not 0 <= version < VERSION_MAX:
        raise Invalid(f"{version} is not a valid version: use a whole number below {VERSION_MAX}")


def staged_path(name: TopicName, app: str, version: int) -> str:
    """Where the parts of a version go."""
    return f"{topic_path(name)}/staged/{quote(app)}/{version}"


class Staging:
    """One version of one app on its way to one log; for one thread.

    ``log``: a topic without partitions, or one partition by its name. ``grant``: the epoch that leads it,
    and what proves the right to write under it; without, rows can be staged and dropped, not published.
    ``connection``: one that others use too, and close. Raises Invalid.
    """

    def __init__(
        self,
        access: Access,
        log: str,
        app: str,
        version: int,
        grant: Grant | None = None,
        connection: Connection | None = None,
    ) -> None:
        name = log_name(log)
        check_app(app)
        check_version(version)
        self._owner = str(name.base)
        self._grant = grant
        self._headers = {} if grant is None else grant.headers()
        self._log, self._app, self._version = log, app, version
        self._path = staged_path(name, app, version)
        self._is_own = connection is None
        self._connection = connection or Connection(access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, unless they are others'."""
        if self._is_own:
            self._connection.close()

    def stage(
        self,
        partition: int,
        attempt: int,
        batches: Iterable[pa.RecordBatch],
        *,
        frame_rows: int = FRAME_ROWS,
    ) -> list[Part]:
        """Stage the rows of one partition; no parts for no rows. Raises PipelineError.

        What is staged of rows that end in an error goes.
        """
        stager = self.stager(partition, attempt, frame_rows=frame_rows)
        try:
            for batch in batches:
                stager.add(batch)
            stager.flush()
        except Exception as error:
            discard_all([stager], error)
            raise
        return stager.parts

    def stager(self, partition: int, attempt: int, *, frame_rows: int = FRAME_ROWS) -> Stager:
        """Takes the rows of one partition, batch by batch.

        ``attempt`` tells an operator whose they are; their names are new with each call all the same,
        since two drivers may count attempts alike.
        """
        return Stager(self, partition, attempt, Packer(frame_rows=frame_rows))

    def put(self, label: str, packed: PackedPart) -> Part:
        """Stage one part. Raises PipelineError."""
        path = f"{self._path}/{label}"
        said = self._connection.ask(
            "PUT", path, owner=self._owner, body=packed.body, headers=self._headers
        )
        part = _part(said)
        if (part.rows, part.bytes) != (packed.rows, len(packed.body)):
            raise Damaged(f"a broker keeps another part than {part.key} was")
        return replace(part, entries=packed.entries, entry_bytes=packed.entry_bytes)

    def publish(self, parts: Sequence[Part]) -> Publication:
        """Publish the parts, in this order, all of them or none. May be repeated.

        Raises Conflict where the grant's epoch does not lead (any more), or a later version of the app is
        published; MissingPart: stage all of them again.
        """
        found = self.try_to_publish(parts)
        if found.is_duplicate:
            self._check_held(found.held or 0)
        return found

    def ask(self) -> None:
        """Whether ``publish`` may be asked for, whatever its parts. Publishes nothing.

        Raises as it does, other than for parts.
        """
        found = self.try_to_publish(())
        if found.held is not None and found.held > self._version:
            self._check_held(found.held)

    def try_to_publish(self, parts: Sequence[Part]) -> Publication:
        """As ``publish``; a later version of the app is a duplicate like any other."""
        if self._grant is None:
            raise Invalid(f"no epoch of {self._log} is given, and nothing is published without one")
        claimed = [part.claimed() for part in parts]
        body: dict[str, object] = {"epoch": self._grant.epoch, "parts": claimed}
        path = f"{self._path}/publish"
        try:
            said = self._connection.ask(
                "POST", path, owner=self._owner, body=body, headers=self._headers
            )
        except Trimmed as error:
            raise MissingPart(str(error)) from error
        with understood():
            is_duplicate = said["outcome"] == "duplicate"
            return Publication(
                is_duplicate,
                None if said["first"] is None else position_of(said["first"]),
                None if said["last"] is None else position_of(said["last"]),
                int(said["rows"]),
                int(said["held"]) if is_duplicate else None,
            )

    def _check_held(self, held: int) -> None:
        """What is a duplicate is one of this version: a later one tells nothing about these rows."""
        if held <= self._version:
            log.warning(
                "version %d of %s is in %s already: nothing was published again",
                self._version,
                self._app,
                self._log,
            )
            return
        raise Conflict(
            f"version {self._version} of {self._app} is not published: {self._log} has version {held}"
            f" of it already. {OVERTAKEN}"
        )

    def discard(self, parts: Sequence[Part], *, within: float | None = None) -> None:
        """Drop these parts, and none of another driver; what is published stays. May be repeated.

        ``within``: seconds after which it is given up; the patience of the access if there are none.
        """
        if parts:
            body: dict[str, object] = {"parts": [part.claimed() for part in parts]}
            path = f"{self._path}/discard"
            self._connection.ask(
                "POST", path, owner=self._owner, body=body, within=within, headers=self._headers
            )


class Stager:
    """Rows of one partition on their way to one log: ``parts`` are staged, ``pending`` bytes are not."""

    def __init__(self, staging: Staging, partition: int, attempt: int, packer: Packer) -> None:
        self._staging = staging
        self._partition = partition
        self._label = f"{attempt}-{secrets.token_hex(LABEL_BYTES)}"
        self._packer = packer
        self.parts: list[Part] = []

    @property
    def pending(self) -> int:
        """Bytes that are in no part yet."""
        return self._packer.pending

    def add(self, batch: pa.RecordBatch) -> None:
        """Stage the parts that are full with these rows. Raises PipelineError."""
        self._put(self._packer.add(batch))

    def flush(self) -> None:
        """Stage all rows that have come. Raises PipelineError."""
        self._put(self._packer.end())

    def discard(self, within: float) -> None:
        """Drop what is staged, in so many seconds. Raises PipelineError: then it expires."""
        self._staging.discard(self.parts, within=within)

    def _put(self, packed: Iterator[PackedPart]) -> None:
        for part in packed:
            label = f"{self._partition}.{len(self.parts)}/{self._label}"
            self.parts.append(self._staging.put(label, part))


def discard_all(stagers: Iterable[Stager], error: Exception) -> None:
    """Drop what they have staged behind an error, as far as that can be done at once; else it expires.

    Whoever has waited for a broker in vain does not wait for it once more.
    """
    until = time.monotonic() + DISCARD_SECONDS
    for stager in stagers:
        left = until - time.monotonic()
        if isinstance(error, Away) or left <= 0:
            return
        try:
            stager.discard(left)
        except Away:
            return
        except PipelineError:
            continue


def _part(said: dict[str, Any]) -> Part:
    with understood():
        return Part(str(said["key"]), int(said["rows"]), int(said["bytes"]), str(said["checksum"]))
