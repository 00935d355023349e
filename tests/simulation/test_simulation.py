"""Brokers, clients and stores under faults, over many seeds: no run violates a predicate.

``ONEWRITER_SEEDS=n`` runs the seeds 0 to n - 1 (10 by default), ``ONEWRITER_SEEDS=7:8`` repeats seed 7. A run that
fails writes its history, audit and log into a file that the failure names. In addition, each entry of ``SOMETIMES``
must occur within a bounded number of runs: a simulation in which no holder was ever deposed proves nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.checkers.predicates import violated
from tests.simulation.history import History
from tests.simulation.scenario import simulate

SEEDS_DEFAULT = 10
SEEDS_PER_TEST = 10

SOMETIMES_SEEDS = (6, 22, 13, 4, 37, *range(1_000_000, 1_000_200))
"""These seeds run in this order until everything has occurred. choose_seeds.py chose the first ones."""

SOMETIMES = {
    "grant.ok": "somebody was granted a topic",
    "waits": "a client waited in line",
    "serve.ok": "a holder was assured, and served for a while",
    "told how many wait": "a holder that understands it heard how many wait behind it",
    "spread": "who came later was promoted, because its host had less to lead",
    "resume.ok": "a holder came back and kept its epoch",
    "resume.fail": "one came back too late and was fenced",
    "resent": "messages were sent again",
    "counts anew": "a client began its sequence ids again with messages unanswered",
    "append.fail": "a send was refused for certain",
    "append.info": "the fate of a send was unknown to its client",
    "closed by the broker": "a holder was told that it had lost its turn",
    "old handle fenced": "the fencer saw its old handle fenced",
    "impostor refused": "a made-up or stale epoch was refused",
    "handover.ok": "a handover was done",
    "fence.ok": "an administrator deposed a holder",
    "promotion": "a replica became primary",
    "flushed": "somebody called FLUSHALL",
    "adopted by force": "a person adopted a dataset",
    "log.entries.lost": "a loss was reported",
    "log.bucket.dataset_changed": "an owner fenced its topics in another dataset",
    "log.broker.stalled": "a frozen broker woke",
    "log.append.undecided": "an append had to be repeated",
    "store.write.fenced": "the store refused a zombie's append",
    "store.refence.fenced": "the store refused a zombie's fence",
    "store.write.refence": "the store refused an append of another dataset",
    "stale delivery dropped": "a consumer dropped what was older than its redelivery",
    "redeliver.ok": "a consumer asked for redelivery",
    "own.ok": "a topic was owned",
    "own.fail": "an owner was denied",
    "an owner went on": "an owner returned after its connection was lost",
    "an owner was sent on": "an owner's bucket moved",
    "an owner was told that it was deposed": "somebody else owned it",
    "an owner's consumer was closed": "a deposed owner's reader was closed",
    "ack.fail": "an acknowledgement of a deposed owner was refused",
    "store.write.stale": "the store refused a guarded append whose guard was over",
    "check failed": "the proof of an epoch failed, and the write elsewhere was not sent",
    "guarded producer fenced": "a guarded producer was told that its guard is over",
    "read.ok": "a reader went through a log",
}
"""Events of which each must happen in at least one of the runs."""


def seeds() -> list[int]:
    asked = os.environ.get("ONEWRITER_SEEDS", str(SEEDS_DEFAULT))
    first, _, last = asked.rpartition(":")
    return list(range(int(first or 0), int(last)))


def chunks() -> list[list[int]]:
    all_seeds = seeds()
    return [all_seeds[at : at + SEEDS_PER_TEST] for at in range(0, len(all_seeds), SEEDS_PER_TEST)]


def kept(history: History) -> Path:
    """Write the history of a failed run to a file and return its path."""
    directory = Path(tempfile.gettempdir()) / "onewriter-simulation"
    directory.mkdir(exist_ok=True)
    path = directory / f"seed-{history.seed}.jsonl"
    path.write_text(history.to_text())
    return path


def judged(seed: int) -> History:
    """Run a seed. A failure says what is wrong and how to repeat it."""
    history = simulate(seed)
    problems = [f"{name}: {text}" for name, texts in violated(history).items() for text in texts]
    problems += [f"must never happen: {text}" for text in history.anomalies]
    if problems:
        lines = "\n".join(problem[:500] for problem in problems[:10])
        pytest.fail(
            f"seed {seed}: {len(problems)} problems\n{lines}\nhistory: {kept(history)}\n"
            f"again: ONEWRITER_SEEDS={seed}:{seed + 1} pytest tests/simulation/test_simulation.py",
            pytrace=False,
        )
    return history


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", chunks(), ids=lambda chunk: f"seeds-{chunk[0]}-{chunk[-1]}")
def test_nothing_is_violated(chunk: list[int]) -> None:
    for seed in chunk:
        judged(seed)


@pytest.mark.timeout(1800)
def test_everything_interesting_happens_sometimes() -> None:
    """Uses runs of its own, because those of the other tests may be in other processes."""
    seen: Counter[str] = Counter()
    for seed in SOMETIMES_SEEDS:
        seen.update(judged(seed).seen)
        if all(seen[what] for what in SOMETIMES):
            return
    missing = [text for what, text in SOMETIMES.items() if not seen[what]]
    raise AssertionError(f"never happened: {'; '.join(missing)}")
