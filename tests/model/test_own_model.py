"""Every way in which three requesters can own a resource; the search finds simpler tables wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.model.explorer import Always, Report, Sometimes, Step, explore
from tests.model.own_model import (
    NO_RECORD,
    Action,
    Decide,
    OwnModel,
    World,
    caused,
    each_generation_is_ones_own,
    generations_never_fall,
    nobody_returns_behind_a_successor,
    owners_are_deposed_by_right_only,
)

from onewriter_core.errors import ServerError
from onewriter_core.own.table import (
    Cause,
    Ownership,
    OwnershipDenied,
    OwnershipGranted,
    OwnRequest,
    decide,
)


def explored(model: OwnModel) -> Report[World, Action]:
    return explore(
        model,
        always=[Always("each generation is one's own", each_generation_is_ones_own)],
        steps=[
            Step("nobody returns behind a successor", nobody_returns_behind_a_successor),
            Step("generations never fall", generations_never_fall),
            Step("owners are deposed by right only", owners_are_deposed_by_right_only),
        ],
        sometimes=[
            *(Sometimes(cause.value, caused(cause)) for cause in Cause),
            *(Sometimes(code.name, denied(code)) for code in DENIALS),
            Sometimes("grants are forgotten", lambda _b, _a, after: after.known_since > 0),
            Sometimes("a dropped record is dropped again", dropped_again),
            Sometimes("a record is dropped", lambda before, _a, after: after.floor > before.floor),
            Sometimes(
                "somebody begins above a floor",
                lambda before, _a, after: (
                    before.record == NO_RECORD and 0 < before.floor < after.record.generation
                ),
            ),
        ],
    )


def dropped_again(before: World, action: Action, after: World) -> bool:
    is_behind = before.replica != NO_RECORD == before.record == after.record
    return is_behind and "lives on" in str(action)


DENIALS = (
    ServerError.PRODUCER_FENCED,
    ServerError.PRODUCER_BUSY,
    ServerError.AUTHORIZATION_ERROR,
)


def denied(code: ServerError) -> Callable[[World, Action, World], bool]:
    return lambda _before, action, _after: (
        isinstance(action.answer, OwnershipDenied) and action.answer.code is code
    )


def test_the_table_holds_everywhere() -> None:
    report = explored(OwnModel())
    report.assert_sound()
    assert report.states > 1_000, "too small to show anything"


def equal_steals_for_anybody(
    before: Ownership, request: OwnRequest
) -> OwnershipGranted | OwnershipDenied:
    """As in the proposal: two owners that both have generation 1 alternate without end."""
    answer = decide(before, request)
    if isinstance(answer, OwnershipDenied) and answer.code is ServerError.PRODUCER_BUSY:
        taken = Ownership(before.generation + 1, request.owner, is_owned=True)
        return OwnershipGranted(taken, Cause.SUCCEEDED, before.owner)
    return answer


def generations_restart(
    before: Ownership, request: OwnRequest
) -> OwnershipGranted | OwnershipDenied:
    """As in the proposal: each requester of a resource without an owner gets generation 1."""
    answer = decide(before, request)
    if isinstance(answer, OwnershipGranted) and answer.cause is Cause.VACANT:
        return replace(answer, after=replace(answer.after, generation=1))
    return answer


def the_next_life_keeps_the_number(
    before: Ownership, request: OwnRequest
) -> OwnershipGranted | OwnershipDenied:
    """Then a task cannot be distinguished from its zombie."""
    answer = decide(before, request)
    if isinstance(answer, OwnershipGranted) and answer.cause is Cause.SUCCEEDED:
        return replace(answer, after=replace(answer.after, generation=before.generation))
    return answer


def a_reset_begins_at_1(
    before: Ownership, request: OwnRequest
) -> OwnershipGranted | OwnershipDenied:
    answer = decide(before, request)
    if isinstance(answer, OwnershipGranted) and answer.cause is Cause.RESET:
        return replace(answer, after=replace(answer.after, generation=1))
    return answer


def the_name_is_enough_to_return(
    before: Ownership, request: OwnRequest
) -> OwnershipGranted | OwnershipDenied:
    owner = before.owner
    if owner is not None and 0 < request.generation <= before.generation:
        asker = request.owner
        if asker.is_same_as(owner):
            return OwnershipGranted(replace(before, owner=asker, is_owned=True), Cause.RETURNED)
    return decide(before, request)


@pytest.mark.parametrize(
    ("naive", "broken"),
    [
        (equal_steals_for_anybody, "owners are deposed by right only"),
        (generations_restart, "generations never fall"),
        (the_next_life_keeps_the_number, "generations never fall"),
        (a_reset_begins_at_1, "generations never fall"),
        (the_name_is_enough_to_return, "nobody returns behind a successor"),
    ],
)
def test_simpler_tables_are_found_wrong(naive: Decide, broken: str) -> None:
    violation = explored(OwnModel(naive)).violation
    assert violation is not None
    assert violation.broken == broken, violation.trace()


def test_trusting_a_dataset_that_has_forgotten_grants_is_found_wrong() -> None:
    violation = explored(OwnModel(floor=lambda stored, _registration, _since: stored)).violation
    assert violation is not None
    assert any("replica counts" in str(action) for action in violation.actions)


def test_dropping_a_record_without_a_floor_is_found_wrong() -> None:
    violation = explored(OwnModel(drop=lambda floors, _generation: floors)).violation
    assert violation is not None
    assert violation.broken in {"generations never fall", "each generation is one's own"}
    assert any("dropped" in str(action) for action in violation.actions)


def test_trusting_a_replica_that_lacks_a_drop_is_detected() -> None:
    """The replica's record returns below the floor of the records that were dropped after it."""
    violation = explored(OwnModel(covers=lambda _floors, _generation: False)).violation
    assert violation is not None
    assert violation.broken == "nobody returns behind a successor", violation.trace()
    assert any("lives on" in str(action) for action in violation.actions)


def test_reviving_it_without_its_owner_is_found_wrong_too() -> None:
    """Then the next owner gets a generation that was already granted."""

    class Reviving(OwnModel):
        def _bound_anew(self, world: World) -> World:
            found = super()._bound_anew(world)
            if world.record != NO_RECORD:
                return found
            return replace(found, record=found.record.released())

    violation = explored(Reviving(covers=lambda _floors, _generation: False)).violation
    assert violation is not None
    assert violation.broken in {"generations never fall", "each generation is one's own"}
