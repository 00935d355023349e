"""The checkers are checked: every predicate has a mutant that it detects, and no other predicate does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
from tests.mutants.mutant import Mutant as ScriptMutant
from tests.script_bugs import plant
from tests.simulation.checkers.predicates import PREDICATES, violated
from tests.simulation.history import History
from tests.simulation.mutants import MUTANTS, Mutant, NotHere
from tests.simulation.scenario import simulate

SEEDS = range(40)
"""Seeds of the runs that mutants search for something to corrupt."""


NO_GUARD_IS_COMPARED = ScriptMutant(
    "no-guard-is-compared",
    ("S8",),
    "lua:guard/guard_refusal",
    "A guarded write is accepted whatever it depends on.",
    "  local number = tonumber(guard.number)\n",
    "  do return nil end\n  local number = tonumber(guard.number)\n",
    ("tests/simulation/test_checkers.py",),
)


@cache
def healthy(seed: int) -> History:
    history = simulate(seed)
    assert violated(history) == {}
    return history


@pytest.mark.parametrize("mutant", list(MUTANTS), ids=lambda mutant: mutant.__name__)
def test_a_mutant_fails_exactly_the_predicate_it_names(mutant: Mutant) -> None:
    history = mutated(mutant)
    assert violated(history).keys() == MUTANTS[mutant]


def test_every_predicate_has_a_mutant() -> None:
    assert frozenset().union(*MUTANTS.values()) == PREDICATES.keys()


def test_a_store_that_compares_no_guards_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """This test corrupts the protocol instead of the history: guardians then succeed too late."""
    plant(monkeypatch, NO_GUARD_IS_COMPARED)
    assert any("S8" in violated(simulate(seed)) for seed in range(4))


def mutated(mutant: Callable[[History], None]) -> History:
    """Return the first healthy history that the mutant can corrupt, corrupted."""
    for seed in SEEDS:
        history = copy.deepcopy(healthy(seed))
        try:
            mutant(history)
        except NotHere:
            continue
        return history
    raise AssertionError(f"none of {len(SEEDS)} runs has anything for {mutant.__name__}")
