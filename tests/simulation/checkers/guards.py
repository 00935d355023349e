"""S8: a guarded write is accepted only while the epoch that it depends on is current."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from tests.simulation.history import History, Kind, Operation, Outcome


def newer_grants(history: History, append: Operation) -> list[Operation]:
    """Return the grants of newer epochs of the write's guard that were answered before the write began."""
    return [
        grant
        for grant in history.of(Kind.GRANT, append.guard)
        if grant.outcome is Outcome.OK
        and grant.mode != "Shared"
        and grant.epoch is not None
        and grant.epoch > append.guard_epoch
        and grant.completed < append.invoked
    ]


def guarded_writes(history: History) -> list[str]:
    """S8: no late guarded write gets a receipt or is stored, and the guards' epochs never fall along a log."""
    problems: list[str] = []
    guarded = {append.value: append for append in history.of(Kind.APPEND) if append.guard}
    stored = {entry.value for topic in history.topics for entry in history.logs[topic].entries}
    for append in guarded.values():
        if append.outcome is Outcome.OK or append.value in stored:
            problems += [
                f"{append.topic}: {append.value} under {append.guard} {append.guard_epoch},"
                f" although {grant.epoch} was granted to {grant.holder} before"
                for grant in newer_grants(history, append)[:1]
            ]
    for topic in history.topics:
        epochs: dict[str, list[int]] = defaultdict(list)
        for entry in history.logs[topic].entries:
            if entry.value in guarded:
                append = guarded[entry.value]
                epochs[append.guard].append(append.guard_epoch)
        for guard, numbers in epochs.items():
            if any(later < earlier for earlier, later in pairwise(numbers)):
                problems.append(f"{topic}: epochs of the guard {guard} fall: {numbers}")
    return problems
