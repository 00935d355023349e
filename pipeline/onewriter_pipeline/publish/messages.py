"""Encodes the rows of an Arrow batch as messages of Pulsar batches: all rows at once, field by field.

A message is the size of its metadata, the metadata (protobuf, fields in the order of their numbers), and the
content. The result equals that of protobuf's own encoder.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onewriter_core.log_format.staged_rows import KEY_TAG, SIZE_TAG
from onewriter_pipeline.binaries import (
    Binaries,
    Bools,
    Heads,
    Signed,
    binaries,
    joined,
    texts,
    varint_sizes,
)
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.schema import EVENT_TIME, KEY, PROPERTIES, TOPIC, VALUE

if TYPE_CHECKING:
    import pyarrow as pa


ROW_COLUMNS: Final = frozenset({VALUE, KEY, EVENT_TIME, PROPERTIES, TOPIC})
"""The columns that a row may have. The topic is not part of the message."""

_PROPERTY_TAG: Final = 0x0A
_PROPERTY_KEY_TAG: Final = 0x0A
_PROPERTY_VALUE_TAG: Final = 0x12
_TIME_TAG: Final = 0x28
_KEY_IS_BASE64_TAG: Final = 0x30
_NULL_VALUE_TAG: Final = 0x48
_TRUE: Final = 1
_FLAG_BYTES: Final = 2
"""The first bytes of fields of SingleMessageMetadata. Each of these tags is one byte."""


def encoded(batch: pa.RecordBatch) -> Binaries:
    """The messages of all rows. Raises Invalid for columns of wrong types.

    Columns: ``value`` (binary or string; null for a message that removes its key), and optionally ``__key``,
    ``__eventTime`` (a timestamp, or milliseconds) and ``__messageProperties``.
    """
    return encoded_with_keys(batch)[0]


def encoded_with_keys(batch: pa.RecordBatch) -> tuple[Binaries, Signed | None]:
    """The messages, and the size of each row's key; None if no row has a key. Raises as ``encoded``."""
    check_columns(batch.schema.names)
    if not batch.num_rows:
        return Binaries(np.empty(0, np.uint8), np.zeros(1, np.int64)), None
    values = _large_binary(batch, VALUE)
    head, head_sizes = _head_of_keys(batch)
    tail, tail_sizes = _tail(batch, values, head.is_base64)
    size = Heads(batch.num_rows)
    size.big_endian_32(head_sizes + tail_sizes)
    return joined([size.to_arrow(), *head.pieces, tail, values]), head.key_sizes


def check_columns(names: Sequence[str]) -> None:
    """Raise Invalid for columns that published rows cannot have."""
    if VALUE not in names:
        raise Invalid(
            f"rows need a column {VALUE}, of binary or string: to_json(struct(*)) makes one of all"
        )
    unknown = sorted(set(names) - ROW_COLUMNS)
    if unknown:
        raise Invalid(
            f"messages cannot have the columns {', '.join(unknown)} in a message; those are"
            f" {', '.join(sorted(ROW_COLUMNS))}"
        )


def column_of(batch: pa.RecordBatch, name: str) -> Any:
    """A column; None if it is missing, or entirely null."""
    import pyarrow as pa  # noqa: PLC0415 - Spark imports this module where pyarrow may be missing

    index = batch.schema.get_field_index(name)
    if index < 0 or pa.types.is_null(batch.column(index).type):
        return None
    return batch.column(index)


def bytes_column(batch: pa.RecordBatch, name: str) -> Any:
    """A column of binaries or strings as ``large_binary``; None as in ``column_of``. Raises Invalid."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    column = column_of(batch, name)
    if column is None:
        return None
    kinds = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_string,
        pa.types.is_large_string,
    )
    if not any(is_kind(column.type) for is_kind in kinds):
        raise Invalid(f"the column {name} is binary or string, not {column.type}")
    return column.cast(pa.large_binary())


def _large_binary(batch: pa.RecordBatch, name: str) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - as above

    column = bytes_column(batch, name)
    return pa.nulls(batch.num_rows, pa.large_binary()) if column is None else column


class _Pieces:
    """The properties and the key, if there are any."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.is_base64: Bools | None = None
        self.key_sizes: Signed | None = None


def _head_of_keys(batch: pa.RecordBatch) -> tuple[_Pieces, Signed]:
    """The metadata before the size of the value, and its length."""
    found, sizes = _Pieces(), np.zeros(batch.num_rows, np.int64)
    properties = _properties(batch)
    if properties is not None:
        found.pieces.append(properties)
        sizes += binaries(properties).lengths
    column = bytes_column(batch, KEY)
    if column is not None:
        keys, found.is_base64 = key_texts(column)
        has_key, lengths = _valid(keys), binaries(keys).lengths
        found.key_sizes = np.where(has_key, lengths, 0)
        prefix = Heads(batch.num_rows)
        prefix.byte(KEY_TAG, has_key)
        prefix.varint(lengths, has_key)
        found.pieces += [prefix.to_arrow(), keys]
        sizes += np.where(has_key, 1 + varint_sizes(lengths) + lengths, 0)
    return found, sizes


