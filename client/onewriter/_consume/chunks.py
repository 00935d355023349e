"""Assembly of messages that arrive in chunks. No I/O and no clock: the caller decides when to expire.

The number and size of incomplete messages are bounded. A message that was dropped is never delivered in part; if
its last chunk arrives later, the result is an error.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onewriter._message import CONTENT_BYTES_MAX, MessageId
from onewriter_core.errors import ProtocolError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

CHUNKED_MAX = 100
"""Default number of incomplete messages; above it, the oldest one is dropped."""

CHUNKED_BYTES_MAX = 64 * 1024 * 1024
"""Largest total size of the chunks of incomplete messages; a single message may be larger."""

GIVEN_UP_MAX = 1_000
"""Number of dropped messages that are remembered."""

log = logging.getLogger("onewriter")


@dataclass(slots=True)
class Chunks:
    """The chunks of one message that have arrived, in order."""

    first: MessageId
    count: int
    ids: list[MessageId] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    is_fresh: bool = True
    """Whether a chunk has arrived since the last ``expire``."""


class ChunkAssembler:
    """Assembles chunks. It calls ``begun`` with the id of a first chunk, ``given_up`` with a dropped message's ids."""

    def __init__(
        self,
        topic: str,
        begun: Callable[[MessageId], None],
        given_up: Callable[[Sequence[MessageId]], None],
        messages_max: int = CHUNKED_MAX,
        bytes_max: int = CHUNKED_BYTES_MAX,
    ) -> None:
        self._bytes_max = bytes_max
        self._topic = topic
        self._begun = begun
        self._on_given_up = given_up
        self._messages_max = messages_max
        self._open: dict[str, Chunks] = {}
        self._given_up: OrderedDict[str, None] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def forget(self) -> None:
        """Drop all state: the next chunk does not follow the previous one."""
        self._open.clear()
        self._given_up.clear()
        self._bytes = 0

    def expire(self) -> None:
        """Drop every message of which no chunk has arrived since the last call."""
        for uuid, chunks in list(self._open.items()):
            if not chunks.is_fresh:
                self._give_up(uuid, "its next chunk does not come")
            chunks.is_fresh = False

    def add(
        self, metadata: pb.MessageMetadata, entry_id: MessageId, content: memoryview
    ) -> Chunks | None:
        """Add a chunk; return all chunks of a complete message, None while some are missing.

        Raises ProtocolError for a chunk whose message can no longer be assembled.
        """
        uuid = metadata.uuid
        chunks = self._open.get(uuid)
        if metadata.chunk_id == 0:
            self._take_out(uuid)
            self._given_up.pop(uuid, None)
            chunks = self._open[uuid] = Chunks(entry_id, metadata.num_chunks_from_msg)
            self._begun(entry_id)
        elif chunks is None:
            self._check_given_up(metadata)
            log.warning("%s of %s: a chunk without its first one", entry_id, self._topic)
            return None
        elif metadata.chunk_id < len(chunks.parts):
            return None  # the producer has sent the chunk again
        elif metadata.chunk_id > len(chunks.parts):
            self._take_out(uuid)
            raise ProtocolError(f"chunk {len(chunks.parts)} of message {uuid} is missing")
        chunks.ids.append(entry_id)
        chunks.parts.append(bytes(content))
        chunks.size += len(content)
        chunks.is_fresh = True
        self._bytes += len(content)
        if chunks.size > CONTENT_BYTES_MAX:
            self._take_out(uuid)
            raise ProtocolError(f"a chunked message has more than {CONTENT_BYTES_MAX} bytes")
        if len(chunks.parts) == chunks.count:
            return self._take_out(uuid)
        self._make_space(uuid)
        return None

    def _check_given_up(self, metadata: pb.MessageMetadata) -> None:
        is_last = metadata.chunk_id == metadata.num_chunks_from_msg - 1
        if is_last and metadata.uuid in self._given_up:
            del self._given_up[metadata.uuid]
            raise ProtocolError(f"the first chunks of message {metadata.uuid} were given up")

    def _make_space(self, latest: str) -> None:
        while len(self._open) > self._messages_max or (
            len(self._open) > 1 and self._bytes > self._bytes_max
        ):
            oldest = next(uuid for uuid in self._open if uuid != latest)
            self._give_up(oldest, "too many messages in chunks are incomplete")

    def _give_up(self, uuid: str, why: str) -> None:
        chunks = self._take_out(uuid)
        if chunks is None:
            return
        log.warning("%s of %s: given up, %s", chunks.first, self._topic, why)
        self._given_up[uuid] = None
        if len(self._given_up) > GIVEN_UP_MAX:
            self._given_up.popitem(last=False)
        self._on_given_up(chunks.ids)

    def _take_out(self, uuid: str) -> Chunks | None:
        chunks = self._open.pop(uuid, None)
        if chunks is not None:
            self._bytes -= chunks.size
        return chunks
