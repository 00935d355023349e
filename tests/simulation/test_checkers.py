"""Tests of the predicates: each finds its mutants, and no other predicate reports them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
from tests.mutants.mutant import Mutant as ScriptMutant
from tests.script_bugs import plant
from tests.simulation.checkers.predicates import PREDICATES, violated
from tests.simulation.history import History
from tests.simulation.mutants import MUTANTS, Mutant, NothingToCorrupt
from tests.simulation.scenario import simulate
from tests.simulation.test_simulation import checked_run

SEEDS = range(40)
"""Seeds whose runs the mutants search for something to corrupt."""

GUARD_SEEDS_MAX = 10
"""Runs in which the store without guards must be found. Nearly every run finds it."""


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
def history_of(seed: int) -> History:
    """Run a seed, which must violate nothing."""
    return checked_run(seed)


@pytest.mark.parametrize("mutant", list(MUTANTS), ids=lambda mutant: mutant.__name__)
def test_a_mutant_fails_exactly_the_predicate_it_names(mutant: Mutant) -> None:
    history = mutated(mutant)
    assert violated(history).keys() == MUTANTS[mutant]


def test_every_predicate_has_a_mutant() -> None:
    assert frozenset().union(*MUTANTS.values()) == PREDICATES.keys()


def test_a_store_that_compares_no_guards_violates_s8(monkeypatch: pytest.MonkeyPatch) -> None:
    """This test corrupts the store instead of a history: deposed guardians then write successfully."""
    plant(monkeypatch, NO_GUARD_IS_COMPARED)
    assert any("S8" in violated(simulate(seed)) for seed in range(GUARD_SEEDS_MAX))


def mutated(mutant: Callable[[History], None]) -> History:
    """Return the first history that the mutant can corrupt, after its corruption."""
    for seed in SEEDS:
        history = copy.deepcopy(history_of(seed))
        try:
            mutant(history)
        except NothingToCorrupt:
            continue
        return history
    raise AssertionError(
        f"none of {len(SEEDS)} runs has anything that {mutant.__name__} can corrupt"
    )
