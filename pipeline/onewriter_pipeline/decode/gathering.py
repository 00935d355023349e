"""Arrow arrays of slices of a buffer: Arrow copies them in one go, nothing is done per slice in Python.

Arrow's binary arrays stand without gaps. The slices wanted here have gaps between them: so an array is
laid over the buffer, without a copy, in which every second element is a slice and the others are the
gaps, and Arrow takes every second one.
"""

from __future__ import annotations

import binascii

import numpy as np
import pyarrow as pa

from onewriter_pipeline.decode.rows import Slices


def gathered(data: pa.Buffer, slices: Slices, kind: pa.DataType) -> pa.Array:
    """The slices as an array of a binary or string type; null where there is none."""
    which = np.flatnonzero(slices.present)
    if not len(which):
        return pa.nulls(len(slices.present), kind)
    starts, stops = slices.starts[which], slices.stops[which]
    ranks = np.arange(len(which))
    if (starts[1:] < stops[:-1]).any():  # not in the order of the buffer
        order = np.lexsort((stops, starts))
        starts, stops = starts[order], stops[order]
        ranks[order] = np.arange(len(which))
    bounds = np.empty(2 * len(which), np.int32)
    bounds[0::2], bounds[1::2] = starts, stops
    laid = pa.Array.from_buffers(kind, len(bounds) - 1, [None, pa.py_buffer(bounds), data])
    if len(which) == len(slices.present):
        return laid.take(pa.array((2 * ranks).astype(np.int32)))
    places = np.zeros(len(slices.present), np.int32)
    places[which] = 2 * ranks
    return laid.take(pa.array(places, mask=~slices.present))


def from_base64(texts: pa.Array) -> pa.Array:
    """Base64 values as what they stand for; null for what is null or is no base64."""
    encoded = texts.dictionary_encode()
    plain = pa.array([_plain(text) for text in encoded.dictionary.to_pylist()], pa.binary())
    return plain.take(encoded.indices)


def _plain(text: bytes) -> bytes | None:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        return None
