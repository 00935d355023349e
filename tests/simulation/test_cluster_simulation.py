"""Brokers and clients on a cluster of three shards, under faults of its nodes: no run violates a predicate.

The brokers use the production store, with its slot map and its connections, over fake nodes that vote
(onewriter_testing/fake_store/cluster.py). ``ONEWRITER_SEEDS`` adds seeds, as in test_simulation.py. README.md explains
seeds, faults and predicates.

The simulation must find two bugs of the nodes that the model finds (tests/model/test_cluster_protocol.py). Runs with a
bug have one fault only, which exposes the bug in nearly every run. So these tests do not depend on the choice of a seed.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.simulation.checkers.predicates import violated
from tests.simulation.cluster_faults import (
    replicated_topic_loses_primary,
    replicated_topic_loses_volume,
)
from tests.simulation.history import History
from tests.simulation.nemesis import Fault
from tests.simulation.scenario import simulate_cluster
from tests.simulation.test_simulation import seeds, write_history

COVERING_SEEDS = (6, 1)
"""Seeds in whose runs all events of ``SOMETIMES`` occur. After a change, choose them again."""

MORE_SEEDS_MAX = 30
"""Further runs in which an event may occur that no longer occurs in those of the covering seeds."""

MUTANT_SEEDS_MAX = 20
"""Runs in which a bug must be found. Nearly every run finds it, so the first one is usually the only one."""

SOMETIMES = {
    "promotion": "a replica was promoted by a vote",
    "volume lost": "a primary lost its volume and restarted at once",
    "fault.primary_cut_off": "a primary was cut off from the other nodes",
    "fault.primary_frozen": "a primary did not answer, and its connections stayed open",
    "fault.primary_restarted": "a primary restarted with its data",
    "log.bucket.dataset_changed": "an owner fenced its topics in another dataset",
    "log.entries.lost": "a broker reported a loss",
    "log.append.undecided": "a broker repeated an append",
}


def checked_run(seed: int) -> History:
    """Run a seed and check its history. A failure names the violations."""
    history = simulate_cluster(seed)
    problems = [f"{name}: {text}" for name, texts in violated(history).items() for text in texts]
    problems += [f"must never happen: {text}" for text in history.anomalies]
    if problems:
        lines = "\n".join(problem[:500] for problem in problems[:10])
        pytest.fail(
            f"cluster seed {seed}: {len(problems)} problems\n{lines}\nhistory: {write_history(history)}",
            pytrace=False,
        )
    return history


@pytest.mark.timeout(7200)
def test_a_cluster_keeps_every_promise_while_its_nodes_fail() -> None:
    seen: Counter[str] = Counter()
    for seed in [*COVERING_SEEDS, *(seeds() if "ONEWRITER_SEEDS" in os.environ else [])]:
        seen.update(checked_run(seed).seen)
    for seed in range(MORE_SEEDS_MAX):
        if all(seen[what] for what in SOMETIMES):
            return
        seen.update(checked_run(seed).seen)
    missing = [text for what, text in SOMETIMES.items() if not seen[what]]
    raise AssertionError(f"these events never occurred: {'; '.join(missing)}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bug", "fault"),
    [
        ("empty_serves", replicated_topic_loses_volume),
        ("confirms_for_others", replicated_topic_loses_primary),
    ],
)
def test_a_bug_of_the_nodes_loses_an_acknowledged_message(bug: str, fault: Fault) -> None:
    """The run with the bug violates S5, and the same run without the bug violates nothing."""
    faults = {fault.__name__: fault}
    for seed in range(MUTANT_SEEDS_MAX):
        if "S5" in violated(simulate_cluster(seed, faults, **{bug: True})):
            assert violated(simulate_cluster(seed, faults)) == {}
            return
    pytest.fail(f"none of {MUTANT_SEEDS_MAX} runs with {bug} violates S5")
