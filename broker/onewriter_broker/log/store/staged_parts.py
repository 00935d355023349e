"""Staged parts in the store: data for an atomic publish that is not published yet.

Parts have their own keys beside the logs, and expire. The store does not guard them: the stager names
a part, and the publisher names it with its checksum, so a late write of a part changes no publish. The
broker records who staged a part, and rejects a replacement by another subject. Brokers have no command
that removes a key; a part disappears with its last field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from onewriter_core.errors import OnewriterError
from onewriter_core.ids import Identity

CHUNK_BYTES = 512 * 1024
"""Largest size of one write or read of a part."""


class Damaged(OnewriterError):
    """The store's record of a part cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Stager:
    """Who staged a part, and under which topic epoch; None: by the right to produce alone."""

    identity: Identity
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One part: its numbers of rows and bytes, their checksum, and its expiry (wall clock, ms).

    ``stager`` is None for a part that a broker of an earlier release stored.
    """

    rows: int
    bytes: int
    checksum: str
    until_ms: int
    stager: Stager | None = None

    @property
    def chunks(self) -> int:
        """The number of its chunks."""
        return -(-self.bytes // CHUNK_BYTES)

    def encode(self) -> str:
        """The text that is stored beside the part.

        The stager follows the checksum in one string: earlier releases read a list of four.
        """
        marks = self.checksum
        if self.stager is not None:
            identity, epoch = self.stager.identity, self.stager.epoch
            marks += " " + json.dumps([identity.subject, identity.pod_uid, epoch])
        return json.dumps([self.rows, self.bytes, marks, self.until_ms])


def decode_part(text: str) -> StagedPart:
    """The inverse of ``encode``. Raises Damaged."""
    try:
        rows, size, marks, until_ms = json.loads(text)
        checksum, _, stager = str(marks).partition(" ")
        return StagedPart(int(rows), int(size), checksum, int(until_ms), _stager(stager))
    except (TypeError, ValueError) as error:
        raise Damaged(f"a staged part is described by {text[:80]!r}") from error


def _stager(text: str) -> Stager | None:
    if not text:
        return None
    subject, pod_uid, epoch = json.loads(text)
    return Stager(Identity(str(subject), str(pod_uid)), None if epoch is None else int(epoch))


class StagedStore(Protocol):
    """Parts by their names, in each bucket; a part of LogStore, whose errors apply here.

    ``write`` and ``note`` may be repeated. A part exists from ``note`` on.
    """

    async def check_rights(self) -> None:
        """Raises Refused if the store does not allow brokers to drop an interrupted publish."""
        ...

    async def write(self, bucket: int, name: str, number: int, chunk: bytes) -> None:
        """Store one chunk of a part."""
        ...

    async def note(self, bucket: int, name: str, part: StagedPart) -> None:
        """Store the description of a part: before its first chunk, so that each chunk belongs to a known part, and after."""
        ...

    async def read(self, bucket: int, name: str, number: int) -> bytes | None:
        """One chunk; None if there is none."""
        ...

    async def noted(self, bucket: int) -> Mapping[str, str]:
        """All parts of a bucket, encoded."""
        ...

    async def drop(self, bucket: int, name: str, chunks: int) -> None:
        """Drop a part that has this number of chunks."""
        ...
