"""Packs rows of Arrow batches into the parts that are staged: frames of messages.

``onewriter_core.log_format.staged_rows`` defines their form. A frame becomes one entry of the log. The task that has
the rows packs them, and brokers never unpack them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from onewriter_core.log_format.limits import PUBLISH_ENTRY_BYTES_MAX
from onewriter_core.log_format.staged_rows import FRAME, FRAME_BYTES_MAX, MAGIC, PART_FRAMES_MAX
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.publish.messages import encoded_with_keys

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES: Final = 8 * 1024 * 1024
"""Size at which a part is complete. It limits the memory of a writer."""

ROW_AND_KEY_BYTES_MAX: Final = PUBLISH_ENTRY_BYTES_MAX - 256
"""Bytes of a row that is an entry of its own, with its key, which counts twice. Brokers reject a larger entry."""

ENTRY_HEAD_BYTES: Final = 40
"""Upper bound of what an entry has besides its rows, its key and its producer's name."""

FRAME_BYTES: Final = 128 * 1024
FRAME_ROWS: Final = 1000
"""Limits of a frame, as in the batches of Pulsar's clients."""


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A part that can be staged.

    It becomes ``entries`` with ``entry_bytes`` of rows and keys. An entry with one row has its key twice.
    """

    rows: int
    body: bytes
    entries: int
    entry_bytes: int


@dataclass(slots=True)
class _Frame:
    rows: int = 0
    size: int = 0
    key: int = 0
    """Size of its first row's key."""
    pieces: list[memoryview] = field(default_factory=list)


def pack(
    batches: Iterable[pa.RecordBatch],
    *,
    frame_rows: int = FRAME_ROWS,
    part_bytes: int = PART_BYTES,
    part_frames: int = PART_FRAMES_MAX,
) -> Iterator[PackedPart]:
    """The rows of all batches, in order, as parts; none without rows. Raises Invalid, as ``encoded``."""
    packer = Packer(frame_rows=frame_rows, part_bytes=part_bytes, part_frames=part_frames)
    for batch in batches:
        yield from packer.add(batch)
    yield from packer.end()


class Packer:
    """Packs rows as they arrive; ``pending`` bytes are in no complete part yet."""

    def __init__(
        self,
        *,
        frame_rows: int = FRAME_ROWS,
        part_bytes: int = PART_BYTES,
        part_frames: int = PART_FRAMES_MAX,
    ) -> None:
        self._part_frames = part_frames
        self._frame_rows = frame_rows
        self._part_bytes = part_bytes
        self._begin()

    @property
    def pending(self) -> int:
        """Bytes that are in no part yet."""
        return self._size - len(MAGIC) + self._frame.size

    def add(self, batch: pa.RecordBatch) -> Iterator[PackedPart]:
        """The parts that these rows complete. Raises Invalid, as ``encoded``."""
        messages, key_sizes = encoded_with_keys(batch)
        # Python integers: each frame needs a search, and there may be a frame for each row.
        bounds = messages.bounds.tolist()
        keys = None if key_sizes is None else key_sizes.tolist()
        _check_sizes(int(messages.lengths.max(initial=0)))
        data, row, last = messages.data.data, 0, len(bounds) - 1
        while row < last:
            available = min(last, row + self._frame_rows - self._frame.rows)
            fits = bounds[row] + FRAME_BYTES - self._frame.size
            stop = bisect_right(bounds, fits, row, available + 1) - 1
            if stop <= row and self._frame.rows:
                self._close()
                if self._size >= self._part_bytes or self._frames >= self._part_frames:
                    yield self._part()
                continue
            stop = max(stop, row + 1)
            if keys is not None and not self._frame.rows:
                self._frame.key = keys[row]
            self._frame.pieces.append(data[bounds[row] : bounds[stop]])
            self._frame.size += bounds[stop] - bounds[row]
            self._frame.rows += stop - row
            row = stop

    def end(self) -> Iterator[PackedPart]:
        """The remaining rows as a part, if there are any. Later rows begin the next part."""
        if self._frame.rows:
            self._close()
        if self._rows:
            yield self._part()

    def _begin(self) -> None:
        self._frame = _Frame()
        self._pieces: list[bytes | memoryview] = [MAGIC]
        self._size, self._frames, self._rows, self._entry_bytes = len(MAGIC), 0, 0, 0

    def _close(self) -> None:
        frame, self._frame = self._frame, _Frame()
        key = frame.key if frame.rows == 1 else 0
        if frame.size + key > ROW_AND_KEY_BYTES_MAX:
            raise Invalid(
                f"a row has {frame.size} bytes and a key of {key}, and at most {ROW_AND_KEY_BYTES_MAX}"
                " of both together can be published"
            )
        self._pieces.append(FRAME.pack(4 + frame.size, frame.rows))
        self._pieces += frame.pieces
        self._size += FRAME.size + frame.size
        self._frames += 1
        self._rows += frame.rows
        self._entry_bytes += frame.size + key

    def _part(self) -> PackedPart:
        part = PackedPart(self._rows, b"".join(self._pieces), self._frames, self._entry_bytes)
        self._begin()
        return part


def _check_sizes(largest: int) -> None:
    if largest > FRAME_BYTES_MAX:
        raise Invalid(f"a row has {largest} bytes, and at most {FRAME_BYTES_MAX} can be published")
