"""A digest of messages that does not depend on their division among batches, row groups and files. Pure.

Each row has a hash of 64 bits over all columns. The digest of some rows is the sum of their hashes, so digests of
parts can be added, and compaction changes none. A digest detects damaged, missing, duplicate and mixed-up values.
It is not a signature: anyone who can write the table can compute it.

Tables store these digests. A different computation requires a new version of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa

from onewriter_pipeline.binaries import PADDING, Signed, Unsigned
from onewriter_pipeline.decode.words import words_of

WORDS_BYTES_MAX: Final = 256
"""Longer values are hashed with CRC-32C, which costs a call for each value; shorter ones word by word, which costs
a step for each 8 bytes.
"""

DIGESTS: Final = 1 << 64

_WORD_BYTES: Final = 8
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_HALF: Final = np.uint64(32)
_SIZE: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0x6A09E667F3BCC909)
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)

_crc32c: Callable[[bytes], int] = google_crc32c.value


def shown(digest: int) -> str:
    """A digest as tables store it."""
    return f"{digest:016x}"


def row_hashes(batch: pa.RecordBatch, columns: pa.Schema) -> Unsigned:
    """A hash for each row. The columns of the batch may have other types with the same meaning."""
    found = np.zeros(batch.num_rows, np.uint64)
    for field, factor in zip(columns, _FACTORS[: len(columns)], strict=True):
        array = batch.column(field.name)
        values = _values(array if array.type == field.type else array.cast(field.type))
        found += _spread(values) * factor
    return _mixed(found)


def total(hashes: Unsigned) -> int:
    """The digest of some rows."""
    return int(hashes.sum(dtype=np.uint64))


def runs_of(values: Signed) -> Iterator[tuple[int, int, int]]:
    """Ranges of equal values: the value, the beginning, the end."""
    if len(values):
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        for low, high in itertools.pairwise(edges):
            yield int(values[low]), low, high


# ------------------------------------------------------------ columns


def _values(array: pa.Array) -> Unsigned:
    """A hash for each value; equal values have equal hashes."""
    if pa.types.is_map(array.type):
        found = _maps(array)
    elif pa.types.is_string(array.type):
        found = _texts(array)
    elif pa.types.is_binary(array.type):
        found = _contents(array)
    else:
        whole = array.cast(pa.int64())
        filled = whole.fill_null(0) if whole.null_count else whole
        found = filled.to_numpy(zero_copy_only=False).view(np.uint64).copy()
    if array.null_count:
        found[np.asarray(array.is_null())] = _NULL
    return found


def _maps(array: pa.MapArray) -> Unsigned:
    """Hashes of maps, independent of the order of their entries."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    sums = np.zeros(count + 1, np.uint64)
    if count:
        np.cumsum(_mixed(_mixed(_values(keys)) ^ _values(items)), out=sums[1:])
    bounds = offsets - first
    sizes = np.diff(bounds).astype(np.uint64)
    found: Unsigned = sums[bounds[1:]] - sums[bounds[:-1]] + sizes * _SIZE
    return found


def _texts(array: pa.StringArray) -> Unsigned:
    """Hashes of names, of which few are different."""
    encoded = array.dictionary_encode()
    if not len(encoded.dictionary):
        return np.zeros(len(array), np.uint64)
    found: Unsigned = _contents(encoded.dictionary)[encoded.indices.fill_null(0).to_numpy()]
    return found


def _contents(array: pa.BinaryArray | pa.StringArray) -> Unsigned:
    if not len(array):
        return np.zeros(0, np.uint64)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    begin, end = int(bounds[0]), int(bounds[-1])
    taken = b"".join([memoryview(data)[begin:end] if begin < end else b"", PADDING])
    return _pieces(taken, bounds[:-1].astype(np.int64) - begin, np.diff(bounds).astype(np.int64))


def _pieces(data: bytes, starts: Signed, sizes: Signed) -> Unsigned:
    """A hash for each piece of a buffer that ends in PADDING."""
    found = sizes.astype(np.uint64) * _SIZE
    short = sizes <= WORDS_BYTES_MAX
    all_short = bool(short.all())
    if all_short or short.any():
        _add_words(found, words_of(data), starts, np.where(short, sizes, 0))
    if not all_short:
        long = np.flatnonzero(~short)
        slices = map(slice, starts[long].tolist(), (starts + sizes)[long].tolist())
        sums = np.fromiter(map(_crc32c, map(data.__getitem__, slices)), np.uint64, len(long))
        found[long] += sums * _FACTORS[0]
    return _mixed(found)


def _add_words(found: Unsigned, words: Unsigned, starts: Signed, sizes: Signed) -> None:
    """Add each word of each piece, multiplied by a factor of its place."""
    least, most = int(sizes.min()), int(sizes.max())
    for at in range(0, most, _WORD_BYTES):
        factor = _FACTORS[at // _WORD_BYTES]
        if least >= at + _WORD_BYTES:
            found += _spread(words[starts + at]) * factor
            continue
        left = np.flatnonzero(sizes > at)
        rest = np.minimum(sizes[left] - at, _WORD_BYTES)
        found[left] += _spread(words[starts[left] + at] & _MASKS[rest]) * factor


def _spread(numbers: Unsigned) -> Unsigned:
    """A bijection after which all bits of a factor influence the high bits of a number."""
    return numbers ^ (numbers >> _HALF)


def _mixed(numbers: Unsigned) -> Unsigned:
    """A bijection of numbers in which every bit counts (that of SplitMix64)."""
    found = numbers ^ (numbers >> _SHIFTS[0])
    found *= _FIRST
    found ^= found >> _SHIFTS[1]
    found *= _SECOND
    found ^= found >> _SHIFTS[2]
    return found


_FACTORS: Final = _mixed(
    np.arange(1, 1 + WORDS_BYTES_MAX // _WORD_BYTES).astype(np.uint64)
) | np.uint64(1)
"""Odd factors, one for each column and for each word of a value. Every single change alters the digest, and several
changes do not cancel each other out.
"""
