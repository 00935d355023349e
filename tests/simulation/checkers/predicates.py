"""All predicates by the numbers of the promises that they check. docs/invariants.md states the promises.

A predicate takes the history of a run and returns one sentence for each violation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.simulation.checkers import guards, liveness, promotion, readers, serving, writes
from tests.simulation.history import History

Predicate = Callable[[History], list[str]]

PREDICATES: Mapping[str, Predicate] = {
    "S1": writes.order,
    "S2": writes.one_holder,
    "S3": writes.real_time,
    "S4": writes.fence_is_final,
    "S5": writes.acks,
    "S6": writes.prefixes,
    "S7": writes.reads_agree,
    "S8": guards.guarded_writes,
    "S9": readers.single_reader,
    "S11": promotion.choice,
    "S12": writes.fence_is_remembered,
    "S14": serving.alone,
    "L1": liveness.some_holder,
    "L2": liveness.queue_moves,
    "L3": liveness.handovers_end,
}


def violated(history: History) -> dict[str, list[str]]:
    """Return the numbers of the broken promises, with their violations."""
    found = {name: check(history) for name, check in PREDICATES.items()}
    return {name: problems for name, problems in found.items() if problems}
