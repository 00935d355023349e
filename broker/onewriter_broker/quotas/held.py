"""What one connection has of something that quotas limit, by its ids."""

from __future__ import annotations

from typing import TypeVar

from onewriter_broker.quotas.book import Part, QuotaBook

Item = TypeVar("Item")


class Held(dict[int, Item]):
    """A mapping whose ids count in the quota book from ``take`` until they are removed."""

    def __init__(self, book: QuotaBook) -> None:
        super().__init__()
        self._book = book
        self._parts: dict[int, tuple[Part, ...]] = {}

    def take(self, key: int, *parts: Part) -> None:
        """Count an id that is here, or about to be. Raises QuotaExceeded."""
        self._book.take(*parts)
        self._parts[key] = parts

    def __delitem__(self, key: int) -> None:
        super().__delitem__(key)
        self._give_back(key)

    def remove(self, key: int) -> Item | None:
        """Remove an id; what it stood for, None where it is not here."""
        found = self.get(key)
        if key in self:
            del self[key]
        return found

    def clear(self) -> None:
        super().clear()
        for key in list(self._parts):
            self._give_back(key)

    def _give_back(self, key: int) -> None:
        self._book.give_back(*self._parts.pop(key, ()))
