"""Keys of messages as Pulsar writes them: as texts, and those that are none in base64."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

import numpy as np

from onewriter_pipeline.binaries import Bools, binaries, texts

if TYPE_CHECKING:
    import pyarrow as pa


def key_texts(column: pa.Array) -> tuple[pa.Array, Bools | None]:
    """Keys (binary or string, nulls stay) as they are written, ``large_binary``; and which are base64.

    None: none of them is.
    """
    import pyarrow as pa  # noqa: PLC0415 - Spark imports this module where there may be none

    column = column.cast(pa.large_binary())
    try:
        column.cast(pa.large_string())
    except pa.ArrowInvalid:  # they are not all texts
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
