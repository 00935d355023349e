"""Messages that come in chunks, put together. No I/O, and no clock: the caller says when to expire.

What is begun and not complete is bounded. What is given up is never handed out in part; should its
last chunk come after all, an error stands in its place.
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
"""Messages that are put together from chunks at once; the oldest gives way to one more."""

CHUNKED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of their chunks, all together; one message alone may have more."""

GIVEN_UP_MAX = 1_000
"""Messages that are remembered to have been given up."""

log = logging.getLogger("onewriter")


@dataclass(slots=True)
class Chunks:
    """The chunks of one message that have come, in their order."""

    first: MessageId
    count: int
    ids: list[MessageId] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    is_fresh: bool = True
    """One of them came since the last ``expire``."""


class ChunkAssembler:
    """``begun`` hears of a message's first chunk, ``given_up`` of the ids of one that is dropped."""

    def __init__(
        self,
        topic: str,
        begun: Callable[[MessageId], None],
        given_up: Callable[[Sequence[MessageId]], None],
        messages_max: int = CHUNKED_MAX,
    ) -> None:
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
        """What comes next does not follow what came before."""
        self._open.clear()
        self._given_up.clear()
        self._bytes = 0

    def expire(self) -> None:
        """Give up every message of which no chunk has come since this was called last."""
        for uuid, chunks in list(self._open.items()):
            if not chunks.is_fresh:
                self._give_up(uuid, "its next chunk does not come")
            chunks.is_fresh = False

    def add(
        self, metadata: pb.MessageMetadata, entry_id: MessageId, content: memoryview
    ) -> Chunks | None:
        """Add a chunk; all of them when it was the last one, None while others lack.

        Raises ProtocolError for one whose message cannot be put together any more.
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
            return None  # its producer sent it again
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
        self._make_room(uuid)
        return None

    def _check_given_up(self, metadata: pb.MessageMetadata) -> None:
        is_last = metadata.chunk_id == metadata.num_chunks_from_msg - 1
        if is_last and metadata.uuid in self._given_up:
            del self._given_up[metadata.uuid]
            raise ProtocolError(f"the first chunks of message {metadata.uuid} were given up")

    def _make_room(self, latest: str) -> None:
        while len(self._open) > self._messages_max or (
            len(self._open) > 1 and self._bytes > CHUNKED_BYTES_MAX
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