def _tail(batch: pa.RecordBatch, values: Any, is_base64: Bools | None) -> tuple[Any, Signed]:
    """The size of the value and the metadata after it, and their length."""
    lengths, is_null = binaries(values).lengths, ~_valid(values)
    tail = Heads(batch.num_rows)
    tail.byte(SIZE_TAG)
    tail.varint(lengths)
    sizes = 1 + varint_sizes(lengths)
    times = _milliseconds(batch)
    if times is not None:
        has_time = _valid(times)
        numbers = times.fill_null(0).to_numpy()
        tail.byte(_TIME_TAG, has_time)
        tail.varint(numbers, has_time)
        sizes += np.where(has_time, 1 + varint_sizes(numbers), 0)
    for tag, present in ((_KEY_IS_BASE64_TAG, is_base64), (_NULL_VALUE_TAG, is_null)):
        if present is not None:
            tail.byte(tag, present)
            tail.byte(_TRUE, present)
            sizes += _FLAG_BYTES * present
    return tail.to_arrow(), sizes


def _milliseconds(batch: pa.RecordBatch) -> Any:
    """Event times as whole numbers; None: there are none."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.compute as pc  # noqa: PLC0415

    column = column_of(batch, EVENT_TIME)
    if column is None:
        return None
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise Invalid(f"the column {EVENT_TIME} is a timestamp or milliseconds, not {kind}")
    least = pc.min(column).as_py()
    if least is not None and least < 0:
        raise Invalid(
            f"the column {EVENT_TIME} has a time before 1970, which Pulsar does not support"
        )
    return column


def _properties(batch: pa.RecordBatch) -> Any:
    """The encoded properties of each row (``large_binary``); None: there are none."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    column = column_of(batch, PROPERTIES)
    if column is None:
        return None
    kind = column.type
    texts = {pa.string(), pa.large_string()}
    if not (pa.types.is_map(kind) and kind.key_type in texts and kind.item_type in texts):
        raise Invalid(f"the column {PROPERTIES} is a map of strings to strings, not {kind}")
    bounds = column.offsets.to_numpy().astype(np.int64)
    first, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    if not count:
        return None
    pairs = _pairs(column.keys.slice(first, count), column.items.slice(first, count))
    return Binaries(pairs.data, pairs.bounds[bounds - first]).to_arrow(_valid(column))


def _pairs(names: Any, texts: Any) -> Binaries:
    """Properties, one by one; a null text counts as empty."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    try:
        names.validate(full=True)
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Invalid(f"the column {PROPERTIES} has a text that is not UTF-8") from error
    name_sizes, text_sizes = binaries(names).lengths, binaries(texts).lengths
    sizes = 2 + varint_sizes(name_sizes) + name_sizes + varint_sizes(text_sizes) + text_sizes
    head, middle = Heads(len(names)), Heads(len(names))
    head.byte(_PROPERTY_TAG)
    head.varint(sizes)
    head.byte(_PROPERTY_KEY_TAG)
    head.varint(name_sizes)
    middle.byte(_PROPERTY_VALUE_TAG)
    middle.varint(text_sizes)
    large = pa.large_binary()
    return joined([head.to_arrow(), names.cast(large), middle.to_arrow(), texts.cast(large)])


def _valid(column: Any) -> Bools:
    found: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def key_texts(column: pa.Array) -> tuple[pa.Array, Bools | None]:
    """Keys (binary or string, nulls stay) as Pulsar writes them, ``large_binary``, and which of them are in base64.

    None: no key is in base64.
    """
    import pyarrow as pa  # noqa: PLC0415 - Spark imports this module where pyarrow may be missing

    column = column.cast(pa.large_binary())
    try:
        column.cast(pa.large_string())
    except pa.ArrowInvalid:  # some keys are not valid UTF-8
        foreign = ~texts(binaries(column))
    else:
        return column, None
    which = np.flatnonzero(foreign)
    places = np.arange(len(column))
    places[which] = len(column) + np.arange(len(which))
    keys = column.take(pa.array(which)).to_pylist()
    encoded = [binascii.b2a_base64(key, newline=False) for key in keys]
    column = pa.concat_arrays([column, pa.array(encoded, pa.large_binary())])
    return column.take(pa.array(places)), foreign
