"""A map's state as bytes: an immutable value with cheap modified copies.

The entries of a checkpoint are one dictionary that never changes; later changes are a persistent map over it. A
modified copy shares both with its original.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Self

from immutables import Map

_NOTHING: Mapping[bytes, bytes] = MappingProxyType({})


class MapContent:
    """Keys and values as bytes. The caller must not change ``base`` afterwards."""

    __slots__ = ("_base", "_over", "_size")

    def __init__(
        self,
        base: Mapping[bytes, bytes] = _NOTHING,
        over: Map[bytes, bytes | None] | None = None,
        size: int | None = None,
    ) -> None:
        self._base = base
        self._over: Map[bytes, bytes | None] = Map() if over is None else over
        """The differences from the base; None: the key was removed."""
        self._size = len(base) if size is None else size

    def get(self, key: bytes) -> bytes | None:
        """Return a key's value; None if the key does not exist."""
        found = self._over.get(key, _UNKNOWN)
        return self._base.get(key) if found is _UNKNOWN else found

    def set(self, key: bytes, value: bytes) -> Self:
        """Return the map with this key and value."""
        return self._with(self._over.set(key, value), self._size + (self.get(key) is None))

    def delete(self, key: bytes) -> Self:
        """Return the map without this key."""
        if self.get(key) is None:
            return self
        over = self._over.set(key, None) if key in self._base else self._over.delete(key)
        return self._with(over, self._size - 1)

    def _with(self, over: Map[bytes, bytes | None], size: int) -> Self:
        return type(self)(self._base, over, size)

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self._size

    def keys(self) -> Iterator[bytes]:
        """Yield all keys in an unspecified order."""
        return (key for key, _ in self.items())

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their values in an unspecified order."""
        over = self._over
        if not over:
            yield from self._base.items()
            return
        for item in self._base.items():
            if item[0] not in over:
                yield item
        for key, value in over.items():
            if value is not None:
                yield key, value


_UNKNOWN = b"".join((b"no ", b"value"))
"""A marker: no value is identical to this object."""
