"""Floors: the highest generations of dropped records. Later generations are higher.

A record may be dropped if its resource has no owner. But no generation may be granted twice. So the group keeps the
highest generation of its dropped records: its *floor*. The generations of a resource without a record begin above it.
Floors never fall. The number of groups with their own floor is bounded. Above the bound all groups share one floor
(COMMON).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onewriter_core.own.names import split_field
from onewriter_core.own.table import Ownership

GROUP_FLOORS_MAX: Final = 300
"""Groups of one bucket that may have their own floor."""

GENERATION_DROPPED_MAX: Final = 2**52
"""A record of a higher generation is never dropped: its floor would leave too few numbers to others.

It is so far above ``table.GENERATION_ASKED_MAX`` that no resource reaches it by counting.
"""

FLOOR_MARK: Final = "\x1e"
"""The prefix of a floor's name among the names of records. No group may contain it."""

COMMON: Final = FLOOR_MARK * 2
"""The name of the shared floor, for groups without their own."""


@dataclass(frozen=True, slots=True)
class Floors:
    """The floors of one bucket: by group, and the shared one."""

    groups: Mapping[str, int] = field(default_factory=dict)
    common: int = 0

    def of(self, group: str) -> int:
        """The highest generation that may have been granted to a resource without a record."""
        return max(self.groups.get(group, 0), self.common)

    def covers(self, name: str, generation: int) -> bool:
        """Whether no owner can have this generation any more: it is at or below the group's floor.

        Only for a resource without a record.
        """
        return 0 < generation <= self.of(split_field(name)[0])

    def after(
        self, dropped: Iterable[tuple[str, int]], *, groups_max: int = GROUP_FLOORS_MAX
    ) -> Floors:
        """The floors after these records, by name and generation, were dropped."""
        groups: dict[str, int] = {}
        for name, generation in dropped:
            group, _ = split_field(name)
            groups[group] = max(groups.get(group, 0), generation)
        return self.joined(Floors(groups), groups_max=groups_max)

    def joined(self, other: Floors, *, groups_max: int = GROUP_FLOORS_MAX) -> Floors:
        """The higher floor of both, for each group."""
        groups = dict(self.groups)
        for group, floor in other.groups.items():
            groups[group] = max(groups.get(group, 0), floor)
        common = max(self.common, other.common)
        if len(groups) > groups_max:
            return Floors({}, max(common, *groups.values()))
        return Floors(groups, common)

    def begin(self, group: str, without_record: Ownership) -> Ownership:
        """The ownership of a resource of the group that has no record.

        ``without_record``: the ownership that such a resource has where no record was dropped.
        """
        return Ownership(max(without_record.generation, self.of(group)))

    def encode(self) -> dict[str, int]:
        """The floors by the names under which they are stored beside the records."""
        found = {f"{FLOOR_MARK}{group}": floor for group, floor in self.groups.items()}
        return found | ({COMMON: self.common} if self.common else {})


def decode(stored: Mapping[str, int]) -> Floors:
    """The floors among a bucket's stored names and numbers."""
    groups = {
        name.removeprefix(FLOOR_MARK): number
        for name, number in stored.items()
        if is_floor(name) and name != COMMON
    }
    return Floors(groups, stored.get(COMMON, 0))


def is_floor(name: str) -> bool:
    """Whether a stored name is the name of a floor, not of a record."""
    return name.startswith(FLOOR_MARK)


def may_drop(record: Ownership) -> bool:
    """Whether a record may be dropped: no owner, and enough numbers are left above its generation."""
    return not record.is_owned and record.generation <= GENERATION_DROPPED_MAX
