"""The model of guarded writes: its promises hold, and the search finds each variant wrong that lacks one rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.model.explorer import Always, Report, Sometimes, Step, explore
from tests.model.guard_protocol import (
    Action,
    GuardProtocol,
    Rules,
    Scope,
    State,
)

pytestmark = pytest.mark.timeout(600)

BESIDE = Rules(is_atomic=True)
ELSEWHERE = Rules(is_atomic=False)

WITHOUT_FAILOVER = Scope(failovers=0)
ONE_WRITER = Scope(operations=(1,))
TWO_FAILOVERS = Scope(operations=(1,), failovers=2)
THREE_WRITERS = Scope(operations=(1, 1, 2), failovers=0)

GuardReport = Report[State, Action]


def never_late(state: State) -> bool:
    return not any(each.is_late and each.phase == "ok" for each in state.operations)


def refused_is_absent(state: State) -> bool:
    refused = {n for n, each in enumerate(state.operations) if each.phase == "refused"}
    return not refused & {number for _, _, number in state.seen.entries}


def numbered_without_gap(state: State) -> bool:
    last = {0: 0}
    for ledger, position, _ in state.seen.entries:
        if position != last.get(ledger, 0) + 1:
            return False
        last[ledger] = position
    return True


def entered(before: State, after: State) -> list[int]:
    """Return the epochs of the entries that this step appended."""
    new = set(after.seen.entries) - set(before.seen.entries)
    return [after.operations[number].epoch for _, _, number in new]


def beside_nothing_old_enters(before: State, _action: Action, after: State) -> bool:
    return all(epoch >= before.granted for epoch in entered(before, after))


def nothing_passes_a_floor(before: State, _action: Action, after: State) -> bool:
    return all(epoch >= before.sealed for epoch in entered(before, after))


def _phase(name: str, phase: str) -> Sometimes[State, Action]:
    def reached(before: State, _action: Action, after: State) -> bool:
        return [o.phase for o in after.operations].count(phase) > [
            o.phase for o in before.operations
        ].count(phase)

    return Sometimes(name, reached)


def _action(name: str, kind: str, detail: str = "") -> Sometimes[State, Action]:
    return Sometimes(name, lambda _b, action, _a: (action.kind, action.detail) == (kind, detail))


SEEN = [
    _phase("a write is answered", "ok"),
    _phase("a write is refused for certain", "refused"),
    _action("a repeated block is found", "execute", "OK"),
    _action("a guard is found over", "execute", "STALE"),
]
IN_DOUBT = _action("a repeated block is in doubt", "execute", "REFENCE")
NOT_YET = _action("a guarding log is not fenced yet", "execute", "AHEAD")


def examine(
    rules: Rules, scope: Scope, seen: list[Sometimes[State, Action]] | None = None
) -> GuardReport:
    passing = Step("beside its guard nothing of an older epoch enters", beside_nothing_old_enters)
    floor = Step("nothing enters below an answered write or seal", nothing_passes_a_floor)
    return explore(
        GuardProtocol(rules, scope),
        always=[
            Always("S8: an answered write was current at some moment of it", never_late),
            Always("what was refused for certain is not in the log", refused_is_absent),
            Always("numbers have no gap", numbered_without_gap),
        ],
        steps=[passing if rules.is_atomic else floor],
        sometimes=seen or [],
        states_max=3_000_000,
    )


def test_beside_its_guard_it_holds() -> None:
    examine(BESIDE, Scope(), [*SEEN, IN_DOUBT, NOT_YET]).assert_sound()


def test_elsewhere_it_holds() -> None:
    examine(ELSEWHERE, Scope(), [*SEEN, IN_DOUBT]).assert_sound()


@pytest.mark.parametrize("rules", [BESIDE, ELSEWHERE], ids=["beside", "elsewhere"])
@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(TWO_FAILOVERS, id="two failovers", marks=pytest.mark.full),
        pytest.param(THREE_WRITERS, id="three writers"),
    ],
)
def test_the_protocol_holds_in_other_scopes(rules: Rules, scope: Scope) -> None:
    examine(rules, scope).assert_sound()


def broken(rules: Rules, scope: Scope = ONE_WRITER) -> str:
    report = examine(rules, scope)
    assert report.violation is not None, f"nothing was found: {report}"
    return report.violation.broken


def test_a_guard_compared_in_the_brokers_memory_is_none() -> None:
    assert broken(replace(BESIDE, compared_in_append=False))


def test_a_failover_to_a_lagging_replica_brings_an_old_epoch_back() -> None:
    assert broken(replace(BESIDE, generation_checked=False)).startswith(("S8", "beside"))


def test_an_owner_without_memory_must_not_believe_a_lagging_log() -> None:
    assert broken(replace(BESIDE, careful_tenure=False)).startswith(("S8", "beside"))


def test_a_lost_answer_is_not_a_refusal() -> None:
    """The first attempt is in the log, the guard was raised, and the second attempt is refused."""
    rules = replace(BESIDE, present_wins=False, definite_only_at_first=False)
    assert broken(rules, Scope(operations=(1,), failovers=0)).startswith("what was refused")


def test_a_late_copy_falsifies_a_repeated_refusal() -> None:
    rules = replace(BESIDE, definite_only_at_first=False)
    assert broken(rules).startswith("what was refused")


def test_raising_the_floor_after_the_append_is_too_late() -> None:
    rules = replace(ELSEWHERE, raised_in_append=False)
    assert broken(rules, WITHOUT_FAILOVER).startswith("nothing enters below")


def test_a_proof_from_before_the_call_proves_nothing_of_it() -> None:
    rules = replace(ELSEWHERE, checked_behind_invocation=False)
    assert broken(rules).startswith("S8")


def test_a_floor_that_is_not_remembered_is_lost_with_the_tail() -> None:
    rules = replace(ELSEWHERE, floors_remembered=False)
    assert broken(rules, Scope()).startswith("nothing enters below")
