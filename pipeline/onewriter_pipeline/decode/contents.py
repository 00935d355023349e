"""Contents that do not stand in a chunk as they are: compressed ones, and messages sent in chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.compression import decompress

CONTENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""A message, or a batch, is not uncompressed or put together from chunks beyond this."""

CHUNKED_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of chunks of messages that are not complete, all together."""


class ChunksMissing(Exception):
    """A chunk whose predecessors were not read."""


def uncompressed(codec: int, content: bytes, size: int) -> bytes:
    """A content as it was before compression; ProtocolError where that is not possible."""
    if size > CONTENT_BYTES_MAX:
        raise ProtocolError(f"a content that claims {size} bytes")
    return decompress(codec, content, size)


@dataclass(slots=True)
class _PartialMessage:
    count: int
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Assembler:
    """Puts messages together that their producer sent in chunks, of one log, in its order.

    Such a message stands where its last chunk does. At most ``CHUNKED_BYTES_MAX`` bytes wait for the
    rest of their message: beyond it the oldest messages are given up, as their producers did.
    """

    def __init__(self) -> None:
        self._begun: dict[bytes, _PartialMessage] = {}
        self._bytes = 0

    def add(self, uuid: bytes, chunk_id: int, count: int, content: bytes) -> bytes | None:
        """One more chunk; the whole content when it was the last one.

        Raises ChunksMissing where those in front of it have not been added, ProtocolError where
        they make no message.
        """
        if chunk_id == 0:
            self._forget(uuid)
            self._begun[uuid] = _PartialMessage(count)
        begun = self._begun.get(uuid)
        if begun is None or chunk_id > len(begun.parts):
            raise ChunksMissing(uuid.decode("utf-8", "replace"))
        if chunk_id < len(begun.parts):
            return None  # its producer sent it again
        begun.parts.append(content)
        begun.size += len(content)
        self._bytes += len(content)
        if begun.size > CONTENT_BYTES_MAX:
            self._forget(uuid)
            raise ProtocolError(f"a chunked message has more than {CONTENT_BYTES_MAX} bytes")
        if len(begun.parts) == begun.count:
            self._forget(uuid)
            return b"".join(begun.parts)
        self._make_room(uuid)
        return None

    def _make_room(self, latest: bytes) -> None:
        while self._bytes > CHUNKED_BYTES_MAX and len(self._begun) > 1:
            self._forget(next(uuid for uuid in self._begun if uuid != latest))

    def _forget(self, uuid: bytes) -> None:
        begun = self._begun.pop(uuid, None)
        if begun is not None:
            self._bytes -= begun.size
