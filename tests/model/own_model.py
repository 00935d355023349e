"""Ownership of one resource as a model: the real table, three requesters, moves of the bucket and a failover.

Two requesters share an identity (a task and its next incarnation); the third has another one. The store has a
replica that may lag. If it is promoted while the broker dies too, the record found there may lack grants; the
anchor's note says so (``known_since``). If the broker survives, its memory is more recent: it writes what the
replica lacks and drops what the replica still has. A record without an owner may be dropped; its floor is stored
in the same step.

Not modelled: durability within one dataset (a grant is stored before it is answered), several resources, readers.
The simulation and the tests with real brokers cover these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from onewriter_core.ids import Identity
from onewriter_core.own.floors import Floors, may_drop
from onewriter_core.own.names import own_field
from onewriter_core.own.table import (
    Cause,
    Owner,
    Ownership,
    OwnershipDenied,
    OwnershipGranted,
    OwnRequest,
    decide,
    floor_of,
)

Decide = Callable[[Ownership, OwnRequest], OwnershipGranted | OwnershipDenied]
Floor = Callable[[Ownership, int, int], Ownership]
Drop = Callable[[Floors, int], Floors]
Covers = Callable[[Floors, int], bool]

GROUP = "group"
NO_RECORD = Ownership()

ASKERS = (
    Owner(Identity(), "task", "task, first life"),
    Owner(Identity(), "task", "task, next life"),
    Owner(Identity(), "rival", "rival"),
)


@dataclass(frozen=True, slots=True)
class World:
    """``granted``: the nonce to which each generation was granted (a ghost that no rule reads).

    ``connected``: the requester whose connection owns the resource; None: no connection does. ``knows``: the
    generation that each requester believes to own.
    """

    record: Ownership = Ownership()
    connected: int | None = None
    is_reserved: bool = False
    knows: tuple[int, ...] = (0,) * len(ASKERS)
    granted: frozenset[tuple[int, str]] = frozenset()
    floor: int = 0
    replica: Ownership = Ownership()
    replica_floor: int = 0
    registration: int = 1
    recorded_under: int = 1
    known_since: int = 0

    @property
    def current(self) -> Ownership:
        is_owned = (self.connected is not None or self.is_reserved) and (
            self.record.owner is not None
        )
        return replace(_found(self.record, self.floor), is_owned=is_owned)


@dataclass(frozen=True, slots=True)
class Action:
    """``answer`` is the decision if the action is a request."""

    text: str
    asker: int | None = None
    asked: int | None = None
    answer: OwnershipGranted | OwnershipDenied | None = None

    def __str__(self) -> str:
        if self.answer is None:
            return self.text
        return f"asker {self.asker} asks to {self.text} {self.asked}: {self.answer}"


def real_floor(stored: Ownership, registration: int, known_since: int) -> Ownership:
    return floor_of(stored, registration=registration, known_since=known_since)


def real_drop(floors: Floors, generation: int) -> Floors:
    return floors.after([(own_field(GROUP, "resource"), generation)])


def real_covers(floors: Floors, generation: int) -> bool:
    return floors.covers(own_field(GROUP, "resource"), generation)


def _found(record: Ownership, floor: int) -> Ownership:
    return record if record != NO_RECORD else Floors({GROUP: floor}).begin(GROUP, record)


class OwnModel:
    """``steps_max`` bounds the number of generations granted, ``registrations_max`` the number of failovers."""

    def __init__(
        self,
        decide: Decide = decide,
        floor: Floor = real_floor,
        drop: Drop = real_drop,
        covers: Covers = real_covers,
        *,
        grants_max: int = 3,
        registrations_max: int = 2,
    ) -> None:
        self._decide = decide
        self._floor = floor
        self._drop = drop
        self._covers = covers
        self._grants_max = grants_max
        self._registrations_max = registrations_max

    def initial(self) -> Iterable[World]:
        yield World()

    def successors(self, world: World) -> Iterable[tuple[Action, World]]:
        for number in range(len(ASKERS)):
            yield from self._asked(world, number)
        if world.connected is not None:
            gone = replace(world, connected=None)
            yield Action("the owner's connection is lost"), gone
            released = replace(gone, record=world.record.released())
            yield Action("the owner gives it up"), released
            moved = replace(gone, is_reserved=True)
            yield Action("the bucket moves to another broker"), moved
        if world.is_reserved:
            yield Action("the window for its return is over"), replace(world, is_reserved=False)
        if world.record != NO_RECORD and may_drop(world.current):
            floors = self._drop(Floors({GROUP: world.floor}), world.record.generation)
            dropped = replace(world, record=NO_RECORD, floor=floors.of(GROUP))
            yield Action("the record is dropped"), dropped
        if (world.replica, world.replica_floor) != (world.record, world.floor):
            caught_up = replace(world, replica=world.record, replica_floor=world.floor)
            yield Action("the replica catches up"), caught_up
        if world.registration < self._registrations_max:
            yield Action("broker and primary die, the replica counts"), self._failed_over(world)
            yield Action("the primary dies, the broker lives on"), self._bound_anew(world)

    def _asked(self, world: World, number: int) -> Iterable[tuple[Action, World]]:
        current, knows = world.current, world.knows[number]
        requests = {0, 1, knows, current.generation, current.generation + 1, current.generation + 2}
        for generation in sorted(requests):
            for only_returns in (False, True):
                request = OwnRequest(
                    ASKERS[number], generation, only_returns=only_returns, may_reset=number == 2
                )
                answer = self._decide(current, request)
                text = "return under" if only_returns else "own it under"
                after = self._answered(world, number, answer)
                if len(after.granted) <= self._grants_max:
                    yield Action(text, number, generation, answer), after

    def _answered(
        self, world: World, number: int, answer: OwnershipGranted | OwnershipDenied
    ) -> World:
        if isinstance(answer, OwnershipDenied):
            return world
        generation = answer.after.generation
        knows = tuple(
            generation if other == number else known for other, known in enumerate(world.knows)
        )
        return replace(
            world,
            record=answer.after,
            connected=number,
            is_reserved=False,
            knows=knows,
            granted=world.granted | {(generation, ASKERS[number].nonce)},
            recorded_under=world.registration,
        )

    def _failed_over(self, world: World) -> World:
        registration = world.registration + 1
        has_forgotten = (world.replica, world.replica_floor) != (world.record, world.floor)
        known_since = registration if has_forgotten else world.known_since
        recorded_under = 0 if world.replica == NO_RECORD else world.recorded_under
        found = self._floor(world.replica, recorded_under, known_since)
        if world.replica == NO_RECORD:
            found = Floors({GROUP: world.replica_floor}).begin(GROUP, found)
        return replace(
            world,
            record=found,
            floor=world.replica_floor,
            replica=found,
            connected=None,
            is_reserved=found.owner is not None,
            registration=registration,
            recorded_under=registration,
            known_since=known_since,
        )

    def _bound_anew(self, world: World) -> World:
        """The broker's memory holds all grants, whatever the replica holds: no requester is disconnected.

        A record that only the replica has is treated as an own grant that was never answered, unless a floor
        shows that it was dropped.
        """
        registration = world.registration + 1
        floor = max(world.floor, world.replica_floor)
        record = world.record
        if record == NO_RECORD and not self._covers(
            Floors({GROUP: floor}), world.replica.generation
        ):
            record = world.replica.left()
        is_written = record != NO_RECORD and world.replica != world.record
        return replace(
            world,
            record=record,
            floor=floor,
            registration=registration,
            recorded_under=registration if is_written else world.recorded_under,
        )


def each_generation_is_ones_own(world: World) -> bool:
    """A generation identifies the owner of a write, a read or an acknowledgement."""
    generations = [generation for generation, _ in world.granted]
    return len(set(generations)) == len(generations)


def generations_never_fall(before: World, _action: Action, after: World) -> bool:
    """No later grant is lower than any earlier one, not only than the present one."""
    highest = max((generation for generation, _ in before.granted), default=0)
    new = after.granted - before.granted
    return all(generation > highest for generation, _ in new)


def owners_are_deposed_by_right_only(before: World, action: Action, after: World) -> bool:
    """Only a higher generation, the next incarnation of the same identity, or a reset deposes an owner."""
    owner = before.connected
    if owner is None or action.asker is None or action.asker == owner or before == after:
        return True
    if not isinstance(action.answer, OwnershipGranted) or action.asked is None:
        return True
    is_higher = action.asked > before.record.generation
    is_same = ASKERS[action.asker].name == ASKERS[owner].name
    is_reset = action.asked == 0 and action.asker == 2
    return is_higher or (is_same and action.asked == before.record.generation) or is_reset


def nobody_returns_behind_a_successor(before: World, action: Action, _after: World) -> bool:
    """Only the newest owner may continue (S3: only if no grant was made in between)."""
    if (
        not isinstance(action.answer, OwnershipGranted)
        or action.answer.is_new
        or action.asker is None
    ):
        return True
    newest = max(before.granted)
    return newest == (action.answer.after.generation, ASKERS[action.asker].nonce)


def caused(cause: Cause) -> Callable[[World, Action, World], bool]:
    return lambda _before, action, _after: (
        isinstance(action.answer, OwnershipGranted) and action.answer.cause is cause
    )
