"""What is left of ownerships whose records were dropped: a generation that no later one is below.

A record may go when nobody owns its resource. What must stay is that no generation is given twice, so
its group keeps the highest one that was dropped: its *floor*. Whoever owns the resource next, or any
other of the group that has no record, begins above it. Floors never fall. Groups with a floor of their
own are bounded; when there are too many, all of them share one: everybody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onewriter_core.own.names import split_field
from onewriter_core.own.table import Ownership

GROUP_FLOORS_MAX: Final = 300
"""Groups of one bucket with a floor of their own."""

GENERATION_DROPPED_MAX: Final = 2**52
"""A record of a higher generation is never dropped: its floor would leave others too few numbers.

So far above what requests may name (``table.GENERATION_ASKED_MAX``) that nobody counts there.
"""

FLOOR_MARK: Final = "\x1e"
"""How the names of floors begin, among the names of records; no group may contain it."""

EVERYBODYS: Final = FLOOR_MARK * 2
"""The name of the floor of groups without one of their own."""


@dataclass(frozen=True, slots=True)
class Floors:
    """The floors of one bucket, by group, and everybody's."""

    groups: Mapping[str, int] = field(default_factory=dict)
    everybodys: int = 0

    def of(self, group: str) -> int:
        """The highest generation that may have been given to a resource without a record."""
        return max(self.groups.get(group, 0), self.everybodys)

    def covers(self, name: str, generation: int) -> bool:
        """Whether a generation of a resource without a record is over, if it ever was granted."""
        return 0 < generation <= self.of(split_field(name)[0])

    def after(self, dropped: Iterable[tuple[str, int]]) -> Floors:
        """With these records dropped: their names, and their generations."""
        groups: dict[str, int] = {}
        for name, generation in dropped:
            group, _ = split_field(name)
            groups[group] = max(groups.get(group, 0), generation)
        return self.joined(Floors(groups))

    def joined(self, other: Floors) -> Floors:
        """The higher ones of both."""
        groups = dict(self.groups)
        for group, floor in other.groups.items():
            groups[group] = max(groups.get(group, 0), floor)
        everybodys = max(self.everybodys, other.everybodys)
        if len(groups) > GROUP_FLOORS_MAX:
            return Floors({}, max(everybodys, *groups.values()))
        return Floors(groups, everybodys)

    def begin(self, group: str, nothing: Ownership) -> Ownership:
        """What stands for a resource of the group that has no record."""
        return Ownership(max(nothing.generation, self.of(group)))

    def encode(self) -> dict[str, int]:
        """By the names under which they are stored beside the records."""
        found = {f"{FLOOR_MARK}{group}": floor for group, floor in self.groups.items()}
        return found | ({EVERYBODYS: self.everybodys} if self.everybodys else {})


def decode(stored: Mapping[str, int]) -> Floors:
    """The floors among a bucket's stored names and numbers."""
    groups = {
        name.removeprefix(FLOOR_MARK): number
        for name, number in stored.items()
        if is_floor(name) and name != EVERYBODYS
    }
    return Floors(groups, stored.get(EVERYBODYS, 0))


def is_floor(name: str) -> bool:
    """Whether a stored name is a floor's, and no record's."""
    return name.startswith(FLOOR_MARK)


def may_drop(record: Ownership) -> bool:
    """Whether a record may go: nobody owns its resource, and enough numbers are left above it."""
    return not record.is_owned and record.generation <= GENERATION_DROPPED_MAX
