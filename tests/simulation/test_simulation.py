"""Real brokers and simulated clients under faults, over many seeds: no run violates a predicate.

README.md explains what a seed, an actor, a predicate and a violation are.

``ONEWRITER_SEEDS=n`` runs the seeds 0 to n - 1 (10 by default), ``ONEWRITER_SEEDS=7:8`` repeats seed 7. A run that
fails writes its history into a file, which the failure names. In addition, each event in ``SOMETIMES`` must occur
within a bounded number of runs: a simulation in which no holder is ever deposed proves nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from tests.simulation.checkers.predicates import violated
from tests.simulation.history import History
from tests.simulation.scenario import simulate

SEEDS_DEFAULT = 10
SEEDS_PER_TEST = 10

HISTORIES_KEPT = 16
"""The tests of this folder share the runs of the default seeds, if they run in one process."""

COVERING_SEEDS = (13, 17, 22, 0)
"""Seeds in whose runs all events of ``SOMETIMES`` occur. choose_seeds.py chose them."""

MORE_SEEDS_MAX = 60
"""Further runs in which an event may occur that no longer occurs in those of the covering seeds."""

SOMETIMES = {
    "grant.ok": "a producer was granted a topic",
    "producer waits": "a producer waited in the queue",
    "serve.ok": "a holder received the confirmation that it may serve, and served",
    "queue notice received": "a holder that supports queue notices received one",
    "promotion by load": "a later waiter was promoted, because its host led fewer topics",
    "resume.ok": "a holder returned and kept its epoch",
    "resume.fail": "a holder returned too late and was fenced",
    "message resent": "a producer sent a message again",
    "sequence ids restarted": "a producer restarted its sequence ids while messages were unanswered",
    "append.fail": "a message was certainly refused",
    "append.info": "a producer did not learn the outcome of a message",
    "producer closed by the broker": "a broker told a holder that it had lost the topic",
    "old producer fenced": "a producer that was fenced received no more receipts",
    "impostor refused": "a broker refused an epoch that was stale or never granted",
    "handover.ok": "a handover succeeded",
    "fence.ok": "an administrator deposed a holder",
    "promotion": "a replica of the store became primary",
    "FLUSHALL": "the store was emptied",
    "adopted by force": "an administrator adopted a dataset by force",
    "log.entries.lost": "a broker reported a loss",
    "log.bucket.dataset_changed": "an owner fenced its topics in another dataset",
    "log.topics.unloaded": "a broker unloaded topics that no client used",
    "log.broker.stalled": "a frozen broker resumed",
    "log.append.undecided": "a broker repeated an append",
    "deposed broker fenced": "the store refused an append or a fence of a deposed broker",
    "store.write.refence": "the store refused an append to another dataset",
    "stale delivery dropped": "a consumer dropped a message that was older than its redelivery request",
    "redeliver.ok": "a consumer requested redelivery",
    "own.ok": "a client was granted the ownership of a topic",
    "own.fail": "a client was denied the ownership of a topic",
    "owner reconnected": "an owner returned after it lost its connection",
    "owner redirected": "an owner was redirected because its bucket moved",
    "owner informed that it was deposed": "another client became the owner",
    "consumer of a deposed owner closed": "a broker closed the consumer of a deposed owner",
    "ack.fail": "a broker refused an acknowledgement of a deposed owner",
    "store.write.stale": "the store refused a guarded append whose guard was no longer current",
    "guard check failed": "a guarded write was not sent, because its epoch was no longer current",
    "guarded producer fenced": "a guarded producer was informed that its guard is no longer current",
    "read.ok": "a reader read a whole log",
}
"""Events that must occur in at least one run, with what each means."""


def seeds() -> list[int]:
    request = os.environ.get("ONEWRITER_SEEDS", str(SEEDS_DEFAULT))
    first, _, last = request.rpartition(":")
    return list(range(int(first or 0), int(last)))


def chunks() -> list[list[int]]:
    all_seeds = seeds()
    return [all_seeds[at : at + SEEDS_PER_TEST] for at in range(0, len(all_seeds), SEEDS_PER_TEST)]


def write_history(history: History) -> Path:
    """Write the history of a failed run to a file and return its path."""
    directory = Path(tempfile.gettempdir()) / "onewriter-simulation"
    directory.mkdir(exist_ok=True)
    path = directory / f"seed-{history.seed}.jsonl"
    path.write_text(history.to_text())
    return path


@lru_cache(maxsize=HISTORIES_KEPT)
def checked_run(seed: int) -> History:
    """Run a seed and check its history. Callers must not change the history.

    A failure names the violations and the command that repeats the run.
    """
    history = simulate(seed)
    problems = [f"{name}: {text}" for name, texts in violated(history).items() for text in texts]
    problems += [f"must never happen: {text}" for text in history.anomalies]
    if problems:
        lines = "\n".join(problem[:500] for problem in problems[:10])
        pytest.fail(
            f"seed {seed}: {len(problems)} problems\n{lines}\nhistory: {write_history(history)}\n"
            f"again: ONEWRITER_SEEDS={seed}:{seed + 1} pytest tests/simulation/test_simulation.py",
            pytrace=False,
        )
    return history


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", chunks(), ids=lambda chunk: f"seeds-{chunk[0]}-{chunk[-1]}")
def test_nothing_is_violated(chunk: list[int]) -> None:
    for seed in chunk:
        checked_run(seed)


@pytest.mark.timeout(1800)
def test_everything_interesting_happens_sometimes() -> None:
    """A change of the brokers changes the runs. Then this test needs more runs than those of the covering seeds."""
    seen: Counter[str] = Counter()
    for seed in [*COVERING_SEEDS, *range(1_000_000, 1_000_000 + MORE_SEEDS_MAX)]:
        seen.update(checked_run(seed).seen)
        if all(seen[what] for what in SOMETIMES):
            return
    missing = [text for what, text in SOMETIMES.items() if not seen[what]]
    raise AssertionError(f"these events never occurred: {'; '.join(missing)}")
