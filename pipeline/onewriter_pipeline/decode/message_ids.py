"""Pulsar's message ids as its clients serialise them (MessageIdData), for many messages at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onewriter_pipeline.decode.words import Flags, Positions

_LEDGER, _ENTRY, _PARTITION, _BATCH_INDEX, _BATCH_SIZE = 0x08, 0x10, 0x18, 0x20, 0x30
"""Tags of the fields, all varints."""

_MORE: Final = 0x80


def message_ids(
    ledger: Positions,
    entry: Positions,
    batch_index: Positions,
    batch_size: Positions,
    partition: int | None,
) -> pa.Array:
    """The ids as binary; batch index and size only where the size is not 0, the partition if any."""
    everywhere = np.ones(len(ledger), np.bool_)
    batched = batch_size > 0
    columns = [*_field(_LEDGER, ledger, everywhere), *_field(_ENTRY, entry, everywhere)]
    if partition is not None:
        columns += _field(_PARTITION, np.full(len(ledger), partition), everywhere)
    columns += _field(_BATCH_INDEX, batch_index, batched)
    columns += _field(_BATCH_SIZE, batch_size, batched)
    there = np.stack([used for _, used in columns], axis=1)
    values = np.stack([value for value, _ in columns], axis=1)
    bounds = np.zeros(len(ledger) + 1, np.int32)
    np.cumsum(there.sum(axis=1), out=bounds[1:])
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(values[there])]
    return pa.Array.from_buffers(pa.binary(), len(ledger), buffers)


def _field(tag: int, numbers: Positions, present: Flags) -> list[tuple[NDArray[np.uint8], Flags]]:
    """A tag and a varint as columns of bytes, and which rows have each byte."""
    if not present.any():
        return []
    columns = [(np.full(len(numbers), tag, np.uint8), present)]
    rest, used = numbers, present
    while used.any():
        goes_on = used & (rest >= _MORE)
        low = (rest & 0x7F) | np.where(goes_on, _MORE, 0)
        columns.append((low.astype(np.uint8), used))
        rest, used = rest >> 7, goes_on
    return columns
