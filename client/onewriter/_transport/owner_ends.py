"""The ownerships that live on one connection, and who hears what becomes of each."""

from __future__ import annotations

from onewriter._transport.ends import OwnerEnd
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

EARLY_LOSSES_MAX = 10_000
"""Ownerships that were lost before anybody here had taken them, and are remembered for that."""

OwnerKey = tuple[str, str, int]
"""An ownership: its group, its resource, its generation."""


class OwnerEnds:
    """One connection's."""

    def __init__(self) -> None:
        self._ends: dict[OwnerKey, OwnerEnd] = {}
        self._early: dict[OwnerKey, pb.CommandOwnershipLost] = {}
        """Of grants that nobody has taken from their answers yet."""
        self._is_lost = False

    def attach(self, key: OwnerKey, end: OwnerEnd) -> None:
        """From now on ``end`` hears what becomes of it, at once if that is known already."""
        self._ends[key] = end
        if (early := self._early.pop(key, None)) is not None:
            end.on_ownership_lost(early)
        elif self._is_lost:
            end.on_owner_detached()

    def detach(self, key: OwnerKey) -> None:
        """Nobody is interested any more."""
        self._ends.pop(key, None)

    def take(self, command: pb.CommandOwnershipLost) -> None:
        """The broker says what became of one."""
        resource = command.resource
        key = (command.group, resource.name, resource.generation)
        if (end := self._ends.get(key)) is not None:
            end.on_ownership_lost(command)
            return
        self._early[key] = command
        if len(self._early) > EARLY_LOSSES_MAX:
            del self._early[next(iter(self._early))]

    def lost(self) -> None:
        """The connection is gone."""
        self._is_lost = True
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end.on_owner_detached()
