"""Contents that a chunk does not contain directly: compressed contents, and messages that were sent in chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.wire.compression import decompress

CONTENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit of an uncompressed message or batch, and of a message from chunks."""

CHUNKED_BYTES_MAX: Final = 512 * 1024 * 1024
"""Limit of all chunks of incomplete messages."""


class ChunksMissing(Exception):
    """The previous chunks of a message were not read."""


def uncompressed(codec: int, content: bytes, size: int) -> bytes:
    """The uncompressed content. Raises ProtocolError if that is not possible."""
    if size > CONTENT_BYTES_MAX:
        raise ProtocolError(f"a content that claims {size} bytes")
    return decompress(codec, content, size)


@dataclass(frozen=True, slots=True)
class Assembled:
    """The content of a message that was sent in chunks, and the position of its first chunk."""

    content: bytes
    first: Position


@dataclass(slots=True)
class _PartialMessage:
    count: int
    first: Position
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Assembler:
    """Assembles messages that their producer sent in chunks, for one log in its order.

    Such a message has the position of its last chunk. At most ``CHUNKED_BYTES_MAX`` bytes wait for further chunks;
    beyond that, the oldest messages are dropped, because their producers probably gave up.
    """

    def __init__(self) -> None:
        self._begun: dict[bytes, _PartialMessage] = {}
        self._bytes = 0

    def add(
        self, uuid: bytes, chunk_id: int, count: int, content: bytes, at: Position
    ) -> Assembled | None:
        """Add the chunk at a position. Returns the whole message after its last chunk.

        Raises ChunksMissing if previous chunks were not added, and ProtocolError if the chunks do not form a
        message.
        """
        if chunk_id == 0:
            self._forget(uuid)
            self._begun[uuid] = _PartialMessage(count, at)
        begun = self._begun.get(uuid)
        if begun is None or chunk_id > len(begun.parts):
            raise ChunksMissing(uuid.decode("utf-8", "replace"))
        if chunk_id < len(begun.parts):
            return None  # sent again by its producer
        begun.parts.append(content)
        begun.size += len(content)
        self._bytes += len(content)
        if begun.size > CONTENT_BYTES_MAX:
            self._forget(uuid)
            raise ProtocolError(f"a chunked message has more than {CONTENT_BYTES_MAX} bytes")
        if len(begun.parts) == begun.count:
            self._forget(uuid)
            return Assembled(b"".join(begun.parts), begun.first)
        self._make_space(uuid)
        return None

    def _make_space(self, latest: bytes) -> None:
        while self._bytes > CHUNKED_BYTES_MAX and len(self._begun) > 1:
            self._forget(next(uuid for uuid in self._begun if uuid != latest))

    def _forget(self, uuid: bytes) -> None:
        begun = self._begun.pop(uuid, None)
        if begun is not None:
            self._bytes -= begun.size
