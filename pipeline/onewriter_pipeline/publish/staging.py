"""Publishes rows atomically and once: executors stage parts, and one caller publishes them.

App and version identify a publish. If it is staged and published again, by any process, it is in the log once,
whatever happened to the first attempt. docs/exactly-once.md gives the argument and its limits.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.limits import PUBLISH_VERSION_MAX
from onewriter_core.publish_rights import is_app
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

DISCARD_SECONDS: Final = 5.0
"""How long a failed task tries to drop what it staged; the rest expires."""

LABEL_BYTES: Final = 8
"""Random bytes in the name of an attempt."""

OVERTAKEN: Final = (
    "Another driver has continued, or this one started again or from an older checkpoint: then let it write as"
    " another app (txnAppId), or have the old one forgotten"
)
"""Advice for a conflict with a later version of an app."""


log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Part:
    """A staged part, as the broker identifies it. ``rows`` is never 0.

    ``entries`` and ``entry_bytes`` are its packed size, which is limited.
    """

    key: str
    rows: int
    bytes: int
    checksum: str
    entries: int = 0
    entry_bytes: int = 0

    def claimed(self) -> dict[str, object]:
        """The part in a publish request, as the broker returned it."""
        return {
            "key": self.key,
            "rows": self.rows,
            "bytes": self.bytes,
            "checksum": self.checksum,
        }


@dataclass(frozen=True, slots=True)
class Publication:
    """The result of a publish.

    ``is_duplicate``: this version of the app was published before. ``first`` and ``last``: its position; None for a
    duplicate, and without rows. ``held``: for a duplicate, the version that the log has.
    """

    is_duplicate: bool
    first: Position | None
    last: Position | None
    rows: int
    held: int | None = None


def check_app(app: str) -> None:
    """Raise Invalid for an invalid name of an app."""
    if not is_app(app):
        raise Invalid(f"{app[:60]!r} is not a valid app: use 1 to 200 letters, digits, or . _ : -")


def check_version(version: int) -> None:
    """Raise Invalid for a version that is too high."""
    if not 0 <= version < PUBLISH_VERSION_MAX:
        raise Invalid(
            f"{version} is not a valid version: use a whole number below {PUBLISH_VERSION_MAX}"
        )


def staged_path(name: TopicName, app: str, version: int) -> str:
    """The path of the parts of a version."""
    return f"{topic_path(name)}/staged/{quote(app)}/{version}"


class Staging:
    """Stages and publishes one version of one app in one log; for one thread.

    ``log``: a topic without partitions, or one partition by its name. ``grant``: the epoch that leads it, and the
    capability; without it, rows can be staged and dropped, but not published. ``connection``: a shared connection,
    which is not closed. Raises Invalid.
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
        """Close all connections, unless they are shared."""
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
        """Stage the rows of one partition; no parts without rows. Raises PipelineError.

        If the rows end in an error, what was staged is dropped.
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
        """A stager for the rows of one partition, batch by batch.

        ``attempt`` is information for operators. Names of parts are unique for each call, because two drivers may
        use the same attempt numbers.
        """
        return Stager(self, partition, attempt, Packer(frame_rows=frame_rows))

    def put(self, label: str, packed: PackedPart) -> Part:
        """Stage one part. Raises PipelineError."""
        path = f"{self._path}/{label}"
        answer = self._connection.ask(
            "PUT", path, owner=self._owner, body=packed.body, headers=self._headers
        )
        part = _part(answer)
        if (part.rows, part.bytes) != (packed.rows, len(packed.body)):
            raise Damaged(f"a broker stored another part than {part.key} was")
        return replace(part, entries=packed.entries, entry_bytes=packed.entry_bytes)

    def publish(self, parts: Sequence[Part]) -> Publication:
        """Publish all parts in this order, atomically. May be repeated.

        Raises Conflict if the grant's epoch does not lead, or if a later version of the app is published;
        MissingPart: stage all parts again.
        """
        found = self.try_to_publish(parts)
        if found.is_duplicate:
            self._check_held(found.held or 0)
        return found

    def ask(self) -> None:
        """Check whether ``publish`` is allowed, regardless of parts. Publishes nothing.

        Raises the errors of ``publish``, except those about parts.
        """
        found = self.try_to_publish(())
        if found.held is not None and found.held > self._version:
            self._check_held(found.held)

    def try_to_publish(self, parts: Sequence[Part]) -> Publication:
        """Like ``publish``, but a later version of the app counts as a duplicate."""
        if self._grant is None:
            raise Invalid(f"no epoch of {self._log} is given, and nothing is published without one")
        claimed = [part.claimed() for part in parts]
        body: dict[str, object] = {"epoch": self._grant.epoch, "parts": claimed}
        path = f"{self._path}/publish"
        try:
            answer = self._connection.ask(
                "POST", path, owner=self._owner, body=body, headers=self._headers
            )
        except Trimmed as error:
            raise MissingPart(str(error)) from error
        with understood():
            is_duplicate = answer["outcome"] == "duplicate"
            return Publication(
                is_duplicate,
                None if answer["first"] is None else position_of(answer["first"]),
                None if answer["last"] is None else position_of(answer["last"]),
                int(answer["rows"]),
                int(answer["held"]) if is_duplicate else None,
            )

    def _check_held(self, held: int) -> None:
        """Check that a duplicate is of the same version. A later version says nothing about these rows."""
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
        """Drop these parts, but none of another driver. Published rows stay. May be repeated.

        ``within``: time limit in seconds; by default that of the access.
        """
        if parts:
            body: dict[str, object] = {"parts": [part.claimed() for part in parts]}
            path = f"{self._path}/discard"
            self._connection.ask(
                "POST", path, owner=self._owner, body=body, within=within, headers=self._headers
            )


class Stager:
    """Stages the rows of one partition for one log: ``parts`` are staged, ``pending`` bytes are not."""

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
        """Stage the parts that these rows complete. Raises PipelineError."""
        self._put(self._packer.add(batch))

    def flush(self) -> None:
        """Stage all remaining rows. Raises PipelineError."""
        self._put(self._packer.end())

    def discard(self, within: float) -> None:
        """Drop what is staged, within a number of seconds. Raises PipelineError; then it expires."""
        self._staging.discard(self.parts, within=within)

    def _put(self, packed: Iterator[PackedPart]) -> None:
        for part in packed:
            label = f"{self._partition}.{len(self.parts)}/{self._label}"
            self.parts.append(self._staging.put(label, part))


def discard_all(
    stagers: Iterable[Stager], error: Exception, *, seconds: float = DISCARD_SECONDS
) -> None:
    """Drop what was staged, after an error. What cannot be dropped at once expires.

    If the error is that no broker answered, this does not wait for brokers again.
    """
    until = time.monotonic() + seconds
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


def _part(document: dict[str, Any]) -> Part:
    with understood():
        return Part(
            str(document["key"]),
            int(document["rows"]),
            int(document["bytes"]),
            str(document["checksum"]),
        )
