"""Pulsar's message ids as its clients serialise them (MessageIdData), for many messages at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onewriter_pipeline.binaries import Bools, Heads, Signed

_LEDGER, _ENTRY, _PARTITION, _BATCH_INDEX, _BATCH_SIZE = 0x08, 0x10, 0x18, 0x20, 0x30
"""Tags of the fields, all varints."""


def message_ids(
    ledger: Signed,
    entry: Signed,
    batch_index: Signed,
    batch_size: Signed,
    partition: int | None,
) -> pa.Array:
    """The ids as binary; batch index and size only where the size is not 0, the partition if any."""
    rows = len(ledger)
    fields: list[tuple[int, Signed, Bools | None]] = [
        (_LEDGER, ledger, None),
        (_ENTRY, entry, None),
    ]
    if partition is not None:
        fields.append((_PARTITION, np.full(rows, partition), None))
    is_batched = batch_size > 0
    fields += [(_BATCH_INDEX, batch_index, is_batched), (_BATCH_SIZE, batch_size, is_batched)]
    ids = Heads(rows)
    for tag, numbers, present in fields:
        ids.byte(tag, present)
        ids.varint(numbers, present)
    return ids.to_arrow().cast(pa.binary())
