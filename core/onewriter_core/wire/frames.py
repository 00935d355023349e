"""Lengths and slabs: turns a stream of bytes into frames without copying their payloads.

::

    frame   : [total u32][size u32][command: size bytes][payload: the rest]     total excludes itself
    payload : ([0x0e02 u16][size u32][broker entry metadata])?  entry
    entry   : ([0x0e01 u16][crc32c u32])?  [size u32][metadata][content]

Received bytes are stored in *slabs*. A payload is a memoryview of its slab. A region of a yielded payload is never
written again, so a view stays valid while it exists; it keeps its whole slab alive. commands.py decodes commands,
messages.py reads entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from onewriter_core.errors import ProtocolError

FRAME_LENGTH_MAX = 5_253_120
"""The maximum bytes of a frame after its length field: Pulsar's largest message and 10 KiB for the rest."""

COMMAND_LENGTH_MAX = 1024 * 1024
"""The maximum bytes of a command to a broker: it is decoded in one step, which must not take long."""

SLAB_LENGTH_MIN = 4 * 1024
"""Bytes of the slab of an idle connection."""
SLAB_LENGTH_MAX = 256 * 1024
"""Bytes of a slab while data flows. A larger frame gets its own slab."""

CHECKSUM_MAGIC = b"\x0e\x01"
BROKER_ENTRY_METADATA_MAGIC = b"\x0e\x02"

Frame = tuple[bytearray, memoryview | None]
"""(command, payload). The command is a copy, so it does not keep the slab alive."""

_READS_UNTIL_GROWTH = 4
"""A slab that this number of reads fills is too small for its connection."""
_GROWTH = 4
_READS_UNTIL_SHRINK = 64
"""After this number of consecutive small reads, the connection gets a smaller slab."""
_SMALL_READ_SHARE = 64
"""A read is small if it fills less than one part in this number of its slab."""

_PAYLOAD_LENGTH_MIN = 4
"""Bytes of the size field before an entry's metadata."""

_LENGTHS = struct.Struct(">II")
_U32 = struct.Struct(">I")


class FrameReader:
    """Collects the bytes of one connection and yields its frames, for asyncio.BufferedProtocol.

    ``frame_length_max`` bounds a frame (bytes, without its length field), ``command_length_max``
    the command in it.
    ``keep_broker_entry_metadata``: keep a 0x0e02 part at the start of the payload, for clients. Otherwise the payload
    is exactly the entry.

    The caller consumes the iterator, or stops reading from the socket: bytes that were not yielded stay buffered. After
    a ProtocolError the reader must not be used again.
    """

    __slots__ = (
        "_command_length_max",
        "_end",
        "_grown",
        "_keep_broker_entry_metadata",
        "_needed",
        "_reads",
        "_slab",
        "_small_reads",
        "_start",
        "_view",
        "frame_length_max",
    )

    def __init__(
        self,
        *,
        frame_length_max: int = FRAME_LENGTH_MAX,
        command_length_max: int = COMMAND_LENGTH_MAX,
        keep_broker_entry_metadata: bool = False,
    ) -> None:
        self.frame_length_max = frame_length_max
        """Applies to frames that were not yielded yet."""
        self._command_length_max = command_length_max
        self._keep_broker_entry_metadata = keep_broker_entry_metadata
        self._slab = bytearray(SLAB_LENGTH_MIN)
        self._view = memoryview(self._slab)
        # The slab's bytes before start were yielded, start..end are received and not yet
        # yielded, those from end on are free.
        self._start = 0
        self._end = 0
        # Length of the incomplete frame at start; 0: unknown.
        self._needed = 0
        self._grown = SLAB_LENGTH_MIN
        self._reads = 0
        self._small_reads = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes received and not yet yielded."""
        return self._end - self._start

    def get_buffer(self, size_hint: int = -1) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Free space to receive into; never empty."""
        length = len(self._slab)
        free = length - self._end
        pending = self._end - self._start
        if (
            free == 0
            # A frame that is longer than a usual slab starts its own slab and fills it before the next move.
            or (self._start and self._start + self._needed > length)
            or (free < length >> 3 and pending <= free)
            or (self._small_reads >= _READS_UNTIL_SHRINK and pending < SLAB_LENGTH_MIN)
        ):
            self._move(pending)
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> Iterator[Frame]:
        """Account for ``count`` received bytes. Yields the frames that are complete now.

        Raises ProtocolError, after the valid frames, for an invalid or too long frame.
        """
        self._end += count
        self._reads += 1
        if count * _SMALL_READ_SHARE < len(self._slab):
            self._small_reads += 1
        else:
            self._small_reads = 0
        return self.frames()

    def frames(self) -> Iterator[Frame]:
        """The complete frames that were not yielded: continues where an abandoned iterator stopped."""
        self._needed = 0
        while self._end - self._start >= _LENGTHS.size:
            slab = self._slab
            start = self._start
            total, command_length = _LENGTHS.unpack_from(slab, start)
            if total > self.frame_length_max:
                raise ProtocolError(
                    f"a frame of {total} bytes; at most {self.frame_length_max} are accepted"
                )
            if command_length > total - 4:
                raise ProtocolError(f"a command of {command_length} bytes in a frame of {total}")
            if command_length > self._command_length_max:
                raise ProtocolError(
                    f"a command of {command_length} bytes; "
                    f"at most {self._command_length_max} are accepted"
                )
            stop = start + 4 + total
            if stop > self._end:
                self._needed = stop - start
                return
            payload_start = start + 8 + command_length
            command = slab[start + 8 : payload_start]
            payload: memoryview | None = None
            if payload_start < stop:
                if stop - payload_start < _PAYLOAD_LENGTH_MIN:
                    raise ProtocolError("a payload without metadata")
                if slab[payload_start] == 0x0E and slab[payload_start + 1] == 0x02:
                    payload_start = self._entry_start(payload_start, stop)
                payload = self._view[payload_start:stop]
            self._start = stop
            yield command, payload

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Copy ``data`` in and return the frames that it completes, for tests and small clients."""
        frames: list[Frame] = []
        view = memoryview(data)
        while view:
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            frames += self.buffer_updated(count)
        return frames

    def _entry_start(self, start: int, stop: int) -> int:
        """The start of a payload that has broker entry metadata at ``start``."""
        entry = start + 6
        if entry <= stop:
            entry += _U32.unpack_from(self._slab, start + 2)[0]
        if stop - entry < _PAYLOAD_LENGTH_MIN:
            raise ProtocolError("broker entry metadata is cut short")
        return start if self._keep_broker_entry_metadata else entry

    def _move(self, pending: int) -> None:
        """Continue in a new slab, and move the ``pending`` bytes to it."""
        if self._small_reads >= _READS_UNTIL_SHRINK:
            self._grown = SLAB_LENGTH_MIN
        elif self._reads <= _READS_UNTIL_GROWTH:
            self._grown = min(self._grown * _GROWTH, SLAB_LENGTH_MAX)
        self._reads = self._small_reads = 0
        # The slab of a long frame grows as its bytes arrive, so a peer cannot reserve memory by an announced length.
        length = max(self._grown, min(self._needed, pending * _GROWTH), pending + SLAB_LENGTH_MIN)
        slab = bytearray(length)
        slab[:pending] = self._view[self._start : self._end]
        self._slab = slab
        self._view = memoryview(slab)
        self._start, self._end = 0, pending
