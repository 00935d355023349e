"""The partition of a key, as Pulsar's clients choose it, for whole columns of keys.

The defaults of the clients differ. Java clients use Java's string hash (JavaStringHash) unless they are configured
for Murmur3_32Hash. The default of the C++ and Python clients depends on their build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onewriter_pipeline.binaries import Binaries

Hashes = NDArray[np.uint32]

JAVA: Final = "JavaStringHash"
MURMUR: Final = "Murmur3_32Hash"

_SIGN_MASK: Final = np.uint32(0x7FFFFFFF)
"""Clients interpret the hash as a signed number, and drop its sign."""

_JAVA_FACTOR: Final = 31
_FOUR_BYTE_LEAD: Final = 0xF0
"""A character of four bytes in UTF-8 is two characters in Java."""

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_FIVE: Final = np.uint32(5)
_ROUND: Final = np.uint32(0xE6546B64)
_WORD_BYTES: Final = 4
_TAIL_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def partitions_of(keys: Binaries, counts: NDArray[Any], scheme: str) -> NDArray[np.int64]:
    """The partition of each key; ``counts``: the number of partitions. Keys are texts in UTF-8."""
    hashes = SCHEMES[scheme](keys) & _SIGN_MASK
    found: NDArray[np.int64] = hashes.astype(np.int64) % counts
    return found


def partition_of(key: str, partitions: int, scheme: str = JAVA) -> int:
    """The partition of one key, for producers whose clients let them choose the partition."""
    text = np.frombuffer(key.encode(), np.uint8)
    column = Binaries(text, np.array([0, len(text)]))
    return int(partitions_of(column, np.array([partitions]), scheme)[0])


def java_string_hash(keys: Binaries) -> Hashes:
    """The result of ``String.hashCode``: the sum of UTF-16 units, each times 31 to the power of the number of units
    after it.
    """
    keys = keys.trimmed()
    units = np.frombuffer(keys.data.tobytes().decode().encode("utf-16-le"), "<u2")
    bounds = keys.bounds
    if len(units) != len(keys.data):
        begins = (keys.data & 0xC0) != 0x80  # not continuation bytes
        taken = begins.astype(np.int64) + (keys.data >= _FOUR_BYTE_LEAD)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(taken)])[bounds]
    lengths = np.diff(bounds)
    behind = np.repeat(bounds[1:], lengths) - 1 - np.arange(len(units))
    powers = np.full(int(lengths.max(initial=0)) + 1, _JAVA_FACTOR, np.uint32)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint32)  # they wrap around, as in Java
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units.astype(np.uint32) * powers[behind], dtype=np.uint32, out=sums[1:])
    return sums[bounds[1:]] - sums[bounds[:-1]]


def murmur3_32(keys: Binaries) -> Hashes:
    """MurmurHash3 with 32 bits and seed 0. The number of rounds is the number of words in the longest key."""
    data = np.concatenate([keys.data, np.zeros(_WORD_BYTES, np.uint8)])
    words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u4", data.data, 0, (1,))
    starts, lengths = keys.bounds[:-1], keys.lengths
    wholes = lengths // _WORD_BYTES
    longest_first = np.argsort(-wholes, kind="stable")
    how_many = len(wholes) - np.searchsorted(
        np.sort(wholes), np.arange(wholes.max(initial=0)), "right"
    )
    hashes = np.zeros(len(keys), np.uint32)
    for number, count in enumerate(how_many.tolist()):
        rows = longest_first[:count]
        mixed = hashes[rows] ^ _scrambled(words[starts[rows] + _WORD_BYTES * number])
        hashes[rows] = _rotated(mixed, 13) * _FIVE + _ROUND
    rest = words[starts + _WORD_BYTES * wholes] & _TAIL_MASKS[lengths % _WORD_BYTES]
    hashes ^= _scrambled(rest)
    return _finished(hashes ^ lengths.astype(np.uint32))


def _scrambled(words: Hashes) -> Hashes:
    return _rotated(words * _C1, 15) * _C2


def _rotated(words: Hashes, bits: int) -> Hashes:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)


def _finished(hashes: Hashes) -> Hashes:
    hashes = hashes ^ hashes >> np.uint32(16)
    hashes = hashes * np.uint32(0x85EBCA6B)
    hashes = hashes ^ hashes >> np.uint32(13)
    hashes = hashes * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)


SCHEMES: Final[Mapping[str, Callable[[Binaries], Hashes]]] = MappingProxyType(
    {JAVA: java_string_hash, MURMUR: murmur3_32}
)
"""By the names of Pulsar's Java client; the first one is its default."""
