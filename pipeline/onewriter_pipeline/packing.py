"""Rows of Arrow batches as the messages of Pulsar batches, in the form in which parts are staged.

docs/http.md describes the form. A frame becomes one entry of the log: its rows are packed here, by
whoever has them, and are never taken apart by a broker.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.schema import EVENT_TIME, KEY, PROPERTIES, VALUE

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC: Final = b"OWR1"

PART_BYTES_MAX: Final = 16 * 1024 * 1024
"""What a broker takes as one part."""

PART_BYTES: Final = 8 * 1024 * 1024
"""At which size a part is handed over, so that a writer's memory is bounded by it."""

PART_FRAMES: Final = 32_768
"""What a broker takes as the frames of one part."""

FRAME_BYTES_MAX: Final = 1024 * 1024 - 4096
"""What a broker takes as one frame, and so the largest row."""

FRAME_BYTES: Final = 128 * 1024
FRAME_ROWS: Final = 1000
"""When a frame is full: what Pulsar's clients put into a batch."""

COLUMNS: Final = frozenset({VALUE, KEY, EVENT_TIME, PROPERTIES})
"""What a row may have."""

_FRAME: Final = struct.Struct("<II")
_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A part that is ready to be staged."""

    rows: int
    body: bytes


@dataclass(slots=True)
class _Frame:
    rows: int = 0
    size: int = 0
    messages: list[bytes] = field(default_factory=list)


def pack(
    batches: Iterable[pa.RecordBatch], *, frame_rows: int = FRAME_ROWS, part_bytes: int = PART_BYTES
) -> Iterator[PackedPart]:
    """The rows of all batches, in order, as parts; none for no rows. Raises Invalid.

    Columns: ``value`` (binary or string; null for a message that removes its key), and, where there
    are any, ``__key``, ``__eventTime`` (a timestamp, or milliseconds) and ``__messageProperties``.
    """
    frame, parts, size, rows, frames = _Frame(), [MAGIC], len(MAGIC), 0, 0
    for batch in batches:
        for message in _messages(batch):
            is_full = frame.rows >= frame_rows or frame.size + len(message) > FRAME_BYTES
            if frame.rows and is_full:
                size += _close(frame, parts)
                frame, frames = _Frame(), frames + 1
            if size >= part_bytes or frames >= PART_FRAMES:
                yield PackedPart(rows, b"".join(parts))
                parts, size, rows, frames = [MAGIC], len(MAGIC), 0, 0
            frame.messages.append(message)
            frame.size += len(message)
            frame.rows += 1
            rows += 1
    if frame.rows:
        _close(frame, parts)
    if rows:
        yield PackedPart(rows, b"".join(parts))


def _close(frame: _Frame, parts: list[bytes]) -> int:
    parts.append(_FRAME.pack(4 + frame.size, frame.rows))
    parts += frame.messages
    return _FRAME.size + frame.size


def _messages(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Each row as a message of a batch: size of its metadata, metadata, content."""
    check_columns(batch.schema.names)
    values = _bytes_of(batch, VALUE)
    keys = _bytes_of(batch, KEY)
    times = _milliseconds(batch)
    properties = _properties(batch)
    for index, value in enumerate(values or ()):
        metadata = pb.SingleMessageMetadata(payload_size=0 if value is None else len(value))
        if value is None:
            metadata.null_value = True
        if keys is not None and (key := keys[index]) is not None:
            _set_key(metadata, key)
        if times is not None and (time := times[index]) is not None:
            metadata.event_time = time
        if properties is not None:
            for name, text in properties[index] or ():
                metadata.properties.add(key=name, value=text or "")
        encoded = metadata.SerializeToString()
        message = b"".join((_SIZE.pack(len(encoded)), encoded, value or b""))
        if len(message) > FRAME_BYTES_MAX:
            raise Invalid(
                f"a row has {len(message)} bytes, and at most {FRAME_BYTES_MAX} can be published"
            )
        yield message


def check_columns(names: Sequence[str]) -> None:
    """Raises Invalid for columns that rows to be published cannot have."""
    if VALUE not in names:
        raise Invalid(
            f"rows need a column {VALUE}, of binary or string: to_json(struct(*)) makes one of all"
        )
    unknown = sorted(set(names) - COLUMNS)
    if unknown:
        raise Invalid(
            f"there is no place for the columns {', '.join(unknown)} in a message; those are"
            f" {', '.join(sorted(COLUMNS))}"
        )


def _set_key(metadata: pb.SingleMessageMetadata, key: bytes) -> None:
    try:
        metadata.partition_key = key.decode()
    except UnicodeDecodeError:
        metadata.partition_key = base64.b64encode(key).decode()
        metadata.partition_key_b64_encoded = True


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """A column; None where there is none."""
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _bytes_of(batch: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    import pyarrow as pa  # noqa: PLC0415 - Spark imports this module where there may be none

    column = _column(batch, name)
    if column is None:
        return None
    kind = column.type
    if pa.types.is_null(kind):
        return [None] * len(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise Invalid(f"the column {name} is binary or string, not {kind}")
    found: list[bytes | None] = column.to_pylist()
    return found


def _milliseconds(batch: pa.RecordBatch) -> list[int | None] | None:
    import pyarrow as pa  # noqa: PLC0415 - as above

    column = _column(batch, EVENT_TIME)
    if column is None:
        return None
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=False).cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise Invalid(f"the column {EVENT_TIME} is a timestamp or milliseconds, not {kind}")
    found: list[int | None] = column.to_pylist()
    if any(each is not None and each < 0 for each in found):
        raise Invalid(f"the column {EVENT_TIME} has a time before 1970, which Pulsar has not")
    return found


def _properties(batch: pa.RecordBatch) -> list[list[tuple[str, str | None]] | None] | None:
    import pyarrow as pa  # noqa: PLC0415 - as above

    column = _column(batch, PROPERTIES)
    if column is None or pa.types.is_null(column.type):
        return None
    kind = column.type
    if not (
        pa.types.is_map(kind)
        and pa.types.is_string(kind.key_type)
        and pa.types.is_string(kind.item_type)
    ):
        raise Invalid(f"the column {PROPERTIES} is a map of strings to strings, not {kind}")
    found: list[list[tuple[str, str | None]] | None] = column.to_pylist()
    return found
