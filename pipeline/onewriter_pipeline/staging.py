"""Publishing rows as a whole and once: executors stage their parts, one caller publishes them.

A publish is known by an app and a version: staged and published again, by whomever, it is in the log
once, whatever happened to the first attempt. docs/exactly-once.md argues why, and says where it ends.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from onewriter_core.ids import InvalidTopicName, Position, TopicName
from onewriter_pipeline.connection import Access, Connection, position_of
from onewriter_pipeline.errors import (
    Conflict,
    Damaged,
    Invalid,
    MissingPart,
    PipelineError,
    Trimmed,
)
from onewriter_pipeline.packing import FRAME_ROWS, pack

if TYPE_CHECKING:
    import pyarrow as pa

VERSION_MAX: Final = 10**15
"""Versions are below this."""

LABEL_BYTES: Final = 8
"""Random bytes in the name of an attempt."""

_APP: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Part:
    """A part as the broker keeps it: whoever publishes names it so. ``rows`` is never 0."""

    key: str
    rows: int
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of a publish.

    ``is_duplicate``: this version of the app was published before. ``first`` and ``last``: where it
    stands; None for a duplicate, and where there were no rows.
    """

    is_duplicate: bool
    first: Position | None
    last: Position | None
    rows: int


class Staging:
    """One version of one app on its way to one log; for one thread.

    ``log``: a topic without partitions, or one partition by its name. Raises Invalid.
    """

    def __init__(self, access: Access, log: str, app: str, version: int) -> None:
        try:
            name = TopicName.parse(log)
        except InvalidTopicName as error:
            raise Invalid(str(error)) from error
        if not _APP.fullmatch(app):
            raise Invalid(f"{app[:60]!r} is no app: these are 1 to 200 letters, digits, or . _ : -")
        if not 0 <= version < VERSION_MAX:
            raise Invalid(f"{version} is no version: these are whole numbers below {VERSION_MAX}")
        self._owner = str(name.base)
        self._log, self._app, self._version = log, app, version
        local = quote(str(name).split("/", 4)[4], safe="")
        topic = f"{quote(name.tenant)}/{quote(name.namespace)}/{local}"
        self._path = f"/onewriter/v1/topics/{topic}/staged/{quote(app)}/{version}"
        self._connection = Connection(access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
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

        ``attempt`` tells an operator whose they are; their names are new with each call all the same,
        since two drivers may count attempts alike. What is staged of rows that end in an error goes.
        """
        label = f"{attempt}-{secrets.token_hex(LABEL_BYTES)}"
        parts: list[Part] = []
        try:
            for number, packed in enumerate(pack(batches, frame_rows=frame_rows)):
                path = f"{self._path}/{partition}.{number}/{label}"
                said = self._connection.ask("PUT", path, owner=self._owner, body=packed.body)
                part = _part(said)
                parts.append(part)
                if (part.rows, part.bytes) != (packed.rows, len(packed.body)):
                    raise Damaged(f"a broker keeps another part than {part.key} was")
        except Exception:
            with contextlib.suppress(PipelineError):  # they expire
                self.discard(parts)
            raise
        return parts

    def publish(self, parts: Sequence[Part], epoch: int | None) -> Publication:
        """Publish the parts, in this order, all of them or none. May be repeated.

        ``epoch``: the topic's epoch under which it is done; None: the topic is taken for as long as
        it takes. Raises Conflict where that epoch does not lead (any more), somebody else has the
        topic, or a later version of the app is published; MissingPart: stage all of them again.
        """
        body: dict[str, object] = {"epoch": epoch, "parts": [asdict(part) for part in parts]}
        try:
            said = self._connection.ask(
                "POST", f"{self._path}/publish", owner=self._owner, body=body
            )
        except Trimmed as error:
            raise MissingPart(str(error)) from error
        try:
            if said["outcome"] == "duplicate":
                self._check_held(int(said["held"]))
            return Publication(
                said["outcome"] == "duplicate",
                None if said["first"] is None else position_of(said["first"]),
                None if said["last"] is None else position_of(said["last"]),
                int(said["rows"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"a broker of another version? It answers {said}") from error

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
            " of it already. Another driver has gone on, or this one began anew or from an older"
            " checkpoint: then let it write as another app (txnAppId), or have the old one forgotten"
        )

    def discard(self, parts: Sequence[Part]) -> None:
        """Drop these parts, and none of another driver; what is published stays. May be repeated."""
        if parts:
            body: dict[str, object] = {"parts": [asdict(part) for part in parts]}
            self._connection.ask("POST", f"{self._path}/discard", owner=self._owner, body=body)


def _part(said: dict[str, Any]) -> Part:
    try:
        return Part(str(said["key"]), int(said["rows"]), int(said["bytes"]), str(said["checksum"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"a broker of another version? It answers {said}") from error
