"""What a node stores: keys with hashes, streams, or plain strings. Binary-safe."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

StreamId = tuple[int, int]
Fields = tuple[bytes, ...]
"""Names and values in turn, as a stream entry keeps them."""

MINIMUM: StreamId = (0, 0)
MAXIMUM: StreamId = (2**64 - 1, 2**64 - 1)


class WrongType(Exception):
    """The key holds another type of value."""


@dataclass(slots=True)
class Stream:
    """Entries in the order of their ids, and the highest id that was ever added."""

    ids: list[StreamId] = field(default_factory=list)
    entries: list[Fields] = field(default_factory=list)
    last: StreamId = MINIMUM

    def add(self, entry_id: StreamId, fields: Fields) -> None:
        self.ids.append(entry_id)
        self.entries.append(fields)
        self.last = entry_id

    def between(self, low: StreamId, high: StreamId) -> range:
        """The indexes of the entries from ``low`` to ``high``, both included."""
        return range(bisect_left(self.ids, low), bisect_right(self.ids, high))

    def delete(self, entry_id: StreamId) -> bool:
        at = bisect_left(self.ids, entry_id)
        if at == len(self.ids) or self.ids[at] != entry_id:
            return False
        del self.ids[at], self.entries[at]
        return True

    def drop_first(self, count: int) -> None:
        del self.ids[:count], self.entries[:count]


Hash = dict[bytes, bytes]
Value = Hash | Stream | bytes


class Keyspace:
    """All keys of a node. A hash without fields does not exist; a stream without entries does."""

    def __init__(self) -> None:
        self._values: dict[bytes, Value] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[bytes]:
        return iter(sorted(self._values))

    def get(self, key: bytes) -> Value | None:
        return self._values.get(key)

    def hash(self, key: bytes) -> Hash | None:
        """The hash at a key; None if there is none. Raises WrongType."""
        value = self._values.get(key)
        if value is None or isinstance(value, dict):
            return value
        raise WrongType

    def stream(self, key: bytes) -> Stream | None:
        """The stream at a key; None if there is none. Raises WrongType."""
        value = self._values.get(key)
        if value is None or isinstance(value, Stream):
            return value
        raise WrongType

    def put(self, key: bytes, value: Value) -> None:
        self._values[key] = value

    def delete(self, key: bytes) -> bool:
        return self._values.pop(key, None) is not None

    def clear(self) -> None:
        self._values.clear()
